"""RNN, GRU and LSTM, unrolled over the sequence; a very long one in pieces (long_recurrent.py).

The input's share of every gate is one matrix product for all time steps; a step then is one Gemm
that adds the state's share, and elementwise gates. The reverse direction walks the steps backwards.
Two directions of equal functions may take their steps together, as a batch of two matrix products.
With `sequence_lens` a step beyond a sample's end keeps its state and gives zeros, in either
direction, so that no sequence is ever reversed in memory. The last state of a sample without steps
is zero, whatever it starts from, as ONNX Runtime has it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from graphc.errors import ModelError
from graphc.ir.build import Builder
from graphc.ir.graph import Value
from graphc.ir.opdef import Float, Int, composite
from graphc.ir.ops import long_recurrent
from graphc.ir.ops.helpers import filled, joined, shaped, sliced
from graphc.ir.ops.in_range import require
from graphc.ir.ops.recurrent_layers import (
    Layer,
    Step,
    activations_of,
    gru_reset_after_step,
    gru_step,
    lstm_coupled_step,
    lstm_step,
    rnn_step,
    with_parameters,
    with_steps,
)
from graphc.records import dataclass


def ways_of(direction: str) -> tuple[bool, ...]:
    """For each direction of a layer whether it goes backwards."""
    directions = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
    if direction not in directions:
        raise ModelError(f"direction {direction!r} is not one of {sorted(directions)}")
    return directions[direction]


@dataclass
class Recurrence:
    """A recurrent op with its operands: x (sequence, batch, input) after undoing `layout`."""

    b: Builder
    x: Value
    lengths: Value | None
    hidden: int
    gates: int
    layout: int

    def __post_init__(self) -> None:
        if self.layout:
            self.x = self.b.Transpose(self.x, perm=(1, 0, 2))
        self.sequence, self.batch = self.x.tensor.extent(0), self.x.tensor.dims[1]

    def initial(self, value: Value | None, direction: int) -> Value:
        """The (batch, hidden) state to start from; zeros if none is given."""
        if value is None:
            return filled(self.b, 0, (self.batch, self.hidden), self.x.tensor.dtype)
        axis = 1 if self.layout else 0
        return pick(self.b, value, direction, axis)

    def run(
        self, layer: Layer, step: Step, state: list[Value], backwards: bool,
    ) -> tuple[list[Value], list[Value]]:  # fmt: skip
        """Per time step h, and the last state. Everything of shape (batch, hidden)."""
        shares = self.input_shares(layer)
        order = range(self.sequence)
        outputs: list[Value] = [state[0]] * self.sequence
        for t in reversed(order) if backwards else order:
            outputs[t], state = self.advance(layer, step, shares[t], state, np.array(t, np.int32))
        return outputs, state

    def run_both(
        self, ways: Sequence[Layer], layer: Layer, step: Step, states: list[list[Value]],
    ) -> list[tuple[list[Value], list[Value]]]:  # fmt: skip
        """The results of `run` forwards and backwards; `layer` is both of `ways`."""
        b, last = self.b, self.sequence - 1
        shares = [self.input_shares(way) for way in ways]
        state = [stack(b, pair) for pair in zip(*states)]
        outputs: list[list[Value]] = [[], []]
        for t in range(self.sequence):
            x = stack(b, [shares[0][t], shares[1][last - t]])
            times = np.array([t, last - t], np.int32).reshape(2, 1, 1)
            h, state = self.advance(layer, step, x, state, times)
            for collected, row in zip(outputs, unstack(b, h)):
                collected.append(row)
        return [
            (rows, list(final))
            for rows, final in zip(
                [outputs[0], outputs[1][::-1]], zip(*(unstack(b, value) for value in state))
            )
        ]

    def advance(
        self, layer: Layer, step: Step, x: Value, state: list[Value], time: np.ndarray,
    ) -> tuple[Value, list[Value]]:  # fmt: skip
        """One step at a time, or at one per direction: h, zero beyond the end, and the state."""
        b = self.b
        new = step(layer, x, state)
        if self.lengths is None:
            return new[0], new
        alive = b.Less(b.constant(time), self.lengths)
        kept = [b.Where(alive, n, old) for n, old in zip(new, state)]
        return b.Where(alive, new[0], b.constant(0, new[0].tensor.dtype)), kept

    def input_shares(self, layer: Layer) -> Sequence[Value]:
        """W x + b of every step, from one matrix product."""
        b, features = self.b, self.x.tensor.dims[2]
        flat = shaped(b, self.x, self.sequence * self.batch, features)
        shares = layer.share_of(flat)
        if self.sequence <= 1:
            return [shares]
        sizes = b.dims([self.batch] * self.sequence)
        return b.Split(shares, sizes, axis=0, outputs=self.sequence)


def started(
    b: Builder, state: Value | None, x: Value, lengths: Value | None, layout: int = 0
) -> Value | None:
    """The state to start from; None, which stands for zero, if there are no steps, and zero for
    samples that have none."""
    if state is None or x.tensor.dims[1 if layout else 0] == 0:
        return None
    if lengths is None:
        return state
    some = with_steps(b, lengths, (-1, 1, 1) if layout else (1, -1, 1))
    return b.Where(some, state, b.constant(0, state.tensor.dtype))


def pick(b: Builder, value: Value, position: int, axis: int = 0) -> Value:
    """value at one position of an axis, without that axis."""
    return b.Squeeze(sliced(b, value, position, position + 1, axis), np.array([axis]))


def stack(b: Builder, values: Sequence[Value]) -> Value:
    """Values of equal shape along a new first axis."""
    return b.Concat(*(b.Unsqueeze(v, np.array([0])) for v in values), axis=0)


def unstack(b: Builder, value: Value) -> list[Value]:
    """The values along the first axis, without it."""
    count = value.tensor.extent(0)
    parts = b.Split(value, np.ones(count, np.int64), axis=0, outputs=count)
    return [b.Squeeze(part, np.array([0])) for part in parts]


def recurrent(
    b: Builder, name: str, x: Value, w: Value, r: Value, bias: Value | None, lengths: Value | None,
    initial: Sequence[Value | None], peepholes: Value | None, *, gates: int, step: Step,
    default: tuple[str, ...], layout: int, hidden_size: int | None, direction: str,
    activations: Sequence[str] | None, activation_alpha: Sequence[float] | None,
    activation_beta: Sequence[float] | None, clip: float | None, separate_biases: bool = False,
    own: Mapping[str, int] | None = None,
) -> list[Value]:  # fmt: skip
    """Runs one or two directions; returns Y, then the last value of each state. `default` names the
    functions of a direction; `own` are the attributes that operators of this `name` alone have."""
    names = function_names(activations, default, direction)
    lists = (names, activation_alpha, activation_beta)
    if lengths is not None:
        require(b, lengths, 0, long_recurrent.steps_of(x, layout), "length")
    ways = ways_of(direction)
    hidden = hidden_size or r.tensor.extent(2)
    initial = [started(b, v, x, lengths, layout) for v in initial]
    if long_recurrent.steps_of(x, layout) > long_recurrent.MOST_STEPS:
        attrs = [
            {"direction": "reverse" if back else "forward", "hidden_size": hidden, "clip": clip,
             **split, **(own or {})}
            for back, split in zip(ways, _lists_of_ways(len(ways), *lists))
        ]  # fmt: skip
        return long_recurrent.in_pieces(
            b, name, x, [w, r, bias], lengths, initial, peepholes, ways=attrs, layout=layout,
            hidden=hidden,
        )  # fmt: skip
    whole = Recurrence(b, x, column(b, lengths), hidden, gates, layout)
    functions = by_way(activations_of(*lists), len(ways))
    layers = [
        layer_of(b, n, w, r, bias, peepholes, activations, hidden, gates, clip, separate_biases)
        for n, activations in enumerate(functions)
    ]
    states = [[whole.initial(v, n) for v in initial] for n in range(len(ways))]
    if b.batched and len(ways) == 2 and _same(*lists):
        results = whole.run_both(layers, _both(b, layers, r), step, states)
    else:
        results = [whole.run(*arguments) for arguments in zip(layers, [step] * 2, states, ways)]
    return collect(whole, results, len(initial))


def _lists_of_ways(
    ways: int, names: Sequence[str], alphas: Sequence[float] | None, betas: Sequence[float] | None
) -> list[dict]:
    """The attributes that say which functions each direction has."""
    return [
        {
            "activations": tuple(name for name, _, _ in own),
            "activation_alpha": tuple(x for _, x, _ in own if x is not None) or None,
            "activation_beta": tuple(x for _, _, x in own if x is not None) or None,
        }
        for own in by_way(with_parameters(names, alphas, betas), ways)
    ]


def by_way(functions: list, ways: int) -> list[list]:
    """What belongs to each direction of a list that holds as much for all."""
    count = len(functions) // ways
    return [functions[way * count : (way + 1) * count] for way in range(ways)]


def column(b: Builder, lengths: Value | None) -> Value | None:
    """The lengths of samples as (batch, 1)."""
    return None if lengths is None else b.Unsqueeze(lengths, np.array([1]))


def layer_of(
    b: Builder, n: int, w: Value, r: Value, bias: Value | None, peepholes: Value | None,
    functions: list, hidden: int, gates: int, clip: float | None, separate: bool = False,
) -> Layer:  # fmt: skip
    """Direction n of a layer; the biases of W and R are one unless they are kept `separate`."""
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


def _same(*lists: Sequence | None) -> bool:
    """Whether the first half of each list is the second."""
    halves = ((list(x[: len(x) // 2]), list(x[len(x) // 2 :])) for x in lists if x)
    return all(first == second for first, second in halves)


def _both(b: Builder, layers: Sequence[Layer], r: Value) -> Layer:
    """Two directions as one layer."""
    first, second = layers
    rows = None
    if first.rb is not None and second.rb is not None:
        rows = _rows(b, first.rb, second.rb)
    holes = [_rows(b, *pair) for pair in zip(first.peepholes, second.peepholes)]
    return replace(first, r=r, rb=rows, peepholes=holes)


def _rows(b: Builder, *values: Value) -> Value:
    """(features) of each direction as (directions, 1, features)."""
    return b.Unsqueeze(stack(b, values), np.array([1]))


def collect(
    whole: Recurrence, results: Sequence[Sequence[Sequence[Value]]], states: int,
) -> list[Value]:  # fmt: skip
    """Y (sequence, directions, batch, hidden) and states (directions, batch, hidden), or with
    the batch first."""
    b, hidden = whole.b, whole.hidden
    shape = (whole.sequence, 1, whole.batch, hidden)
    if whole.sequence:
        sides = [shaped(b, joined(b, outputs, 0), *shape) for outputs, _ in results]
    else:
        sides = [filled(b, 0, shape, whole.x.tensor.dtype) for _ in results]
    y = joined(b, sides, 1)
    last = []
    for k in range(states):
        rows = [b.Unsqueeze(state[k], np.array([0])) for _, state in results]
        last.append(joined(b, rows, 0))
    if whole.layout:
        y = b.Transpose(y, perm=(2, 0, 1, 3))
        last = [b.Transpose(v, perm=(1, 0, 2)) for v in last]
    return [y, *last]


# ---------------------------------------------------------------- the operators


def function_names(
    given: Sequence[str] | None, default: tuple[str, ...], direction: str
) -> Sequence[str]:
    """The functions of all directions, which are the default ones unless others are given."""
    count = len(default) * (2 if direction == "bidirectional" else 1)
    names = given or tuple(default) * (count // len(default))
    if len(names) != count:
        raise ModelError(f"{len(names)} activations given, {count} required")
    return names


RECURRENT = {
    "activation_alpha": None, "activation_beta": None, "activations": None, "clip": None,
    "direction": "forward", "hidden_size": None,
}  # fmt: skip
"""The attributes of recurrent layers."""


@composite("RNN", outputs=None, traits=("recurrent",))
def rnn(
    b: Builder, x: Float, w: Float, r: Float, bias: Float | None = None,
    sequence_lens: Int | None = None, initial_h: Float | None = None, *, layout: int = 0,
    **attrs: RECURRENT,
) -> list[Value] | None:  # fmt: skip
    """A simple recurrent layer: Y, and the last h."""
    return recurrent(
        b, "RNN", x, w, r, bias, sequence_lens, [initial_h], None, gates=1, step=rnn_step,
        default=("Tanh",), layout=layout, **attrs,
    )  # fmt: skip


@composite("GRU", outputs=None, traits=("recurrent",))
def gru(
    b: Builder, x: Float, w: Float, r: Float, bias: Float | None = None,
    sequence_lens: Int | None = None, initial_h: Float | None = None, *, layout: int = 0,
    linear_before_reset: int = 0, **attrs: RECURRENT,
) -> list[Value]:  # fmt: skip
    """A gated recurrent layer: Y, and the last h."""
    return recurrent(
        b, "GRU", x, w, r, bias, sequence_lens, [initial_h], None, gates=3,
        step=gru_reset_after_step if linear_before_reset else gru_step,
        default=("Sigmoid", "Tanh"), layout=layout, separate_biases=bool(linear_before_reset),
        own={"linear_before_reset": linear_before_reset}, **attrs,
    )  # fmt: skip


@composite("LSTM", outputs=None, traits=("recurrent",))
def lstm(
    b: Builder, x: Float, w: Float, r: Float, bias: Float | None = None,
    sequence_lens: Int | None = None, initial_h: Float | None = None,
    initial_c: Float | None = None, p: Float | None = None, *, input_forget: int = 0,
    layout: int = 0, **attrs: RECURRENT,
) -> list[Value]:  # fmt: skip
    """A long short-term memory layer: Y, the last h and the last cell."""
    return recurrent(
        b, "LSTM", x, w, r, bias, sequence_lens, [initial_h, initial_c], p, gates=4,
        step=lstm_coupled_step if input_forget else lstm_step,
        default=("Sigmoid", "Tanh", "Tanh"), layout=layout, own={"input_forget": input_forget},
        **attrs,
    )  # fmt: skip
