"""ONNX Runtime's operators on words and n-grams of tokens.

Reference: docs/ContribOperators.md of ONNX Runtime, and its CPU kernels where that says nothing.
"""

from __future__ import annotations

import numpy as np

from graphc.errors import ModelError, UnsupportedError
from graphc.ir import dtypes
from graphc.ir.build import Builder
from graphc.ir.graph import Value
from graphc.ir.opdef import Float, Int, composite
from graphc.ir.ops.helpers import RUNTIME, RUNTIME_TRAITS
from graphc.ir.ops.in_range import require

# ---------------------------------------------------------------- NGramRepeatBlock


@composite("NGramRepeatBlock", domain=RUNTIME, traits=RUNTIME_TRAITS)
def ngram_repeat_block(b: Builder, tokens: Int, scores: Float, *, ngram_size: int) -> Value:
    """The scores [N, words], -inf for what would end an n-gram that is there already."""
    batch, length = tokens.tensor.static_shape
    if ngram_size < 1:
        raise ModelError(f"ngram_size must be positive, found {ngram_size}")
    starts = length - ngram_size + 1
    if starts < 1:
        return b.Identity(scores)
    columns = np.array([1])

    def part(first: int, count: int) -> Value:
        return b.Slice(tokens, np.array([first]), np.array([first + count]), columns)

    alike = b.constant(np.ones((batch, starts), bool))
    for n in range(ngram_size - 1):  # the last ones against those from each start on
        alike = b.And(alike, b.Equal(part(n, starts), part(starts + n, 1)))
    zero = b.constant(0, dtypes.i64)
    ends = b.Where(alike, b.Cast(part(ngram_size - 1, starts), to=dtypes.i64.onnx), zero)
    require(b, ends, 0, scores.tensor.static_shape[1] - 1, "token")
    hits = b.constant(np.zeros(scores.tensor.static_shape, np.int32))
    marks = b.Cast(alike, to=dtypes.i32.onnx)
    hits = b.ScatterElements(hits, ends, marks, axis=1, reduction="max")
    lowest = b.constant(-np.inf, scores.tensor.dtype)
    return b.Where(b.Greater(hits, b.constant(0, dtypes.i32)), lowest, scores)


# ---------------------------------------------------------------- NGramHashMapping


@composite("NGramHashMapping", domain=RUNTIME, outputs=None, traits=RUNTIME_TRAITS)
def ngram_hash_mapping(
    b: Builder, tokens: Int, multipliers: Int, vocab_sizes: Int, past_ids: Int | None = None,
    head_offsets: Int | None = None, eos_token_id: Int | None = None,
    segment_ids: Int | None = None, *, max_ngram_size: int, n_head_per_ngram: int, pad_id: int,
    reset_on_eos: int = 0,
) -> tuple[Value, ...]:  # fmt: skip
    """Hashes of the n-grams that end at each token of [N, length], for n from 2 on and several
    heads each; also the last tokens, which the next call takes as `past_ids`.

    A hash is the exclusive or of the tokens times a number each, modulo the head's size. Tokens
    before the first, or beyond an end or a border of segments, count as `eos_token_id` or pad_id.
    """
    dtype, (batch, length) = tokens.tensor.dtype, tokens.tensor.static_shape
    before = max_ngram_size - 1
    if before < 1 or vocab_sizes.tensor.static_shape != (before * n_head_per_ngram,):
        raise ModelError(
            f"n-grams of up to {max_ngram_size} with {n_head_per_ngram} heads do not fit sizes "
            f"{vocab_sizes.type}"
        )
    require(b, vocab_sizes, 1, int(dtype.max) - 1, "size of a head")
    other = b.constant(pad_id, dtype) if eos_token_id is None else b.Reshape(
        eos_token_id, np.zeros(0, np.int64))  # fmt: skip
    past = b.Expand(other, np.array((batch, before))) if past_ids is None else past_ids
    whole = b.Concat(past, tokens, axis=1)
    lost: list[Value | None] = [None]
    for back in range(1, max_ngram_size):
        ended = None
        if reset_on_eos and eos_token_id is not None:
            ended = b.Equal(_shifted(b, whole, before - back, length), other)
        if segment_ids is not None:
            border = _borders(b, segment_ids, back)
            ended = border if ended is None else b.Or(ended, border)
        lost.append(ended if lost[-1] is None else b.Or(lost[-1], ended))
    mixed, heads = None, []
    for back in range(max_ngram_size):
        token = _shifted(b, whole, before - back, length)
        gone = lost[back]
        token = token if gone is None else b.Where(gone, other, token)
        product = b.Mul(token, b.Gather(multipliers, np.array(back), axis=0))
        mixed = product if mixed is None else b.BitwiseXor(mixed, product)
        if back:
            first = (back - 1) * n_head_per_ngram
            sizes = b.Slice(vocab_sizes, np.array([first]), np.array([first + n_head_per_ngram]))
            heads.append(b.Mod(b.Unsqueeze(mixed, np.array([2])), sizes))
    hashes = heads[0] if len(heads) == 1 else b.Concat(*heads, axis=2)
    if head_offsets is not None:
        hashes = b.Add(hashes, head_offsets)
    return hashes, _shifted(b, whole, length, before)


def _shifted(b: Builder, x: Value, first: int, count: int) -> Value:
    """Columns of x [N, columns]."""
    return b.Slice(x, np.array([first]), np.array([first + count]), np.array([1]))


def _borders(b: Builder, segments: Value, back: int) -> Value:
    """Whether a segment begins between each token and the one before, `back - 1` tokens ago."""
    batch, length = segments.tensor.static_shape
    first = _shifted(b, segments, 0, 1)
    padded = b.Concat(b.Expand(first, np.array((batch, back))), segments, axis=1)
    here, there = _shifted(b, padded, 1, length), _shifted(b, padded, 0, length)
    return b.Not(b.Equal(here, there))


# ---------------------------------------------------------------- WordConvEmbedding


@composite("WordConvEmbedding", domain=RUNTIME, traits=RUNTIME_TRAITS)
def word_conv_embedding(
    b: Builder, words: Int, weight: Float, bias: Float, characters: Float, *,
    char_embedding_size: int | None = None, conv_window_size: int | None = None,
    embedding_size: int | None = None,
) -> Value:  # fmt: skip
    """The largest tanh of a convolution over the characters of each word: [words, filters].

    Words [words, length] end with zeros; one that begins with them gives zeros. The weights are
    [filters, 1, window, features], the table of characters [count, features].
    """
    count, length = words.tensor.static_shape
    filters, _, window, size = weight.tensor.static_shape
    given = (embedding_size, conv_window_size, char_embedding_size)
    if any(a not in (None, -1, e) for a, e in zip(given, (filters, window, size))):
        raise ModelError(f"the weights {weight.type} are not of the sizes {list(given)}")
    if window > length:
        raise UnsupportedError(f"a window of {window} does not fit into words of {length}")
    table = b.Gather(characters, words, axis=0)
    images = b.Reshape(table, np.array((count, 1, length, size)))
    values = b.Tanh(b.Conv(images, weight, bias))
    values = b.Reshape(values, np.array((count, filters, length - window + 1)))
    zero = b.constant(0, words.tensor.dtype)
    there = b.Greater(words, zero)
    last = np.array([1])
    sizes = b.ReduceSum(b.Cast(there, to=dtypes.i64.onnx), last, keepdims=1)
    windows = b.Max(b.Sub(sizes, window - 1), b.constant(1, dtypes.i64))
    inside = b.Less(b.constant(np.arange(length - window + 1)), windows)
    lowest = b.constant(-np.inf, values.tensor.dtype)
    most = b.ReduceMax(
        b.Where(b.Unsqueeze(inside, last), values, lowest), np.array([2]), keepdims=0
    )
    begins = b.Slice(there, np.array([0]), np.array([1]), last)
    return b.Where(begins, most, b.constant(0, values.tensor.dtype))
