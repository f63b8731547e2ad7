"""ONNX Runtime's products of integers.

Those of 8 bits that give floats are ONNX's MatMulInteger, scaled (see fused.py); those of 16 bits
an operator of their own.
"""

from __future__ import annotations

from graphc.ir import dtypes
from graphc.ir.build import Builder
from graphc.ir.graph import Value
from graphc.ir.opdef import Float, Int, TypeClass, composite
from graphc.ir.ops.helpers import RUNTIME, RUNTIME_TRAITS

Int16 = TypeClass("int16 or uint16", lambda d: d in (dtypes.i16, dtypes.u16))


@composite("MatMulInteger16", domain=RUNTIME, traits=RUNTIME_TRAITS)
def matmul_integer_16(b: Builder, x: Int16, y: Int16) -> Value:
    """The matrix product modulo 2^32; of uint32 if both operands are unsigned, else of int32."""
    unsigned = x.tensor.dtype is y.tensor.dtype is dtypes.u16
    to = (dtypes.u32 if unsigned else dtypes.i32).onnx
    return b.MatMul(b.Cast(x, to=to), b.Cast(y, to=to))


@composite("MatMulIntegerToFloat", domain=RUNTIME, traits=RUNTIME_TRAITS)
def matmul_integer_to_float(
    b: Builder, x: Int, y: Int, x_scale: Float, y_scale: Float, x_zero: Int | None = None,
    y_zero: Int | None = None, bias: Float | None = None,
) -> Value:  # fmt: skip
    """(x - x_zero) (y - y_zero) * x_scale * y_scale + bias; those of y may be per column."""
    total = b.MatMulInteger(x, y, x_zero, y_zero)
    return _scaled(b, total, b.Mul(x_scale, y_scale), bias)


@composite("DynamicQuantizeMatMul", domain=RUNTIME, traits=RUNTIME_TRAITS)
def dynamic_quantize_matmul(
    b: Builder, x: Float, y: Int, y_scale: Float, y_zero: Int | None = None,
    bias: Float | None = None,
) -> Value:  # fmt: skip
    """MatMulIntegerToFloat of x as DynamicQuantizeLinear makes integers of it."""
    codes, scale, zero = b.DynamicQuantizeLinear(x, outputs=3)
    total = b.MatMulInteger(codes, y, zero, y_zero)
    return _scaled(b, total, b.Mul(scale, y_scale), bias)


def _scaled(b: Builder, total: Value, scale: Value, bias: Value | None) -> Value:
    result = b.Mul(b.Cast(total, to=scale.tensor.dtype.onnx), scale)
    return result if bias is None else b.Add(result, bias)
