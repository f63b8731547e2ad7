"""Attention as models have it: by hand, as exporters write it, and in one operator."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from generator import Decline, Generator

from graphc.ir.dtypes import boolean, f32, i64
from graphc.ir.graph import Value
from templates.table import template

FAMILY = "attention"
MOST_PRODUCTS = 3 << 20


@dataclass
class Sizes:
    """Extents of one attention; `shared` heads of queries have the same keys."""

    batch: int
    groups: int
    shared: int
    rows: int
    columns: int
    size: int
    width: int

    @property
    def heads(self) -> int:
        return self.groups * self.shared


def sizes(g: Generator) -> Sizes:
    batch, groups, shared = (
        g.choice((1, 1, 2, 3)),
        g.choice((1, 1, 2, 3)),
        g.choice((1, 1, 1, 2, 4, 7)),
    )
    rows = g.choice((1, 1, 2, 4, 7, 8, 9, 16, 17, 31, 33, 63, 64, 65, 127, 129))
    columns = rows if g.chance(0.4) else g.extent(1, 257)
    size = g.choice((1, 3, 4, 8, 16, 20, 24, 32, 33, 40, 64, 64, 72, 80, 96, 128))
    width = size if g.chance(0.75) else g.choice((1, 5, 8, 24, 33, 64, 100))
    out = Sizes(batch, groups, shared, rows, columns, size, width)
    if out.batch * out.heads * rows * columns * (size + width) > MOST_PRODUCTS:
        raise Decline
    return out


def broadcast(g: Generator, *extents: int) -> tuple[int, ...]:
    """A shape that broadcasts to the extents: some are 1, leading ones may be missing."""
    shape = [n if g.chance(0.55) else 1 for n in extents]
    return tuple(shape[g.choice((0, 0, 1, 2)) if len(shape) > 2 else 0 :])


def heads_first(g: Generator, heads: int, length: int, size: int, batch: int) -> Value:
    """batch, heads, length, size: as it is, or heads that lay side by side or between."""
    which = g.integer(0, 3)
    if which == 0:
        return g.data(batch, heads, length, size)
    if which == 1:
        return g.emit("Transpose", g.data(batch, length, heads, size), perm=[0, 2, 1, 3])
    if which == 2:
        x = g.data(batch, length, heads * size)
    else:
        depth = g.choice((8, 16, 33))
        x = g.emit("MatMul", g.data(batch, length, depth), g.weights(depth, heads * size))
        if g.chance(0.6):
            x = g.emit("Add", x, g.weights(heads * size))
    x = g.emit("Reshape", x, np.array([batch, length, heads, size], np.int64))
    return g.emit("Transpose", x, perm=[0, 2, 1, 3])


def with_past(g: Generator, x: Value, past: int) -> Value:
    if not past:
        return x
    batch, heads, _, size = x.tensor.dims
    return g.emit("Concat", g.data(batch, heads, past, size), x, axis=2)


def repeated(g: Generator, x: Value, shared: int) -> Value:
    """Keys or values once for each head that shares them, as exporters repeat them."""
    if shared == 1:
        return x
    batch, groups, length, size = x.tensor.dims
    if g.chance(0.3):
        indices = np.repeat(np.arange(groups), shared)
        return g.emit("Gather", x, indices, axis=1)
    x = g.emit("Unsqueeze", x, np.array([2], np.int64))
    x = g.emit("Expand", x, np.array([batch, groups, shared, length, size], np.int64))
    return g.emit("Reshape", x, np.array([batch, groups * shared, length, size], np.int64))


def masked(g: Generator, scores: Value) -> Value:
    """Scores with masks of all kinds and shapes; every row sees something."""
    dims = scores.tensor.dims
    rows, columns = dims[-2:]
    hidden = g.choice((-1e9, -np.inf, float(np.finfo(np.float32).min), -1e4))
    which = g.integer(0, 5)
    if which == 0:
        return g.emit("Add", scores, g.input(f32, broadcast(g, *dims)))
    if which == 1:
        return choose(g, seen(g, broadcast(g, *dims)), scores, hidden)
    if which == 2:
        causal = np.tril(np.ones((rows, columns), bool), max(0, columns - rows))
        return choose(g, g.b.constant(causal), scores, hidden)
    if which == 3:
        causal = np.tril(np.ones((rows, columns), bool), max(0, columns - rows))
        bias = np.where(causal, 0.0, hidden).astype(np.float32)
        return g.emit("Add", scores, bias.reshape(1, 1, rows, columns) if g.chance(0.5) else bias)
    if which == 4:
        first, second = g.b.constant(np.arange(rows)), g.b.constant(np.arange(columns))
        first = g.b.Unsqueeze(first, np.array([1], np.int64))
        if g.chance(0.5):
            first = g.b.Add(first, np.array(max(0, columns - rows), np.int64))
        near = g.b.GreaterOrEqual(first, second)
        scores = choose(g, near, scores, hidden)
        if g.chance(0.5):
            scores = g.emit("Add", scores, g.input(f32, broadcast(g, *dims)))
        return scores
    # padding: 1 for tokens that count
    batch = dims[0]
    lengths = g.rng.integers(1, columns + 1, (batch, 1))
    counts = g.input(i64, (batch, columns))
    g.inputs[-1] = (np.arange(columns) < lengths).astype(np.int64)
    g.pool.remove(counts)
    mask = g.b.Cast(g.b.Unsqueeze(counts, np.array([1, 2], np.int64)), to=f32.onnx)
    mask = g.b.Mul(g.b.Sub(g.b.constant(1.0, f32), mask), max(hidden, -1e30))
    return g.emit("Add", scores, mask)


def seen(g: Generator, shape: tuple[int, ...]) -> Value:
    """Truth values, an input; the first of every row is true."""
    value = g.input(boolean, shape)
    if shape:
        g.inputs[-1][..., 0] = True
    return value


def choose(g: Generator, mask: Value, scores: Value, hidden: float) -> Value:
    constant = g.b.constant(hidden, f32)
    if g.chance(0.2):
        return g.emit("Where", g.b.Not(mask), constant, scores)
    return g.emit("Where", mask, scores, constant)


def softened(g: Generator, scores: Value) -> Value:
    """Softmax over the last axis, in one operator or in its parts."""
    if g.chance(0.75):
        return g.emit("Softmax", scores, axis=-1)
    axes = np.array([-1], np.int64)
    powers = g.emit("Exp", g.emit("Sub", scores, g.emit("ReduceMax", scores, axes, keepdims=1)))
    return g.emit("Div", powers, g.emit("ReduceSum", powers, axes, keepdims=1))


@template(4, family=FAMILY)
def by_hand(g: Generator) -> None:
    s = sizes(g)
    past = g.choice((0, 0, 0, 1, 31, 64))
    q = heads_first(g, s.heads, s.rows, s.size, s.batch)
    k = with_past(g, heads_first(g, s.groups, s.columns, s.size, s.batch), past)
    v = with_past(g, heads_first(g, s.groups, s.columns, s.width, s.batch), past)
    k, v = repeated(g, k, s.shared), repeated(g, v, s.shared)
    k = g.emit("Transpose", k, perm=[0, 1, 3, 2])
    scale = g.choice((1 / math.sqrt(s.size), 1 / math.sqrt(s.size), 0.125, 1.0))
    where = g.integer(0, 3)
    if where == 0:
        q = g.emit("Mul", q, scale)
    elif where == 1:
        q, k = g.emit("Mul", q, math.sqrt(scale)), g.emit("Mul", k, math.sqrt(scale))
    scores = g.emit("MatMul", q, k)
    if where == 2:
        scores = g.emit("Div", scores, 1 / scale)
    elif where == 3:
        scores = g.emit("Mul", scores, scale)
    if g.chance(0.2):
        scores = g.emit("Mul", g.emit("Tanh", g.emit("Div", scores, 5.0)), 5.0)
    if g.chance(0.7):
        scores = masked(g, scores)
    y = g.emit("MatMul", softened(g, scores), v)
    if g.chance(0.6):
        y = g.emit("Transpose", y, perm=[0, 2, 1, 3])
        shape = np.array([s.batch, s.rows, s.heads * s.width], np.int64)
        y = g.emit("Reshape", y, shape)
    if g.chance(0.3):
        g.emit("MatMul", y, g.weights(y.tensor.dims[-1], g.extent(1, 65)))


@template(2, family=FAMILY)
def in_one(g: Generator) -> None:
    """The operator Attention."""
    s = sizes(g)
    attrs: dict = {}
    extents = (
        (s.heads, s.rows, s.size),
        (s.groups, s.columns, s.size),
        (s.groups, s.columns, s.width),
    )
    if g.chance(0.5):
        q, k, v = (g.data(s.batch, *e) for e in extents)
    else:
        q, k, v = (g.data(s.batch, n, h * d) for h, n, d in extents)
        attrs = {"q_num_heads": s.heads, "kv_num_heads": s.groups}
    past, more, outputs = 0, [], 1
    if g.chance(0.4):
        past, outputs = g.choice((1, 7, 32, 65)), 3
        more = [g.data(s.batch, s.groups, past, d) for d in (s.size, s.width)]
    mask = None
    if g.chance(0.6):
        extents = (s.batch, s.heads, s.rows, past + s.columns)
        shape = broadcast(g, *extents)
        shape = (*shape[:-1], extents[-1])  # the operator pads a shorter one
        mask = seen(g, shape) if g.chance(0.5) else g.input(f32, shape)
    attrs["is_causal"] = g.integer(0, 1) if mask is None or mask.tensor.dtype is f32 else 0
    if g.chance(0.2):
        attrs["softcap"] = 2.0
    if g.chance(0.3):
        attrs["scale"] = 0.25
    g.for_onnxruntime = False  # it lacks or changes most of these
    g.emit("Attention", q, k, v, mask, *more, outputs=outputs, **attrs)


@template(1, family=FAMILY)
def without_heads(g: Generator) -> None:
    """Queries and keys of one matrix each, or with several leading axes; keys turned already."""
    s = sizes(g)
    lead = g.choice(((), (s.batch,), (s.batch, s.groups, s.shared)))
    q, k, v = (
        g.data(*lead, *e) for e in ((s.rows, s.size), (s.size, s.columns), (s.columns, s.width))
    )
    scores = g.emit("MatMul", q, k)
    if g.chance(0.5):
        scores = g.emit("Mul", scores, 1 / math.sqrt(s.size))
    if g.chance(0.5):
        scores = g.emit("Add", scores, g.input(f32, broadcast(g, *scores.tensor.dims)))
    weights = softened(g, scores)
    g.emit("MatMul", weights, v)
    if g.chance(0.2):
        g.emit("Neg", weights)


@template(1, family=FAMILY)
def channels_as_keys(g: Generator) -> None:
    """Attention of images: the places of a convolution's result are the rows."""
    batch, channels = g.integer(1, 2), g.choice((4, 8, 17, 32))
    height, width = g.choice((3, 7, 8, 9)), g.choice((4, 7, 8))
    x = g.data(batch, channels, height, width)
    parts = [g.emit("Conv", x, g.weights(channels, channels, 1, 1)) for _ in range(3)]
    shape = np.array([batch, channels, height * width], np.int64)
    q, k, v = (g.emit("Reshape", y, shape) for y in parts)
    q = g.emit("Transpose", q, perm=[0, 2, 1])
    weights = g.emit("Softmax", g.emit("Mul", g.emit("MatMul", q, k), 0.25), axis=-1)
    y = g.emit("MatMul", v, g.emit("Transpose", weights, perm=[0, 2, 1]))
    y = g.emit("Reshape", y, np.array([batch, channels, height, width], np.int64))
    g.emit("Add", x, y)
