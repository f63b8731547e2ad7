"""Elements read across memory: transposed tensors between simple operators, of every width."""

from __future__ import annotations

import numpy as np
from generator import Decline, Generator

from graphc.ir import dtypes
from graphc.ir.dtypes import DType, boolean, f32
from graphc.ir.graph import Value
from templates.table import template

FAMILY = "turned"
TYPES = tuple(map(dtypes.of, ("f32", "f32", "f32", "f64", "f16", "i8", "u8", "i32", "i64", "u16")))


def around(g: Generator, x: Value) -> Value:
    """Something elementwise, or a piece."""
    dtype, which = x.tensor.dtype, g.integer(0, 5)
    if which == 0 and dtype.is_float:
        return g.emit(g.choice(("Relu", "Neg", "Abs")), x, keeps=True)
    if which == 1:
        pads = np.array([g.integer(0, 2) for _ in x.tensor.dims * 2], np.int64)
        return g.emit("Pad", x, pads, mode=g.choice(("constant", "edge")), keeps=True)
    if which == 2:
        axis = g.axis(x)
        start = g.integer(0, max(0, min(3, x.tensor.dims[axis] - 1)))
        step = g.choice((1, 1, 1, 2))
        operands = (np.array([n], np.int64) for n in (start, 1 << 40, axis, step))
        return g.emit("Slice", x, *operands, keeps=True)
    if which == 3:
        to: DType = g.choice((f32, dtypes.f64, dtypes.i32))
        return g.emit("Cast", g.emit("Clip", x, 0, 100, keeps=True), to=to.onnx, keeps=True)
    if which == 4:
        axis = g.axis(x)
        ends = (-1, -(1 << 40), axis, -1)
        return g.emit("Slice", x, *(np.array([n], np.int64) for n in ends), keeps=True)
    return x


def permuted(g: Generator, x: Value) -> Value:
    perm = [int(n) for n in g.rng.permutation(x.tensor.rank)]
    if g.chance(0.5):  # the innermost leaves its place
        perm = [x.tensor.rank - 1, *range(x.tensor.rank - 1)]
    return g.emit("Transpose", x, perm=perm, keeps=True)


def with_another(g: Generator, y: Value) -> Value:
    """Together with a tensor that is turned likewise, or lies as the result does."""
    dims, dtype = y.tensor.dims, y.tensor.dtype
    if g.chance(0.5):
        perm = [int(n) for n in g.rng.permutation(len(dims))]
        other = g.data(*(dims[perm.index(n)] for n in range(len(dims))), dtype=dtype)
        other = g.emit("Transpose", other, perm=perm, keeps=True)
    else:
        kept = [d if g.chance(0.7) else 1 for d in dims]
        other = g.data(*kept, dtype=dtype)
    return g.emit(g.choice(("Max", "Min")), y, other, keeps=True)


@template(3, family=FAMILY)
def turned(g: Generator) -> None:
    dtype = g.choice(TYPES)
    most = g.choice(((70, 70), (9, 33, 40), (2, 5, 33, 35), (33, 3, 40, 2)))
    dims = [g.integer(1, e) if g.chance(0.4) else e for e in most]
    x = g.data(*dims, dtype=dtype)
    for _ in range(g.integer(0, 1)):
        x = around(g, x)
    for _ in range(g.integer(1, 2)):
        y = permuted(g, x)
        for _ in range(g.integer(0, 2)):
            y = with_another(g, y) if g.chance(0.5) else around(g, y)
        if g.chance(0.3):
            around(g, y)
        if y.tensor.size > 60000 or not y.tensor.size:
            raise Decline


@template(1, family=FAMILY)
def turned_truths(g: Generator) -> None:
    x, y = (g.data(g.integer(16, 40), g.integer(16, 40)) for _ in range(2))
    y = g.emit("Slice", y, np.array([0, 0]), np.array(x.tensor.dims), keeps=True)
    if y.tensor.dims != x.tensor.dims:
        raise Decline
    mask = g.emit("Transpose", g.emit("Less", x, y, keeps=True), perm=[1, 0], keeps=True)
    assert mask.tensor.dtype is boolean
    chosen = g.data(*mask.tensor.dims)
    g.emit("Where", mask, chosen, g.emit("Transpose", y, perm=[1, 0], keeps=True), keeps=True)


@template(1, family=FAMILY)
def turned_and_shaped(g: Generator) -> None:
    """Heads, windows and groups: a reshape, a transposition, a reshape."""
    a, b, c, d = g.integer(1, 6), g.integer(1, 40), g.integer(1, 9), g.integer(1, 40)
    x = g.data(a, b, c * d, dtype=g.choice(TYPES))
    if x.tensor.size > 60000:
        raise Decline
    y = g.emit("Reshape", x, np.array([a, b, c, d], np.int64), keeps=True)
    perm = g.choice(([0, 2, 3, 1], [0, 2, 1, 3], [3, 0, 2, 1], [0, 3, 1, 2], [1, 3, 2, 0]))
    y = g.emit("Transpose", y, perm=perm, keeps=True)
    y = g.emit("Reshape", y, np.array([-1, y.tensor.dims[-1]], np.int64), keeps=True)
    y = around(g, y)
    if g.chance(0.4):
        with_another(g, y)
