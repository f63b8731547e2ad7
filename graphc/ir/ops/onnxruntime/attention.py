"""ONNX Runtime's attention operators, of which its transformer optimisers make whole layers.

Each is a graph of products, masks and softmax (attention.py). What masks hide differs: keys that a
padding mask excludes get `mask_filter_value` added to their scores, so that a row of nothing but
padding is still a mean; scores of keys beyond a causal bound become the lowest number, which is a
weight of 0 unless all others are -inf. Keys and values are rounded before they are read, as a cache
holds them. Reference: docs/ContribOperators.md of ONNX Runtime, and its CPU kernels where that says
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from graphc.errors import ModelError, UnsupportedError
from graphc.ir.build import Builder
from graphc.ir.dtypes import DType, i64
from graphc.ir.extents import as_dim, at_most
from graphc.ir.graph import Value
from graphc.ir.opdef import Float, Int, composite
from graphc.ir.ops.attention import Band, join_heads, raw_scores, split_heads, weighted_values
from graphc.ir.ops.helpers import RUNTIME, RUNTIME_TRAITS, counted, shaped, sliced
from graphc.ir.ops.in_range import require
from graphc.ir.types import Dim

FILTERED = -10000.0  # what is added to the scores of padding
QUERY, KEY, VALUE = range(3)


def refuse(**given: Any) -> None:
    """UnsupportedError if an operand or attribute that is not supported is there."""
    for name, value in given.items():
        if value is not None and not (isinstance(value, int) and value == 0):
            raise UnsupportedError(f"{name} is not supported")


def scale_of(scale: float | None, q: Value) -> float:
    """The factor of the scores: 1 / sqrt(size of a head) unless it is given."""
    return scale or 1 / math.sqrt(q.tensor.extent(-1))


def causal_band(b: Builder, rows: Dim, columns: Dim, past: Dim) -> Value | None:
    """Which keys each query may see, of which there are `past` before the first; None: all. The
    last query sees all keys, also if there are more of them than queries."""
    if at_most(rows, 1):
        return None
    visible = Band(rows, columns, past, causal=True, left=-1, right=-1).allowed(b, None)
    if at_most(columns, past + rows):
        return visible
    return b.Or(visible, b.Equal(counted(b, rows, shape=(-1, 1)), as_dim(rows - 1)))


def among(b: Builder, scores: Value, visible: Value | None, other: float = -math.inf) -> Value:
    """The scores of visible keys, `other` in place of the rest."""
    if visible is None:
        return scores
    return b.Where(visible, scores, b.constant(other, scores.tensor.dtype))


# ---------------------------------------------------------------- padding


def padding(
    b: Builder, mask: Value, batch: Dim, rows: Dim, columns: Dim, filtered: float, dtype: DType
) -> Value | None:
    """What a mask of either kind adds to scores, (batch, 1, 1 or rows, columns); None for nothing.

    A mask over keys, or over queries and keys, is positive where they are attended; one of a single
    column hides nothing. One of rank 1 holds where the keys of each sample end; where these begin
    follows, if it is twice as long (otherwise what follows is of use to packed sequences only).
    """
    shape = mask.tensor.dims
    if shape in ((batch, 1), (1, 1)):
        return None
    if shape in ((batch, columns), (batch, rows, columns)):
        whole = shaped(b, mask, batch, 1, 1 if len(shape) == 2 else rows, columns)
        keep = b.Greater(whole, b.constant(0, mask.tensor.dtype))
        if len(shape) == 2 and not at_most(2, columns):
            keep = b.Or(keep, b.Equal(b.dims([columns]), 1))
    elif shape in ((batch,), (as_dim(2 * batch),), (as_dim(3 * batch + 2),)):
        keep = _between(b, mask, batch, columns, has_starts=shape[0] == as_dim(2 * batch))
    else:
        raise UnsupportedError(
            f"a mask of shape {list(shape)} for {batch} samples of {rows} queries and {columns} "
            "keys is not supported"
        )
    return b.Where(keep, b.constant(0, dtype), b.constant(filtered, dtype))


def _between(b: Builder, mask: Value, batch: Dim, columns: Dim, has_starts: bool) -> Value:
    """Whether a key lies before the end, and from the start on, of its sample."""
    key = counted(b, columns, dtype=mask.tensor.dtype)

    def bound(number: int) -> Value:
        part = sliced(b, mask, number * batch, (number + 1) * batch, 0)
        return shaped(b, part, batch, 1, 1, 1)

    keep = b.Less(key, bound(0))
    return b.And(keep, b.GreaterOrEqual(key, bound(1))) if has_starts else keep


def _masked_attention(
    b: Builder, q: Value, k: Value, v: Value, mask: Value | None, bias: Value | None, past: Dim,
    scale: float | None, filtered: float, causal: int,
) -> tuple[Value, Value]:  # fmt: skip
    """Attention of (batch, heads, length, size), heads side by side again, and its scores."""
    batch, _, rows, _ = q.tensor.dims
    columns = k.tensor.dims[2]
    scores = raw_scores(b, q, k, scale_of(scale, q))
    if bias is not None:
        scores = b.Add(scores, bias)
    if mask is not None:
        hidden = padding(b, mask, batch, rows, columns, filtered, scores.tensor.dtype)
        scores = scores if hidden is None else b.Add(scores, hidden)
    visible = causal_band(b, rows, columns, past) if causal else None
    lowest = -scores.tensor.dtype.largest_finite
    scores = among(b, scores, visible, lowest)
    weights = b.Softmax(scores, axis=-1)
    return join_heads(b, weighted_values(b, weights, v)), scores


# ---------------------------------------------------------------- Attention


@composite("Attention", domain=RUNTIME, outputs=None, traits=RUNTIME_TRAITS)
def attention(
    b: Builder, x: Float, weights: Float, bias: Float | None = None, mask_index: Int | None = None,
    past: Float | None = None, attention_bias: Float | None = None,
    past_sequence_length: Int | None = None, *, num_heads: int, do_rotary: int = 0,
    mask_filter_value: float = FILTERED, past_present_share_buffer: int = 0,
    qkv_hidden_sizes: Sequence[int] | None = None, rotary_embedding_dim: int | None = None,
    scale: float | None = None, unidirectional: int = 0,
) -> Value | tuple[Value, ...]:  # fmt: skip
    """Attention of queries, keys and values that are x W + bias, side by side.

    `past` holds keys and values that come before these: (2, batch, heads, length, size). The second
    result is all of them.
    """
    refuse(
        do_rotary=do_rotary, past_present_share_buffer=past_present_share_buffer,
        past_sequence_length=past_sequence_length,
    )  # fmt: skip
    parts = _projected(b, x, weights, bias, qkv_hidden_sizes)
    return _self_attention(
        b, parts, num_heads, mask_index, past, attention_bias, scale, mask_filter_value,
        unidirectional,
    )  # fmt: skip


def _self_attention(
    b: Builder, parts: Sequence[Value], heads: int, mask: Value | None, past: Value | None,
    bias: Value | None, scale: float | None, filtered: float, causal: int,
) -> Value | tuple[Value, Value]:  # fmt: skip
    """Attention of queries, keys and values after `past`; with all keys and values if these are
    asked for."""
    q, k, v = (split_heads(b, part, heads) for part in parts)
    k, v = b.rounded(k), b.rounded(v)
    if mask is not None and mask.tensor.rank == 1:  # where the keys of each sample end
        require(b, mask, 0, i64.max, "length", q.tensor.dims[:1])
    length: Dim = 0
    if past is not None:
        length = past.tensor.dims[3]
        k, v = (
            b.Concat(b.Gather(past, np.array(n), axis=0), new, axis=2)
            for n, new in enumerate((k, v))
        )
    result, _ = _masked_attention(b, q, k, v, mask, bias, length, scale, filtered, causal)
    if b.count == 1:
        return result
    if k.type != v.type:
        raise ModelError(f"keys {k.type} and values {v.type} must have one shape to be one result")
    first = np.array([0])
    return result, b.Concat(b.Unsqueeze(k, first), b.Unsqueeze(v, first), axis=0)


@composite("QAttention", domain=RUNTIME, outputs=None, traits=RUNTIME_TRAITS)
def quantised_attention(
    b: Builder, x: Int, weights: Int, bias: Float, x_scale: Float, weight_scale: Float,
    mask_index: Int | None = None, x_zero: Int | None = None, weight_zero: Int | None = None,
    past: Float | None = None, *, num_heads: int, do_rotary: int = 0,
    mask_filter_value: float = FILTERED, past_present_share_buffer: int = 0,
    scale: float | None = None, unidirectional: int = 0,
) -> Value | tuple[Value, ...]:  # fmt: skip
    """Attention of 8-bit x and weights, whose scale and zero point may be per column."""
    refuse(do_rotary=do_rotary, past_present_share_buffer=past_present_share_buffer)
    width = weights.tensor.extent(-1)
    columns = [_thirds(b, v, width) for v in (weights, weight_scale, weight_zero, bias)]
    parts = [
        b.MatMulIntegerToFloat(x, w, x_scale, step, x_zero, zero, added, domain=RUNTIME)
        for w, step, zero, added in zip(*columns, strict=True)
    ]
    return _self_attention(
        b, parts, num_heads, mask_index, past, None, scale, mask_filter_value, unidirectional
    )


def _thirds(b: Builder, x: Value | None, width: int) -> Sequence[Value | None]:
    """The columns of queries, keys and values; what has no columns serves all."""
    if x is None or x.tensor.size == 1:
        return (x, x, x)
    return b.Split(x, np.array((width // 3,) * 3), axis=-1, outputs=3)


def _projected(
    b: Builder, x: Value, weights: Value, bias: Value | None, sizes: Sequence[int] | None
) -> list[Value]:
    """Queries, keys and values: a product each, which targets may make one of again."""
    width = weights.tensor.extent(-1)
    sizes = sizes or (width // 3,) * 3
    if len(sizes) != 3 or sum(sizes) != width:
        raise ModelError(f"the weights have {width} columns, not those of {list(sizes)}")
    columns = b.Split(weights, np.array(sizes), axis=-1, outputs=3)
    products = [b.MatMul(x, part) for part in columns]
    if bias is None:
        return products
    return list(map(b.Add, products, b.Split(bias, np.array(sizes), axis=0, outputs=3)))


# ---------------------------------------------------------------- MultiHeadAttention


@composite("MultiHeadAttention", domain=RUNTIME, outputs=None, traits=RUNTIME_TRAITS)
def multi_head_attention(
    b: Builder, query: Float, key: Float | None = None, value: Float | None = None,
    bias: Float | None = None, key_padding_mask: Int | None = None,
    attention_bias: Float | None = None, past_key: Float | None = None,
    past_value: Float | None = None, past_sequence_length: Int | None = None,
    cache_indirection: Int | None = None, *, num_heads: int, mask_filter_value: float = FILTERED,
    scale: float | None = None, unidirectional: int = 0,
) -> tuple[Value, ...]:  # fmt: skip
    """Attention of given queries, keys and values, to each of which a part of the bias is added.

    They are (batch, length, features), or packed as (batch, length, heads, 3 or 2, size); keys and
    values of another sequence are (batch, heads, length, size), and get no bias. Further results
    are the keys and values with those that came before, and the masked scores.
    """
    refuse(past_sequence_length=past_sequence_length, cache_indirection=cache_indirection)
    query, key, value = _unpacked(b, query, key, value)
    biases = split_bias(b, bias, query, key, value)
    q = split_heads(b, plus(b, query, biases[QUERY]), num_heads)
    if key.tensor.rank == 4:
        k, v = key, value
    else:
        k = split_heads(b, plus(b, key, biases[KEY]), num_heads)
        v = split_heads(b, plus(b, value, biases[VALUE]), num_heads)
    k, v = b.rounded(k), b.rounded(v)
    length: Dim = 0
    if past_key is not None:
        length = past_key.tensor.dims[2]
        k, v = b.Concat(past_key, k, axis=2), b.Concat(past_value, v, axis=2)
    result, scores = _masked_attention(
        b, q, k, v, key_padding_mask, attention_bias, length, scale, mask_filter_value,
        unidirectional,
    )  # fmt: skip
    return result, k, v, scores


def plus(b: Builder, x: Value, bias: Value | None) -> Value:
    return x if bias is None else b.Add(x, bias)


def _unpacked(
    b: Builder, query: Value, key: Value | None, value: Value | None
) -> tuple[Value, Value, Value]:
    """Queries, keys and values on their own, features of all heads side by side."""
    if query.tensor.rank == 5:
        query, key, value = _members(b, query)
    elif key is not None and key.tensor.rank == 5:
        key, value = _members(b, key)
    if key is None or value is None:
        raise ModelError(f"keys and values are missing beside queries {query.type}")
    return query, key, value


def _members(b: Builder, packed: Value) -> list[Value]:
    """(batch, length, heads, count, size) as `count` times (batch, length, heads * size)."""
    batch, length, heads, _, size = packed.tensor.dims
    parts = (b.Gather(packed, np.array(n), axis=3) for n in range(packed.tensor.extent(3)))
    return [shaped(b, part, batch, length, heads * size) for part in parts]


def split_bias(b: Builder, bias: Value | None, *parts: Value) -> Sequence[Value | None]:
    """The biases of queries, keys and values, which lie side by side."""
    if bias is None:
        return (None, None, None)
    sizes = [_features(part) for part in parts]
    if bias.tensor.static_shape != (sum(sizes),):
        raise ModelError(f"the bias must hold {sum(sizes)} elements, found {bias.type}")
    return b.Split(bias, np.array(sizes), axis=0, outputs=3)


def _features(part: Value) -> int:
    """The features of all heads, which lie side by side or, of rank 4, apart."""
    type = part.tensor
    return type.extent(2) if type.rank == 3 else type.extent(1) * type.extent(3)


# ---------------------------------------------------------------- RotaryEmbedding


@composite("RotaryEmbedding", domain=RUNTIME, traits=RUNTIME_TRAITS)
def rotary_embedding(
    b: Builder, x: Float, position_ids: Int, cos_cache: Float, sin_cache: Float, *,
    interleaved: int = 0, is_packed_batching: int = 0, num_heads: int = 0,
    rotary_embedding_dim: int = 0, scale: float = 1.0,
) -> Value:  # fmt: skip
    """ONNX's RotaryEmbedding; one position is that of the first token of every sample.

    `scale` is for caches that are extended, which nobody does, and `is_packed_batching` says how
    samples lie; ONNX Runtime's CPU kernels look at neither.
    """
    shape = x.tensor.dims
    if len(shape) not in (3, 4):
        raise ModelError(f"takes an operand of rank 3 or 4, found {x.type}")
    batch, length = shape[0], shape[-2]
    if not num_heads and len(shape) == 3:
        num_heads = x.tensor.extent(2) // (2 * cos_cache.tensor.extent(-1))
    if position_ids.tensor.rank == 1:
        first = b.Reshape(position_ids, np.array((1, 1)))
        steps = counted(b, length, dtype=position_ids.tensor.dtype)
        position_ids = b.Expand(b.Add(first, steps), b.dims((batch, length)))
    return b.RotaryEmbedding(
        x, cos_cache, sin_cache, position_ids, interleaved=interleaved,
        num_heads=num_heads if len(shape) == 3 else 0, rotary_embedding_dim=rotary_embedding_dim,
    )  # fmt: skip


@composite("MRotaryEmbedding", domain=RUNTIME, traits=RUNTIME_TRAITS)
def multimodal_rotary_embedding(
    b: Builder, x: Float, position_ids: Int, cos_cache: Float, sin_cache: Float, *,
    interleaved: int = 0, is_packed_batching: int = 0, mrope_layout: int = 0,
    mrope_section: Sequence[int], num_heads: int = 0, rotary_embedding_dim: int = 0,
    scale: float = 1.0,
) -> Value:  # fmt: skip
    """RotaryEmbedding by three positions (3, batch, length): which of them turns a pair is a matter
    of sections of the pairs, side by side or (layout 1) taking turns."""
    half = cos_cache.tensor.extent(-1)
    if len(mrope_section) != 3 or sum(mrope_section) != half:
        raise ModelError(f"mrope_section {list(mrope_section)} does not divide {half} pairs in 3")
    pairs = np.arange(half)
    stream = np.repeat(np.arange(3), mrope_section)
    if mrope_layout:
        turns = np.array(mrope_section)[pairs % 3] * 3
        stream = np.where(pairs < turns, pairs % 3, 0)
    tables = []
    for cache in (cos_cache, sin_cache):
        rows = b.Gather(cache, position_ids, axis=0)
        chosen = b.Gather(rows, np.array(0), axis=0)
        for n in (1, 2):
            other = b.Gather(rows, np.array(n), axis=0)
            chosen = b.Where(b.constant(stream == n), other, chosen)
        tables.append(chosen)
    if not num_heads and x.tensor.rank == 3:
        num_heads = x.tensor.extent(2) // (rotary_embedding_dim or 2 * half)
    return b.RotaryEmbedding(
        x, *tables, interleaved=interleaved, num_heads=num_heads,
        rotary_embedding_dim=rotary_embedding_dim,
    )  # fmt: skip
