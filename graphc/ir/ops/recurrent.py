"""RNN, GRU and LSTM, unrolled over the sequence.

The input's share of every gate is one matrix product for all time steps; a step then is one Gemm
that adds the state's share, and elementwise gates. The reverse direction walks the steps backwards.
With `sequence_lens` a step beyond a sample's end keeps its state and gives zeros, in either
direction, so that no sequence is ever reversed in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from graphc.errors import ModelError, UnsupportedError
from graphc.ir.build import Builder
from graphc.ir.graph import Value
from graphc.ir.opdef import Float, Int, composite

# Activations by lower-case name: defaults of alpha and beta (None: takes none), and a builder.
Activation = Callable[[Builder, Value], Value]
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


def activations_of(names: Sequence[str], alphas, betas) -> list[Activation]:
    """The functions by name; alpha and beta lists are consumed by those that take one, in order."""
    alpha_left, beta_left = list(alphas or ()), list(betas or ())
    found = []
    for name in names:
        row = _ACTIVATIONS.get(name.lower())
        if row is None:
            raise UnsupportedError(f"activation {name!r} is none of {sorted(_ACTIVATIONS)}")
        (alpha, beta), build = row
        if alpha is not None and alpha_left:
            alpha = alpha_left.pop(0)
        if beta is not None and beta_left:
            beta = beta_left.pop(0)
        found.append(_bound(build, alpha, beta))
    return found


def _bound(build: Callable, alpha, beta) -> Activation:
    return lambda b, x: build(b, x, alpha, beta)


@dataclass
class Layer:
    """One direction of a recurrent layer: weights, bias, functions, and how a step is computed.

    w (gates * hidden, input), r (gates * hidden, hidden), and `bias` (gates * hidden) of W and `rb`
    of R, or None.
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
            self.parts = self.b.Split(self.r, sizes, axis=0, outputs=len(gates))
        return self.parts

    def gates(self, x: Value, count: int) -> tuple[Value, ...]:
        """(batch, count * hidden) as `count` values."""
        sizes = np.full(count, self.hidden)
        return self.b.Split(x, sizes, axis=1, outputs=count) if count > 1 else (x,)


Step = Callable[[Layer, Value, list[Value]], list[Value]]


def rnn_step(layer: Layer, x: Value, state: list[Value]) -> list[Value]:
    """h = f(W x + R h + b)."""
    return [layer.act(0, layer.b.Gemm(state[0], layer.r, x, transB=1))]


def lstm_step(layer: Layer, x: Value, state: list[Value], coupled: bool = False) -> list[Value]:
    """Gates i, o, f, c of W x + R h + b: C = f C + i c, h = o tanh(C)."""
    b, (h, cell) = layer.b, state
    i, o, f, c = layer.gates(b.Gemm(h, layer.r, x, transB=1), 4)
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
    b, (h,), size = layer.b, state, layer.hidden
    xs = b.Split(x, np.array([2 * size, size]), axis=1, outputs=2)
    update, candidate = layer.gate_weights((2, 1))
    z, r = layer.gates(layer.act(0, b.Gemm(h, update, xs[0], transB=1)), 2)
    c = layer.act(1, b.Gemm(b.Mul(r, h), candidate, xs[1], transB=1))
    return [b.Add(c, b.Mul(z, b.Sub(h, c)))]


def gru_reset_after_step(layer: Layer, x: Value, state: list[Value]) -> list[Value]:
    """As gru_step, but c = g(W x + b + r (R h + rb)): one product serves all gates."""
    b, (h,), size = layer.b, state, layer.hidden
    own = b.Gemm(h, layer.r, layer.rb, transB=1)
    (x_zr, x_c), (h_zr, h_c) = (
        b.Split(v, np.array([2 * size, size]), axis=1, outputs=2) for v in (x, own)
    )
    z, r = layer.gates(layer.act(0, b.Add(x_zr, h_zr)), 2)
    c = layer.act(1, b.Add(x_c, b.Mul(r, h_c)))
    return [b.Add(c, b.Mul(z, b.Sub(h, c)))]


# ---------------------------------------------------------------- the walk over time


@dataclass
class Recurrence:
    """A recurrent op with its operands: x (sequence, batch, input) after undoing `layout`."""

    b: Builder
    x: Value
    lengths: Value | None
    hidden: int
    gates: int
    layout: int

    def __post_init__(self):
        if self.layout:
            self.x = self.b.Transpose(self.x, perm=(1, 0, 2))
        self.sequence, self.batch, _ = self.x.tensor.static_shape

    def initial(self, value: Value | None, direction: int) -> Value:
        """The (batch, hidden) state to start from; zeros if none is given."""
        if value is None:
            return self.b.constant(np.zeros((self.batch, self.hidden), self.x.tensor.dtype.np))
        axis = 1 if self.layout else 0
        return pick(self.b, value, direction, axis)

    def run(self, layer: Layer, step: Step, state: list[Value], backwards: bool):
        """Per time step h, and the last state. Everything of shape (batch, hidden)."""
        b, order = self.b, range(self.sequence)
        shares = self.input_shares(layer)
        outputs: list[Value] = [state[0]] * self.sequence
        for t in reversed(order) if backwards else order:
            new = step(layer, shares[t], state)
            outputs[t] = new[0]
            if self.lengths is not None:
                alive = b.Less(b.constant(np.int32(t)), self.lengths)
                outputs[t] = b.Where(alive, new[0], b.constant(0, new[0].tensor.dtype))
                new = [b.Where(alive, n, old) for n, old in zip(new, state)]
            state = new
        return outputs, state

    def input_shares(self, layer: Layer) -> Sequence[Value]:
        """W x + b of every step, from one matrix product."""
        b, features = self.b, self.x.tensor.static_shape[2]
        flat = b.Reshape(self.x, np.array((self.sequence * self.batch, features)))
        shares = b.Gemm(flat, layer.w, layer.bias, transB=1)
        if self.sequence <= 1:
            return [shares]
        sizes = np.full(self.sequence, self.batch)
        return b.Split(shares, sizes, axis=0, outputs=self.sequence)


def pick(b: Builder, value: Value, position: int, axis: int = 0) -> Value:
    """value at one position of an axis, without that axis."""
    if value.tensor.dims[axis] != 1:
        limits = (np.array([position]), np.array([position + 1]), np.array([axis]))
        value = b.Slice(value, *limits)
    return b.Squeeze(value, np.array([axis]))


def recurrent(
    b: Builder, x, w, r, bias, lengths, initial: Sequence[Value | None], peepholes, *,
    gates: int, step: Step, hidden_size, direction, activations, activation_alpha,
    activation_beta, clip, layout, separate_biases=False,
):  # fmt: skip
    """Runs one or two directions; returns Y, then the last value of each state."""
    directions = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
    if direction not in directions:
        raise ModelError(f"direction {direction!r} is none of {sorted(directions)}")
    ways = directions[direction]
    hidden = hidden_size or r.tensor.static_shape[2]
    whole = Recurrence(b, x, _column(b, lengths), hidden, gates, layout)
    functions = activations_of(activations, activation_alpha, activation_beta)
    per_way = len(functions) // len(ways)
    results = []
    for n, backwards in enumerate(ways):
        own = functions[n * per_way : (n + 1) * per_way]
        layer = _layer(b, n, w, r, bias, peepholes, own, hidden, gates, clip, separate_biases)
        state = [whole.initial(v, n) for v in initial]
        results.append(whole.run(layer, step, state, backwards))
    return _collect(whole, results, len(initial))


def _column(b: Builder, lengths: Value | None) -> Value | None:
    return None if lengths is None else b.Unsqueeze(lengths, np.array([1]))


def _layer(b, n, w, r, bias, peepholes, functions, hidden, gates, clip, separate) -> Layer:
    wb = rb = None
    if bias is not None:
        both = pick(b, bias, n)
        wb, rb = b.Split(both, np.array([gates * hidden] * 2), axis=0, outputs=2)
        if not separate:
            wb, rb = b.Add(wb, rb), None
    holes = []
    if peepholes is not None:
        holes = list(b.Split(pick(b, peepholes, n), np.full(3, hidden), axis=0, outputs=3))
    return Layer(b, pick(b, w, n), pick(b, r, n), wb, rb, holes, functions, hidden, clip)


def _collect(whole: Recurrence, results, states: int) -> list[Value]:
    """Y (sequence, directions, batch, hidden) and states (directions, batch, hidden), or with
    the batch first."""
    b, hidden = whole.b, whole.hidden
    shape = np.array((whole.sequence, 1, whole.batch, hidden))
    sides = [b.Reshape(_concat(b, outputs, 0), shape) for outputs, _ in results]
    y = _concat(b, sides, 1)
    last = []
    for k in range(states):
        rows = [b.Unsqueeze(state[k], np.array([0])) for _, state in results]
        last.append(_concat(b, rows, 0))
    if whole.layout:
        y = b.Transpose(y, perm=(2, 0, 1, 3))
        last = [b.Transpose(v, perm=(1, 0, 2)) for v in last]
    return [y, *last]


def _concat(b: Builder, values: Sequence[Value], axis: int) -> Value:
    return values[0] if len(values) == 1 else b.Concat(*values, axis=axis)


# ---------------------------------------------------------------- the operators


def _names(given: Sequence[str] | None, default: tuple[str, ...], direction: str) -> Sequence[str]:
    count = len(default) * (2 if direction == "bidirectional" else 1)
    names = given or tuple(default) * (count // len(default))
    if len(names) != count:
        raise ModelError(f"{len(names)} activations given, {count} required")
    return names


@composite("RNN", outputs=None)
def rnn(
    b, x: Float, w: Float, r: Float, bias: Float | None = None, sequence_lens: Int | None = None,
    initial_h: Float | None = None, *, activation_alpha=None, activation_beta=None,
    activations=None, clip=None, direction="forward", hidden_size=None, layout=0,
):  # fmt: skip
    """A simple recurrent layer: Y, and the last h."""
    return recurrent(
        b, x, w, r, bias, sequence_lens, [initial_h], None, gates=1, step=rnn_step,
        hidden_size=hidden_size, direction=direction,
        activations=_names(activations, ("Tanh",), direction), activation_alpha=activation_alpha,
        activation_beta=activation_beta, clip=clip, layout=layout,
    )  # fmt: skip


@composite("GRU", outputs=None)
def gru(
    b, x: Float, w: Float, r: Float, bias: Float | None = None, sequence_lens: Int | None = None,
    initial_h: Float | None = None, *, activation_alpha=None, activation_beta=None,
    activations=None, clip=None, direction="forward", hidden_size=None, layout=0,
    linear_before_reset=0,
):  # fmt: skip
    """A gated recurrent layer: Y, and the last h."""
    return recurrent(
        b, x, w, r, bias, sequence_lens, [initial_h], None, gates=3,
        step=gru_reset_after_step if linear_before_reset else gru_step,
        hidden_size=hidden_size, direction=direction,
        activations=_names(activations, ("Sigmoid", "Tanh"), direction),
        activation_alpha=activation_alpha, activation_beta=activation_beta, clip=clip,
        layout=layout, separate_biases=bool(linear_before_reset),
    )  # fmt: skip


@composite("LSTM", outputs=None)
def lstm(
    b, x: Float, w: Float, r: Float, bias: Float | None = None, sequence_lens: Int | None = None,
    initial_h: Float | None = None, initial_c: Float | None = None, p: Float | None = None, *,
    activation_alpha=None, activation_beta=None, activations=None, clip=None,
    direction="forward", hidden_size=None, input_forget=0, layout=0,
):  # fmt: skip
    """A long short-term memory layer: Y, the last h and the last cell."""
    return recurrent(
        b, x, w, r, bias, sequence_lens, [initial_h, initial_c], p, gates=4,
        step=lstm_coupled_step if input_forget else lstm_step,
        hidden_size=hidden_size, direction=direction,
        activations=_names(activations, ("Sigmoid", "Tanh", "Tanh"), direction),
        activation_alpha=activation_alpha, activation_beta=activation_beta, clip=clip,
        layout=layout,
    )  # fmt: skip
