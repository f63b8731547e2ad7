"""Linear quantisation: y = saturate(round(x / scale) + zero_point), and back.

The shape of the scale decides the granularity: one element for the whole tensor, one per position
of an axis, or one per block of `block_size` positions of it.
"""

from __future__ import annotations

from graphc.errors import ModelError
from graphc.ir import dtypes
from graphc.ir.build import Builder
from graphc.ir.dtypes import DType, f32, i32, u8
from graphc.ir.expr import Expr, call, minimum, select
from graphc.ir.graph import Value
from graphc.ir.opdef import Float, Number, Operand, OutIndex, composite, op
from graphc.ir.ops.casts import converted
from graphc.ir.ops.helpers import normal_axis, only_element, replaced, same_shape


def _parameter(i: OutIndex, x: Operand, parameter: Operand, axis: int, block_size: int) -> Expr:
    """The scale or zero point that belongs to element i of x."""
    if parameter.size == 1:
        return only_element(parameter)
    axis = normal_axis(axis, x.rank)
    if parameter.rank == 1:
        if parameter.shape[0] != x.shape[axis]:
            raise ModelError(
                f"scale has {parameter.shape[0]} elements, axis {axis} extent {x.shape[axis]}"
            )
        return parameter[i[axis]]
    return parameter[_block_index(i, x, parameter, axis, block_size)]


def _block_index(i: OutIndex, x: Operand, parameter: Operand, axis: int, block_size: int) -> tuple:
    if parameter.rank != x.rank:
        raise ModelError(f"scale has rank {parameter.rank}, the tensor {x.rank}")
    extent, blocks = x.shape[axis], parameter.shape[axis]
    size = block_size or -(-extent // blocks)
    if size < 1 or -(-extent // size) != blocks:
        raise ModelError(f"{blocks} blocks of {size} do not cover extent {extent} of axis {axis}")
    return replaced(tuple(i), axis, i[axis] // size)


@op("QuantizeLinear", infer=same_shape)
def quantize_linear(
    i: OutIndex, x: Number, scale: Number, zero_point: Number = None, *, axis: int = 1,
    block_size: int = 0, output_dtype: int = 0, precision: int = 0, saturate: int = 1,
) -> Expr:  # fmt: skip
    """x / scale in the type of the scale (or `precision`), rounded to even, shifted, saturated."""
    target = _target(zero_point, output_dtype)
    divided = dtypes.of(precision) if precision else scale.dtype
    divided = f32 if divided is dtypes.f8e8m0 else divided
    by = _rounded_to(_parameter(i, x, scale, axis, block_size), divided)
    value = _rounded_to(_rounded_to(x[i], divided) / by, divided)
    shift = None if zero_point is None else _parameter(i, x, zero_point, axis, block_size)
    if target.is_integer:
        return _rounded(value, shift, target)
    if shift is not None:
        value = value + shift.cast(value.dtype)
    return converted(value, target, bool(saturate) or target.bits < 8)


def _rounded_to(value: Expr, dtype: DType) -> Expr:
    """The value as a type has it, in the type that is computed in."""
    return value.cast(dtype).cast(dtype.compute)


def _target(zero_point: Operand, output_dtype: int) -> DType:
    """The quantised type: that of the zero point, else `output_dtype`, else uint8."""
    named = dtypes.of(output_dtype) if output_dtype else None
    if zero_point is None:
        return named or u8
    if named is not None and named is not zero_point.dtype:
        raise ModelError(f"output_dtype {named} differs from the zero point's {zero_point.dtype}")
    return zero_point.dtype


def _rounded(value: Expr, shift: Expr | None, target: DType) -> Expr:
    """Rounded, shifted and kept within the range of an integer type of up to 16 bits; NaN becomes
    its least value, as in ONNX Runtime."""
    whole = call("round", value) if value.dtype.is_float else value
    if shift is not None:
        whole = whole + shift.cast(whole.dtype)
    whole = minimum(select(whole > target.min, whole, target.min), target.max)
    return whole.cast(target)


@op("DequantizeLinear", infer=same_shape)
def dequantize_linear(
    i: OutIndex, x: Number, scale: Float, zero_point: Number = None, *, axis: int = 1,
    block_size: int = 0, output_dtype: int = 0,
) -> Expr:  # fmt: skip
    """(x - zero_point) * scale, in float32, as the type of the scale or `output_dtype`."""
    target = dtypes.of(output_dtype) if output_dtype else scale.dtype
    value = x[i].cast(i32) if x.dtype.is_integer else x[i].cast(f32)
    if zero_point is not None:
        value = value - _parameter(i, x, zero_point, axis, block_size).cast(value.dtype)
    by = _parameter(i, x, scale, axis, block_size).cast(f32)
    return converted(value.cast(f32) * by, target)


@composite("FakeQuantize", domain="graphc", traits=("alias",))
def fake_quantize(b: Builder, x: Float, scale: Float, zero_point: Number) -> Value:
    """x as its quantised value stands for it. Gradients pass where x is within the limits of the
    type, as if there were no rounding (the straight-through estimator: Jacob et al., "Quantization
    and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference", 2018)."""
    return b.DequantizeLinear(b.QuantizeLinear(x, scale, zero_point), scale, zero_point)


@composite("DynamicQuantizeLinear", outputs=3)
def dynamic_quantize_linear(b: Builder, x: Float) -> tuple[Value, ...]:
    """x as uint8 over the range from its smallest to its largest element, 0 included.

    scale = (max - min) / 255; zero point = round(-min / scale) kept within 0..255.
    """
    low = b.Min(b.ReduceMin(x, keepdims=0), b.constant(0, f32))
    high = b.Max(b.ReduceMax(x, keepdims=0), b.constant(0, f32))
    scale = b.Div(b.Sub(high, low), b.constant(255, f32))
    shifted = b.Div(b.Neg(low), scale)
    clipped = b.Clip(b.Round(shifted), b.constant(0, f32), b.constant(255, f32))
    zero_point = b.Cast(clipped, to=u8.onnx)
    return b.QuantizeLinear(x, scale, zero_point), scale, zero_point
