"""Between floats and integers, and between integers that are quantised differently."""

from __future__ import annotations

import numpy as np

from graphc.errors import UnsupportedError
from graphc.frontend.tflite.arithmetic import multiply, quantise_multiplier
from graphc.frontend.tflite.node import Node
from graphc.frontend.tflite.registry import handles
from graphc.frontend.tflite.rescaling import Factors, Limits, Span, by_table, scaled
from graphc.ir.dtypes import f32, i8, i16, i32, u8
from graphc.ir.graph import Value

INTEGERS = (i8, u8, i16, i32)


@handles("DEQUANTIZE")
def dequantise(node: Node) -> None:
    """(x - zero point) * scale, in float32."""
    (x,), is_image = node.together([0])
    tensor = node.tensor()
    if node.dtype() not in INTEGERS or node.result_dtype() is not f32:
        raise UnsupportedError(f"from {tensor.kind} to {node.result().kind} is not supported")
    scale = node.b.constant(node.scale(tensor), f32)
    zero = node.b.constant(node.zero_point(tensor), node.dtype())
    node.define_either(node.b.DequantizeLinear(x, scale, zero), is_image)


@handles("QUANTIZE")
def quantise(node: Node) -> None:
    """Of floats, halves away from zero; of integers, scaled as sums are."""
    (x,), is_image = node.together([0])
    tensor, dtype, to = node.tensor(), node.dtype(), node.result_dtype()
    if dtype is f32 and to in (i8, i16, u8):
        node.define_either(_rounded(node, x, node.limits()), is_image)
        return
    if dtype not in INTEGERS or to not in INTEGERS:
        raise UnsupportedError(f"from {tensor.kind} to {node.result().kind} is not supported")
    zero, real = node.zero_point(tensor), node.scale(tensor) / node.scale(node.result())
    limits = node.limits()
    if dtype is i8 and to is not i32:
        whole = multiply(np.arange(-128, 128) - zero, *quantise_multiplier(real))
        inside = np.clip(whole + limits.zero_point, limits.low, limits.high)
        made = by_table(node.b, x, inside.astype(to.np))
    else:
        reach = np.array([1 << 31 if dtype is i32 else 1 << 17])
        made = scaled(
            node.b,
            node.b.Cast(x, to=i32.onnx),
            np.array([-zero]),
            Factors.of(real),
            Span(-reach, reach),
            0,
            limits,
        )
    node.define_either(made, is_image)


def _rounded(node: Node, x: Value, limits: Limits) -> Value:
    """x / scale, rounded, plus the zero point."""
    b = node.b
    scaled_ = b.Div(x, b.constant(node.scale(node.result()), f32))
    size = b.Abs(scaled_)
    whole = b.Floor(size)
    up = b.GreaterOrEqual(b.Sub(size, whole), b.constant(0.5, f32))
    nearest = b.Mul(b.Add(whole, b.Cast(up, to=f32.onnx)), b.Sign(scaled_))
    moved = b.Add(nearest, b.constant(limits.zero_point, f32))
    inside = b.Clip(moved, b.constant(limits.low, f32), b.constant(limits.high, f32))
    return b.Cast(inside, to=limits.dtype.onnx)


@handles("CAST")
def cast(node: Node) -> None:
    (x,), is_image = node.together([0])
    node.define_either(node.b.Cast(x, to=node.result_dtype().onnx), is_image)
