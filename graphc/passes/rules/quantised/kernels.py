"""Which kernel ONNX Runtime computes a quantised operator with: that decides about near halves."""

from __future__ import annotations

from graphc.ir.dtypes import DType, f32, i8, u8
from graphc.ir.graph import Op, Value
from graphc.passes.analysis.facts import choice, only_moves
from graphc.passes.rewriter import Rewriter
from graphc.passes.rules.quantised.activations import Activated
from graphc.passes.rules.quantised.moves import was_moved_past

PRODUCTS = ("Conv", "MatMul", "Gemm")
# Behind these it looks for the DequantizeLinear of an operand (its QDQPropagation).
TRANSPARENT = ("MaxPool", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")
UNSIGNED = ("Conv", "MatMul")  # what has a kernel for uint8 only
WHOLE_OPERATORS = "quantised operators"  # an option: the graph came with some


def in_one_kernel(rw: Rewriter, op: Op, after: Activated) -> bool:
    """Whether it computes on quantised values, instead of on floats that it then quantises.

    It does if no activation follows that limits the results more than their type does, and either
    the graph is one of quantised operators, or the operands and the quantised result have the same
    type. Of sums of products, the first operand counts, and most have a kernel for uint8 only. But
    int8 is read as uint8 wherever one DequantizeLinear directly follows a QuantizeLinear (ONNX
    Runtime's QDQS8ToU8Transformer). To be asked before anything is built that uses the operands.
    """
    if after.slope is not None or not after.target.is_full:
        return False
    if rw.ctx.options.get(WHOLE_OPERATORS):
        return True
    result = _kind(rw.match.ops[-1].output)
    if op.name in UNSIGNED and result is not u8:
        return False
    if op.name in PRODUCTS:
        return _kind_before(op.inputs[0]) is result
    return all(_kind_before(value) in (result, None) for value in op.inputs)


def shift_in_kernel(rw: Rewriter) -> int:
    """What that kernel adds to the values: 128 where it reads int8 as uint8."""
    if rw.ctx.options.get(WHOLE_OPERATORS):
        return 0
    result = rw.match.ops[-1].output
    return 128 if _kind(result) is not result.tensor.dtype else 0


def _kind_before(value: Value | None) -> DType | None:
    """The type that a dequantised operand is read as; None if the value is none."""
    dequantise = value.producer if value is not None else None
    if dequantise is None or dequantise.name != "DequantizeLinear":
        return None
    source = dequantise.inputs[0]
    while source is not None and (mover := _moved_floats(source, dequantise)) is not None:
        if mover.name not in TRANSPARENT:
            return f32
        source = mover.inputs[0]
    return None if source is None else _kind(source)


def _moved_floats(value: Value, dequantise: Op) -> Op | None:
    """The op that moves these integers, if it moved floats in the model, which `dequantise` gave:
    the rules for moves had them change places."""
    op = value.producer
    moves = op is not None and (choice(op) is not None and was_moved_past(dequantise, op))
    return op if moves else None


def _kind(value: Value) -> DType:
    dtype = value.tensor.dtype
    return u8 if dtype is i8 and _between(value) else dtype


def _between(value: Value) -> bool:
    """Whether a value is quantised by one operator and dequantised by the next, its only user."""
    if value.producer is None or only_moves(value.producer):
        return False
    users = value.users
    if [user.name for user in users] != ["DequantizeLinear"]:
        return False
    return len(users[0].output.uses) == 1
