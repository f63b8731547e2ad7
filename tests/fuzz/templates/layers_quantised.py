"""Quantised layers as large as those of models: chains of Quantize- and DequantizeLinear.

Scales are powers of two, and sums stay below 2^24 of their steps, so that floats hold them exactly.
"""

from __future__ import annotations

import math

import numpy as np
from generator import Decline, Generator

from graphc.ir import dtypes
from graphc.ir.dtypes import DType, f32
from graphc.ir.graph import Value
from templates.layers_windows import windows
from templates.quantised import BYTES, exact, weights_in_bytes
from templates.table import template

FAMILY = "quantised"
CHANNELS = (1, 3, 4, 5, 8, 15, 16, 17, 31, 32, 33, 64, 65)


def through_bytes(g: Generator, x: Value, kind: DType, wide: int = 0) -> Value:
    """Quantised and back, in steps that grow with what is added up."""
    scale = np.array(2.0 ** (g.integer(-5, -2) + wide), np.float32)
    zero = np.array(g.choice((0, 3, 100) if kind is dtypes.i8 else (0, 3, 128)), kind.np)
    y = g.emit("QuantizeLinear", x, scale, zero, keeps=True)
    return g.emit("DequantizeLinear", y, scale, zero, keeps=True)


def bias(g: Generator, count: int) -> np.ndarray | None:
    return (g.rng.integers(-16, 16, count) / 8).astype(np.float32) if g.chance(0.6) else None


@template(2, family=FAMILY)
def convolutions(g: Generator) -> None:
    kind = g.choice(BYTES)
    x = g.data(
        g.integer(1, 2), g.choice(CHANNELS), *[g.extent(1, 17) for _ in range(g.choice((1, 2, 2)))]
    )
    y = through_bytes(g, x, kind)
    for _ in range(g.integer(1, 2)):
        channels = y.tensor.dims[1]
        depthwise = g.chance(0.3)
        attrs = windows(g, list(y.tensor.dims[2:]))
        kernel, group = attrs["kernel_shape"], channels if depthwise else 1
        out = channels * g.choice((1, 1, 2)) if depthwise else g.choice(CHANNELS)
        if y.tensor.size * out // group * math.prod(kernel) > 1 << 21:
            raise Decline
        w = weights_in_bytes(g, (out, channels // group, *kernel), 0)
        z = exact(g, g.emit("Conv", y, w, bias(g, out), group=group, **attrs))
        if g.chance(0.5):
            z = g.emit("Relu", z, keeps=True)
        z = through_bytes(g, z, kind, 1)
        if z.tensor.dims == y.tensor.dims and g.chance(0.6):
            z = through_bytes(g, exact(g, g.emit("Add", y, z)), kind, 1)
        y = z
    if g.chance(0.3) and y.tensor.rank == 4:
        g.emit("MaxPool", y, kernel_shape=[min(2, d) for d in y.tensor.dims[2:]], keeps=True)


@template(2, family=FAMILY)
def products(g: Generator) -> None:
    kind = g.choice(BYTES)
    lead = g.choice(((), (2,), (1, 3)))
    depth = g.choice((1, 4, 15, 16, 32, 33, 64, 65, 128, 257))
    y = through_bytes(g, g.data(*lead, g.extent(1, 129), depth), kind)
    for _ in range(g.integer(1, 2)):
        columns = g.extent(1, 129)
        w = weights_in_bytes(g, (y.tensor.dims[-1], columns), 1)
        z = exact(g, g.emit("MatMul", y, w))
        added = bias(g, columns)
        if added is not None:
            z = exact(g, g.emit("Add", z, added))
        if g.chance(0.4):
            z = g.emit("Relu", z, keeps=True)
        y = through_bytes(g, z, kind, 1)


@template(1, family=FAMILY)
def products_of_two(g: Generator) -> None:
    """Both factors are computed; softmax between them, in floats."""
    kind, lead = g.choice(BYTES), g.choice(((), (3,), (1, 2)))
    rows, depth, columns = g.extent(1, 65), g.choice((4, 16, 31, 64)), g.extent(1, 65)
    a = through_bytes(g, g.data(*lead, rows, depth), kind)
    b = through_bytes(g, g.data(*lead, columns, depth), g.choice(BYTES))
    perm = [*range(len(lead)), len(lead) + 1, len(lead)]
    y = exact(g, g.emit("MatMul", a, g.emit("Transpose", b, perm=perm, keeps=True)))
    y = through_bytes(g, y, kind, 1)
    if g.chance(0.3):
        g.emit("Softmax", y, axis=-1)


@template(1, family=FAMILY)
def integers(g: Generator) -> None:
    """MatMulInteger and ConvInteger with zero points, as dynamic quantisation makes them."""
    kind, other = g.choice(BYTES), g.choice(BYTES)
    zero = np.array(g.choice((0, 5, 100)), kind.np)
    if kind is dtypes.i8 and other is dtypes.u8:
        g.for_onnxruntime = False
    if g.chance(0.5):
        m, k, n = g.extent(), g.choice((1, 3, 16, 33, 64, 129)), g.extent()
        x, w = g.data(m, k, dtype=kind), g.weights(k, n, dtype=other)
        y = g.emit("MatMulInteger", x, w, zero, np.array(g.choice((0, 7)), other.np), keeps=True)
    else:
        x = g.data(1, g.choice(CHANNELS), g.extent(3, 17), g.extent(3, 17), dtype=kind)
        w = g.weights(g.choice(CHANNELS), x.tensor.dims[1], 3, 3, dtype=other)
        y = g.emit(
            "ConvInteger", x, w, zero, pads=[1] * 4, strides=[g.integer(1, 2)] * 2, keeps=True
        )
        g.for_onnxruntime &= kind is dtypes.u8
    y = g.emit("Mul", g.emit("Cast", y, to=f32.onnx, keeps=True), np.array(2.0**-7, np.float32))
    if g.chance(0.5):
        g.emit("Relu", y, keeps=True)
