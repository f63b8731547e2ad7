"""Products that may change places: with resizes, averages and slices of rows; and in a row."""

from __future__ import annotations

import numpy as np
from generator import Generator

from graphc.ir.dtypes import f32
from graphc.ir.graph import Value
from templates.table import template

FAMILY = "places"
CHANNELS = (1, 3, 8, 9, 16, 20, 33)


def convolved(g: Generator, x: Value) -> Value:
    """By single positions, as a rule."""
    rank = x.tensor.rank - 2
    side = 3 if g.chance(0.15) and min(x.tensor.dims[2:]) > 2 else 1
    outputs = g.choice(CHANNELS)
    bias = g.constant(f32, (outputs,)) if g.chance(0.5) else None
    return g.emit("Conv", x, g.weights(outputs, x.tensor.dims[1], *[side] * rank), bias)


@template(2, family=FAMILY)
def joined_maps(g: Generator) -> None:
    """Maps of several sizes, resized to one, joined and multiplied."""
    batch, extents = g.integer(1, 2), (g.integer(2, 12), g.integer(2, 12))
    maps = []
    for _ in range(g.integer(1, 4)):
        own = extents if g.chance(0.25) else tuple(g.integer(1, n) for n in extents)
        x = g.data(batch, g.choice(CHANNELS), *own)
        if own != extents or g.chance(0.2):
            sizes = np.array([batch, x.tensor.dims[1], *extents], np.int64)
            x = g.emit("Resize", x, None, None, sizes, nearest_mode="floor",
                       mode=g.choice(("nearest", "linear", "cubic")))  # fmt: skip
        maps.append(x)
    y = maps[0] if len(maps) == 1 else g.emit("Concat", *maps, axis=1)
    y = convolved(g, y)
    if g.chance(0.4):
        g.emit("Relu", y)


@template(1, family=FAMILY)
def averaged(g: Generator) -> None:
    """A product of channels whose results are averaged."""
    y = convolved(
        g, g.data(g.integer(1, 2), g.choice(CHANNELS), g.integer(2, 12), g.integer(2, 12))
    )
    if g.chance(0.3):
        g.emit("GlobalAveragePool", y)
        return
    kernel = [min(g.integer(1, 3), n) for n in y.tensor.dims[2:]]
    attrs: dict = {"kernel_shape": kernel, "strides": [g.integer(1, 3) for _ in kernel]}
    if g.chance(0.3):
        attrs["pads"] = [g.integer(0, k - 1) for k in kernel * 2]
        attrs["count_include_pad"] = g.integer(0, 1)
    g.emit("AveragePool", y, **attrs)


@template(2, family=FAMILY)
def rows_of_a_layer(g: Generator) -> None:
    """A residual layer of a transformer, of which some rows are read."""
    batch, rows, width = g.integer(1, 2), g.integer(2, 12), g.choice((8, 16, 24))
    x = g.data(batch, rows, width)
    for _ in range(g.integer(1, 2)):
        h = g.emit("LayerNormalization", x, g.weights(width), axis=-1) if g.chance(0.7) else x
        inner = g.choice((8, 32, 40))
        h = g.emit("MatMul", h, g.weights(width, inner))
        h = g.emit("Add", h, g.weights(inner)) if g.chance(0.5) else h
        h = g.emit("Gelu", h) if g.chance(0.6) else h
        x = g.emit("Add", g.emit("MatMul", h, g.weights(inner, width)), x)
    if g.chance(0.5):
        x = g.emit("LayerNormalization", x, g.weights(width), g.weights(width), axis=-1)
    axis = 1 if g.chance(0.8) else g.integer(0, 2)
    first = g.integer(0, x.tensor.dims[axis] - 1)
    last = first + (1 if g.chance(0.7) else g.integer(1, 4))
    g.emit("Slice", x, *(np.array([n], np.int64) for n in (first, last, axis)))
    if g.chance(0.2):
        g.emit("Relu", x)
