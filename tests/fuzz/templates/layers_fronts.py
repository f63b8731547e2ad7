"""What moves, enlarges, joins or cuts images in front of windows, which may read through it."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from generator import Decline, Generator

from graphc.ir import dtypes
from graphc.ir.dtypes import f32
from graphc.ir.graph import Value
from templates.layers_quantised import through_bytes
from templates.layers_windows import MOST_PRODUCTS, windows
from templates.quantised import BYTES, exact, weights_in_bytes
from templates.table import template

FAMILY = "fronts"
CHANNELS = (1, 2, 3, 4, 8, 9, 16, 17)
Front = Callable[[Generator, Value], Value]
TRANSFORMS = (
    "half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "half_pixel_symmetric",
)  # fmt: skip


def padded(g: Generator, x: Value) -> Value:
    """Of every mode, rarely along channels, at times cropping."""
    mode = g.choice(("constant", "constant", "reflect", "edge", "wrap"))
    pads = []
    for n, extent in enumerate(x.tensor.dims * 2):
        most = {"reflect": extent - 1, "wrap": extent}.get(mode, 4)
        seldom = n % x.tensor.rank < 2 and g.chance(0.9)
        pads.append(0 if seldom else g.integer(0, min(3, most)))
    if mode == "constant" and g.chance(0.15):
        pads = [p - 1 if p and e > 3 else p for p, e in zip(pads, x.tensor.dims * 2)]
    fill = g.choice((None, None, 0.0, 0.5, -1.0)) if mode == "constant" else None
    return g.emit("Pad", x, np.array(pads, np.int64), fill, mode=mode, keeps=True)


def resized(g: Generator, x: Value) -> Value:
    """By factors or to extents, in every mode."""
    g.for_onnxruntime = False
    mode = g.choice(("nearest", "nearest", "linear", "cubic"))
    attrs: dict = {"mode": mode, "coordinate_transformation_mode": g.choice(TRANSFORMS)}
    if mode == "nearest":
        attrs["nearest_mode"] = g.choice(
            ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")
        )
    elif mode == "cubic" and g.chance(0.4):
        attrs["exclude_outside"] = 1
    if mode != "nearest" and g.chance(0.2):
        attrs["antialias"] = 1
    spatial = x.tensor.dims[2:]
    if g.chance(0.5):
        factors = [g.choice((0.5, 1.0, 2.0, 2.0, 3.0, 1.5)) for _ in spatial]
        if any(e * f < 1 for e, f in zip(spatial, factors)):
            raise Decline
        scales = np.array([1, 1, *factors], np.float32)
        return g.emit("Resize", x, None, scales, keeps=mode == "nearest", **attrs)
    sizes = np.array([*x.tensor.dims[:2], *(g.integer(1, 2 * e + 1) for e in spatial)], np.int64)
    return g.emit("Resize", x, None, None, sizes, keeps=mode == "nearest", **attrs)


def rearranged(g: Generator, x: Value) -> Value:
    """Between depth and space."""
    if x.tensor.rank != 4:
        raise Decline
    _, c, h, w = x.tensor.dims
    side = g.choice((2, 2, 3))
    if c % side**2 == 0:
        mode = g.choice(("DCR", "CRD"))
        return g.emit("DepthToSpace", x, blocksize=side, mode=mode, keeps=True)
    if h % side or w % side:
        raise Decline
    return g.emit("SpaceToDepth", x, blocksize=side, keeps=True)


def joined(g: Generator, x: Value) -> Value:
    axis = g.integer(1, x.tensor.rank - 1)
    dims = list(x.tensor.dims)
    if g.chance(0.3):
        return g.emit("Concat", x, x, axis=axis, keeps=True)
    dims[axis] = g.integer(1, 5)
    parts = [x, g.data(*dims)] if g.chance(0.5) else [g.data(*dims), x]
    return g.emit("Concat", *parts, axis=axis, keeps=True)


def sliced(g: Generator, x: Value) -> Value:
    """A piece, reversed or with gaps."""
    axis = g.integer(1, x.tensor.rank - 1)
    extent = x.tensor.dims[axis]
    step = g.choice((1, 1, 2, 3, -1, -2))
    low, high = sorted((g.integer(0, extent), g.integer(0, extent)))
    start, end = (low, high) if step > 0 else (high, low - 1 if low else -extent - 1)
    return g.emit("Slice", x, *(np.array([n], np.int64) for n in (start, end, axis, step)),
                  keeps=True)  # fmt: skip


def picked(g: Generator, x: Value) -> Value:
    axis = g.integer(1, x.tensor.rank - 1)
    extent = x.tensor.dims[axis]
    where = g.rng.integers(-extent, extent, g.integer(1, extent + 2)).astype(np.int64)
    return g.emit("Gather", x, where, axis=axis, keeps=True)


def swapped(g: Generator, x: Value) -> Value:
    """Spatial dims (and rarely channels) in another order, or channels last before."""
    axes = [1 + int(n) for n in g.rng.permutation(x.tensor.rank - 1)]
    return g.emit("Transpose", x, perm=[0, *axes], keeps=True)


def repeated(g: Generator, x: Value) -> Value:
    times = [1, *(g.choice((1, 1, 2)) for _ in x.tensor.dims[1:])]
    return g.emit("Tile", x, np.array(times, np.int64), keeps=True)


def scaled(g: Generator, x: Value) -> Value:
    """Arithmetic per channel, which padding behind it does not see."""
    per_channel = (x.tensor.dims[1], *[1] * (x.tensor.rank - 2))
    y = g.emit(g.choice(("Add", "Mul")), x, g.constant(f32, per_channel))
    return g.emit("Relu", y) if g.chance(0.4) else y


def activated(g: Generator, x: Value) -> Value:
    return g.emit(g.choice(("Relu", "Abs", "Neg")), x, keeps=True)


def pooled(g: Generator, x: Value) -> Value:
    kernel = [min(2, e) for e in x.tensor.dims[2:]]
    return g.emit(
        "MaxPool", x, kernel_shape=kernel, strides=[g.choice((1, 2))] * len(kernel), keeps=True
    )


FRONTS: tuple[Front, ...] = (
    padded, padded, padded, resized, resized, rearranged, joined, joined, sliced, picked, swapped,
    repeated, scaled, activated, pooled,
)  # fmt: skip


def drawn_fronts(g: Generator) -> tuple[Value, int]:
    """An image behind one to three fronts, and the number of values that came before."""
    rank = g.choice((1, 2, 2, 2, 2, 3))
    extents = [g.extent(1, (33, 17, 6)[rank - 1]) for _ in range(rank)]
    x = g.data(g.integer(1, 2), g.choice(CHANNELS), *extents)
    for _ in range(g.choice((1, 1, 2, 2, 3))):
        x = g.choice(FRONTS)(g, x)
        if not 0 < x.tensor.size <= 1 << 14:
            raise Decline
    return x, rank


@template(4, family=FAMILY)
def into_convolution(g: Generator) -> None:
    x, _ = drawn_fronts(g)
    channels = x.tensor.dims[1]
    divisors = [d for d in range(1, channels + 1) if channels % d == 0]
    group = g.choice((1, 1, 1, channels, g.choice(divisors)))
    out = group * g.choice((1, 2, 3, 8, 17) if group == 1 else (1, 1, 2))
    attrs = windows(g, list(x.tensor.dims[2:]))
    kernel = attrs["kernel_shape"]
    if x.tensor.size * out // group * math.prod(kernel) > MOST_PRODUCTS // 4:
        raise Decline
    bias = g.weights(out) if g.chance(0.5) else None
    w = g.weights(out, channels // group, *kernel)
    g.emit("Conv", x, w, bias, group=group, **attrs)


@template(1.5, family=FAMILY)
def into_transposed(g: Generator) -> None:
    x, _ = drawn_fronts(g)
    channels, extents = x.tensor.dims[1], x.tensor.dims[2:]
    group = g.choice([d for d in range(1, channels + 1) if channels % d == 0])
    kernel = [g.integer(1, 4) for _ in extents]
    attrs: dict = {"strides": [g.choice((1, 2, 2, 3)) for _ in extents], "group": group}
    if g.chance(0.3):
        attrs["dilations"] = [g.integer(1, 2) for _ in kernel]
    dilations = attrs.get("dilations", [1] * len(kernel))
    attrs["pads"] = [
        g.integer(0, (k - 1) * d) if e > k * d else 0
        for k, d, e in zip(kernel * 2, dilations * 2, extents * 2)
    ]
    outputs = g.choice((1, 2, 8))
    if x.tensor.size * outputs * math.prod(kernel) > MOST_PRODUCTS // 4:
        raise Decline
    g.emit("ConvTranspose", x, g.weights(channels, outputs, *kernel), **attrs)


@template(2, family=FAMILY)
def into_pool(g: Generator) -> None:
    x, _ = drawn_fronts(g)
    name = g.choice(("MaxPool", "AveragePool", "LpPool"))
    attrs = windows(g, list(x.tensor.dims[2:]), dilated=name == "MaxPool")
    if "auto_pad" in attrs and any(d > 1 for d in attrs.get("dilations", ())):
        g.for_onnxruntime = False  # it pads for windows without gaps
    if name == "AveragePool" and g.chance(0.5):
        attrs["count_include_pad"] = 1
    g.emit(name, x, keeps=name == "MaxPool", **attrs)


@template(1.5, family=FAMILY)
def in_bytes(g: Generator) -> None:
    """Quantised before or behind the fronts."""
    kind = g.choice(BYTES)
    x = g.data(g.integer(1, 2), g.choice(CHANNELS), g.extent(1, 17), g.extent(1, 17))
    y = through_bytes(g, x, kind)
    for _ in range(g.integer(1, 2)):
        front = g.choice((padded, padded, rearranged, sliced, picked, swapped, repeated, pooled))
        y = front(g, y)
        if not 0 < y.tensor.size <= 1 << 14:
            raise Decline
    if g.chance(0.5):
        y = through_bytes(g, y, kind)
    channels = y.tensor.dims[1]
    depthwise = g.chance(0.3)
    attrs = windows(g, list(y.tensor.dims[2:]))
    kernel, group = attrs["kernel_shape"], channels if depthwise else 1
    out = channels if depthwise else g.choice(CHANNELS)
    w = weights_in_bytes(g, (out, channels // group, *kernel), 0)
    z = exact(g, g.emit("Conv", y, w, group=group, **attrs))
    through_bytes(g, z, kind, 1)


@template(1, family=FAMILY)
def integers(g: Generator) -> None:
    """ConvInteger and products of bytes with zero points behind fronts of bytes."""
    kind = g.choice(BYTES)
    x = g.data(1, g.choice(CHANNELS), g.extent(1, 17), g.extent(1, 17), dtype=kind)
    pads = [0, 0, *(g.integer(0, 2) for _ in range(2))] * 2
    mode = g.choice(("constant", "edge"))
    y = g.emit("Pad", x, np.array(pads, np.int64), mode=mode, keeps=True)
    y = g.choice((sliced, swapped, picked, activated_bytes))(g, y)
    if not y.tensor.size:
        raise Decline
    attrs = windows(g, list(y.tensor.dims[2:]))
    other = g.choice(BYTES)
    w = g.weights(g.choice(CHANNELS), y.tensor.dims[1], *attrs["kernel_shape"], dtype=other)
    zero = np.array(g.choice((0, 5, 100)), kind.np)
    weights_zero = np.array(g.choice((0, 0, 7)), other.np)
    g.for_onnxruntime = kind is dtypes.u8
    g.emit("ConvInteger", y, w, zero, weights_zero, keeps=True, **attrs)


def activated_bytes(g: Generator, x: Value) -> Value:
    low = g.b.constant(10, x.tensor.dtype)
    g.exact.add(low)
    return g.emit("Max", x, low, keeps=True)
