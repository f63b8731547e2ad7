"""Layers of recurrent operators: activations, weights, and what one step of time computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from graphc.errors import UnsupportedError
from graphc.ir.build import Builder
from graphc.ir.graph import Value
from graphc.records import dataclass

Activation = Callable[[Builder, Value], Value]
# Activations by lower-case name: defaults of alpha and beta (None: takes none), and a builder.
_ACTIVATIONS: dict[str, tuple[tuple[float | None, float | None], Callable]] = {
    "relu": ((None, None), lambda b, x, *_: b.Relu(x)),
    "tanh": ((None, None), lambda b, x, *_: b.Tanh(x)),
    "sigmoid": ((None, None), lambda b, x, *_: b.Sigmoid(x)),
    "softsign": ((None, None), lambda b, x, *_: b.Softsign(x)),
    "softplus": ((None, None), lambda b, x, *_: b.Softplus(x)),
    "affine": ((1.0, 0.0), lambda b, x, p, q: b.Add(b.Mul(x, p), q)),
    "leakyrelu": ((0.01, None), lambda b, x, p, _: b.LeakyRelu(x, alpha=p)),
    "thresholdedrelu": ((1.0, None), lambda b, x, p, _: b.ThresholdedRelu(x, alpha=p)),
    "scaledtanh": ((1.0, 1.0), lambda b, x, p, q: b.Mul(b.Tanh(b.Mul(x, q)), p)),
    "hardsigmoid": ((0.2, 0.5), lambda b, x, p, q: b.HardSigmoid(x, alpha=p, beta=q)),
    "elu": ((1.0, None), lambda b, x, p, _: b.Elu(x, alpha=p)),
}


def with_steps(b: Builder, lengths: Value, shape: tuple[int, ...]) -> Value:
    """Whether each sample has a step at all, in a shape in which states can be chosen by it."""
    some = b.Greater(lengths, b.constant(0, lengths.tensor.dtype))
    return b.Reshape(some, np.array(shape))


def activations_of(
    names: Sequence[str], alphas: Sequence[float] | None, betas: Sequence[float] | None
) -> list[Activation]:
    """The functions by name, with their parameters."""
    taken = with_parameters(names, alphas, betas)
    return [_bound(_ACTIVATIONS[name.lower()][1], alpha, beta) for name, alpha, beta in taken]


def with_parameters(
    names: Sequence[str], alphas: Sequence[float] | None, betas: Sequence[float] | None
) -> list[tuple[str, float | None, float | None]]:
    """Names of functions, each with its alpha and beta; None if it takes none. The lists are
    consumed by those that take one, in order."""
    alpha_left, beta_left = list(alphas or ()), list(betas or ())
    functions = []
    for name in names:
        row = _ACTIVATIONS.get(name.lower())
        if row is None:
            raise UnsupportedError(f"activation {name!r} is not one of {sorted(_ACTIVATIONS)}")
        alpha, beta = row[0]
        if alpha is not None and alpha_left:
            alpha = alpha_left.pop(0)
        if beta is not None and beta_left:
            beta = beta_left.pop(0)
        functions.append((name, alpha, beta))
    return functions


def _bound(build: Callable, alpha: float | None, beta: float | None) -> Activation:
    return lambda b, x: build(b, x, alpha, beta)


@dataclass
class Layer:
    """Directions of a recurrent layer: weights, bias, functions, and how a step is computed.

    One direction has w (gates * hidden, input), r (gates * hidden, hidden), and `bias` (gates *
    hidden) of W and `rb` of R, or None. Several have r (directions, gates * hidden, hidden), rb
    and peepholes of as many rows, and steps of (directions, batch, features).
    """

    b: Builder
    w: Value
    r: Value
    bias: Value | None
    rb: Value | None
    peepholes: list[Value]
    functions: list[Activation]
    hidden: int
    clip: float | None
    parts: tuple[Value, ...] = ()

    def act(self, number: int, x: Value) -> Value:
        """Function `number` of x, which is clipped first if the op asks for it."""
        if self.clip:
            x = self.b.Clip(x, -self.clip, self.clip)
        return self.functions[number](self.b, x)

    def gate_weights(self, gates: Sequence[int]) -> tuple[Value, ...]:
        """r divided into groups of gates; split once, not in each step."""
        if not self.parts:
            sizes = np.array(gates) * self.hidden
            self.parts = self.b.Split(self.r, sizes, axis=-2, outputs=len(gates))
        return self.parts

    def part(self, x: Value, first: int, last: int) -> Value:
        """Gates `first` to `last` (not included) of (batch, gates * hidden)."""
        limits = (np.array([n * self.hidden]) for n in (first, last))
        return self.b.Slice(x, *limits, np.array([-1]))

    def gates(self, x: Value, count: int) -> tuple[Value, ...]:
        """(batch, count * hidden) as `count` values."""
        sizes = np.full(count, self.hidden)
        return self.b.Split(x, sizes, axis=-1, outputs=count) if count > 1 else (x,)

    def share_of(self, x: Value) -> Value:
        """What (rows, input) adds to the gates: W x + bias."""
        return self.b.Gemm(x, self.w, self.bias, transB=1)

    def add_product(self, h: Value, r: Value, x: Value | None) -> Value:
        """h times the transposed r, plus x; of each direction."""
        b = self.b
        if r.tensor.rank == 2:
            return b.Gemm(h, r, x, transB=1)
        product = b.Einsum(h, r, equation="wbh,wgh->wbg")
        return product if x is None else b.Add(product, x)


Step = Callable[[Layer, Value, list[Value]], list[Value]]


def rnn_step(layer: Layer, x: Value, state: list[Value]) -> list[Value]:
    """h = f(W x + R h + b)."""
    return [layer.act(0, layer.add_product(state[0], layer.r, x))]


def lstm_step(layer: Layer, x: Value, state: list[Value], coupled: bool = False) -> list[Value]:
    """Gates i, o, f, c of W x + R h + b: C = f C + i c, h = o tanh(C)."""
    b, (h, cell) = layer.b, state
    i, o, f, c = layer.gates(layer.add_product(h, layer.r, x), 4)
    if layer.peepholes:
        i = b.Add(i, b.Mul(layer.peepholes[0], cell))
        f = b.Add(f, b.Mul(layer.peepholes[2], cell))
    i = layer.act(0, i)
    f = b.Sub(1.0, i) if coupled else layer.act(0, f)
    cell = b.Add(b.Mul(f, cell), b.Mul(i, layer.act(1, c)))
    if layer.peepholes:
        o = b.Add(o, b.Mul(layer.peepholes[1], cell))
    return [b.Mul(layer.act(0, o), layer.functions[2](b, cell)), cell]


def lstm_coupled_step(layer: Layer, x: Value, state: list[Value]) -> list[Value]:
    """An LSTM step whose forget gate is 1 - i."""
    return lstm_step(layer, x, state, coupled=True)


def gru_step(layer: Layer, x: Value, state: list[Value]) -> list[Value]:
    """Gates z, r; c = g(W x + R (r h) + b); h = (1 - z) c + z h."""
    b, (h,) = layer.b, state
    update, candidate = layer.gate_weights((2, 1))
    z, r = layer.gates(layer.act(0, layer.add_product(h, update, layer.part(x, 0, 2))), 2)
    c = layer.act(1, layer.add_product(b.Mul(r, h), candidate, layer.part(x, 2, 3)))
    return [b.Add(c, b.Mul(z, b.Sub(h, c)))]


def gru_reset_after_step(layer: Layer, x: Value, state: list[Value]) -> list[Value]:
    """As gru_step, but c = g(W x + b + r (R h + rb)): one product serves all gates."""
    b, (h,) = layer.b, state
    own = layer.add_product(h, layer.r, layer.rb)
    (x_z, h_z), (x_r, h_r), (x_c, h_c) = (
        [layer.part(v, n, n + 1) for v in (x, own)] for n in range(3)
    )
    z, r = layer.act(0, b.Add(x_z, h_z)), layer.act(0, b.Add(x_r, h_r))
    c = layer.act(1, b.Add(x_c, b.Mul(r, h_c)))
    return [b.Add(c, b.Mul(z, b.Sub(h, c)))]
