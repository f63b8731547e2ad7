"""Quantisation changes places with operators that only move elements, or choose among them.

d(x) and q(r) are monotone and treat each element alike if there is one scale for all. So they can
come before or after a move, a maximum or a minimum. Dequantising moves towards the result, and
quantising towards the operands, until they meet: then bytes are moved instead of floats.
"""

from __future__ import annotations

import math

import numpy as np

from graphc.ir.dtypes import DType
from graphc.ir.graph import Op, Value
from graphc.passes.analysis.facts import choice, limits, negative_factor
from graphc.passes.pattern import P, attribute, opt, rest, var
from graphc.passes.rewriter import Rewriter, rule
from graphc.passes.rules.facts import array_of
from graphc.passes.rules.quantised.values import (
    BYTES,
    GROUP,
    Quantised,
    dequantised,
    dequantised_like,
    quantised_like,
    target_of,
)

FARTHEST = 16  # operators between a quantisation and the integers it looks for

x, indices, y, scale, zero = var("x indices y scale zero")


def _dequantised(op: Op) -> list[Quantised]:
    """What the operands are dequantised from whose elements the results of an op are."""
    known = choice(op)
    sources = (dequantised(op.inputs[n]) for n in known.operands) if known else ()
    return [source for source in sources if source is not None]


def _of_one(op: Op) -> bool:
    """Whether the results are elements of one operand, a dequantised one, or a Pad's filling."""
    known = choice(op)
    of_one = known is not None and (known.is_of_elements and len(known.operands) == 1 or _pads(op))
    return of_one and bool(_dequantised(op))


def _pads(op: Op) -> bool:
    return op.name == "Pad" and not op.defn.domain


def _takes(op: Op, number: int, dtype: DType) -> bool:
    """Whether operand `number` may be of a type."""
    params = op.defn.params
    return params[min(number, len(params) - 1)].accepts.accepts(dtype)


def _of_all(op: Op) -> bool:
    """Whether the results are elements of all operands alike, some of them dequantised."""
    known = choice(op)
    of_all = known is not None and known.is_of_elements and len(known.operands) == len(op.inputs)
    return of_all and bool(_dequantised(op))


def _scaled_alike(source: Quantised) -> bool:
    """Whether all elements of a value mean the same real numbers."""
    return source.per_tensor and source.step > 0


# ---------------------------------------------------------------- dequantising later


@rule("dequantise-after-move", P.where(_of_one)(rest("operands")), group=GROUP)
def dequantise_after_move(rw: Rewriter, op: Op, operands: list[Value]) -> list[Value] | None:
    """move(d(x)) == d(move(x)), and so for maxima over elements of x."""
    known = choice(op)
    assert known is not None
    number = known.operands[0]
    source = dequantised(operands[number])
    if source is None or not _scaled_alike(source):
        return rw.skip("the operand is not dequantised with one scale")
    if _pads(op):
        others = _padded_with(rw, op, source)
        if others is None:
            return None
        return _after(rw, op, [source.value, *others], operands[0])
    if known.extreme and source.dtype not in BYTES or not _takes(op, number, source.dtype):
        return rw.skip("it does not choose among {}", source.dtype)
    moved = [source.value if n == number else v for n, v in enumerate(operands)]
    return _after(rw, op, moved, operands[number])


@rule("dequantise-chosen-rows", P.Gather(x, indices), group=GROUP)
def dequantise_chosen_rows(rw: Rewriter, op: Op, x: Value, indices: Value) -> Value | None:
    """gather(d(x), i) == gather(x, i) * gather(scale, i)   for a scale for each of x's rows."""
    source, axis = dequantised(x), rw.attr(op, "axis") % x.tensor.rank
    if source is None or source.value.constant is None or source.scale.size == 1:
        return rw.skip("the table is not a constant with a scale for each row")
    if source.axis != axis or source.zero.any():
        return rw.skip("scales are along another axis, or there are zero points")
    rows = source.scale.size
    scales = source.scale.astype(x.tensor.dtype.np)
    others = [1 if n != axis else rows for n in range(x.tensor.rank)]
    integers = rw.Gather(source.value, indices, axis=axis)
    steps = rw.Gather(rw.constant(scales.reshape(others)), indices, axis=axis)
    return rw.Mul(rw.Cast(integers, to=x.tensor.dtype.onnx), steps)


def _after(rw: Rewriter, op: Op, operands: list, like: Value) -> list[Value]:
    """The op on integers, then dequantised: as if the dequantisation had been moved, which keeps
    its place in the model and gets that of the op."""
    dequantise = like.producer
    assert dequantise is not None
    moved = rw.again(op, *operands)
    results = list(moved) if isinstance(moved, tuple) else [moved]
    rw.loc = tuple(dict.fromkeys((*dequantise.loc, *rw.loc)))
    return [dequantised_like(rw, value, dequantise) for value in results]


def was_moved_past(dequantise: Op, op: Op) -> bool:
    """Whether a dequantisation has changed places with an op, whose operand it was in the model."""
    return bool(op.loc) and set(op.loc) <= set(dequantise.loc)


def _padded_with(rw: Rewriter, pad: Op, source: Quantised) -> list[Value | None] | None:
    """The other operands of a Pad of integers; None if its filling is none of them."""
    others = [*pad.inputs[1:], None, None][:3]
    if attribute(pad, "mode") != "constant":
        return others
    filling = array_of(others[1])
    if others[1] is not None and filling is None:
        return rw.skip("the filling is not constant")
    real = 0.0 if filling is None else float(filling.reshape(-1)[0])
    code = _code(real, source)
    if code is None:
        return rw.skip("no integer means {}", real)
    return [others[0], rw.constant(np.array(code, source.dtype.np)), others[2]]


def _code(real: float, source: Quantised) -> int | None:
    """The integer that means exactly this number."""
    if not math.isfinite(real):
        return None
    step = np.float32(source.step)
    code = round(real / float(step)) + source.zero_point
    inside = source.dtype.min <= code <= source.dtype.max
    exact = np.float32(code - source.zero_point) * step == np.float32(real)
    return code if inside and exact else None


@rule("dequantise-after-merge", P.where(_of_all)(rest("operands")), group=GROUP)
def dequantise_after_merge(rw: Rewriter, op: Op, operands: list[Value]) -> list[Value] | None:
    """concat(d(a), d(b)) == d(concat(a, b)) for equal scales and zero points; so max and min."""
    sources = _dequantised(op)
    alike = all(_scaled_alike(s) and s.reads_like(sources[0]) for s in sources)
    if len(sources) < len(operands) or not alike:
        return rw.skip("the operands are not dequantised alike")
    if not all(_takes(op, n, s.dtype) for n, s in enumerate(sources)):
        return rw.skip("it does not take {}", sources[0].dtype)
    return _after(rw, op, [s.value for s in sources], operands[0])


# ---------------------------------------------------------------- quantising earlier


@rule("quantise-before-move", P.QuantizeLinear(y, scale, opt(zero)), group=GROUP)
def quantise_before_move(
    rw: Rewriter, op: Op, y: Value, scale: Value, zero: Value | None
) -> Value | None:
    """q(move(r)) == move(q(r)), and so for maxima over elements of r."""
    inner = y.producer
    known = None if inner is None or len(inner.outputs) != 1 else choice(inner)
    if inner is None or known is None or not known.is_of_elements:
        return rw.skip("the operand is not made by a move")
    if len(y.uses) != 1:
        return rw.skip("the value before the quantisation is used elsewhere")
    if target_of(rw, op) is None:
        return None
    parts = [inner.operand(n) for n in known.operands]
    if not all(_takes(inner, n, op.output.tensor.dtype) for n in known.operands):
        return rw.skip("it does not take {}", op.output.tensor.dtype)
    if not all(part.tensor.dtype == y.tensor.dtype for part in parts):
        return rw.skip("it changes the type")
    if any(part.tensor.size > y.tensor.size and not _from_integers(part) for part in parts):
        return rw.skip("more elements would have to be quantised")
    operands = list(inner.inputs)
    for number, part in zip(known.operands, parts):
        operands[number] = quantised_like(rw, part, op)
    return rw.again(inner, *operands)


def _from_integers(value: Value | None) -> bool:
    """Whether a quantisation moved here would go on until it meets dequantised values."""
    for _ in range(FARTHEST):
        op = value.producer if value is not None else None
        if op is None:
            return False
        if op.name == "DequantizeLinear" or any(dequantised(v) for v in op.inputs):
            return True
        known = choice(op)
        activates = limits(op) is not None or negative_factor(op) is not None
        if not activates and (known is None or not known.is_of_elements):
            return False
        value = op.inputs[0 if known is None else known.operands[0]]
    return False
