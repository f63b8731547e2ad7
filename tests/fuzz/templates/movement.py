"""Operators that move elements: views, slices, pads, gathers, scatters."""

from __future__ import annotations

import numpy as np
from generator import Decline, Generator

from graphc.ir.dtypes import boolean, f32
from templates.table import (
    anything,
    is_f32,
    is_number,
    positions,
    shuffled,
    template,
)


@template(2, special=True)
def transpose(g: Generator) -> None:
    x = g.pick(anything, (1, 9))
    perm = [int(n) for n in g.rng.permutation(x.tensor.rank)]
    g.emit("Transpose", x, perm=perm, keeps=True)


@template(2, special=True)
def reshape(g: Generator) -> None:
    x = g.pick(anything)
    size, dims = x.tensor.size, []
    for _ in range(g.integer(0, 4)):
        divisors = [d for d in range(1, min(size, 200) + 1) if size and size % d == 0]
        dims.append(g.choice(divisors) if divisors else 1)
        size //= dims[-1] or 1
    dims.append(size)
    g.rng.shuffle(dims)
    if x.tensor.size and g.chance(0.4):
        dims[g.integer(0, len(dims) - 1)] = -1
    g.emit("Reshape", x, np.array(dims, np.int64), keeps=True, allowzero=0 if x.tensor.size else 1)


@template(0.7, special=True)
def squeeze(g: Generator) -> None:
    x = g.pick(anything)
    units = [n for n, d in enumerate(x.tensor.dims) if d == 1]
    if units and g.chance(0.6):
        g.emit("Squeeze", x, np.array(units[: g.integer(1, len(units))], np.int64), keeps=True)
    elif x.tensor.rank < 5:
        axis = g.integer(-x.tensor.rank - 1, x.tensor.rank)
        g.emit("Unsqueeze", x, np.array([axis], np.int64), keeps=True)


@template(0.5, special=True)
def flatten(g: Generator) -> None:
    x = g.pick(anything, (1, 9))
    g.emit("Flatten", x, axis=g.integer(-x.tensor.rank, x.tensor.rank), keeps=True)


@template(2, special=True)
def slice_(g: Generator) -> None:
    x = g.pick(anything, (1, 9))
    count = g.integer(1, x.tensor.rank)
    axes = [int(n) for n in g.rng.permutation(x.tensor.rank)[:count]]
    starts, ends, steps = [], [], []
    for axis in axes:
        extent = x.tensor.dims[axis]
        a, b = g.integer(-extent - 2, extent + 2), g.integer(-extent - 2, extent + 2)
        step = g.choice((1, 1, 1, 2, 3, -1, -2))
        if not g.chance(0.1) and (a < 0) == (b < 0) and (a > b) == (step > 0):
            a, b = b, a
        starts.append(a)
        ends.append(b)
        steps.append(step)
    operands = [np.array(v, np.int64) for v in (starts, ends, axes, steps)]
    g.emit("Slice", x, *operands, keeps=True)


@template(1.5, special=True)
def pad(g: Generator) -> None:
    x = g.pick(is_number, (1, 5), filled=True)
    mode = g.choice(("constant", "constant", "reflect", "edge", "wrap"))
    pads = []
    for extent in x.tensor.dims * 2:
        most = {"reflect": extent - 1, "wrap": extent}.get(mode, 4)
        pads.append(g.integer(0, min(3, most)) if g.chance(0.6) else 0)
    value = g.b.constant(1.5, x.tensor.dtype) if mode == "constant" and g.chance(0.5) else None
    g.emit("Pad", x, np.array(pads, np.int64), value, mode=mode, keeps=True)


@template(1.5, special=True)
def concat(g: Generator) -> None:
    x = g.pick(anything, (1, 9))
    axis = g.axis(x)
    parts = [x]
    for _ in range(g.integer(1, 3)):
        shape = list(x.tensor.dims)
        shape[axis] = g.integer(1, 6) if g.chance(0.7) else shape[axis]
        parts.append(g.operand(x.tensor.dtype, shape))
    g.emit("Concat", *shuffled(g, *parts), axis=axis, keeps=True)


@template(1, special=True)
def split(g: Generator) -> None:
    x = g.pick(anything, (1, 9), filled=True)
    axis = g.axis(x)
    extent = x.tensor.dims[axis]
    count = g.integer(1, min(3, extent))
    cuts = np.sort(g.rng.integers(0, extent + 1, count - 1))
    sizes = np.diff([0, *cuts, extent]).astype(np.int64)
    g.emit("Split", x, sizes, axis=axis, outputs=count, keeps=True)


@template(0.7, special=True)
def tile(g: Generator) -> None:
    x = g.pick(anything, (1, 9))
    repeats = [g.choice((1, 1, 2, 3)) for _ in x.tensor.dims]
    g.emit("Tile", x, np.array(repeats, np.int64), keeps=True)


@template(0.7, special=True)
def expand(g: Generator) -> None:
    x = g.pick(anything)
    shape = [g.integer(1, 5) if d == 1 else d for d in x.tensor.dims]
    if g.chance(0.5) and len(shape) < 5:
        shape = [g.integer(1, 4), *shape]
    g.emit("Expand", x, np.array(shape, np.int64), keeps=True)


@template(1.5, special=True)
def gather(g: Generator) -> None:
    x = g.pick(anything, (1, 9), filled=True)
    axis = g.axis(x)
    shape = g.shape(g.integer(0, 2), 40)
    indices = g.rng.integers(-x.tensor.dims[axis], x.tensor.dims[axis], shape)
    g.emit("Gather", x, positions(g, indices, x.tensor.dims[axis]), axis=axis, keeps=True)


@template(0.7, special=True)
def gather_elements(g: Generator) -> None:
    x = g.pick(anything, (1, 4), filled=True)
    axis = g.axis(x)
    shape = [g.integer(1, d) for d in x.tensor.dims]
    shape[axis] = g.integer(1, 7)
    extent = x.tensor.dims[axis]
    indices = g.rng.integers(-extent, extent, shape)
    g.emit("GatherElements", x, positions(g, indices, extent), axis=axis, keeps=True)


@template(0.6, special=True)
def gather_nd(g: Generator) -> None:
    x = g.pick(anything, (1, 4), filled=True)
    depth = g.integer(1, x.tensor.rank)
    lead = g.shape(g.integer(0, 2), 20)
    columns = [g.rng.integers(-d, d, lead) for d in x.tensor.dims[:depth]]
    g.emit("GatherND", x, g.b.constant(np.stack(columns, -1).astype(np.int64)), keeps=True)


@template(0.6)
def scatter_elements(g: Generator) -> None:
    x = g.pick(is_f32, (1, 4), filled=True)
    axis = g.axis(x)
    shape = [g.integer(1, d) for d in x.tensor.dims]
    reduction = g.choice(("none", "add", "max", "min", "mul"))
    if reduction == "none":  # each row a permutation, so that the order does not matter
        rows = list(shape)
        rows[axis] = x.tensor.dims[axis]
        indices = np.take(g.rng.random(rows).argsort(axis), range(shape[axis]), axis)
    else:
        indices = g.rng.integers(-x.tensor.dims[axis], x.tensor.dims[axis], shape)
    updates = g.operand(f32, indices.shape)
    g.emit("ScatterElements", x, indices.astype(np.int64), updates, axis=axis, reduction=reduction)


@template(0.5)
def scatter_nd(g: Generator) -> None:
    x = g.pick(is_f32, (1, 4), filled=True)
    count = g.integer(1, 5)
    depth = g.integer(1, x.tensor.rank)
    reduction = g.choice(("add", "max", "min"))
    columns = [g.rng.integers(0, d, count) for d in x.tensor.dims[:depth]]
    updates = g.operand(f32, (count, *x.tensor.dims[depth:]))
    g.emit("ScatterND", x, np.stack(columns, -1).astype(np.int64), updates, reduction=reduction)


@template(0.5, special=True)
def depth_space(g: Generator) -> None:
    x = g.pick(anything, (4, 4), filled=True)
    _, c, h, w = x.tensor.dims
    if c % 4 == 0:
        mode = g.choice(("DCR", "CRD"))
        g.emit("DepthToSpace", x, blocksize=2, mode=mode, keeps=True)
    elif h % 2 == w % 2 == 0:
        g.emit("SpaceToDepth", x, blocksize=2, keeps=True)


@template(0.4, special=True)
def trilu(g: Generator) -> None:
    x = g.pick(is_number, (2, 5))
    k = np.array(g.integer(-3, 3), np.int64)
    g.emit("Trilu", x, k, upper=g.integer(0, 1), keeps=True)


@template(0.4, special=True)
def reverse_sequence(g: Generator) -> None:
    x = g.pick(anything, (2, 5), filled=True)
    time, batch = (0, 1) if g.chance(0.5) else (1, 0)
    lengths = g.rng.integers(1, x.tensor.dims[time] + 1, x.tensor.dims[batch]).astype(np.int64)
    g.emit("ReverseSequence", x, lengths, batch_axis=batch, time_axis=time, keeps=True)


@template(0.4)
def one_hot(g: Generator) -> None:
    indices = g.rng.integers(-4, 5, g.shape(g.integer(1, 2), 30)).astype(np.int64)
    values = np.array([0.5, 2.0], np.float32)
    axis = g.integer(-1, indices.ndim)
    g.emit("OneHot", positions(g, indices, 4), np.array(5, np.int64), values, axis=axis, keeps=True)


@template(0.5, special=True)
def crop(g: Generator) -> None:
    x = g.pick(anything, (1, 4), filled=True)
    if x.tensor.dtype is boolean:
        raise Decline
    axes = sorted(int(n) for n in g.rng.permutation(x.tensor.rank)[: g.integer(1, x.tensor.rank)])
    shape = [g.integer(1, x.tensor.dims[a] + 4) for a in axes]
    g.emit("CenterCropPad", x, np.array(shape, np.int64), axes=axes, keeps=True)


@template(0.4, special=True)
def pad_some_axes(g: Generator) -> None:
    """Chosen axes, and pads that crop."""
    x = g.pick(is_number, (1, 4), filled=True)
    axes = [int(n) for n in g.rng.permutation(x.tensor.rank)[: g.integer(1, x.tensor.rank)]]
    pads = [g.integer(-1 if x.tensor.dims[a] > 3 else 0, 3) for a in axes * 2]
    named = np.array([a - x.tensor.rank * g.integer(0, 1) for a in axes], np.int64)
    g.for_onnxruntime &= min(pads) >= 0
    g.emit("Pad", x, np.array(pads, np.int64), None, named, mode="constant", keeps=True)


@template(0.5, special=True)
def huge_slice(g: Generator) -> None:
    """Limits far outside, as exporters write "to the end"."""
    x = g.pick(anything, (1, 4))
    axis, huge = g.axis(x), 2**63 - 1
    low, high, step = g.choice(((0, huge, 1), (-huge, huge, 2), (1, huge, 1), (huge, -huge, -1),
                                (-huge, -huge, -1),
                                (-1, -huge - 1, -1), (-1, huge, 1), (-2, huge, 1)))  # fmt: skip
    g.emit("Slice", x, *(np.array([n], np.int64) for n in (low, high, axis, step)), keeps=True)


@template(0.4, special=True)
def gather_nd_in_batches(g: Generator) -> None:
    x = g.pick(anything, (2, 4), filled=True)
    batch, depth = x.tensor.dims[0], g.integer(1, x.tensor.rank - 1)
    lead = (batch, g.integer(1, 4))
    columns = [g.rng.integers(-d, d, lead) for d in x.tensor.dims[1 : 1 + depth]]
    indices = np.stack(columns, -1).astype(np.int64)
    g.emit("GatherND", x, g.b.constant(indices), batch_dims=1, keeps=True)


@template(0.4, special=True)
def scatter_anything(g: Generator) -> None:
    """Rows of any type, each place once."""
    x = g.pick(anything, (1, 4), filled=True)
    count = g.integer(0, x.tensor.dims[0])
    indices = g.rng.permutation(x.tensor.dims[0])[:count].reshape(-1, 1).astype(np.int64)
    if count and g.chance(0.3):
        indices -= x.tensor.dims[0]
    updates = g.operand(x.tensor.dtype, (count, *x.tensor.dims[1:]))
    g.emit("ScatterND", x, indices, updates, keeps=True)
