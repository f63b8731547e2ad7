"""ONNX Runtime's GroupQueryAttention, the attention of generated text, with its cache.

The cache of a sample holds `past` keys, then the new ones: past is 0 for a prompt, which has as
many queries as there are tokens in all, and otherwise seqlens_k + 1 - queries. Samples may differ
in it, so it is data, and only what follows from total_sequence_length is known when a graph is
compiled. Reference: docs/ContribOperators.md of ONNX Runtime, and its CPU kernel.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphc.errors import ModelError
from graphc.ir import dtypes
from graphc.ir.build import Builder
from graphc.ir.graph import Value
from graphc.ir.opdef import Any_, Float, Int, Known, composite
from graphc.ir.ops.activation_composites import convert
from graphc.ir.ops.attention import Band, join_heads, raw_scores, split_heads, weighted_values
from graphc.ir.ops.helpers import (
    RUNTIME,
    RUNTIME_TRAITS,
    counted,
    filled,
    scalar_of,
    shaped,
    sliced,
)
from graphc.ir.ops.in_range import require
from graphc.ir.ops.onnxruntime.attention import among, refuse, scale_of
from graphc.ir.ops.onnxruntime.cache_codes import codes_of
from graphc.ir.types import Dim
from graphc.records import dataclass

NO_SCORES, RAW_SCORES, WEIGHTS = range(3)


@composite("GroupQueryAttention", domain=RUNTIME, outputs=None, traits=RUNTIME_TRAITS)
def group_query_attention(
    b: Builder, query: Float, key: Float | None, value: Float | None, past_key: Any_ | None,
    past_value: Any_ | None, seqlens_k: Int, total_sequence_length: Known(Int),
    cos_cache: Float | None = None, sin_cache: Float | None = None,
    position_ids: Int | None = None, attention_bias: Float | None = None,
    head_sink: Float | None = None, k_scale: Float | None = None, v_scale: Float | None = None,
    q_norm_weight: Float | None = None, k_norm_weight: Float | None = None,
    query_seqlens: Int | None = None, *, num_heads: int, kv_num_heads: int, causal: int = 1,
    do_rotary: int = 0, k_norm_epsilon: float | None = None, k_quant_type: str = "NONE",
    kv_cache_bit_width: int = 0, local_window_size: int = -1, q_norm_epsilon: float | None = None,
    qk_norm_epsilon: float = 1e-6, qk_output: int = NO_SCORES, rotary_interleaved: int = 0,
    scale: float | None = None, sliding_window_cache: int = 0, smooth_softmax: int = -1,
    softcap: float = 0.0, v_quant_type: str = "NONE",
) -> tuple[Value, ...]:  # fmt: skip
    """Attention in which several heads of queries share one of keys and values.

    Further results are the keys and values with those of the cache, (batch, heads, length, size),
    and the scores or weights of `total_sequence_length` keys, 0 where a query may not see one. A
    window makes the last `local_window_size` keys visible. A sink is the score of one more key,
    whose value is 0. Queries beyond the end of a sample are undefined. A cache of codes
    (cache_codes.py) is attended to in float32, new keys and values as it holds them.
    """
    refuse(query_seqlens=query_seqlens, sliding_window_cache=sliding_window_cache)
    q, k, v = grouped_heads(b, query, key, value, num_heads, kv_num_heads)
    codes = [
        codes_of(b, kind, kv_cache_bit_width, step, new, past, name)
        for kind, step, new, past, name in (
            (k_quant_type, k_scale, k, past_key, "k"), (v_quant_type, v_scale, v, past_value, "v"),
        )
    ]  # fmt: skip
    epsilons = [e or qk_norm_epsilon for e in (q_norm_epsilon, k_norm_epsilon)]
    q, k = _normalised(b, (q, k), (q_norm_weight, k_norm_weight), epsilons)
    cache = cache_of(b, seqlens_k, scalar_of(total_sequence_length, "total_sequence_length"), q)
    cache.check_lengths(b, seqlens_k, past_key)
    if do_rotary:
        where = cache.positions(b, position_ids)
        q, k = (
            rotated(b, x, cos_cache, sin_cache, where, cache.length, rotary_interleaved)
            for x in (q, k)
        )
    k, v = (
        cache.extended(b, past, b.rounded(code.encoded(b, new)))
        for past, code, new in zip((past_key, past_value), codes, (k, v))
    )
    keys, values = (code.decoded(b, x) for code, x in zip(codes, (k, v)))
    if dtypes.f32 in (keys.tensor.dtype, values.tensor.dtype):
        q, keys, values = (convert(b, x, dtypes.f32) for x in (q, keys, values))
    scores = _scores(b, q, keys, scale_of(scale, q), softcap, attention_bias)
    visible = cache.visible(b, bool(causal), local_window_size, scores)
    masked = among(b, scores, visible)
    weights = _weights(b, masked, _sink(b, head_sink, smooth_softmax, scores))
    result = convert(b, join_heads(b, weighted_values(b, weights, values)), query.tensor.dtype)
    if b.count <= 3:
        return result, k, v
    shown = weights if qk_output == WEIGHTS else among(b, scores, visible, 0.0)
    return result, k, v, convert(b, sliced(b, shown, 0, cache.length, axis=3), query.tensor.dtype)


def _normalised(
    b: Builder, heads: Sequence[Value], weights: Sequence[Value | None], epsilons: Sequence[float]
) -> Sequence[Value]:
    """Queries and keys over their root mean squares, if there are weights for both."""
    if (weights[0] is None) != (weights[1] is None):
        raise ModelError("q_norm_weight and k_norm_weight go together, found one of them")
    if weights[0] is None:
        return heads
    return [
        b.RMSNormalization(x, weight, epsilon=epsilon)
        for x, weight, epsilon in zip(heads, weights, epsilons)
    ]


def _scores(
    b: Builder, q: Value, keys: Value, scale: float, softcap: float, bias: Value | None
) -> Value:
    """The scores (batch, heads, queries, keys), capped and biased, before anything is masked."""
    scores = raw_scores(b, q, keys, scale)
    if softcap:
        scores = b.Mul(b.Tanh(b.Div(scores, softcap)), softcap)
    if bias is None:
        return scores
    bias = widened(b, bias, scores.tensor.extent(-1))
    return b.Add(scores, convert(b, bias, scores.tensor.dtype))


def grouped_heads(
    b: Builder, query: Value, key: Value | None, value: Value | None, heads: int, key_heads: int
) -> tuple[Value, Value, Value]:
    """Queries, keys and values as (batch, heads, length, size); those without keys are packed."""
    if key is None or value is None:
        packed = split_heads(b, query, heads + 2 * key_heads)
        sizes = np.array((heads, key_heads, key_heads))
        return b.Split(packed, sizes, axis=1, outputs=3)
    return (
        split_heads(b, query, heads),
        split_heads(b, key, key_heads),
        split_heads(b, value, key_heads),
    )


def rotated(
    b: Builder, x: Value, cos_cache: Value | None, sin_cache: Value | None, where: Value,
    length: int, interleaved: int,
) -> Value:  # fmt: skip
    """x turned by its positions, of which there are `length` in all."""
    if cos_cache is None or sin_cache is None:
        raise ModelError("do_rotary needs cos_cache and sin_cache")
    held, pairs = cos_cache.tensor.extent(0), cos_cache.tensor.extent(1)
    if held < length:
        raise ModelError(f"cos_cache has {held} rows, there are {length} positions")
    return b.RotaryEmbedding(
        x, cos_cache, sin_cache, where, interleaved=interleaved,
        rotary_embedding_dim=0 if 2 * pairs == x.tensor.dims[-1] else 2 * pairs,
    )  # fmt: skip


@dataclass
class Cache:
    """Where the new keys of each sample belong. `past`, their number, and `last`, the position of
    the last new one, are (batch, 1, 1, 1); a `past` of None is 0. `length` is what the cache holds
    at least."""

    batch: Dim
    rows: int
    length: int
    past: Value | None
    last: Value

    def positions(self, b: Builder, given: Value | None) -> Value:
        """The positions of the queries: (batch, rows). Of those given for a prompt only the very
        first counts."""
        if given is not None and self.past is not None:
            return given
        steps = b.Expand(counted(b, self.rows), b.dims((self.batch, self.rows)))
        if given is not None:
            zero, one = np.array([0, 0]), np.array([1, 1])
            return b.Add(b.Slice(given, zero, one, np.array([0, 1])), steps)
        if self.past is None:
            return steps
        return b.Add(shaped(b, self.past, self.batch, 1), steps)

    def check_lengths(self, b: Builder, seqlens: Value, past: Value | None) -> None:
        """Has a run fail unless `seqlens`, the keys of each sample less one, count the new keys and
        fit into the cache."""
        held = 0 if past is None else past.tensor.extent(2)
        least = 0 if self.past is None else self.rows - 1
        require(b, seqlens, least, max(held, self.length) - 1, "length")

    def extended(self, b: Builder, past: Value | None, new: Value) -> Value:
        """The keys or values in the cache with the new ones. What the cache holds beyond them
        stays, and is zero where it grows."""
        held = 0 if past is None else past.tensor.extent(2)
        length = max(held, self.length)
        if self.past is None:
            if past is None or held <= self.rows:
                return new
            return b.Concat(new, sliced(b, past, self.rows, held, axis=2), axis=2)
        if past is None:
            raise ModelError("queries after the first need past_key and past_value")
        start = shaped(b, self.past, self.batch)
        return b.TensorScatter(_lengthened(b, past, length), new, start, axis=2)

    def visible(self, b: Builder, causal: bool, window: int, scores: Value) -> Value:
        """Which keys each query may see."""
        columns = scores.tensor.extent(-1)
        left = window - 1 if window > 0 else -1
        band = Band(self.rows, columns, 0, causal, left, -1)
        if not band.is_full:
            return band.allowed(b, self.past)
        return b.LessOrEqual(b.constant(np.arange(columns)), self.last)


def cache_of(b: Builder, seqlens: Value, length: int, q: Value) -> Cache:
    batch, rows = q.tensor.dims[0], q.tensor.extent(2)
    if length < rows:
        raise ModelError(f"total_sequence_length is {length}, there are {rows} queries")
    last = b.Reshape(b.Cast(seqlens, to=dtypes.i64.onnx), np.array((-1, 1, 1, 1)))
    if last.tensor.dims[0] != batch:
        raise ModelError(f"seqlens_k holds {last.tensor.dims[0]} lengths for {batch} samples")
    past = b.Add(last, 1 - rows) if rows > 1 else last
    return Cache(batch, rows, length, None if rows == length else past, last)


def _lengthened(b: Builder, x: Value, length: int) -> Value:
    """x with zeros behind its keys, `length` in all."""
    batch, heads, _, size = x.tensor.dims
    held = x.tensor.extent(2)
    if held == length:
        return x
    return b.Concat(x, filled(b, 0, (batch, heads, length - held, size), x.tensor.dtype), axis=2)


def widened(b: Builder, bias: Value, columns: int) -> Value:
    """A bias of scores for as many keys as the cache holds; more are not visible."""
    missing = columns - bias.tensor.extent(-1)
    if missing <= 0:
        return bias
    zeros = filled(b, 0, (*bias.tensor.dims[:-1], missing), bias.tensor.dtype)
    return b.Concat(bias, zeros, axis=-1)


def _sink(b: Builder, head_sink: Value | None, smooth: int, scores: Value) -> Value | None:
    """The score of the key without a value: (heads, 1, 1), or 0; None if there is none."""
    if head_sink is not None:
        return b.Reshape(convert(b, head_sink, scores.tensor.dtype), np.array((-1, 1, 1)))
    return b.constant(0, scores.tensor.dtype) if smooth == 1 else None


def _weights(b: Builder, scores: Value, sink: Value | None) -> Value:
    """Softmax of scores and the sink, without the sink's. If that exceeds the scores so much that
    its exponential is infinite, the weights are 0, as they should be."""
    if sink is None:
        return b.Softmax(scores, axis=-1)
    last = np.array([-1])
    largest = b.ReduceMax(scores, last, keepdims=1)
    powers = b.Exp(b.Sub(scores, largest))
    total = b.Add(b.ReduceSum(powers, last, keepdims=1), b.Exp(b.Sub(sink, largest)))
    return b.Div(powers, total)
