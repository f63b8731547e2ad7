"""Attention in one operator with its options, and what goes with it."""

from __future__ import annotations

import numpy as np
from generator import Decline, Generator

from graphc.ir.dtypes import boolean, f32
from graphc.ir.graph import Value
from templates.table import is_f32, template


@template(0.8)
def attention(g: Generator) -> None:
    """Heads apart or side by side, shared keys, masks, windows, earlier keys."""
    batch, groups, shared = g.integer(1, 2), g.integer(1, 2), g.choice((1, 1, 2))
    heads, rows, size = groups * shared, g.choice((1, 2, 5, 8)), g.choice((1, 2, 4, 8))
    columns, width = g.choice((1, 3, 8, 17)), g.choice((1, 4, 5))
    attrs: dict = {}
    if g.chance(0.5):
        q = g.operand(f32, (batch, heads, rows, size))
        k, v = (g.operand(f32, (batch, groups, columns, d)) for d in (size, width))
    else:
        q = g.operand(f32, (batch, rows, heads * size))
        k, v = (g.operand(f32, (batch, columns, groups * d)) for d in (size, width))
        attrs = {"q_num_heads": heads, "kv_num_heads": groups}
    past, more, outputs = 0, [], 1
    if g.chance(0.3):
        past, outputs = g.integer(1, 4), 3
        more = [g.operand(f32, (batch, groups, past, d)) for d in (size, width)]
    mask = mask_of(g, batch, heads, rows, past + columns) if g.chance(0.5) else None
    attrs["is_causal"] = g.integer(0, 1)
    if g.chance(0.2):
        attrs["softcap"] = 2.0
    if g.chance(0.3):
        attrs["scale"] = 0.25
    g.for_onnxruntime = False  # it lacks or changes most of these
    g.emit("Attention", q, k, v, mask, *more, outputs=outputs, **attrs)


def mask_of(g: Generator, batch: int, heads: int, rows: int, columns: int) -> Value:
    """A mask of truth values or of numbers to add, broadcast somehow."""
    shape = g.choice(((rows, columns), (1, 1, rows, columns), (batch, heads, rows, columns),
                      (batch, 1, rows, columns), (heads, rows, columns)))  # fmt: skip
    return g.operand(g.choice((boolean, f32)), shape)


@template(0.8)
def masked_scores(g: Generator) -> None:
    """Scores, scaled and masked in its parts, as exporters write it; heads side by side."""
    x = g.pick(is_f32, (3, 3), filled=True)
    batch, rows, features = x.tensor.dims
    heads = g.choice([d for d in (1, 2, 4, 8) if features % d == 0])
    if rows > 40 or features > 64:
        raise Decline
    shape = np.array([batch, rows, heads, features // heads], np.int64)
    parts = []
    for order in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]):
        y = g.b.MatMul(x, g.constant(f32, (features, features)))
        y = g.b.Mul(y, g.b.constant(1 / features**0.5, f32))
        parts.append(g.b.Transpose(g.b.Reshape(y, shape), perm=order))
    scores = g.b.Div(g.b.MatMul(parts[0], parts[1]), g.b.constant((features / heads) ** 0.5, f32))
    if g.chance(0.4):
        seen = np.tril(np.ones((rows, rows), bool))
        scores = g.b.Where(seen, scores, g.b.constant(-1e9 if g.chance(0.5) else -np.inf, f32))
    elif g.chance(0.5):
        scores = g.b.Add(scores, g.operand(f32, (batch, 1, 1, rows)))
    mixed = g.b.Transpose(g.b.MatMul(g.b.Softmax(scores, axis=-1), parts[2]), perm=[0, 2, 1, 3])
    y = g.emit("Reshape", mixed, np.array([0, 0, features], np.int64))
    if g.chance(0.5):
        g.emit("Add", x, y)


@template(0.5)
def rotary(g: Generator) -> None:
    batch, heads, length, size = (
        g.integer(1, 2),
        g.integer(1, 3),
        g.integer(1, 6),
        g.choice((2, 4, 8)),
    )
    used = g.choice([d for d in (2, 4, 8) if d <= size])
    attrs: dict = {"interleaved": g.integer(0, 1)}
    if used != size:
        attrs["rotary_embedding_dim"] = used
    if g.chance(0.5):
        x = g.operand(f32, (batch, heads, length, size))
    else:
        x = g.operand(f32, (batch, length, heads * size))
        attrs["num_heads"] = heads
    most = length + 3
    if g.chance(0.5):
        caches = [g.operand(f32, (most, used // 2)) for _ in range(2)]
        where = g.b.constant(g.rng.integers(0, most, (batch, length)).astype(np.int64))
        g.emit("RotaryEmbedding", x, *caches, where, **attrs)
    else:
        caches = [g.operand(f32, (batch, length, used // 2)) for _ in range(2)]
        g.emit("RotaryEmbedding", x, *caches, **attrs)


@template(0.3)
def gated(g: Generator) -> None:
    x = g.pick(is_f32, (1, 4))
    g.emit("SwiGLU", x, g.operand(f32, x.tensor.dims))


@template(0.3)
def linear_attention(g: Generator) -> None:
    batch, heads, length, size = (
        g.integer(1, 2),
        g.integer(1, 2),
        g.integer(1, 5),
        g.choice((1, 2, 4)),
    )
    q, k, v = (g.operand(f32, (batch, length, heads * size)) for _ in range(3))
    past = g.operand(f32, (batch, heads, size, size)) if g.chance(0.5) else None
    g.emit("LinearAttention", q, k, v, past, q_num_heads=heads, kv_num_heads=heads,
           update_rule="linear", scale=0.5, outputs=2)  # fmt: skip


@template(0.3)
def causal_convolution(g: Generator) -> None:
    x = g.pick(is_f32, (3, 3), filled=True)
    batch, channels, _ = x.tensor.dims
    width = g.integer(1, 4)
    w = g.constant(f32, (channels, 1, width))
    bias = g.constant(f32, (channels,)) if g.chance(0.5) else None
    past = g.operand(f32, (batch, channels, width - 1)) if width > 1 and g.chance(0.5) else None
    g.emit("CausalConvWithState", x, w, bias, past, outputs=2,
           activation=g.choice(("none", "silu")))  # fmt: skip


@template(0.3)
def cache_update(g: Generator) -> None:
    batch, length, size = g.integer(1, 3), g.integer(2, 8), g.integer(1, 4)
    new = g.integer(1, length)
    past, update = g.operand(f32, (batch, 2, length, size)), g.operand(f32, (batch, 2, new, size))
    where = g.b.constant(g.rng.integers(0, length - new + 1, batch).astype(np.int64))
    g.for_onnxruntime = False
    g.emit("TensorScatter", past, update, where, mode=g.choice(("linear", "circular")), keeps=True)
