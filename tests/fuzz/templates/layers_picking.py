"""Sorting, gathering, scattering and moving along long axes."""

from __future__ import annotations

import math

import numpy as np
from generator import Decline, Generator

from graphc.ir.dtypes import f32, i32, i64
from templates.table import template


@template(1, family="picking")
def largest(g: Generator) -> None:
    length = g.extent(1, 1025)
    dims = g.choice(((length,), (g.extent(1, 9), g.extent(1, 257)), (3, g.extent(1, 65), 5)))
    x = g.data(*dims, dtype=g.choice((f32, f32, i32, i64)))
    axis = g.axis(x)
    least = 0 if g.chance(0.1) else 1
    count = np.array([g.integer(least, min(x.tensor.dims[axis], 300))], np.int64)
    _, where = g.emit("TopK", x, count, axis=axis, largest=g.integer(0, 1), outputs=2, keeps=True)
    if g.chance(0.3):
        g.emit("GatherElements", x, where, axis=axis, keeps=True)


@template(1, family="picking")
def rows_of_table(g: Generator) -> None:
    """Embeddings, added, and normalised."""
    count, size = g.extent(1, 257), g.extent(1, 129)
    table = g.constant(f32, (count, size))
    shape = (g.integer(1, 3), g.extent(1, 33))
    where = g.input(i64, shape)
    g.inputs[-1] = g.rng.integers(-count, count, shape)
    g.pool.remove(where)
    y = g.emit("Gather", table, where, axis=0, keeps=True)
    y = g.emit("Add", y, g.constant(f32, shape[1:] + (size,)))
    if g.chance(0.6):
        g.emit("LayerNormalization", y, g.constant(f32, (size,)), g.constant(f32, (size,)), axis=-1)


@template(1, family="picking")
def scattered(g: Generator) -> None:
    rank = g.integer(1, 3)
    dims = [g.extent(1, (1025, 65, 17)[rank - 1]) for _ in range(rank)]
    x, axis = g.data(*dims), g.integer(0, rank - 1)
    shape = [g.integer(1, d) for d in dims]
    lines = math.prod(shape) // shape[axis]
    where = np.stack([g.rng.permutation(dims[axis])[: shape[axis]] for _ in range(lines)])
    where = np.moveaxis(where.reshape([*shape[:axis], *shape[axis + 1 :], shape[axis]]), -1, axis)
    kind = g.choice(("none", "add", "max", "min", "mul"))
    if kind in ("max", "min", "add") and g.chance(0.5):
        where = g.rng.integers(-dims[axis], dims[axis], shape)
    indices = g.input(i64, shape)
    g.inputs[-1] = where.astype(np.int64)
    g.pool.remove(indices)
    g.emit("ScatterElements", x, indices, g.data(*shape), axis=axis, reduction=kind)


@template(1, family="picking")
def scattered_rows(g: Generator) -> None:
    rows, size = g.extent(1, 129), g.extent(1, 129)
    x = g.data(rows, size)
    count = g.integer(1, rows)
    kind = g.choice(("none", "add", "max", "min"))
    where = g.rng.permutation(rows)[:count] if kind == "none" else g.rng.integers(0, rows, count)
    indices = g.input(i64, (count, 1))
    g.inputs[-1] = where.astype(np.int64)[:, None]
    g.pool.remove(indices)
    g.emit("ScatterND", x, indices, g.data(count, size), reduction=kind)


@template(1, family="picking")
def moved(g: Generator) -> None:
    """Chains of movements with extents that are no multiples of a tile."""
    x = g.data(*(g.extent(1, 33) for _ in range(g.integer(2, 4))))
    if x.tensor.size > 60000:
        raise Decline
    if g.chance(0.5):
        x = g.emit("Sigmoid", x)
    for _ in range(g.integer(1, 3)):
        rank, which = x.tensor.rank, g.integer(0, 4)
        if which == 0:
            x = g.emit("Transpose", x, perm=[int(n) for n in g.rng.permutation(rank)])
        elif which == 1:
            x = g.emit("Concat", x, g.data(*x.tensor.dims), axis=g.axis(x))
        elif which == 2:
            pads = np.array([g.choice((0, 0, 1, 3)) for _ in range(2 * rank)], np.int64)
            modes = ("constant", "edge", "wrap", "reflect")
            x = g.emit("Pad", x, pads, mode=g.choice(modes))
        elif which == 3:
            steps = np.array([g.choice((-2, -1, 1, 2, 3)) for _ in range(rank)], np.int64)
            starts = np.where(steps > 0, 0, 1 << 40).astype(np.int64)
            ends = np.where(steps > 0, 1 << 40, -(1 << 40)).astype(np.int64)
            x = g.emit("Slice", x, starts, ends, np.arange(rank), steps)
        else:
            x = g.emit("Reshape", x, np.array([x.tensor.dims[0], -1], np.int64))
        if x.tensor.size > 100000:
            raise Decline
