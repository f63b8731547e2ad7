"""RNN, GRU and LSTM in fixed point: what quantised ones become where floats are slow.

    input         integers of 8 or 16 bits, whose zero point is part of the bias
    weights       integers of 8 bits, a factor for each row
    h             16 bits, in units of 2**-15; gates likewise
    sums          32 bits, in units of 2**-16: each product of a matrix is brought there by one
                  multiplication of 32 bits, of which the upper half is kept
    cell          32 bits, in units of 2**-18: at most 8192

The sigmoid is read off a table of 513 entries over -16..16 and interpolated, tanh(x) is
2 sigmoid(2 x) - 1 from the same table. Interpolation between points h apart is off by at most
h**2 / 8 times the largest second derivative (0.0963 of the sigmoid), which is 4.7e-5; with the
rounding of entries and of results the sigmoid is within 8e-5 of the exact one, tanh within 1.6e-4.
"""

from __future__ import annotations

import numpy as np

from graphc.ir.build import Builder
from graphc.ir.dtypes import DType, i16, i32, i64
from graphc.ir.expr import Expr, maximum, minimum
from graphc.ir.graph import Value
from graphc.ir.opdef import Int, Operand, OutIndex, composite, op
from graphc.ir.ops.fixed_point import DOMAIN
from graphc.ir.ops.helpers import filled
from graphc.ir.ops.recurrent import Recurrence, collect, pick, ways_of
from graphc.ir.ops.recurrent_layers import Layer, Step
from graphc.records import dataclass

STATE_BITS, SUM_BITS, CELL_BITS = 15, 16, 18  # after the point
REACH = 4  # the table goes from -2**4 to 2**4
POINTS = 9  # in 2**9 intervals
WITHIN = SUM_BITS + REACH + 1 - POINTS  # bits of a sum that tell a place within an interval


def sigmoid_table() -> np.ndarray:
    """The sigmoid at the ends of all intervals, int16."""
    x = np.linspace(-(2.0**REACH), 2.0**REACH, (1 << POINTS) + 1)
    exact = (1 << STATE_BITS) / (1 + np.exp(-x))
    return np.minimum(np.rint(exact), (1 << STATE_BITS) - 1).astype(np.int16)


def _interpolated(x: Expr, table: Operand, within: int, scale: int) -> Expr:
    """`scale` (1 or 2) times the table's function of x, of which the lowest `within` bits are
    places in an interval."""
    half = 1 << POINTS - 1
    x = minimum(maximum(x, -half << within), (half << within) - 1)
    place, part = (x >> within) + half, x & ((1 << within) - 1)
    here, there = (table[(place + n).cast(i64)].cast(i32) for n in (0, 1))
    fine = within - (scale - 1)
    return here * scale + (((there - here) * part + (1 << fine - 1)) >> fine)


def _high(a: Expr, b: Expr) -> Expr:
    """The upper half of a product of i32, rounded."""
    return ((a.cast(i64) * b.cast(i64) + (1 << 31)) >> 32).cast(i32)


def _share(part: Expr, x: Expr) -> Expr:
    """part * x, of a part in units of 2**-15."""
    return _high(x, part.cast(i32) << SUM_BITS) << 1


def _tanh(x: Expr, table: Operand) -> Expr:
    """Of a sum, in units of 2**-15."""
    return _interpolated(x, table, WITHIN - 1, 2) - (1 << STATE_BITS)


@op("FixedSum", domain=DOMAIN)
def fixed_sum(i: OutIndex, x: Int, by: Int, added: Int | None = None, *, left: int) -> Expr:
    """x * by * 2**(left - 32), rounded, and `added` to it."""
    value = _high(x[i] << left, by[i])
    return value if added is None else value + added[i]


@op("FixedSigmoid", domain=DOMAIN, infer=lambda x, *_: x.shape)
def fixed_sigmoid(i: OutIndex, x: Int, table: Int) -> Expr:
    """The sigmoid of a sum, in units of 2**-15."""
    return _interpolated(x[i], table, WITHIN, 1).cast(i16)


@op("FixedTanh", domain=DOMAIN, infer=lambda x, *_: x.shape)
def fixed_tanh(i: OutIndex, x: Int, table: Int) -> Expr:
    """The hyperbolic tangent of a sum, in units of 2**-15."""
    return _tanh(x[i], table).cast(i16)


@op("FixedCell", domain=DOMAIN)
def fixed_cell(i: OutIndex, cell: Int, take: Int, keep: Int, half: Int) -> Expr:
    """keep * cell + take * (2 half - 1): the next cell of an LSTM."""
    new = half[i].cast(i32) * 2 - (1 << STATE_BITS)
    distance = 2 * STATE_BITS - CELL_BITS
    more = (take[i].cast(i32) * new + (1 << distance - 1)) >> distance
    return _share(keep[i], cell[i]) + more


@op("FixedOutput", domain=DOMAIN, infer=lambda cell, *_: cell.shape)
def fixed_output(i: OutIndex, cell: Int, gate: Int, table: Int) -> Expr:
    """gate * tanh(cell): what an LSTM gives."""
    curve = _tanh(cell[i] >> CELL_BITS - SUM_BITS, table)
    return ((gate[i].cast(i32) * curve + (1 << STATE_BITS - 1)) >> STATE_BITS).cast(i16)


@op("FixedReset", domain=DOMAIN)
def fixed_reset(i: OutIndex, gate: Int, state: Int) -> Expr:
    """gate * state, of a state in units of 2**-15."""
    product = gate[i].cast(i32) * state[i].cast(i32)
    return ((product + (1 << STATE_BITS - 1)) >> STATE_BITS).cast(i16)


@op("FixedShare", domain=DOMAIN)
def fixed_share(i: OutIndex, gate: Int, total: Int) -> Expr:
    """gate * total, of a sum."""
    return _share(gate[i], total[i])


@op("FixedMixture", domain=DOMAIN)
def fixed_mixture(i: OutIndex, gate: Int, old: Int, new: Int) -> Expr:
    """new + gate * (old - new): the next state of a GRU."""
    change = gate[i].cast(i32) * (old[i].cast(i32) - new[i].cast(i32))
    rounded = (change + (1 << STATE_BITS - 1)) >> STATE_BITS
    return (new[i].cast(i32) + rounded).cast(i16)


# ---------------------------------------------------------------- layers


@dataclass(kw_only=True)
class FixedLayer(Layer):
    """A direction whose w (input, gates * hidden) and r (hidden, gates * hidden) are integers;
    `w_by` and `r_by` bring their sums to units of 2**-16, after shifts to the left."""

    w_by: Value
    r_by: Value
    w_left: int
    r_left: int
    table: Value

    def share_of(self, x: Value) -> Value:
        """W x + bias."""
        total = self.b.MatMulInteger(x, self.w)
        return self.fixed("FixedSum", total, self.w_by, self.bias, left=self.w_left)

    def state_share(self, h: Value, added: Value | None, gates: tuple[int, int]) -> Value:
        """R h + added, of the gates from one number to before another."""
        first, last = (np.array([n * self.hidden]) for n in gates)
        r, by = (self.b.Slice(v, first, last, np.array([-1])) for v in (self.r, self.r_by))
        total = self.b.MatMulInteger(h, r)
        return self.fixed("FixedSum", total, by, added, left=self.r_left)

    def fixed(self, name: str, *operands: Value | None, **attrs: int) -> Value:
        return self.b.op(name, *operands, domain=DOMAIN, **attrs)

    def sigmoid(self, x: Value) -> Value:
        return self.fixed("FixedSigmoid", x, self.table)

    def tanh(self, x: Value) -> Value:
        return self.fixed("FixedTanh", x, self.table)


def _rnn_step(layer: FixedLayer, x: Value, state: list[Value]) -> list[Value]:
    return [layer.tanh(layer.state_share(state[0], x, (0, 1)))]


def _lstm_step(layer: FixedLayer, x: Value, state: list[Value]) -> list[Value]:
    """Factors and biases of the last gate are doubled: tanh(x) is 2 sigmoid(2 x) - 1."""
    h, cell = state
    gates = layer.sigmoid(layer.state_share(h, x, (0, 4)))
    i, o, f, c = layer.gates(gates, 4)
    cell = layer.fixed("FixedCell", cell, i, f, c)
    return [layer.fixed("FixedOutput", cell, o, layer.table), cell]


def _gru_step(layer: FixedLayer, x: Value, state: list[Value]) -> list[Value]:
    (h,) = state
    both = layer.sigmoid(layer.state_share(h, layer.part(x, 0, 2), (0, 2)))
    z, r = layer.gates(both, 2)
    reset = layer.fixed("FixedReset", r, h)
    c = layer.tanh(layer.state_share(reset, layer.part(x, 2, 3), (2, 3)))
    return [layer.fixed("FixedMixture", z, h, c)]


def _gru_reset_after_step(layer: FixedLayer, x: Value, state: list[Value]) -> list[Value]:
    b, (h,) = layer.b, state
    own = layer.state_share(h, layer.rb, (0, 3))
    (x_z, h_z), (x_r, h_r), (x_c, h_c) = (
        [layer.part(v, n, n + 1) for v in (x, own)] for n in range(3)
    )
    z, r = layer.sigmoid(b.Add(x_z, h_z)), layer.sigmoid(b.Add(x_r, h_r))
    c = layer.tanh(b.Add(x_c, layer.fixed("FixedShare", r, h_c)))
    return [layer.fixed("FixedMixture", z, h, c)]


FIXED = {"direction": "forward", "layout": 0, "hidden_size": 0, "w_left": 0, "r_left": 0}
"""The attributes of layers in fixed point."""


def _run(
    b: Builder, x: Value, operands: list[Value | None], states: list[tuple[Value | None, DType]],
    step: Step, gates: int, *, direction: str, layout: int, hidden_size: int, w_left: int,
    r_left: int,
) -> list[Value]:  # fmt: skip
    """Y, and the last value of each state; `operands` are w, r, w_by, r_by, bias, rb, table, all
    but the last with a dim of directions in front."""
    whole = Recurrence(b, x, None, hidden_size, gates, layout)
    *of_ways, table = operands
    assert table is not None
    results = []
    for n, backwards in enumerate(ways_of(direction)):
        w, r, w_by, r_by, bias, rb = (None if v is None else pick(b, v, n) for v in of_ways)
        layer = FixedLayer(
            b, w, r, bias, rb, [], [], hidden_size, None,
            w_by=w_by, r_by=r_by, w_left=w_left, r_left=r_left, table=table,
        )  # type: ignore[arg-type]  # fmt: skip
        shape = (whole.batch, hidden_size)
        state = [
            filled(b, 0, shape, dtype) if v is None else pick(b, v, n, 1 if layout else 0)
            for v, dtype in states
        ]
        results.append(whole.run(layer, step, state, backwards))
    return collect(whole, results, len(states))


@composite("FixedRNN", domain=DOMAIN, outputs=None, traits=("recurrent",))
def fixed_rnn(
    b: Builder, x: Int, w: Int, r: Int, w_by: Int, r_by: Int, bias: Int, table: Int,
    initial_h: Int | None = None, **attrs: FIXED,
) -> list[Value]:  # fmt: skip
    """h = tanh(W x + R h + b): Y, and the last h."""
    operands = [w, r, w_by, r_by, bias, None, table]
    return _run(b, x, operands, [(initial_h, i16)], _rnn_step, 1, **attrs)  # type: ignore[arg-type]


@composite("FixedGRU", domain=DOMAIN, outputs=None, traits=("recurrent",))
def fixed_gru(
    b: Builder, x: Int, w: Int, r: Int, w_by: Int, r_by: Int, bias: Int, table: Int,
    initial_h: Int | None = None, rb: Int | None = None, **attrs: FIXED,
) -> list[Value]:  # fmt: skip
    """A gated recurrent layer: Y, and the last h. With `rb`, biases of R h, the gate r multiplies
    R h + rb (linear_before_reset)."""
    step = _gru_step if rb is None else _gru_reset_after_step
    operands = [w, r, w_by, r_by, bias, rb, table]
    return _run(b, x, operands, [(initial_h, i16)], step, 3, **attrs)  # type: ignore[arg-type]


@composite("FixedLSTM", domain=DOMAIN, outputs=None, traits=("recurrent",))
def fixed_lstm(
    b: Builder, x: Int, w: Int, r: Int, w_by: Int, r_by: Int, bias: Int, table: Int,
    initial_h: Int | None = None, initial_c: Int | None = None, **attrs: FIXED,
) -> list[Value]:  # fmt: skip
    """Gates i, o, f, c of W x + R h + b: Y, the last h and the last cell."""
    operands = [w, r, w_by, r_by, bias, None, table]
    states = [(initial_h, i16), (initial_c, i32)]
    return _run(b, x, operands, states, _lstm_step, 4, **attrs)  # type: ignore[arg-type]
