"""Reductions, scans, sorting, and results whose shape depends on data."""

from __future__ import annotations

import numpy as np
from generator import Decline, Generator

from graphc.ir import dtypes
from graphc.ir.dtypes import boolean, f32, i64
from graphc.ir.graph import Value
from templates.table import (
    is_float,
    is_number,
    is_wide,
    template,
)


def some_axes(g: Generator, x: Value) -> np.ndarray | None:
    rank = x.tensor.rank
    if rank == 0 or g.chance(0.15):
        return None
    axes = g.rng.permutation(rank)[: g.integer(1, rank)]
    return np.array([a - rank if g.chance(0.3) else a for a in axes], np.int64)


@template(3)
def reduce_(g: Generator) -> None:
    name = g.choice(("ReduceSum", "ReduceMean", "ReduceL1", "ReduceL2", "ReduceSumSquare",
                     "ReduceLogSumExp", "ReduceProd"))  # fmt: skip
    x = g.pick(is_float if name != "ReduceProd" else is_wide, filled=name != "ReduceSum")
    if name == "ReduceProd":
        x = g.emit("Clip", x, -1.25, 1.25)
    axes, attrs = some_axes(g, x), {}
    if g.chance(0.1):
        axes, attrs = g.choice((None, np.zeros(0, np.int64))), {"noop_with_empty_axes": 1}
    if name == "ReduceProd" and x.tensor.size > 100:
        raise Decline  # partial products would overflow
    g.emit(name, x, axes, keepdims=g.integer(0, 1), **attrs)


@template(1.5, special=True)
def reduce_extreme(g: Generator) -> None:
    x = g.pick(is_number, filled=True)
    name = g.choice(("ReduceMax", "ReduceMin"))
    g.emit(name, x, some_axes(g, x), keepdims=g.integer(0, 1), keeps=True)


@template(0.7)
def reduce_integer(g: Generator) -> None:
    x = g.pick(lambda d: d in (dtypes.i32, i64))
    g.emit("ReduceSum", x, some_axes(g, x), keepdims=g.integer(0, 1), keeps=True)


@template(0.7)
def arg_extreme(g: Generator) -> None:
    x = g.pick(is_number, (1, 9), exact=True, filled=True)
    g.emit(g.choice(("ArgMax", "ArgMin")), x, axis=g.axis(x), keepdims=g.integer(0, 1),
           select_last_index=g.integer(0, 1), keeps=True)  # fmt: skip


@template(0.7)
def cumulative(g: Generator) -> None:
    x = g.pick(is_wide, (1, 4), filled=True)
    flags = {"exclusive": g.integer(0, 1), "reverse": g.integer(0, 1)}
    g.emit("CumSum", x, np.array(g.axis(x), np.int64), **flags)


@template(0.7)
def top_k(g: Generator) -> None:
    x = g.pick(lambda d: d in (f32, dtypes.f64, dtypes.i32, i64), (1, 4), exact=True, filled=True)
    axis = g.axis(x)
    size = np.array([g.integer(1, min(x.tensor.dims[axis], 40))], np.int64)
    g.emit("TopK", x, size, axis=axis, largest=g.integer(0, 1), outputs=2, keeps=True)


@template(0.3)
def data_decides(g: Generator) -> None:
    name = g.choice(("NonZero", "Compress", "Unique"))
    x = g.pick(lambda d: d in (f32, i64, boolean), (1, 4), exact=True)
    if name == "NonZero":
        g.emit(name, x, final=True)
    elif name == "Compress":
        keep = g.rng.random(g.integer(1, max(1, x.tensor.dims[0]))) < 0.5
        g.emit(name, x, keep, axis=0, final=True)
    elif x.tensor.dtype is not boolean:
        g.emit(name, x, final=True, outputs=4, sorted=g.integer(0, 1))


@template(0.3)
def reduce_log_sum(g: Generator) -> None:
    x = g.emit("Add", g.emit("Abs", g.pick(is_wide, filled=True)), 0.5)
    g.emit("ReduceLogSum", x, some_axes(g, x), keepdims=g.integer(0, 1))


@template(0.5)
def reduce_whole(g: Generator) -> None:
    """Reductions of integers and of truth values."""
    x = g.pick(lambda d: d in (dtypes.i32, i64, boolean), filled=True)
    names = ("ReduceMax", "ReduceMin")
    if x.tensor.dtype is not boolean:
        names = ("ReduceProd", "ReduceSumSquare", "ReduceL1", "ReduceMax", "ReduceMin")
    name = g.choice(names)
    g.for_onnxruntime &= name in ("ReduceMax", "ReduceMin")  # overflow is left open
    g.emit(name, x, some_axes(g, x), keepdims=g.integer(0, 1), keeps=True)


@template(0.3)
def cumulative_product(g: Generator) -> None:
    x = g.emit("Clip", g.pick(is_wide, (1, 4), filled=True), -1.25, 1.25, keeps=True)
    axis = g.axis(x)
    if x.tensor.dims[axis] > 100:
        raise Decline
    g.emit("CumProd", x, np.array(axis, np.int64), exclusive=g.integer(0, 1),
           reverse=g.integer(0, 1))  # fmt: skip


@template(0.3)
def determinant(g: Generator) -> None:
    size = g.integer(1, 5)
    g.emit("Det", g.operand(f32, (*g.shape(g.integer(0, 2), 20), size, size)))
