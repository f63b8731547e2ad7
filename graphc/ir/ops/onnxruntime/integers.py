"""ONNX Runtime's products of 8-bit integers that give floats.

Each is ONNX's MatMulInteger, scaled (see fused.py).
"""

from __future__ import annotations

from graphc.ir.build import Builder
from graphc.ir.graph import Value
from graphc.ir.opdef import Float, Int, composite
from graphc.ir.ops.helpers import RUNTIME, RUNTIME_TRAITS


@composite("MatMulIntegerToFloat", domain=RUNTIME, traits=RUNTIME_TRAITS)
def matmul_integer_to_float(
    b, x: Int, y: Int, x_scale: Float, y_scale: Float, x_zero: Int | None = None,
    y_zero: Int | None = None, bias: Float | None = None,
):  # fmt: skip
    """(x - x_zero) (y - y_zero) * x_scale * y_scale + bias; those of y may be per column."""
    total = b.MatMulInteger(x, y, x_zero, y_zero)
    return _scaled(b, total, b.Mul(x_scale, y_scale), bias)


@composite("DynamicQuantizeMatMul", domain=RUNTIME, traits=RUNTIME_TRAITS)
def dynamic_quantize_matmul(
    b, x: Float, y: Int, y_scale: Float, y_zero: Int | None = None, bias: Float | None = None
):
    """MatMulIntegerToFloat of x as DynamicQuantizeLinear makes integers of it."""
    codes, scale, zero = b.DynamicQuantizeLinear(x, outputs=3)
    total = b.MatMulInteger(codes, y, zero, y_zero)
    return _scaled(b, total, b.Mul(scale, y_scale), bias)


def _scaled(b: Builder, total: Value, scale: Value, bias: Value | None) -> Value:
    result = b.Mul(b.Cast(total, to=scale.tensor.dtype.onnx), scale)
    return result if bias is None else b.Add(result, bias)
