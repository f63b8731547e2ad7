"""Convolutions and matrix products.

Quantised ones are sums of products of the integers as they are. The input's zero point and the bias
become one number per channel, unless padding is read, which must count as zero. Sums of int16 times
int8 that may not fit int32 are made in parts, and added in int64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphc.errors import ModelError, UnsupportedError
from graphc.frontend.tflite.node import QUANTISED, Node
from graphc.frontend.tflite.registry import handles
from graphc.frontend.tflite.rescaling import Factors, Span, rescaled, rescaled_wide
from graphc.ir.dtypes import f32, i8, i16, i64
from graphc.ir.graph import Value
from graphc.ir.window import WindowAxis, same_padding

LIMIT = 1 << 31
INT32 = 2  # the number of the type in the schema
PADDINGS = {0: "SAME", 1: "VALID"}


@dataclass(frozen=True)
class Product:
    """A sum of products: weights, output channels first, and what makes the sums of some of the
    input channels, `of(weights, first, last)`, less the zero point if `padded`."""

    node: Node
    weights: np.ndarray
    axis: int
    padded: bool
    of: Callable[[np.ndarray, int, int, int | None], Value]


# ---------------------------------------------------------------- windows


def window(node: Node, extents: tuple[int, ...], kernel: tuple[int, ...]) -> dict[str, Any]:
    """The attributes of a window over the height and the width."""
    strides = (node.option("StrideH"), node.option("StrideW"))
    dilations = (1, 1)
    if hasattr(node.op.options, "DilationHFactor"):
        dilations = (node.option("DilationHFactor", 1), node.option("DilationWFactor", 1))
    if min(*strides, *dilations, *kernel) < 1:
        raise ModelError(f"strides {strides}, dilations {dilations} and {kernel} must be positive")
    pads = [(0, 0), (0, 0)]
    if padding(node) == "SAME":
        for n in range(2):
            axis = WindowAxis(extents[n], kernel[n], strides[n], dilations[n])
            before, after = same_padding(
                axis, -(-extents[n] // strides[n]), upper=True, crops=False
            )
            pads[n] = int(before), int(after)  # type: ignore[arg-type]
    (top, bottom), (left, right) = pads
    return {"strides": strides, "dilations": dilations, "pads": (top, left, bottom, right)}


def padding(node: Node) -> str:
    """SAME or VALID."""
    number = node.option("Padding")
    if number not in PADDINGS:
        raise ModelError(f"its padding is number {number}, expected 0 (SAME) or 1 (VALID)")
    return PADDINGS[number]


def image_extents(node: Node, position: int = 0) -> tuple[int, int, int]:
    """The channels, the height and the width of an operand."""
    shape = node.tensor(position).shape
    if len(shape) != 4:
        raise ModelError(f"operand {position} must have 4 dims, found {list(shape)}")
    return shape[3], shape[1], shape[2]


@handles("CONV_2D")
def convolution(node: Node) -> None:
    """Filters are [output channels, height, width, input channels of a group]."""
    weights = filter_of(node, 0)
    channels, *extents = image_extents(node)
    depth = weights.shape[3]
    if not depth or not channels or channels % depth or weights.shape[0] % (channels // depth):
        raise ModelError(f"{channels} input channels do not fit a filter of {list(weights.shape)}")
    attrs = {**window(node, tuple(extents), weights.shape[1:3]), "group": channels // depth}
    convolve(node, node.image(), weights.transpose(0, 3, 1, 2), attrs)


@handles("DEPTHWISE_CONV_2D")
def depthwise(node: Node) -> None:
    """Filters are [1, height, width, output channels]."""
    weights = filter_of(node, 3)
    channels, *extents = image_extents(node)
    if weights.shape[0] != 1 or not channels or weights.shape[3] % channels:
        raise ModelError(f"{channels} input channels do not fit a filter of {list(weights.shape)}")
    attrs = {**window(node, tuple(extents), weights.shape[1:3]), "group": channels}
    convolve(node, node.image(), weights.transpose(3, 0, 1, 2), attrs)


def filter_of(node: Node, axis: int) -> np.ndarray:
    """The filter, of floats where the input is, whose output channels are an axis."""
    weights = _floats(node, axis) if node.dtype() is f32 else node.known(1)
    if weights.ndim != 4:
        raise ModelError(f"its filter must have 4 dims, found {list(weights.shape)}")
    return weights


def convolve(node: Node, x: Value, weights: np.ndarray, attrs: dict[str, Any]) -> None:
    """The convolution of an image with weights [output channels, input channels of a group, height,
    width], and the bias."""
    weights = np.ascontiguousarray(weights)
    b, bias = node.b, _bias(node, weights.shape[0])
    if node.dtype() is f32:
        total = b.Conv(x, b.constant(weights), bias, **attrs)
        node.define_image(node.activated(total))
        return

    def of(part: np.ndarray, first: int, last: int, zero: int | None) -> Value:
        some = x
        if last - first < weights.shape[1]:
            if attrs["group"] > 1:
                raise UnsupportedError("the sums of a group may not fit int32")
            some = b.Slice(x, np.array([first]), np.array([last]), np.array([1]))
        point = None if zero is None else b.constant(zero, some.tensor.dtype)
        return b.ConvInteger(some, b.constant(np.ascontiguousarray(part)), point, **attrs)

    product = Product(node, weights, 1, any(attrs["pads"]), of)
    node.define_image(_quantised(product, bias, _factors(node, weights.shape[0])))


# ---------------------------------------------------------------- matrix products


@handles("FULLY_CONNECTED")
def fully_connected(node: Node) -> None:
    """Weights are [units, depth]; rows are what lies before the last dim, or as many as fit."""
    b = node.b
    weights = _floats(node, 0) if node.dtype() is f32 else node.known(1)
    if node.option("WeightsFormat"):
        raise UnsupportedError("weights in shuffled order are not supported")
    if weights.ndim != 2:
        raise ModelError(f"its weights must have 2 dims, found {list(weights.shape)}")
    units, depth = weights.shape
    shape = node.tensor().shape
    size = int(np.prod(shape))
    if not depth or size % depth:
        raise ModelError(f"an input of {list(shape)} is no rows of {depth}")
    x, bias = node.value(), _bias(node, units)
    if shape != (size // depth, depth):
        x = b.Reshape(x, np.array([size // depth, depth]))
    if node.dtype() is f32:
        matrix = b.constant(np.ascontiguousarray(weights.T))
        total = b.MatMul(x, matrix)
        if bias is not None:
            total = b.Add(total, b.constant(bias))
        total = node.activated(total)
    else:

        def of(part: np.ndarray, first: int, last: int, zero: int | None) -> Value:
            some = x
            if (first, last) != (0, depth):
                some = b.Slice(x, np.array([first]), np.array([last]), np.array([1]))
            return b.MatMulInteger(some, b.constant(np.ascontiguousarray(part.T)))

        total = _quantised(Product(node, weights, 1, False, of), bias, _factors(node, units))
    out = node.result().shape
    node.define(total if total.tensor.dims == out else b.Reshape(total, np.array(out)))


# ---------------------------------------------------------------- weights


def _bias(node: Node, channels: int) -> np.ndarray | None:
    if not node.has(2):
        return None
    bias = node.known(2).reshape(-1)
    allowed = {f32: "f", i8: "i", i16: "i"}.get(node.dtype(), "")
    if bias.dtype.kind != allowed or bias.dtype.itemsize < 4:
        raise ModelError(f"its bias is {node.tensor(2).kind}, its input {node.tensor().kind}")
    if bias.size != channels:
        raise ModelError(f"its bias has {bias.size} numbers for {channels} output channels")
    return bias


def _floats(node: Node, axis: int) -> np.ndarray:
    """Weights of floats; those of int8, scaled along an axis, mean the floats that they stand for.

    TensorFlow Lite also rounds the input to 8 bits then, and its version for microcontrollers
    refuses such models. Here activations keep their precision.
    """
    weights, tensor = node.known(1), node.tensor(1)
    if weights.dtype == np.float32:
        return weights
    if weights.dtype != np.int8:
        raise UnsupportedError(
            f"an input of float32 with weights of {tensor.kind} is not supported"
        )
    quantisation, shape = node.quantisation(tensor), [1] * weights.ndim
    if quantisation.scale.size > 1:
        shape[axis] = quantisation.scale.size
    whole = weights.astype(np.int64) - quantisation.zero.reshape(shape)
    return whole.astype(np.float32) * quantisation.scale.reshape(shape)


def _factors(node: Node, channels: int) -> Factors:
    """The factor of each channel's sums: the scales of the operands over that of the result."""
    x, w, y = node.tensor(0), node.tensor(1), node.result()
    if node.dtype() not in QUANTISED or node.made.dtype(w) is not i8:
        raise UnsupportedError(
            f"an input of {x.kind} with weights of {w.kind} is not supported; there are float32, "
            "and int8 or int16 with weights of int8"
        )
    quantisation = node.quantisation(w)
    if quantisation.zero.any():
        raise UnsupportedError("weights with a zero point are not supported; they are symmetric")
    if quantisation.scale.size not in (1, channels):
        raise ModelError(
            f"its weights have {quantisation.scale.size} scales for {channels} channels"
        )
    sx, sy = node.scale(x), node.scale(y)
    if node.op.kind == "FULLY_CONNECTED" and quantisation.scale.size == 1:
        real = [float(np.float32(sx) * quantisation.scale[0]) / sy]
    else:
        real = [sx * float(s) / sy for s in quantisation.scale]
    return Factors.of(*real)


def _quantised(product: Product, bias: np.ndarray | None, factors: Factors) -> Value:
    """The sums, scaled to the result's type."""
    node, weights = product.node, product.weights.astype(np.int64)
    if node.result_dtype() is not node.dtype():
        kinds = node.tensor().kind, node.result().kind
        raise UnsupportedError("an input of {} with a result of {} is not supported".format(*kinds))
    dtype, zero = node.dtype(), node.zero_point(node.tensor())
    flat = weights.reshape(weights.shape[0], -1)
    low, high = int(dtype.min) - zero, int(dtype.max) - zero
    added = np.zeros(flat.shape[0], np.int64) if bias is None else bias.astype(np.int64)
    span = Span(
        np.minimum(flat * low, flat * high).sum(1) + added,
        np.maximum(flat * low, flat * high).sum(1) + added,
    )
    centred = product.padded and zero != 0
    offset = added if centred else added - zero * flat.sum(1)
    total = _summed(product, zero if centred else None, np.abs(flat) * max(-low, high))
    if dtype is i16 and not _narrow_sums(node, bias):
        return rescaled_wide(node.b, total, offset, factors, span, product.axis, node.limits())
    if span.farthest >= LIMIT:
        raise UnsupportedError("its sums may not fit int32")
    return rescaled(node.b, total, offset, factors, span, product.axis, node.limits())


def _narrow_sums(node: Node, bias: np.ndarray | None) -> bool:
    """Whether the kernel adds products of int16 in int32: as the type of the bias is."""
    if bias is not None:
        return bias.dtype == np.int32
    return node.op.kind == "FULLY_CONNECTED" and node.option("QuantizedBiasType") == INT32


def _summed(product: Product, zero: int | None, most: np.ndarray) -> Value:
    """The sums of products: in int32 if they fit, else in int64."""
    b, weights = product.node.b, product.weights
    depth = weights.shape[1]
    largest = most.reshape(*weights.shape[:2], -1).sum(2).max(0, initial=0)  # by input channel
    if product.node.dtype() is not i16:
        if most.sum(1).max(initial=0) >= LIMIT:
            raise UnsupportedError("its sums may not fit int32")
        return product.of(weights, 0, depth, zero)
    starts, total = [0], 0
    for n, some in enumerate(largest):
        if some >= LIMIT:
            raise UnsupportedError("the products of one channel may not fit int32")
        total += int(some)
        if total >= LIMIT:
            starts, total = [*starts, n], int(some)
    ends = [*starts[1:], depth]
    parts = [product.of(weights[:, a:e], a, e, zero) for a, e in zip(starts, ends)]
    wide = [b.Cast(part, to=i64.onnx) for part in parts]
    total_ = wide[0]
    for part in wide[1:]:
        total_ = b.Add(total_, part)
    return total_
