"""What stands behind a layer: activations, residuals, casts, movements, reductions."""

from __future__ import annotations

import numpy as np
from generator import AFTERWARDS, Decline, Generator

from graphc.ir import dtypes
from graphc.ir.dtypes import f32
from graphc.ir.graph import Value
from templates.table import SMOOTH, is_f32, is_float, partner, shuffled, template


def last(g: Generator) -> Value:
    """The newest value of floats that the layer has made."""
    made = [v for v in g.pool if v.producer is not None and is_float(v.tensor.dtype)]
    if not made:
        raise Decline
    return made[-1]


@template(3, family=AFTERWARDS)
def activation(g: Generator) -> None:
    g.emit(g.choice((*SMOOTH, "Relu", "Relu", "Neg", "Abs")), last(g))


@template(3, family=AFTERWARDS)
def added(g: Generator) -> None:
    x = last(g)
    g.emit(g.choice(("Add", "Add", "Mul", "Sub", "Max")), *shuffled(g, x, partner(g, x)))


@template(1, family=AFTERWARDS)
def gate(g: Generator) -> None:
    x = last(g)
    g.emit("Mul", x, g.emit("Sigmoid", x))


@template(1, family=AFTERWARDS)
def turned(g: Generator) -> None:
    x = last(g)
    g.emit("Transpose", x, perm=[int(n) for n in g.rng.permutation(x.tensor.rank)])


@template(1, family=AFTERWARDS)
def narrowed(g: Generator) -> None:
    x = last(g)
    if x.tensor.dtype is not f32:
        g.emit("Cast", x, to=f32.onnx)
    else:
        g.emit("Cast", g.emit("Clip", x, -100.0, 100.0), to=dtypes.f16.onnx)


@template(1.5, family=AFTERWARDS)
def reduced(g: Generator) -> None:
    x = last(g)
    if x.tensor.rank == 0 or x.tensor.size == 0:
        raise Decline
    axes = np.sort(g.rng.permutation(x.tensor.rank)[: g.integer(1, min(2, x.tensor.rank))])
    name = g.choice(("ReduceMean", "ReduceSum", "ReduceMax", "ReduceL2"))
    g.emit(name, x, axes.astype(np.int64), keepdims=g.integer(0, 1))


@template(1, family=AFTERWARDS)
def softened(g: Generator) -> None:
    x = last(g)
    if x.tensor.rank:
        g.emit("Softmax", x, axis=g.axis(x))


@template(1, family=AFTERWARDS)
def projected(g: Generator) -> None:
    x = last(g)
    if not is_f32(x.tensor.dtype) or x.tensor.rank < 2:
        raise Decline
    depth = x.tensor.dims[-1]
    w = g.weights(g.extent(1, 65), depth)
    g.emit("MatMul", x, g.emit("Transpose", w, perm=[1, 0]))


@template(1, family=AFTERWARDS)
def sliced(g: Generator) -> None:
    x = last(g)
    axis = g.axis(x)
    begin = g.integer(0, max(0, x.tensor.dims[axis] - 1))
    starts, ends, axes, steps = ([n] for n in (begin, 1 << 40, axis, g.integer(1, 2)))
    g.emit("Slice", x, *(np.array(n, np.int64) for n in (starts, ends, axes, steps)))
