"""Convolutions, pools and resampling."""

from __future__ import annotations

import numpy as np
from generator import Decline, Generator

from graphc.ir import dtypes
from graphc.ir.dtypes import f32
from graphc.ir.graph import Value
from templates.table import (
    is_f32,
    template,
)


def windowed(g: Generator) -> tuple[Value, int]:
    """A tensor N, C, spatial... and its number of spatial dims; made from another if needed."""
    x = g.pick(lambda d: d in (f32, f32, dtypes.f64, dtypes.f16), (3, 5), filled=True)
    return x, x.tensor.rank - 2


def window(g: Generator, x: Value, spatial: int, dilate: bool = True) -> dict:
    """Attributes of a window that fits."""
    kernel, strides, dilations, before, after = [], [], [], [], []
    for extent in x.tensor.dims[2:]:
        k = g.integer(1, min(extent, 4))
        d = g.choice((1, 1, 1, 2)) if dilate else 1
        reach = (k - 1) * d + 1
        p, q = (g.integer(0, k - 1) if g.chance(0.6) else 0 for _ in range(2))
        if extent + p + q < reach:
            raise Decline
        for items, item in zip((kernel, strides, dilations, before, after),
                               (k, g.choice((1, 1, 2, 3)), d, p, q)):  # fmt: skip
            items.append(item)
    attrs = {"kernel_shape": kernel, "strides": strides}
    if dilate:
        attrs["dilations"] = dilations
    if g.chance(0.2) and all(d == 1 for d in dilations):
        return attrs | {"auto_pad": g.choice(("SAME_UPPER", "SAME_LOWER", "VALID"))}
    return attrs | {"pads": before + after}


@template(3)
def conv(g: Generator) -> None:
    x, spatial = windowed(g)
    attrs = window(g, x, spatial)
    channels = x.tensor.dims[1]
    group = g.choice([d for d in range(1, channels + 1) if channels % d == 0])
    out = group * g.choice((1, 1, 2, 3, 8, 16) if group < 5 else (1, 2))
    w = g.operand(x.tensor.dtype, (out, channels // group, *attrs["kernel_shape"]))
    bias = g.constant(x.tensor.dtype, (out,)) if g.chance(0.6) else None
    y = g.emit("Conv", x, w, bias, group=group, **attrs)
    if g.chance(0.3):
        y = g.emit("Relu", y)
    if g.chance(0.2):
        drawn = [np.abs(g.array(x.tensor.dtype, (out,), small=True)) + 0.5 for _ in range(4)]
        g.emit("BatchNormalization", y, *(v.astype(x.tensor.dtype.np) for v in drawn))


@template(1)
def conv_transpose(g: Generator) -> None:
    x = g.pick(is_f32, (3, 5), filled=True)
    channels = x.tensor.dims[1]
    group = g.choice([d for d in range(1, channels + 1) if channels % d == 0][:3])
    kernel = [g.integer(1, 3) for _ in x.tensor.dims[2:]]
    strides = [g.choice((1, 2, 3)) for _ in kernel]
    pads = [g.integer(0, k - 1) if e > 2 else 0 for k, e in zip(kernel, x.tensor.dims[2:])] * 2
    extra = [g.integer(0, s - 1) for s in strides]
    w = g.constant(f32, (channels, g.integer(1, 4), *kernel))
    g.emit("ConvTranspose", x, w, group=group, strides=strides, pads=pads, output_padding=extra)


@template(1.5)
def pool(g: Generator) -> None:
    x, spatial = windowed(g)
    name = g.choice(("MaxPool", "AveragePool", "AveragePool", "LpPool"))
    attrs = window(g, x, spatial)
    if "auto_pad" not in attrs and g.chance(0.3):
        attrs["ceil_mode"] = 1
        g.for_onnxruntime = False  # it counts the elements of the last window differently
    if name == "AveragePool" and g.chance(0.5):
        attrs["count_include_pad"] = 1
    g.emit(name, x, keeps=name == "MaxPool", **attrs)


@template(0.6)
def global_pool(g: Generator) -> None:
    x, _ = windowed(g)
    g.emit(g.choice(("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")), x)


@template(0.8)
def conv_transpose_options(g: Generator) -> None:
    """auto_pad, output_shape, dilations, uneven pads."""
    x = g.pick(is_f32, (3, 4), filled=True)
    channels, extents = x.tensor.dims[1], x.tensor.dims[2:]
    kernel = [g.integer(1, 4) for _ in extents]
    strides = [g.choice((1, 2, 3)) for _ in kernel]
    w = g.constant(f32, (channels, g.integer(1, 4), *kernel))
    bias = g.constant(f32, w.tensor.dims[1:2]) if g.chance(0.5) else None
    attrs: dict = {"strides": strides}
    which = g.integer(0, 2)
    if which == 0:
        attrs["auto_pad"] = g.choice(("SAME_UPPER", "SAME_LOWER", "VALID"))
    elif which == 1:
        least = [(d - 1) * s + 1 for d, s in zip(extents, strides)]
        attrs["output_shape"] = [n + g.integer(0, k - 1) for n, k in zip(least, kernel)]
    else:
        attrs["dilations"] = [g.choice((1, 2, 3)) for _ in kernel]
        attrs["pads"] = [g.integer(0, min(k - 1, 2)) if e > 2 else 0
                         for k, e in zip(kernel * 2, (*extents, *extents))]  # fmt: skip
    g.emit("ConvTranspose", x, w, bias, **attrs)


@template(0.4)
def pool_in_bytes(g: Generator) -> None:
    x = g.pick(lambda d: d in (dtypes.u8, dtypes.i8), (3, 5), filled=True)
    attrs = window(g, x, x.tensor.rank - 2)
    g.emit("MaxPool", x, keeps=True, **attrs)
