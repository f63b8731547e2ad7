"""Ops that do nothing."""

from __future__ import annotations

from graphc.ir.dtypes import DType
from graphc.ir.graph import Op, Value
from graphc.ir.ops.generic import APART
from graphc.ir.ops.in_range import EFFECT
from graphc.passes.analysis.facts import copied_operand
from graphc.passes.pattern import P, opt, rest, var
from graphc.passes.rewriter import Rewriter, rule
from graphc.passes.rules.facts import array_of

x, ratio, training = var("x ratio training")


@rule("identity", P.Identity(x))
def identity(rw: Rewriter, op: Op, x: Value) -> Value:
    """identity(x) == x."""
    return x


@rule("dropout-inference", P.Dropout(x, opt(ratio), opt(training)))
def dropout(
    rw: Rewriter, op: Op, x: Value, ratio: Value | None, training: Value | None
) -> Value | None:
    """dropout(x, ratio, false) == x."""
    mode = array_of(training)
    if training is not None and (mode is None or mode.any()):
        return rw.skip("it may be in training mode")
    if any(v.uses for v in op.outputs[1:]):
        return rw.skip("its mask is used")
    return x


def _copies(op: Op) -> bool:
    """Whether there is one result, which is an operand."""
    of_same_type = len(op.outputs) == 1 and any(
        v is not None and v.type == op.output.type for v in op.inputs
    )
    return of_same_type and op.is_typed and copied(op) is not None


@rule("copy", P.where(_copies)(rest("operands")))
def copy(rw: Rewriter, op: Op, operands: list[Value]) -> Value:
    """f(.., x, ..)[i] == x[i] for all i  ==>  f(.., x, ..) == x: a Transpose, Slice, Pad, Reduce,
    Concat or Resize that moves nothing."""
    source = copied(op)
    assert source is not None
    return source


def copied(op: Op) -> Value | None:
    """The operand that an op copies, if it does nothing else."""
    source = op.inputs[0]
    if APART in op.defn.traits or EFFECT in op.defn.traits:
        return None
    if "view" in op.defn.traits:
        return source if source is not None and source.type == op.output.type else None
    number = copied_operand(op)
    return None if number is None else op.inputs[number]


@rule("cast-of-cast", P.Cast(P.Cast(x)))
def cast_of_cast(rw: Rewriter, inner: Op, outer: Op, x: Value) -> Value | None:
    """cast(cast(x, wide), t) == cast(x, t) if `wide` holds every value of x's type."""
    middle = inner.output.tensor.dtype
    if not _holds(middle, x.tensor.dtype):
        return rw.skip("{} does not hold every {}", middle, x.tensor.dtype)
    if outer.output.type == x.type:
        return x
    return rw.Cast(x, **outer.attrs)


def _holds(wide: DType, narrow: DType) -> bool:
    if wide.is_integer and narrow.is_integer:
        return wide.min <= narrow.min and narrow.max <= wide.max
    plain = ("f16", "bf16", "f32", "f64")
    if wide.name in plain and narrow.name in plain:
        return wide is narrow or (wide.bits > narrow.bits)
    return wide is narrow
