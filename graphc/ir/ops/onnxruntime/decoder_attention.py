"""ONNX Runtime's attention of decoders: one token after a cache, and block-sparse attention.

Both hold keys and values in buffers of full length, into which new ones are written. Reference:
docs/ContribOperators.md of ONNX Runtime, and its CPU kernels.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphc.errors import ModelError, UnsupportedError
from graphc.ir import dtypes
from graphc.ir.build import Builder
from graphc.ir.graph import Value
from graphc.ir.opdef import Float, Int, Known, composite
from graphc.ir.ops.activation_composites import convert
from graphc.ir.ops.attention import join_heads, raw_scores, split_heads, weighted_values
from graphc.ir.ops.helpers import RUNTIME, RUNTIME_TRAITS, scalar_of
from graphc.ir.ops.in_range import require
from graphc.ir.ops.onnxruntime.attention import (
    FILTERED,
    KEY,
    QUERY,
    VALUE,
    among,
    padding,
    plus,
    scale_of,
    split_bias,
)
from graphc.ir.ops.onnxruntime.grouped_attention import cache_of, grouped_heads, rotated, widened

# ---------------------------------------------------------------- one token


@composite("DecoderMaskedMultiHeadAttention", domain=RUNTIME, outputs=None, traits=RUNTIME_TRAITS)
def decoder_masked_multi_head_attention(
    b: Builder, query: Float, key: Float | None = None, value: Float | None = None,
    mask_index: Int | None = None, attention_bias: Float | None = None,
    past_key: Float | None = None, past_value: Float | None = None,
    past_sequence_length: Int | None = None, beam_width: Int | None = None,
    cache_indirection: Int | None = None, bias: Float | None = None, *, num_heads: int,
    mask_filter_value: float = FILTERED, output_qk: int = 0, past_present_share_buffer: int = 0,
    scale: float | None = None,
) -> tuple[Value, ...]:  # fmt: skip
    """Attention of one query per sample: to given keys and values (batch, heads, length, size), or
    to those of a buffer, in which the new ones have been written behind `past_sequence_length`.

    Further results are the buffers, and the masked scores of given keys. With `cache_indirection`
    (batch, beams, length) key t of a beam is that of another beam of its sample.
    """
    if query.tensor.rank != 3 or query.tensor.dims[1] != 1:
        raise ModelError(f"takes one query per sample, found {query.type}")
    given = past_key is None
    if given and (key is None or value is None or key.tensor.rank != 4):
        raise ModelError("needs past_key and past_value, or keys of rank 4")
    if not given and output_qk:
        raise UnsupportedError("output_qk is supported where keys are given, not with past_key")
    biases: Sequence[Value | None] = (None, None, None)
    if not given:
        if key is None or value is None:
            query, key, value = b.Split(query, num_outputs=3, axis=-1, outputs=3)
        biases = split_bias(b, bias, query, key, value)
    elif bias is not None:
        hidden = query.tensor.static_shape[-1]
        biases = (b.Slice(bias, np.array([0]), np.array([hidden])), None, None)
    q = split_heads(b, plus(b, query, biases[QUERY]), num_heads)
    if given:
        scores, last = raw_scores(b, q, key, scale_of(scale, q)), None
        keys, values, buffers = key, value, (key, value)
    else:
        new = [
            split_heads(b, plus(b, x, added), num_heads)
            for x, added in ((key, biases[KEY]), (value, biases[VALUE]))
        ]
        buffers, last = _written(b, (past_key, past_value), new, past_sequence_length)
        keys, values = buffers
        if cache_indirection is not None:
            keys, values = (_of_beams(b, x, cache_indirection, last) for x in buffers)
        scores = raw_scores(b, q, keys, scale_of(scale, q))
    columns = scores.tensor.static_shape[-1]
    if attention_bias is not None:
        scores = b.Add(scores, widened(b, attention_bias, columns))
    if mask_index is not None:
        if mask_index.tensor.rank != 2:
            raise UnsupportedError(f"the mask must be (batch, length), found {mask_index.type}")
        whole = widened(b, mask_index, columns)
        batch = query.tensor.static_shape[0]
        hidden = padding(b, whole, batch, 1, columns, mask_filter_value, scores.tensor.dtype)
        scores = scores if hidden is None else b.Add(scores, hidden)
    if last is not None:
        scores = among(b, scores, b.LessOrEqual(b.constant(np.arange(columns)), last))
    result = join_heads(b, weighted_values(b, b.Softmax(scores, axis=-1), values))
    return result, *buffers, scores


def _written(
    b: Builder, buffers: tuple, new: list[Value], length: Value | None
) -> tuple[list[Value], Value]:
    """Buffers with new keys and values behind those that they hold, and where that is."""
    if length is None or buffers[1] is None:
        raise ModelError("past_key goes with past_value and past_sequence_length")
    batch, _, held, _ = buffers[0].tensor.static_shape
    require(b, length, 0, held - 1, "length")
    last = b.Reshape(b.Cast(length, to=dtypes.i64.onnx), np.array([1]))
    start = b.Expand(last, np.array([batch]))
    return [b.TensorScatter(x, part, start, axis=2) for x, part in zip(buffers, new)], last


def _of_beams(b: Builder, x: Value, indirection: Value, last: Value) -> Value:
    """Keys or values (samples * beams, heads, length, size) as each beam sees them: those before
    the last one are of the beam that the table says."""
    rows, _, length, _ = x.tensor.static_shape
    samples, beams, held = indirection.tensor.static_shape
    if samples * beams != rows or held < length:
        raise ModelError(f"cache_indirection {indirection.type} does not belong to {x.type}")
    table = b.Reshape(b.Cast(indirection, to=dtypes.i64.onnx), np.array((rows, held)))
    if held > length:
        table = b.Slice(table, np.array([0]), np.array([length]), np.array([1]))
    first = np.arange(rows)[:, None] // beams * beams
    step = b.constant(np.arange(length))
    own = b.constant(np.broadcast_to(np.arange(rows)[:, None], (rows, length)).copy())
    table = b.Where(b.Less(step, last), table, b.Sub(own, b.constant(first)))
    require(b, table, 0, beams - 1, "beam")
    source = b.Add(table, b.constant(first))
    steps = b.constant(np.broadcast_to(np.arange(length), (rows, length)).copy())
    axis = np.array([-1])
    where = b.Concat(b.Unsqueeze(source, axis), b.Unsqueeze(steps, axis), axis=-1)
    by_row = b.GatherND(b.Transpose(x, perm=(0, 2, 1, 3)), where)
    return b.Transpose(by_row, perm=(0, 2, 1, 3))


# ---------------------------------------------------------------- SparseAttention


@composite("SparseAttention", domain=RUNTIME, outputs=None, traits=RUNTIME_TRAITS)
def sparse_attention(
    b: Builder, query: Float, key: Float | None, value: Float | None, past_key: Float,
    past_value: Float, block_row_indices: Int, block_col_indices: Int,
    total_sequence_length: Known(Int), key_total_sequence_lengths: Int,
    cos_cache: Float | None = None, sin_cache: Float | None = None, *, do_rotary: int = 0,
    kv_num_heads: int, num_heads: int, rotary_interleaved: int = 0, scale: float | None = None,
    sparse_block_size: int,
) -> tuple[Value, ...]:  # fmt: skip
    """GroupQueryAttention in which a query sees the keys of some blocks before it.

    Layouts, which the heads take in turn, say which: those of the blocks of keys that row r of
    blocks sees lie at row_indices[r] .. row_indices[r + 1] - 1 in the list of columns.
    """
    q, k, v = grouped_heads(b, query, key, value, num_heads, kv_num_heads)
    total = scalar_of(total_sequence_length, "total_sequence_length")
    given = key_total_sequence_lengths
    lengths = b.Sub(given, b.constant(1, given.tensor.dtype))
    cache = cache_of(b, lengths, total, q)
    cache.check_lengths(b, lengths, past_key)
    positions = cache.positions(b, None)
    if do_rotary:
        q, k = (
            rotated(b, x, cos_cache, sin_cache, positions, cache.length, rotary_interleaved)
            for x in (q, k)
        )
    k, v = (cache.extended(b, past, b.rounded(x)) for past, x in ((past_key, k), (past_value, v)))
    scores = raw_scores(b, q, k, scale_of(scale, q))
    layouts = _layouts(b, block_row_indices, block_col_indices)
    seen = _seen(b, layouts, positions, scores, sparse_block_size)
    visible = b.And(seen, cache.visible(b, True, -1, scores))
    weights = b.Softmax(among(b, scores, visible), axis=-1)
    return convert(b, join_heads(b, weighted_values(b, weights, v)), query.tensor.dtype), k, v


def _layouts(b: Builder, rows: Value, columns: Value) -> Value:
    """Whether a block of queries sees a block of keys: (layouts, blocks, blocks)."""
    count, bounds = rows.tensor.static_shape
    entries = columns.tensor.static_shape[1]
    require(b, rows, 0, entries, "row index")
    place = b.constant(np.arange(entries), rows.tensor.dtype)
    first, end = (
        b.Unsqueeze(b.Slice(rows, np.array([n]), np.array([n + bounds - 1]), np.array([1])),
                    np.array([2]))
        for n in range(2)
    )  # fmt: skip
    of_row = b.And(b.GreaterOrEqual(place, first), b.Less(place, end))
    block = b.constant(np.arange(bounds - 1)[:, None], columns.tensor.dtype)
    of_column = b.Equal(b.Reshape(columns, np.array((count, 1, 1, entries))), block)
    both = b.And(b.Unsqueeze(of_row, np.array([2])), of_column)
    hits = b.ReduceMax(b.Cast(both, to=dtypes.i32.onnx), np.array([3]), keepdims=0)
    return b.Greater(hits, 0)


def _seen(b: Builder, layouts: Value, positions: Value, scores: Value, size: int) -> Value:
    """The keys that the layout of each head lets the query at each position (batch, rows) see."""
    batch, heads, rows, columns = scores.tensor.static_shape
    count, blocks, _ = layouts.tensor.static_shape
    if heads % count or -(-columns // size) > blocks:
        raise ModelError(
            f"layouts {layouts.type} of blocks of {size} do not fit {heads} heads, {columns} keys"
        )
    of_query = b.Div(b.Cast(positions, to=dtypes.i64.onnx), size)
    by_query = b.Gather(layouts, b.Min(of_query, b.constant(blocks - 1, dtypes.i64)), axis=1)
    by_key = b.Gather(by_query, np.arange(columns) // size, axis=3)
    ordered = b.Transpose(by_key, perm=(1, 0, 2, 3))
    shape = (batch, heads // count, count, rows, columns)
    repeated = b.Expand(b.Unsqueeze(ordered, np.array([1])), np.array(shape))
    return b.Reshape(repeated, np.array((batch, heads, rows, columns)))
