"""RNN, GRU and LSTM of quantised input and weights, in fixed point (ir/ops/fixed_recurrent.py).

Inside of a layer ONNX computes in floats, from dequantised numbers. Where floats are slow, products
are of integers instead, h has 16 bits, and gates come from a table: results differ by some 1e-4,
where 8 bits have steps of 8e-3. Layers with other functions, clips, peepholes or lengths stay
float; so does one whose initial h can lie beyond -1..1.
"""

from __future__ import annotations

import math

import numpy as np

from graphc.ir.dtypes import f32, i8, i16, i32, u8
from graphc.ir.graph import Op, Value
from graphc.ir.ops.fixed_point import DOMAIN
from graphc.ir.ops.fixed_recurrent import CELL_BITS, STATE_BITS, SUM_BITS, sigmoid_table
from graphc.ir.ops.long_recurrent import MOST_STEPS, steps_of
from graphc.ir.ops.recurrent import ways_of
from graphc.passes.analysis.ranges import range_of
from graphc.passes.pattern import P, attribute, rest, var
from graphc.passes.rewriter import Rewriter, rule
from graphc.passes.rules.facts import array_of
from graphc.passes.rules.quantised.rescale import LARGEST_SUM
from graphc.passes.rules.quantised.values import GROUP, Quantised, dequantised
from graphc.records import dataclass

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
FUNCTIONS = {
    "RNN": ("tanh",), "GRU": ("sigmoid", "tanh"), "LSTM": ("sigmoid", "tanh", "tanh"),
}  # fmt: skip
DOUBLED = {"RNN": None, "GRU": None, "LSTM": 3}  # the gate whose sums are doubled
SUM = float(1 << SUM_BITS)
MOST_SUM = float(1 << 30 - SUM_BITS)  # that half of an i32 holds
MOST_CELL = (1 << 31 - CELL_BITS) - MOST_STEPS // 2  # initially

x, w, r = var("x w r")


@dataclass(frozen=True)
class Factors:
    """What brings sums of a product to units of 2**-16: a shift to the left and multipliers."""

    left: int
    by: np.ndarray


@rule("fixed-point-recurrence", P.LSTM(x, w, r, rest("others")), group=GROUP)
def fixed_lstm(
    rw: Rewriter, op: Op, x: Value, w: Value, r: Value, others: list[Value | None]
) -> list[Value] | None:
    """lstm(d(x), d(w), d(r)) == d(lstm of x, w, r in fixed point) but for errors of tables."""
    return _in_fixed_point(rw, op)


@rule("fixed-point-gru", P.GRU(x, w, r, rest("others")), group=GROUP)
def fixed_gru(
    rw: Rewriter, op: Op, x: Value, w: Value, r: Value, others: list[Value | None]
) -> list[Value] | None:
    """gru(d(x), d(w), d(r)) == d(gru of x, w, r in fixed point) but for errors of tables."""
    return _in_fixed_point(rw, op)


@rule("fixed-point-rnn", P.RNN(x, w, r, rest("others")), group=GROUP)
def fixed_rnn(
    rw: Rewriter, op: Op, x: Value, w: Value, r: Value, others: list[Value | None]
) -> list[Value] | None:
    """rnn(d(x), d(w), d(r)) == d(rnn of x, w, r in fixed point) but for errors of tables."""
    return _in_fixed_point(rw, op)


def _in_fixed_point(rw: Rewriter, op: Op) -> list[Value] | None:
    if rw.ctx.target.machine.has("fast_floats"):
        return rw.skip("it is left to floats")
    if op.operand(0).tensor.dtype is not f32:
        return rw.skip("it is of {}, not of float32", op.operand(0).tensor.dtype)
    data = dequantised(op.inputs[0])
    if data is None or not data.per_tensor or data.dtype not in (i8, u8, i16):
        return rw.skip("the input is not dequantised from 8 or 16 bits with one scale")
    if (
        not op.operand(0).is_static
        or not 0 < steps_of(op.inputs[0], _layout(op)) <= MOST_STEPS // 2
    ):
        return rw.skip("the number of steps is not known, is 0 or too large")
    own = _plain(rw, op)
    weights = [_weights(rw, op, number) for number in (1, 2)] if own else []
    if any(pair is None for pair in weights) or not weights:
        return None
    (codes_w, steps_w), (codes_r, steps_r) = weights  # type: ignore[misc]
    bias = _biases(rw, op, codes_w.shape[:2])
    state = _initial_state(rw, op)
    if bias is None or state is None:
        return None
    return _built(rw, op, data, (codes_w, steps_w), (codes_r, steps_r), bias, state)


def _layout(op: Op) -> int:
    return int(attribute(op, "layout"))


def _plain(rw: Rewriter, op: Op) -> bool | None:
    """Whether the layer has the functions of its definition, and nothing that fixed point lacks."""
    given = [name.lower() for name in attribute(op, "activations") or ()]
    ways = len(ways_of(attribute(op, "direction")))
    if given and given != [*FUNCTIONS[op.name]] * ways:
        return rw.skip("its functions are {}", given)
    if attribute(op, "clip"):
        return rw.skip("sums are clipped")
    if op.name == "LSTM" and attribute(op, "input_forget"):
        return rw.skip("input and forget gates are coupled")
    inputs = [*op.inputs, *[None] * 8]
    if inputs[4] is not None or (op.name == "LSTM" and inputs[7] is not None):
        return rw.skip("it has lengths of samples, or peepholes")
    return True


def _weights(rw: Rewriter, op: Op, number: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Integers [directions, rows, columns] without zero points, and scales [directions, rows]."""
    value = op.inputs[number]
    made = value.producer if value is not None else None
    if made is None or made.name != "DequantizeLinear":
        return rw.skip("weights are not dequantised from 8 bits")
    codes, scales = array_of(made.inputs[0]), array_of(made.inputs[1])
    zeros = array_of(made.inputs[2]) if len(made.inputs) > 2 and made.inputs[2] else np.zeros(1)
    if codes is None or scales is None or zeros is None or codes.dtype not in (np.int8, np.uint8):
        return rw.skip("weights are no constants of 8 bits")
    ways, rows, _ = codes.shape
    steps, less = (
        _by_row(a, attribute(made, "axis") % 3, attribute(made, "block_size"), codes.shape)
        for a in (scales, zeros)
    )
    if steps is None or less is None:
        return rw.skip("weights have scales of other parts than rows")
    centred = codes.astype(np.int64) - less.astype(np.int64)[:, :, None]
    if centred.min(initial=0) < i8.min or centred.max(initial=0) > i8.max:
        return rw.skip("weights less their zero points do not fit 8 bits")
    return centred.astype(np.int8), steps


def _by_row(
    array: np.ndarray, axis: int, block: int | None, shape: tuple[int, ...]
) -> np.ndarray | None:
    """Scales or zero points as [directions, rows]."""
    ways, rows, columns = shape
    array = array.astype(np.float64)
    if array.size == 1:
        return np.full((ways, rows), array.reshape(-1)[0])
    if array.ndim == 1 and axis == 1:
        return np.broadcast_to(array, (ways, rows))
    if array.ndim == 1 and axis == 0:
        return np.broadcast_to(array[:, None], (ways, rows))
    if array.shape == (ways, rows, 1) and axis == 2 and block and block >= columns:
        return array[:, :, 0]
    return None


def _biases(rw: Rewriter, op: Op, shape: tuple[int, ...]) -> np.ndarray | None:
    """The biases of W and R, [directions, 2, rows]."""
    ways, rows = shape
    value = op.inputs[3] if len(op.inputs) > 3 else None
    if value is None:
        return np.zeros((ways, 2, rows))
    source = dequantised(value)
    contents = array_of(value if source is None else source.value)
    if contents is None:
        return rw.skip("biases are not constant")
    real = contents.astype(np.float64)
    if source is not None:
        by = [1] * real.ndim
        by[source.axis] = -1
        real = (real - source.zero.reshape(by if source.zero.size > 1 else -1)) * (
            source.scale.reshape(by if source.scale.size > 1 else -1)
        )
    return real.reshape(ways, 2, rows)


def _initial_state(rw: Rewriter, op: Op) -> list[Value | None] | None:
    """The initial h as int16 and the initial cell as int32; None for one that is not given."""
    given = [*op.inputs[5:7], None, None][: 2 if op.name == "LSTM" else 1]
    h = given[0]
    if h is not None and not _is_within_one(h):
        return rw.skip("its initial h can lie beyond -1..1")
    bits = [(STATE_BITS, i16, 1 << 15), (CELL_BITS, i32, MOST_CELL << CELL_BITS)]
    made: list[Value | None] = []
    for value, (after, dtype, most) in zip(given, bits):
        if value is None:
            made.append(None)
            continue
        source = dequantised(value)
        same = source is not None and source.per_tensor and source.zero_point == 0
        if same and source.dtype is dtype and source.step == 2.0**-after:  # type: ignore[union-attr]
            made.append(source.value)  # type: ignore[union-attr]
            continue
        units = rw.Round(rw.Mul(value, np.float32(1 << after)))
        limited = rw.Clip(units, np.float32(-most), np.float32(most - (after == STATE_BITS)))
        made.append(rw.Cast(limited, to=dtype.onnx))
    return made


def _is_within_one(h: Value) -> bool:
    """Whether no element is beyond -1..1."""
    source = dequantised(h)
    if source is None or not source.per_tensor:
        known = range_of(h)
        return known.low >= -1 and known.high <= 1
    ends = (int(end) - source.zero_point for end in (source.dtype.min, source.dtype.max))
    return all(abs(end) * source.step <= 1 for end in ends)


def _factors(codes: np.ndarray, largest: int, real: np.ndarray) -> Factors | None:
    """Of sums of codes [directions, rows, columns] times integers up to `largest`, where a unit is
    `real` [directions, rows] in units of 2**-16; None if that is out of reach."""
    most = int(np.abs(codes.astype(np.int64)).sum(2).max(initial=0)) * largest
    biggest = float(real.max(initial=0))
    if most > LARGEST_SUM or not (np.isfinite(real).all() and biggest > 0):
        return None
    left = max(math.frexp(biggest)[1] + 1, 0)
    if left > 31 - most.bit_length():
        return None
    by = np.rint(np.ldexp(real, 32 - left))
    return Factors(left, np.minimum(by, LARGEST_SUM).astype(np.int32))


def _built(
    rw: Rewriter, op: Op, data: Quantised, own_w: tuple[np.ndarray, np.ndarray],
    own_r: tuple[np.ndarray, np.ndarray], bias: np.ndarray, state: list[Value | None],
) -> list[Value] | None:  # fmt: skip
    (w, steps_w), (r, steps_r) = own_w, own_r
    hidden, gates = r.shape[2], GATES[op.name]
    ends = (int(data.dtype.min), int(data.dtype.max))
    largest = max(map(abs, ends))  # zero points are part of the bias
    twice = np.ones(gates)
    if DOUBLED[op.name] is not None:
        twice[DOUBLED[op.name]] = 2
    twice = np.repeat(twice, hidden) * SUM
    units = (steps_w * data.step * twice, steps_r * 2.0**-STATE_BITS * twice)
    w_factors, r_factors = _factors(w, largest, units[0]), _factors(r, 1 << STATE_BITS, units[1])
    after = op.name == "GRU" and bool(attribute(op, "linear_before_reset"))
    real = bias.transpose(1, 0, 2) * twice
    less = data.zero_point * w.astype(np.int64).sum(2) * units[0]
    added, own = (real[0] - less, real[1]) if after else (real.sum(0) - less, None)
    reach = [
        np.abs(a.astype(np.int64)).sum(2) * most * unit
        for a, most, unit in ((w, largest, units[0]), (r, 1 << STATE_BITS, units[1]))
    ]
    total = sum(reach) + np.abs(real).sum(0) + np.abs(less)
    if w_factors is None or r_factors is None or not total.max(initial=0) < MOST_SUM * SUM:
        return rw.skip("sums are out of reach of fixed point")
    constants = [
        np.ascontiguousarray(w.transpose(0, 2, 1)), np.ascontiguousarray(r.transpose(0, 2, 1)),
        w_factors.by, r_factors.by, np.rint(added).astype(np.int32), sigmoid_table(),
    ]  # fmt: skip
    rb = [rw.constant(np.rint(own).astype(np.int32))] if own is not None else []
    results = rw.op(
        f"Fixed{op.name}", data.value, *map(rw.constant, constants), *state, *rb,
        outputs=2 + (op.name == "LSTM"), domain=DOMAIN, direction=attribute(op, "direction"),
        layout=_layout(op), hidden_size=hidden, w_left=w_factors.left, r_left=r_factors.left,
    )  # fmt: skip
    return _real(rw, op, list(results))


def _real(rw: Rewriter, op: Op, results: list[Value]) -> list[Value]:
    """What the layer gives, dequantised."""
    steps = [2.0**-STATE_BITS, 2.0**-STATE_BITS, 2.0**-CELL_BITS]
    return [
        rw.DequantizeLinear(value, rw.constant(np.float32(step)))
        for value, step in zip(results[: len(op.outputs)], steps)
    ]
