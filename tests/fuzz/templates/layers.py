"""Softmax, normalisations, attention, recurrence, quantisation, and idioms of exporters."""

from __future__ import annotations

import numpy as np
from generator import Generator

from graphc.ir.dtypes import f32
from templates.table import (
    SMOOTH,
    is_f32,
    is_float,
    template,
)


@template(2, special=True)
def softmax(g: Generator) -> None:
    x = g.pick(is_float, (1, 5))
    g.emit(g.choice(("Softmax", "Softmax", "LogSoftmax")), x, axis=g.axis(x))


@template(2)
def normalise(g: Generator) -> None:
    x = g.pick(is_f32, (2, 5), filled=True)
    axis = g.axis(x)
    shape, kind = x.tensor.dims[axis:], x.tensor.dtype
    name = g.choice(("LayerNormalization", "RMSNormalization"))
    scale = g.constant(kind, shape)
    bias = [g.constant(kind, shape)] if name.startswith("Layer") and g.chance(0.7) else []
    g.emit(name, x, scale, *bias, axis=axis, epsilon=1e-2)


@template(0.8)
def normalise_channels(g: Generator) -> None:
    x = g.pick(is_f32, (3, 5), filled=True)
    channels = x.tensor.dims[1]
    scale, bias = g.constant(f32, (channels,)), g.constant(f32, (channels,))
    if g.chance(0.5):
        g.for_onnxruntime = False  # it computes the variance by subtraction
        g.emit("InstanceNormalization", x, scale, bias, epsilon=1e-2)
    else:
        groups = g.choice([d for d in range(1, channels + 1) if channels % d == 0])
        g.emit("GroupNormalization", x, scale, bias, num_groups=groups, epsilon=1e-2)


@template(0.5)
def norm_rows(g: Generator) -> None:
    x = g.pick(is_f32, (1, 4), filled=True)
    x = g.emit("Add", x, 3.0)
    g.emit("LpNormalization", x, axis=g.axis(x), p=g.integer(1, 2))


@template(0.4)
def local_response(g: Generator) -> None:
    g.emit("LRN", g.pick(is_f32, (3, 4), filled=True), size=g.choice((1, 3, 5)))


@template(1)
def layer_by_hand(g: Generator) -> None:
    """Layer normalisation in its parts, as exporters write it."""
    x = g.pick(is_f32, (1, 4), filled=True)
    axes = np.array([-1], np.int64)
    centred = g.emit("Sub", x, g.emit("ReduceMean", x, axes, keepdims=1))
    squares = g.emit("ReduceMean", g.emit("Mul", centred, centred), axes, keepdims=1)
    g.emit("Div", centred, g.emit("Sqrt", g.emit("Add", squares, 0.01)))


@template(1)
def attention_by_hand(g: Generator) -> None:
    x = g.pick(is_f32, (2, 4), filled=True)
    *lead, _, depth = x.tensor.dims
    keys = g.choice((1, 3, 8, 17, 40))
    k, v = g.operand(f32, (*lead, keys, depth)), g.operand(f32, (*lead, keys, g.integer(1, 20)))
    turned = list(range(len(lead))) + [len(lead) + 1, len(lead)]
    scores = g.emit("MatMul", x, g.emit("Transpose", k, perm=turned, keeps=True))
    scores = g.emit("Mul", scores, 0.25)
    g.emit("MatMul", g.emit("Softmax", scores, axis=-1), v)


@template(0.6)
def join(g: Generator) -> None:
    """Two branches from one value that meet again."""
    x = g.pick(is_float)
    a = g.emit(g.choice(SMOOTH), x)
    b = g.emit(g.choice(("Neg", "Abs", "Relu", "Sigmoid")), x)
    g.emit(g.choice(("Add", "Mul", "Max")), a, b)


@template(0.3)
def swish_by_hand(g: Generator) -> None:
    x = g.pick(is_float)
    g.emit("Mul", x, g.emit("Sigmoid", x))


@template(0.4)
def normalise_elsewhere(g: Generator) -> None:
    x = g.pick(is_f32, (2, 4), filled=True)
    if g.chance(0.5):
        g.for_onnxruntime = False  # it computes the variance by subtraction
        axes = sorted(int(n) for n in g.rng.permutation(x.tensor.rank)[: g.integer(1, 2)])
        g.emit("MeanVarianceNormalization", g.emit("Round", x) if x in g.exact else x, axes=axes)
    else:
        scale, bias, mean = (g.constant(f32, x.tensor.dims[1:2]) for _ in range(3))
        var = g.b.constant(np.abs(mean.constant) + np.float32(0.5))
        g.emit("BatchNormalization", x, scale, bias, mean, var, epsilon=1e-3)


@template(0.4, special=True)
def hardmax(g: Generator) -> None:
    x = g.pick(is_float, (1, 4), exact=True, filled=True)
    g.emit("Hardmax", x, axis=g.axis(x), keeps=True)
