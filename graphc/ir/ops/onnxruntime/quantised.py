"""ONNX Runtime's operators on quantised values (domain com.microsoft) that its quantiser writes.

Each dequantises its operands, computes, and quantises the result:

    QLinearAdd(a, sa, za, b, sb, zb, sy, zy) = q(d(a, sa, za) + d(b, sb, zb), sy, zy)

so that whatever knows how to treat such a sequence knows how to treat them (trait "quantised":
they are replaced by it before anything is made of them). Reference: docs/ContribOperators.md of
ONNX Runtime. A zero point that is missing is 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from graphc.errors import ModelError
from graphc.ir.build import Builder
from graphc.ir.graph import Value
from graphc.ir.opdef import Any_, Bool, Float, Int, Number, composite
from graphc.ir.ops.convolution import CONV
from graphc.ir.ops.helpers import RUNTIME, normal_axis
from graphc.ir.ops.onnxruntime.fused import with_channels_second

TRAITS = ("quantised",)
BY_AXIS = 13  # from this version on, a softmax is along one axis


def _real(b: Builder, x: Value, scale: Value, zero: Value | None, axis: int = 0) -> Value:
    return b.DequantizeLinear(x, scale, zero, axis=axis)


def _quantised(b: Builder, y: Value, scale: Value, zero: Value | None, like: Value) -> Value:
    """y quantised to the type of its zero point, or of `like`."""
    if zero is None:
        zero = b.constant(np.zeros((), like.tensor.dtype.np))
    return b.QuantizeLinear(y, scale, zero)


@composite("QuantizeLinear", domain=RUNTIME, traits=TRAITS)
def quantize_linear(
    b: Builder, x: Number, scale: Float, zero_point: Int | None = None, *, axis: int = 1
) -> Value:
    """ONNX's QuantizeLinear."""
    return b.QuantizeLinear(x, scale, zero_point, axis=axis)


@composite("DequantizeLinear", domain=RUNTIME, traits=TRAITS)
def dequantize_linear(
    b: Builder, x: Number, scale: Float, zero_point: Int | None = None, *, axis: int = 1
) -> Value:
    """ONNX's DequantizeLinear."""
    return b.DequantizeLinear(x, scale, zero_point, axis=axis)


# ---------------------------------------------------------------- elementwise


def _binary(kind: str) -> None:
    def define(
        b: Builder, a: Int, a_scale: Float, a_zero: Int | None, c: Int, c_scale: Float,
        c_zero: Int | None, y_scale: Float, y_zero: Int | None = None,
    ) -> Value:  # fmt: skip
        left, right = _real(b, a, a_scale, a_zero), _real(b, c, c_scale, c_zero)
        return _quantised(b, getattr(b, kind)(left, right), y_scale, y_zero, a)

    define.__doc__ = f"{kind} of two quantised tensors."
    composite(f"QLinear{kind}", domain=RUNTIME, traits=TRAITS)(define)


_binary("Add")
_binary("Mul")


@composite("QLinearSigmoid", domain=RUNTIME, traits=TRAITS)
def qlinear_sigmoid(
    b: Builder, x: Int, x_scale: Float, x_zero: Int | None, y_scale: Float,
    y_zero: Int | None = None,
) -> Value:  # fmt: skip
    """1 / (1 + exp(-x))."""
    return _quantised(b, b.Sigmoid(_real(b, x, x_scale, x_zero)), y_scale, y_zero, x)


@composite("QLinearLeakyRelu", domain=RUNTIME, traits=TRAITS)
def qlinear_leaky_relu(
    b: Builder, x: Int, x_scale: Float, x_zero: Int | None, y_scale: Float,
    y_zero: Int | None = None, *, alpha: float = 0.01,
) -> Value:  # fmt: skip
    """x above 0, else alpha * x."""
    result = b.LeakyRelu(_real(b, x, x_scale, x_zero), alpha=alpha)
    return _quantised(b, result, y_scale, y_zero, x)


@composite("QLinearWhere", domain=RUNTIME, traits=TRAITS)
def qlinear_where(
    b: Builder, condition: Bool, x: Int, x_scale: Float, x_zero: Int, y: Int, y_scale: Float,
    y_zero: Int, z_scale: Float, z_zero: Int,
) -> Value:  # fmt: skip
    """x where the condition holds, else y."""
    chosen = b.Where(condition, _real(b, x, x_scale, x_zero), _real(b, y, y_scale, y_zero))
    return _quantised(b, chosen, z_scale, z_zero, x)


@composite("QLinearConcat", domain=RUNTIME, traits=TRAITS)
def qlinear_concat(b: Builder, y_scale: Float, y_zero: Int, *parts: Any_, axis: int) -> Value:
    """Concat of quantised tensors, each followed by its scale and its zero point."""
    if not parts or len(parts) % 3:
        raise ModelError(f"takes tensors with a scale and a zero point each, found {len(parts)}")
    real = [_real(b, *parts[n : n + 3]) for n in range(0, len(parts), 3)]
    return _quantised(b, b.Concat(*real, axis=axis), y_scale, y_zero, parts[0])


# ---------------------------------------------------------------- windows


@composite("QLinearConv", domain=RUNTIME, traits=TRAITS)
def qlinear_conv(
    b: Builder, x: Int, x_scale: Float, x_zero: Int, w: Int, w_scale: Float, w_zero: Int,
    y_scale: Float, y_zero: Int, bias: Int | None = None, *, channels_last: int = 0, **attrs: CONV,
) -> Value:  # fmt: skip
    """ONNX's QLinearConv, of images whose channels may lie last; the weights' never do."""
    return _windowed(
        b, x, channels_last,
        lambda v: b.QLinearConv(
            v, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias, **attrs
        ),
    )  # fmt: skip


def _windowed(b: Builder, x: Value, channels_last: int, op: Callable[[Value], Value]) -> Value:
    """op(x) with the channels second, whatever their place in x."""
    return with_channels_second(b, x, op) if channels_last else op(x)


@composite("QLinearAveragePool", domain=RUNTIME, traits=TRAITS)
def qlinear_average_pool(
    b: Builder, x: Int, x_scale: Float, x_zero: Int | None, y_scale: Float,
    y_zero: Int | None = None, *, auto_pad: str = "NOTSET", ceil_mode: int = 0,
    channels_last: int = 0, count_include_pad: int = 0, kernel_shape: Sequence[int],
    pads: Sequence[int] | None = None, strides: Sequence[int] | None = None,
) -> Value:  # fmt: skip
    """The mean of each window."""
    result = _windowed(
        b, _real(b, x, x_scale, x_zero), channels_last,
        lambda v: b.AveragePool(
            v, auto_pad=auto_pad, ceil_mode=ceil_mode, count_include_pad=count_include_pad,
            kernel_shape=kernel_shape, pads=pads, strides=strides,
        ),
    )  # fmt: skip
    return _quantised(b, result, y_scale, y_zero, x)


@composite("QLinearGlobalAveragePool", domain=RUNTIME, traits=TRAITS)
def qlinear_global_average_pool(
    b: Builder, x: Int, x_scale: Float, x_zero: Int, y_scale: Float, y_zero: Int, *,
    channels_last: int = 0,
) -> Value:  # fmt: skip
    """The mean over all spatial positions."""
    real = _real(b, x, x_scale, x_zero)
    return _quantised(b, _windowed(b, real, channels_last, b.GlobalAveragePool), y_scale, y_zero, x)


# ---------------------------------------------------------------- products, softmax


@composite("QGemm", domain=RUNTIME, traits=TRAITS)
def qgemm(
    b: Builder, x: Int, x_scale: Float, x_zero: Int, w: Int, w_scale: Float, w_zero: Int,
    bias: Int | None = None, y_scale: Float | None = None, y_zero: Int | None = None, *,
    alpha: float = 1.0, transA: int = 0, transB: int = 0,  # noqa: N803
) -> Value:  # fmt: skip
    """alpha * x' w' + bias; the bias is scaled as the products are; floats without y_scale."""
    real = [_real(b, x, x_scale, x_zero), _real(b, w, w_scale, w_zero, 0 if transB else 1)]
    if bias is not None:
        unit = b.Mul(b.Mul(x_scale, w_scale), b.constant(alpha, x_scale.tensor.dtype))
        if unit.tensor.size == 1 and unit.tensor.rank:
            unit = b.Reshape(unit, np.zeros(0, np.int64))
        real.append(b.DequantizeLinear(bias, unit, axis=bias.tensor.rank - 1))
    result = b.Gemm(*real, alpha=alpha, transA=transA, transB=transB)
    return result if y_scale is None else _quantised(b, result, y_scale, y_zero, x)


@composite("QLinearSoftmax", domain=RUNTIME, traits=TRAITS)
def qlinear_softmax(
    b: Builder, x: Int, x_scale: Float, x_zero: Int | None, y_scale: Float, y_zero: Int, *,
    axis: int | None = None, opset: int,
) -> Value:  # fmt: skip
    """Softmax along an axis, or for an opset below 13 over all dims from the axis on."""
    real, shape = _real(b, x, x_scale, x_zero), x.tensor.dims
    if axis is None:
        axis = -1 if opset >= BY_AXIS else 1
    if opset >= BY_AXIS:
        return _quantised(b, b.Softmax(real, axis=axis), y_scale, y_zero, x)
    rows = math.prod(shape[: normal_axis(axis, len(shape))])
    flat = b.Softmax(b.Reshape(real, np.array([rows, -1])), axis=1)
    return _quantised(b, b.Reshape(flat, np.array(shape)), y_scale, y_zero, x)
