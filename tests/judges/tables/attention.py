"""Attention of the standard and of ONNX Runtime, rotary embeddings: PyTorch in float64."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from by_torch import array, tensor
from judge import BETWEEN, Case
from operands import booleans, normal, uniform


def heads(x, count):
    """[batch, tokens, heads * size] as [batch, heads, tokens, size]."""
    return x.reshape(*x.shape[:2], count, -1).transpose(0, 2, 1, 3)


def flat(x):
    return x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1)


def product(q, k, v, mask=None, causal=False, scale=None):
    """torch.nn.functional.scaled_dot_product_attention with groups of queries for a key."""
    groups = q.shape[1] // k.shape[1]
    k, v = (np.repeat(x, groups, 1) for x in (k, v))
    return array(F.scaled_dot_product_attention(*map(tensor, (q, k, v, mask)), 0.0, causal,
                                                scale=scale))  # fmt: skip


def attention(q, k, v, mask=None, *, is_causal=0, scale=None):
    return product(q, k, v, mask, bool(is_causal), scale)


def attention_of_rows(q, k, v, mask=None, *, q_num_heads, kv_num_heads):
    return flat(product(heads(q, q_num_heads), heads(k, kv_num_heads), heads(v, kv_num_heads),
                        mask))  # fmt: skip


def attention_with_past(q, k, v, mask, past_k, past_v, *, softcap=0.0):
    k, v = np.concatenate([past_k, k], 2), np.concatenate([past_v, v], 2)
    if not softcap:
        return product(q, k, v, mask), k, v
    groups = q.shape[1] // k.shape[1]
    scores = q @ np.repeat(k, groups, 1).swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    weights = torch.softmax(tensor(softcap * np.tanh(scores / softcap)), -1)
    return array(weights) @ np.repeat(v, groups, 1), k, v


def multi_head(q, k, v, bias=None, *, num_heads, scale=None):
    if bias is not None:
        q, k, v = (x + part for x, part in zip((q, k, v), np.split(bias, 3)))
    return flat(product(*(heads(x, num_heads) for x in (q, k, v)), scale=scale))


def packed(x, weight, bias, *, num_heads, unidirectional=0):
    """com.microsoft.Attention: one product gives queries, keys and values."""
    q, k, v = (heads(part, num_heads) for part in np.split(x @ weight + bias, 3, -1))
    return flat(product(q, k, v, causal=bool(unidirectional)))


def rotated(x, cos, sin, positions, *, interleaved=0):
    """Pairs of elements turned by the angle of their position (Su et al., "RoFormer", 2021)."""
    c, s = (np.expand_dims(table[positions], 1) for table in (cos, sin))
    half = x.shape[-1] // 2
    a, b = (x[..., ::2], x[..., 1::2]) if interleaved else (x[..., :half], x[..., half:])
    turned = a * c - b * s, a * s + b * c
    return np.stack(turned, -1).reshape(x.shape) if interleaved else np.concatenate(turned, -1)


def additive(*shape):
    """A mask that is added: some -inf, but none over a whole row."""

    def make(rng, dtype):
        mask = np.where(rng.random(shape) < 0.3, -np.inf, rng.standard_normal(shape))
        mask[..., 0] = 0.5
        return mask.astype(dtype)

    return make


def positions(rng, dtype):
    return rng.integers(0, 9, (2, 5))


def some(*shape):
    def make(rng, dtype):
        kept = booleans(*shape)(rng, dtype)
        kept[..., -1] = True
        return kept

    return make


Q, K, V = normal(2, 4, 5, 8), normal(2, 2, 7, 8), normal(2, 2, 7, 6)
ROWS = normal(2, 5, 32)
CLOSE = {"share": 4.0, "roundings": 8, "narrow": BETWEEN}


def case(name: str, inputs, reference, op="Attention", domain="", **rest) -> Case:
    attrs = {k: v for k, v in rest.items() if k not in ("outputs", "types", "note", "opset")}
    options = {k: v for k, v in rest.items() if k not in attrs}
    return Case(name, op, inputs, reference, attrs, domain=domain, **options, **CLOSE)


CASES = [
    case("Attention", [normal(2, 3, 5, 8), normal(2, 3, 7, 8), normal(2, 3, 7, 6)], attention),
    case("Attention_grouped", [Q, K, V], attention),
    case("Attention_added_mask", [Q, K, V, additive(2, 4, 5, 7)], attention),
    case("Attention_kept_mask", [Q, K, V, some(5, 7)], attention),
    case("Attention_causal", [Q, normal(2, 2, 5, 8), normal(2, 2, 5, 6)], attention, is_causal=1),
    case("Attention_scaled", [Q, K, V], attention, scale=0.125),
    case("Attention_large_scores", [normal(1, 1, 4, 8, scale=20), normal(1, 1, 6, 8, scale=20),
                                    normal(1, 1, 6, 8)], attention, types=("float32", "float64")),
    case("Attention_one_key", [Q, normal(2, 2, 1, 8), normal(2, 2, 1, 6)], attention),
    case("Attention_rows", [ROWS, normal(2, 7, 16), normal(2, 7, 12), additive(5, 7)],
         attention_of_rows, q_num_heads=4, kv_num_heads=2),
    case("Attention_past", [Q, K, V, additive(5, 10), normal(2, 2, 3, 8), normal(2, 2, 3, 6)],
         attention_with_past, outputs=3),
    case("Attention_softcap", [Q, K, V, None, normal(2, 2, 3, 8), normal(2, 2, 3, 6)],
         attention_with_past, softcap=2.0, outputs=3),
    case("RotaryEmbedding", [normal(2, 3, 5, 8), uniform(-1, 1, 9, 4), uniform(-1, 1, 9, 4),
                             positions], rotated, op="RotaryEmbedding"),
    case("RotaryEmbedding_interleaved",
         [normal(2, 3, 5, 8), uniform(-1, 1, 9, 4), uniform(-1, 1, 9, 4), positions], rotated,
         op="RotaryEmbedding", interleaved=1),
    case("MultiHeadAttention", [ROWS, normal(2, 7, 32), normal(2, 7, 32)], multi_head,
         op="MultiHeadAttention", domain="com.microsoft", num_heads=4),
    case("MultiHeadAttention_biased", [ROWS, normal(2, 7, 32), normal(2, 7, 32), normal(96)],
         multi_head, op="MultiHeadAttention", domain="com.microsoft", num_heads=4, scale=0.25),
    case("Attention_packed", [normal(2, 5, 12), normal(12, 72, scale=0.4), normal(72)], packed,
         domain="com.microsoft", num_heads=3),
    case("Attention_packed_causal", [normal(2, 5, 12), normal(12, 72, scale=0.4), normal(72)],
         packed, domain="com.microsoft", num_heads=3, unidirectional=1),
]  # fmt: skip
