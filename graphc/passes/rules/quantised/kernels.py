"""Which kernel ONNX Runtime computes a quantised operator with: that decides about near halves."""

from __future__ import annotations

from graphc.ir.dtypes import DType, i8, u8
from graphc.ir.graph import Op, Value
from graphc.passes.rewriter import Rewriter
from graphc.passes.rules.quantised.moves import MOVES
from graphc.passes.rules.quantised.values import Target

PRODUCTS = ("Conv", "MatMul", "Gemm")
WHOLE_OPERATORS = "quantised operators"  # an option: the graph came with some


def in_one_kernel(rw: Rewriter, op: Op) -> bool:
    """Whether it computes on quantised values, instead of on floats that it then quantises.

    It does in graphs of quantised operators. Otherwise it does if the operand and the quantised
    result have the same type (uint8, for sums of products), but reads int8 as uint8 wherever one
    DequantizeLinear directly follows a QuantizeLinear (its QDQS8ToU8Transformer).
    To be asked before anything is built that uses the operand.
    """
    if rw.ctx.options.get(WHOLE_OPERATORS):
        return True
    before, after = _kinds(rw, op)
    return before is after and (after is u8 or op.name not in PRODUCTS)


def zero_point_in_kernel(rw: Rewriter, op: Op, target: Target) -> int:
    """The zero point of the result as that kernel has it: 128 more where int8 is read as uint8."""
    as_unsigned = _kinds(rw, op)[1] is u8 and not rw.ctx.options.get(WHOLE_OPERATORS)
    return target.zero_point + (128 if as_unsigned and target.dtype is i8 else 0)


def _kinds(rw: Rewriter, op: Op) -> tuple[DType | None, DType]:
    """The types that the operand and the quantised result are read as."""
    dequantise = op.inputs[0].producer if op.inputs[0] is not None else None
    source = dequantise.inputs[0] if dequantise is not None else None
    return None if source is None else _kind(source), _kind(rw.match.ops[-1].output)


def _kind(value: Value) -> DType:
    dtype = value.tensor.dtype
    return u8 if dtype is i8 and _between(value) else dtype


def _between(value: Value) -> bool:
    """Whether a value is quantised by one operator and dequantised by the next, its only user."""
    if value.producer is None or value.producer.name in MOVES:
        return False
    users = value.users
    if [user.name for user in users] != ["DequantizeLinear"]:
        return False
    return len(users[0].output.uses) == 1
