"""Quantisation changes places with operators that only move elements, or choose among them.

d(x) and q(r) are monotone and treat each element alike if there is one scale for all. So they can
come before or after a move, a maximum or a minimum. Dequantising moves towards the result, and
quantising towards the operands, until they meet: then bytes are moved instead of floats.
"""

from __future__ import annotations

import math

import numpy as np

from graphc.ir.graph import Op, Value
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

MOVES = (
    "DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity",
    "Reshape", "Resize", "ReverseSequence", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile",
    "Transpose", "Unsqueeze",
)  # fmt: skip
CHOICES = ("MaxPool", "GlobalMaxPool", "ReduceMax", "ReduceMin")  # of one operand's elements
MERGES = ("Concat", "Max", "Min")  # of all operands
SELECTION = "Where"  # of all operands but the first
ONE_OPERAND = (*MOVES, *CHOICES, "Pad")
PASSED = (*MOVES, *CHOICES, *MERGES, "Clip", "LeakyRelu", "PRelu", "Relu")
FARTHEST = 16  # operators between a quantisation and the integers it looks for

y, scale, zero = var("y scale zero")


def _only_moves(op: Op) -> bool:
    """Whether what the op gives are elements of its first operand (or of all, for MERGES)."""
    if op.name == "MaxPool":
        return len(op.outputs) == 1  # the second output are positions
    if op.name == "Resize":
        edge = attribute(op, "coordinate_transformation_mode") == "tf_crop_and_resize"
        return attribute(op, "mode") == "nearest" and not edge
    return True


def _scaled_alike(found: Quantised | None) -> bool:
    """Whether all elements of a value mean the same real numbers."""
    return found is not None and found.per_tensor and found.step > 0


# ---------------------------------------------------------------- dequantising later


@rule("dequantise-after-move", P.one_of(*ONE_OPERAND)(rest("operands")), group=GROUP)
def dequantise_after_move(rw: Rewriter, op: Op, operands: list[Value]) -> list[Value] | None:
    """move(d(x)) == d(move(x)), and so for maxima over elements of x."""
    source = dequantised(operands[0])
    if not _scaled_alike(source) or not _only_moves(op):
        return rw.skip("the operand is not dequantised with one scale")
    assert source is not None
    others: list[Value | None] = [*operands[1:]]
    if op.name == "Pad":
        padding = _padded_with(rw, op, source)
        if padding is None:
            return None
        others = padding
    if op.name in CHOICES and source.dtype not in BYTES:
        return rw.skip(f"it does not choose among {source.dtype}")
    return _after(rw, op, [source.value, *others], operands[0])


def _after(rw: Rewriter, op: Op, operands: list, like: Value) -> list[Value]:
    dequantise = like.producer
    assert dequantise is not None
    moved = rw.op(op.name, *operands, outputs=len(op.outputs), **op.attrs)
    results = list(moved) if isinstance(moved, tuple) else [moved]
    return [dequantised_like(rw, value, dequantise) for value in results]


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
        return rw.skip(f"no integer means {real}")
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


@rule("dequantise-after-merge", P.one_of(*MERGES)(rest("operands")), group=GROUP)
def dequantise_after_merge(rw: Rewriter, op: Op, operands: list[Value]) -> list[Value] | None:
    """concat(d(a), d(b)) == d(concat(a, b)) for equal scales and zero points; so max and min."""
    sources = [source for v in operands if (source := dequantised(v)) is not None]
    alike = all(_scaled_alike(s) and s.reads_like(sources[0]) for s in sources)
    if len(sources) < len(operands) or not alike:
        return rw.skip("the operands are not dequantised alike")
    return _after(rw, op, [s.value for s in sources], operands[0])


# ---------------------------------------------------------------- quantising earlier


@rule("quantise-before-move", P.QuantizeLinear(y, scale, opt(zero)), group=GROUP)
def quantise_before_move(
    rw: Rewriter, op: Op, y: Value, scale: Value, zero: Value | None
) -> Value | None:
    """q(move(r)) == move(q(r)), and so for maxima over elements of r."""
    inner = y.producer
    movable = (*MOVES, *CHOICES, *MERGES, SELECTION)
    if inner is None or inner.name not in movable or inner.name == "Split":
        return rw.skip("the operand is not made by a move")
    if len(y.uses) != 1 or not _only_moves(inner):
        return rw.skip("the value before the quantisation is used elsewhere")
    if target_of(rw, op) is None:
        return None
    first = int(inner.name == SELECTION)
    last = 1 if inner.name in ONE_OPERAND else len(inner.inputs)
    parts = [inner.operand(n) for n in range(first, last)]
    if not all(part.tensor.dtype == y.tensor.dtype for part in parts):
        return rw.skip("it changes the type")
    if any(part.tensor.size > y.tensor.size and not _from_integers(part) for part in parts):
        return rw.skip("more elements would have to be quantised")
    quantised = [quantised_like(rw, part, op) for part in parts]
    operands = (*inner.inputs[:first], *quantised, *inner.inputs[last:])
    return rw.op(inner.name, *operands, **inner.attrs)


def _from_integers(value: Value | None) -> bool:
    """Whether a quantisation moved here would go on until it meets dequantised values."""
    for _ in range(FARTHEST):
        op = value.producer if value is not None else None
        if op is None:
            return False
        if op.name == "DequantizeLinear" or any(dequantised(v) for v in op.inputs):
            return True
        if op.name not in PASSED:
            return False
        value = op.inputs[0]
    return False
