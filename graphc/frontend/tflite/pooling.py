"""Means and maxima over windows, and over axes; softmax."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from graphc.errors import ModelError, UnsupportedError
from graphc.frontend.tflite.arithmetic import quantise_multiplier, softmax_table
from graphc.frontend.tflite.node import QUANTISED, Node
from graphc.frontend.tflite.products import window
from graphc.frontend.tflite.registry import handles
from graphc.frontend.tflite.rescaling import Factors, Span, limited, rescaled
from graphc.ir.dtypes import f32, i8, i32
from graphc.ir.ops.fixed_point import DOMAIN

LIMIT = 1 << 31


def _window(node: Node) -> dict[str, Any]:
    shape = node.tensor().shape
    if len(shape) != 4:
        raise ModelError(f"operand 0 must have 4 dims, found {list(shape)}")
    kernel = (node.option("FilterHeight"), node.option("FilterWidth"))
    attrs = window(node, shape[1:3], kernel)
    del attrs["dilations"]
    return {**attrs, "kernel_shape": kernel}


@handles("AVERAGE_POOL_2D")
def average_pool(node: Node) -> None:
    """Of integers, halves rounded away from zero; padding does not count."""
    b, attrs = node.b, _window(node)
    if node.dtype() is f32:
        node.define_image(node.activated(b.AveragePool(node.image(), **attrs)))
        return
    _quantised_pool(node)
    if math.prod(attrs["kernel_shape"]) << node.dtype().bits >= LIMIT:
        raise UnsupportedError("the sum of a window may not fit int32")
    limits = node.limits()
    node.define_image(b.op(
        "RoundedMean", node.image(), domain=DOMAIN, low=limits.low, high=limits.high, **attrs
    ))  # fmt: skip


@handles("MAX_POOL_2D")
def max_pool(node: Node) -> None:
    b, attrs = node.b, _window(node)
    largest = b.MaxPool(node.image(), **attrs)
    if node.dtype() is f32:
        node.define_image(node.activated(largest))
        return
    _quantised_pool(node)
    node.define_image(limited(b, largest, node.limits()))


def _quantised_pool(node: Node) -> None:
    if node.dtype() not in QUANTISED:
        raise UnsupportedError(f"a pool of {node.tensor().kind} is not supported")
    node.same_scales()


# ---------------------------------------------------------------- axes


def _axes(node: Node) -> tuple[int, ...]:
    rank = len(node.tensor().shape)
    axes = node.known_ints(1)
    if any(not -rank <= axis < rank for axis in axes):
        raise ModelError(f"axes {list(axes)} do not belong to {rank} dims")
    return tuple(sorted({axis % rank for axis in axes}))


@handles("MEAN", "SUM")
def mean_or_sum(node: Node) -> None:
    """Of integers, sums in int32 times the scales' quotient, which for a mean holds the count."""
    b, axes, x = node.b, _axes(node), node.tensor()
    mean, keep = node.op.kind == "MEAN", int(bool(node.option("KeepDims")))
    if node.dtype() is f32:
        function = b.ReduceMean if mean else b.ReduceSum
        some = np.array(axes, np.int64)
        node.define(function(node.value(), some, keepdims=keep) if axes else node.value())
        return
    if node.dtype() not in QUANTISED:
        raise UnsupportedError(f"a sum of {x.kind} is not supported")
    count = math.prod(x.shape[axis] for axis in axes)
    zero, dtype = node.zero_point(x), node.dtype()
    low, high = ((int(end) - zero) * count for end in (dtype.min, dtype.max))
    if not count or max(-low, high, count << dtype.bits) >= LIMIT:
        raise UnsupportedError(f"a sum of {count} numbers may not fit int32")
    multiplier, exponent = quantise_multiplier(node.scale(x) / node.scale(node.result()))
    if mean:
        shift = min(count.bit_length() - 1, 31 + exponent)
        multiplier, exponent = (multiplier << shift) // count, exponent - shift
    total = b.Cast(node.value(), to=i32.onnx)
    if axes:
        total = b.ReduceSum(total, np.array(axes, np.int64), keepdims=keep)
    node.define(rescaled(
        b, total, np.array([-zero * count]), Factors(np.array([multiplier]), np.array([exponent])),
        Span(np.array([low]), np.array([high])), 0, node.limits(),
    ))  # fmt: skip


@handles("REDUCE_MAX", "REDUCE_MIN")
def extreme(node: Node) -> None:
    node.same_scales()
    function = node.b.ReduceMax if node.op.kind == "REDUCE_MAX" else node.b.ReduceMin
    keep, axes = int(bool(node.option("KeepDims"))), np.array(_axes(node), np.int64)
    node.define(function(node.value(), axes, keepdims=keep))


# ---------------------------------------------------------------- softmax


@handles("SOFTMAX")
def softmax(node: Node) -> None:
    """Along the last axis; of int8 in gemmlowp's fixed point."""
    b, x, y = node.b, node.tensor(), node.result()
    beta = float(node.option("Beta", 1.0))
    if not x.shape:
        raise ModelError("its input must have a dim")
    if node.dtype() is f32:
        value = node.value()
        if beta != 1:
            value = b.Mul(value, b.constant(beta, f32))
        node.define(b.Softmax(value, axis=-1))
        return
    dtype = node.result_dtype()
    if node.dtype() is not i8 or dtype not in QUANTISED:
        raise UnsupportedError(f"a softmax of {x.kind} with a result of {y.kind} is not supported")
    scale, zero = node.scale(y), node.zero_point(y)
    wanted = 2.0**-dtype.bits
    if abs(scale - wanted) > wanted * 0.001 or zero != dtype.min:
        raise UnsupportedError(
            f"its result has scale {scale} and zero point {zero}, expected {wanted} and {dtype.min}"
        )
    if not 0 < node.scale(x) * beta < math.inf or node.scale(x) * beta * (1 << 26) <= 1:
        raise UnsupportedError(f"scale {node.scale(x)} times beta {beta} is out of reach")
    table = softmax_table(node.scale(x), beta).astype(np.int32)
    node.define(
        b.op("FixedPointSoftmax", node.value(), b.constant(table), domain=DOMAIN, to=dtype.onnx)
    )
