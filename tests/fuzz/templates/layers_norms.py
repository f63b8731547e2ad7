"""Normalisations of rows that are as long as those of models, in one operator and by hand."""

from __future__ import annotations

import numpy as np
from generator import Decline, Generator

from graphc.ir.dtypes import f16, f32
from graphc.ir.graph import Value
from templates.table import template

FAMILY = "norms"
LONG = (1, 2, 5, 8, 31, 32, 33, 64, 96, 127, 128, 129, 255, 257, 768, 1023, 1025, 3000)


def rows(g: Generator) -> Value:
    rank = g.choice((1, 2, 2, 3, 3, 4))
    length = g.choice(LONG)
    lead = [g.choice((1, 2, 3, 5, 8, 17, 33)) for _ in range(rank - 1)]
    if length * int(np.prod(lead)) > 60000:
        raise Decline
    x = g.data(*lead, length)
    if g.chance(0.3):
        x = g.emit("Add", x, g.data(*x.tensor.dims))
    return x


def mean(g: Generator, x: Value, axes: list[int]) -> Value:
    return g.emit("ReduceMean", x, np.array(axes, np.int64), keepdims=1)


@template(2, family=FAMILY)
def layer_by_hand(g: Generator) -> None:
    """Pow or Mul; Sqrt and Div, or Reciprocal and Mul; with or without mean, scale and bias."""
    x = rows(g)
    axes = (
        [-1]
        if g.chance(0.7)
        else sorted(int(n) for n in g.rng.permutation(x.tensor.rank)[: g.integer(1, 2)])
    )
    centred = g.emit("Sub", x, mean(g, x, axes)) if g.chance(0.7) else x
    squares = g.emit("Pow", centred, 2.0) if g.chance(0.5) else g.emit("Mul", centred, centred)
    root = g.emit("Sqrt", g.emit("Add", mean(g, squares, axes), g.choice((1e-5, 1e-2))))
    if g.chance(0.5):
        y = g.emit("Div", centred, root)
    else:
        y = g.emit("Mul", centred, g.emit("Reciprocal", root))
    last = x.tensor.dims[-1:]
    if g.chance(0.7):
        y = g.emit("Mul", y, g.constant(f32, last))
    if g.chance(0.5):
        y = g.emit("Add", y, g.constant(f32, last))


@template(2, family=FAMILY)
def in_one(g: Generator) -> None:
    x = rows(g)
    axis = -1 if g.chance(0.7) else g.axis(x)
    shape = x.tensor.dims[axis:]
    name = g.choice(
        ("LayerNormalization", "RMSNormalization", "Softmax", "LogSoftmax", "LpNormalization")
    )
    if name.endswith("Softmax"):
        g.emit(name, x, axis=axis)
    elif name == "LpNormalization":
        g.emit(name, g.emit("Add", x, 3.0), axis=axis, p=g.integer(1, 2))
    elif name == "RMSNormalization":
        g.emit(name, x, g.constant(f32, shape), axis=axis, epsilon=1e-3)
    elif g.chance(0.3):
        g.emit(name, x, g.constant(f32, shape), g.constant(f32, shape), axis=axis, outputs=3)
    else:
        g.emit(name, x, g.constant(f32, shape), g.constant(f32, shape), axis=axis, epsilon=1e-3)


@template(2, family=FAMILY)
def of_channels(g: Generator) -> None:
    channels = g.choice((1, 2, 3, 4, 6, 8, 16, 32, 33))
    extents = [g.extent(1, 33) for _ in range(g.choice((1, 2, 2, 3)))]
    batch = g.integer(1, 3)
    if batch * channels * int(np.prod(extents)) > 60000:
        raise Decline
    x = g.data(batch, channels, *extents)
    scale, bias = g.constant(f32, (channels,)), g.constant(f32, (channels,))
    which = g.integer(0, 3)
    g.for_onnxruntime = False  # it computes the variance by subtraction
    if which == 0:
        y = g.emit("InstanceNormalization", x, scale, bias, epsilon=1e-3)
    elif which == 1:
        groups = g.choice([d for d in range(1, channels + 1) if channels % d == 0])
        y = g.emit("GroupNormalization", x, scale, bias, num_groups=groups, epsilon=1e-3)
    elif which == 2:
        # as PyTorch exports groups: InstanceNormalization of a reshaped tensor
        groups = g.choice([d for d in range(1, channels + 1) if channels % d == 0])
        y = g.emit("Reshape", x, np.array([0, groups, -1], np.int64))
        ones, zeros = np.ones(groups, np.float32), np.zeros(groups, np.float32)
        y = g.emit("InstanceNormalization", y, ones, zeros)
        y = g.emit("Reshape", y, np.array(x.tensor.dims, np.int64))
        shape = (channels, *[1] * len(extents))
        y = g.emit("Add", g.emit("Mul", y, g.constant(f32, shape)), g.constant(f32, shape))
    else:
        y = g.emit("MeanVarianceNormalization", x, axes=[0, *range(2, x.tensor.rank)])
    if g.chance(0.4):
        g.emit("Mul", y, g.emit("Sigmoid", y))


@template(1, family=FAMILY)
def in_halves(g: Generator) -> None:
    """RMS normalisation of float16 that is computed in float32, as language models have it."""
    length = g.choice(LONG)
    x = g.data(g.integer(1, 5), length, dtype=f16)
    wide = g.emit("Cast", x, to=f32.onnx)
    root = g.emit("Sqrt", g.emit("Add", mean(g, g.emit("Pow", wide, 2.0), [-1]), 1e-3))
    y = g.emit("Cast", g.emit("Mul", wide, g.emit("Reciprocal", root)), to=f16.onnx)
    g.emit("Mul", g.constant(f16, (length,)), y)


@template(1, family=FAMILY)
def reduced(g: Generator) -> None:
    """Reductions of long axes, in any place, and several at once."""
    dims = [g.choice((1, 2, 3, 8, 17, 33)) for _ in range(g.integer(1, 3))]
    dims.insert(g.integer(0, len(dims)), g.choice(LONG))
    if int(np.prod(dims)) > 60000:
        raise Decline
    x = g.data(*dims)
    axes = np.sort(g.rng.permutation(len(dims))[: g.integer(1, len(dims))]).astype(np.int64)
    keep = g.integer(0, 1)
    for name in [g.choice(("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2",
                           "ReduceLogSumExp")) for _ in range(g.integer(1, 2))]:  # fmt: skip
        g.emit(name, x, axes, keepdims=keep)
    if g.chance(0.3):
        g.emit(g.choice(("ArgMax", "ArgMin")), x, axis=g.axis(x), keepdims=keep)
    if g.chance(0.3):
        g.emit("CumSum", x, np.array(g.axis(x), np.int64), reverse=g.integer(0, 1))
