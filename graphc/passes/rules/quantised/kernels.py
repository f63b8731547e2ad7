"""Which kernel ONNX Runtime computes a quantised operator with: that decides about near halves."""

from __future__ import annotations

from graphc.ir.dtypes import u8
from graphc.ir.graph import Op, Value
from graphc.passes.rules.quantised.moves import MOVES


def in_one_kernel(op: Op, quantise: Op) -> bool:
    """Whether it computes on quantised values, instead of on floats that it then quantises.

    It does if the operand and the quantised result have the same type, but reads int8 as uint8
    wherever one DequantizeLinear directly follows a QuantizeLinear (its QDQS8ToU8Transformer).
    To be asked before anything is built that uses the operand.
    """
    dequantise = op.inputs[0].producer if op.inputs[0] is not None else None
    source = dequantise.inputs[0] if dequantise is not None else None
    if source is None or source.tensor.dtype is not quantise.output.tensor.dtype:
        return False
    return source.tensor.dtype is u8 or _between(source) == _between(quantise.output)


def _between(value: Value) -> bool:
    """Whether a value is quantised by one operator and dequantised by the next, its only user."""
    if value.producer is None or value.producer.name in MOVES:
        return False
    users = value.users
    if [user.name for user in users] != ["DequantizeLinear"]:
        return False
    return len(users[0].output.uses) == 1
