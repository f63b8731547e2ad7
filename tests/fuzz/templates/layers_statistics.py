"""Reductions of the same values, over the same axes or others, and what is computed of them."""

from __future__ import annotations

import numpy as np
from generator import Decline, Generator

from graphc.ir import dtypes
from graphc.ir.dtypes import f32
from graphc.ir.graph import Value
from templates.table import template

FAMILY = "statistics"
EXTREMES = ("ReduceMax", "ReduceMin")
SUMS = ("ReduceSum", "ReduceMean", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSumExp")


def axes_of(g: Generator, x: Value) -> np.ndarray | None:
    if g.chance(0.15):
        return None
    drawn = g.rng.permutation(x.tensor.rank)[: g.integer(1, x.tensor.rank)]
    return np.array([a - x.tensor.rank if g.chance(0.3) else a for a in drawn], np.int64)


def operand(g: Generator) -> Value:
    """An input, or something computed of one."""
    dims = [g.extent(1, most) for most in g.choice(((257,), (65, 129), (9, 17, 33), (2, 5, 9, 17)))]
    x = g.data(*dims, dtype=g.choice((f32, f32, f32, dtypes.f64, dtypes.f16, dtypes.i32)))
    if g.chance(0.3):
        x = g.emit("Transpose", x, perm=[int(n) for n in g.rng.permutation(len(dims))], keeps=True)
    if g.chance(0.2):
        x = g.emit(g.choice(("Abs", "Neg")), x, keeps=True)
    return x


@template(3, family=FAMILY)
def several(g: Generator) -> None:
    """Up to six, of which most have the same axes; some of them of a function of the values."""
    x = operand(g)
    axes, keep = axes_of(g, x), g.integer(0, 1)
    made = []
    for _ in range(g.integer(2, 6)):
        name = g.choice(EXTREMES if not x.tensor.dtype.is_float else EXTREMES + SUMS)
        if name == "ReduceLogSumExp" and x.tensor.dtype is dtypes.f16:
            name = "ReduceMax"
        y = g.emit("Abs", x, keeps=True) if g.chance(0.2) else x
        if g.chance(0.25):
            own = axes_of(g, x)
            g.emit(name, y, own, keepdims=g.integer(0, 1), keeps=name in EXTREMES)
        else:
            made.append(g.emit(name, y, axes, keepdims=keep, keeps=name in EXTREMES))
    if len(made) > 1 and g.chance(0.5):
        g.emit(g.choice(("Sub", "Add", "Max")), *made[:2])


@template(1, family=FAMILY)
def rescaled(g: Generator) -> None:
    """(x - least) / (largest - least)"""
    x = operand(g)
    if not x.tensor.dtype.is_float:
        raise Decline
    axes = axes_of(g, x)
    low, high = (g.emit(n, x, axes, keepdims=1, keeps=True) for n in ("ReduceMin", "ReduceMax"))
    span = g.emit("Add", g.emit("Sub", high, low), 1.0)
    g.emit("Div", g.emit("Sub", x, low), span)


@template(1, family=FAMILY)
def places_of_extremes(g: Generator) -> None:
    """Where the extremes are, beside the extremes."""
    x = operand(g)
    axis = g.axis(x)
    for _ in range(g.integer(2, 3)):
        if g.chance(0.5):
            name = g.choice(("ArgMax", "ArgMin"))
            g.emit(name, x, axis=axis, keepdims=0, select_last_index=g.integer(0, 1), keeps=True)
        else:
            name = g.choice(EXTREMES)
            g.emit(name, x, np.array([axis], np.int64), keepdims=0, keeps=True)


@template(1, family=FAMILY)
def moments(g: Generator) -> None:
    """Mean and variance by the sum of squares and of values."""
    x = operand(g)
    if x.tensor.dtype not in (f32, dtypes.f64):
        raise Decline
    axes = axes_of(g, x)
    mean = g.emit("ReduceMean", x, axes, keepdims=1)
    squares = g.emit("ReduceMean", g.emit("Mul", x, x), axes, keepdims=1)
    g.emit("Add", squares, g.emit("Mul", mean, mean))
    if g.chance(0.5):
        g.emit("Sub", x, mean)


@template(1, family=FAMILY)
def range_in_bytes(g: Generator) -> None:
    """Dynamic quantisation beside extremes of the same tensor."""
    x = g.data(g.extent(1, 65), g.extent(1, 65))
    g.inputs[-1] = g.rng.integers(-100, 156, x.tensor.dims).astype(np.float32)
    g.inputs[-1].reshape(-1)[0], g.inputs[-1].reshape(-1)[-1] = -100, 155
    if x.tensor.size < 2:
        raise Decline
    if g.chance(0.5):
        g.emit(g.choice(EXTREMES), x, None, keepdims=g.integer(0, 1), keeps=True)
    y, scale, zero = g.emit("DynamicQuantizeLinear", x, outputs=3, keeps=True)
    g.emit("DequantizeLinear", y, scale, zero, keeps=True)
