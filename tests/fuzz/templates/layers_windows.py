"""Convolutions and pools as large as those of models, with what stands around them."""

from __future__ import annotations

import math

import numpy as np
from generator import Decline, Generator

from graphc.ir.dtypes import f32
from graphc.ir.graph import Value
from templates.table import template

FAMILY = "windows"
MOST_PRODUCTS = 4 << 20
CHANNELS = (1, 2, 3, 4, 5, 7, 8, 12, 15, 16, 17, 24, 31, 32, 33, 48, 64, 65, 96, 128)


def spatial(g: Generator) -> list[int]:
    rank = g.choice((1, 2, 2, 2, 2, 3))
    most = (257, 33, 9)[rank - 1]
    return [g.extent(1, most) for _ in range(rank)]


def windows(g: Generator, extents: list[int], dilated: bool = True) -> dict:
    """Attributes of windows that fit."""
    most = g.choice((1, 1, 3, 3, 3, 5, 7, 11))
    kernel = [min(most, e) if g.chance(0.85) else g.integer(1, min(e, 5)) for e in extents]
    strides = (
        [g.choice((1, 1, 2, 3))] * len(kernel)
        if g.chance(0.8)
        else [g.integer(1, 3) for _ in kernel]
    )
    dilations = [g.choice((1, 1, 1, 2, 3)) if dilated else 1 for _ in kernel]
    attrs: dict = {"kernel_shape": kernel, "strides": strides}
    if dilated:
        attrs["dilations"] = dilations
    if g.chance(0.2):
        return attrs | {"auto_pad": g.choice(("SAME_UPPER", "SAME_LOWER", "VALID"))}
    if g.chance(0.5):
        pads = [k // 2 * d for k, d in zip(kernel, dilations)] * 2
    else:
        pads = [g.integer(0, k - 1) for k in kernel * 2]
    if not dilated:
        pads = [min(p, k - 1) for p, k in zip(pads, kernel * 2)]
    count = len(kernel)
    for e, k, d, p, q in zip(extents, kernel, dilations, pads, pads[count:]):
        if e + p + q < (k - 1) * d + 1:
            raise Decline
    return attrs | {"pads": pads}


def convolved(g: Generator, x: Value) -> Value:
    channels = x.tensor.dims[1]
    divisors = [d for d in range(1, channels + 1) if channels % d == 0]
    group = g.choice((1, 1, 1, channels, g.choice(divisors)))
    if group == 1:
        out = g.choice(CHANNELS)
    else:
        out = group * g.choice((1, 1, 2, 3, 8) if group < 9 else (1, 1, 2))
    attrs = windows(g, list(x.tensor.dims[2:]))
    kernel = attrs["kernel_shape"]
    if x.tensor.size * out // group * math.prod(kernel) > MOST_PRODUCTS:
        raise Decline
    bias = g.weights(out) if g.chance(0.6) else None
    return g.emit("Conv", x, g.weights(out, channels // group, *kernel), bias, group=group, **attrs)


@template(4, family=FAMILY)
def convolution(g: Generator) -> None:
    x = g.data(g.choice((1, 1, 2, 3)), g.choice(CHANNELS), *spatial(g))
    for _ in range(g.choice((1, 1, 2))):
        y = convolved(g, x)
        if g.chance(0.3):
            channels = (y.tensor.dims[1],)
            drawn = [np.abs(g.array(f32, channels, small=True)) + np.float32(0.5) for _ in range(4)]
            y = g.emit("BatchNormalization", y, *drawn)
        if y.tensor.dims == x.tensor.dims and g.chance(0.5):
            y = g.emit("Add", x, y)
        if g.chance(0.5):
            y = g.emit(g.choice(("Relu", "HardSwish", "Sigmoid", "LeakyRelu")), y)
        x = y


@template(1, family=FAMILY)
def residual_convolution(g: Generator) -> None:
    """Same extents, so that the operand can be added; squeezed by its means."""
    channels = g.choice(CHANNELS)
    x = g.data(g.integer(1, 2), channels, g.choice((1, 7, 8, 15)), g.choice((3, 7, 14, 16)))
    k = g.choice((1, 3))
    group = g.choice((1, channels))
    if x.tensor.size * channels // group * k * k > MOST_PRODUCTS:
        raise Decline
    w = g.weights(channels, channels // group, k, k)
    y = g.emit("Conv", x, w, g.weights(channels), pads=[k // 2] * 4, group=group)
    if g.chance(0.5):
        mean = g.emit("GlobalAveragePool", y)
        gate = g.emit("Sigmoid", g.emit("Conv", mean, g.weights(channels, channels, 1, 1)))
        y = g.emit("Mul", y, gate)
    y = g.emit("Add", *((x, y) if g.chance(0.5) else (y, x)))
    g.emit("Relu", y)


@template(1.5, family=FAMILY)
def transposed(g: Generator) -> None:
    x = g.data(g.integer(1, 2), g.choice(CHANNELS[:-3]), *[min(e, 17) for e in spatial(g)])
    channels, extents = x.tensor.dims[1], x.tensor.dims[2:]
    group = g.choice(
        (1, 1, channels, g.choice([d for d in range(1, channels + 1) if channels % d == 0]))
    )
    kernel = [g.choice((1, 2, 3, 4, 5)) for _ in extents]
    strides = [g.choice((1, 2, 2, 3)) for _ in extents]
    outputs = g.choice((1, 2, 3, 8, 17))
    if x.tensor.size * outputs * math.prod(kernel) > MOST_PRODUCTS:
        raise Decline
    attrs: dict = {"strides": strides, "group": group}
    if g.chance(0.3):
        attrs["dilations"] = [g.integer(1, 2) for _ in kernel]
    dilations = attrs.get("dilations", [1] * len(kernel))
    if g.chance(0.6):
        attrs["pads"] = [
            g.integer(0, (k - 1) * d) if e > k * d else 0
            for k, d, e in zip(kernel * 2, dilations * 2, extents * 2)
        ]
    if g.chance(0.3):
        attrs["output_padding"] = [g.integer(0, s - 1) for s in strides]
    bias = g.weights(outputs * group) if g.chance(0.5) else None
    g.emit("ConvTranspose", x, g.weights(channels, outputs, *kernel), bias, **attrs)


@template(2, family=FAMILY)
def pool(g: Generator) -> None:
    x = g.data(g.choice((1, 2)), g.choice(CHANNELS), *spatial(g))
    if x.tensor.size > 1 << 16:
        raise Decline
    if g.chance(0.3):
        x = convolved(g, x)
    name = g.choice(("MaxPool", "AveragePool", "AveragePool", "LpPool"))
    attrs = windows(g, list(x.tensor.dims[2:]), dilated=name == "MaxPool")
    if "auto_pad" not in attrs and g.chance(0.3):
        attrs["ceil_mode"] = 1
        g.for_onnxruntime = False  # it counts the elements of the last window differently
    if "auto_pad" in attrs and any(d > 1 for d in attrs.get("dilations", ())):
        g.for_onnxruntime = False  # it pads for windows without gaps
    if name == "AveragePool" and g.chance(0.5):
        attrs["count_include_pad"] = 1
    if name == "MaxPool" and g.chance(0.2):
        g.emit(name, x, outputs=2, **attrs)
    else:
        g.emit(name, x, **attrs)


@template(1, family=FAMILY)
def channels_last(g: Generator) -> None:
    """A convolution between transposes, as TensorFlow's models have them."""
    dims = (g.integer(1, 2), g.extent(1, 17), g.extent(1, 17), g.choice(CHANNELS))
    y = convolved(g, g.emit("Transpose", g.data(*dims), perm=[0, 3, 1, 2]))
    if y.tensor.rank == 4:
        g.emit("Transpose", y, perm=[0, 2, 3, 1])


@template(1, family=FAMILY)
def resized(g: Generator) -> None:
    x = g.data(g.integer(1, 2), g.choice(CHANNELS[:12]), g.extent(1, 33), g.extent(1, 33))
    mode = g.choice(("nearest", "linear", "cubic"))
    transform = g.choice(("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"))
    g.for_onnxruntime = False
    if g.chance(0.5):
        scale = g.choice((0.5, 2.0, 2.0, 3.0, 1.5))
        if min(x.tensor.dims[2:]) * scale < 1:
            raise Decline
        scales = np.array([1, 1, scale, scale], np.float32)
        y = g.emit("Resize", x, None, scales, mode=mode, coordinate_transformation_mode=transform,
                   nearest_mode="floor")  # fmt: skip
    else:
        sizes = np.array([*x.tensor.dims[:2], g.extent(1, 65), g.extent(1, 65)], np.int64)
        y = g.emit("Resize", x, None, None, sizes, mode=mode,
                   coordinate_transformation_mode=transform)  # fmt: skip
    if g.chance(0.4) and y.tensor.size < 30000:
        convolved(g, y)
