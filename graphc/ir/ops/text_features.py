"""TfIdfVectorizer: counts of n-grams, as a graph of comparisons with the constant pool.

For each n-gram length n and skip distance s, the windows x[p], x[p+s], ..., x[p+(n-1)s] are
compared with all n-grams of that length at once, and the matches are summed over the positions p.
Works on integers and strings alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphc.errors import ModelError
from graphc.ir.build import Builder
from graphc.ir.dtypes import f32
from graphc.ir.extents import at_most
from graphc.ir.graph import Value
from graphc.ir.opdef import Any_, composite
from graphc.ir.ops.helpers import check_table, counted, filled, joined, sliced


@composite("TfIdfVectorizer")
def tf_idf_vectorizer(
    b: Builder,
    x: Any_,
    *,
    max_gram_length: int,
    max_skip_count: int,
    min_gram_length: int,
    mode: str,
    ngram_counts: Sequence[int],
    ngram_indexes: Sequence[int],
    pool_int64s: Sequence[int] | None = None,
    pool_strings: Sequence[str] | None = None,
    weights: Sequence[float] | None = None,
) -> Value:
    """Per row of x the frequency (TF), presence (IDF) or weighted frequency of each n-gram.

    `ngram_counts[n-1]` is where the n-grams of length n start in the pool, `ngram_indexes[g]` the
    output column of n-gram g, and `weights` are per output column (as in ONNX Runtime).
    """
    if mode not in ("TF", "IDF", "TFIDF"):
        raise ModelError(f"mode {mode!r} is not one of TF, IDF, TFIDF")
    if x.tensor.rank not in (1, 2):
        raise ModelError(f"the input has rank {x.tensor.rank}, expected 1 or 2")
    if (pool_int64s is None) == (pool_strings is None):
        raise ModelError("needs exactly one of pool_int64s and pool_strings")
    pool = list(pool_strings if pool_int64s is None else pool_int64s)
    kind = object if pool_int64s is None else x.tensor.dtype.np
    rows = x if x.tensor.rank == 2 else b.Unsqueeze(x, np.array([0]))
    counts: list[Value] = []
    columns: list[int] = []
    for length, first, grams in _grams(pool, ngram_counts):
        if min_gram_length <= length <= max_gram_length and grams:
            counts.append(_count(b, rows, np.array(grams, kind), max_skip_count))
            columns += ngram_indexes[first : first + len(grams)]
    width = max(ngram_indexes) + 1
    result = _spread(b, rows, counts, columns, width)
    if mode == "IDF":
        result = b.Cast(b.Greater(result, 0.0), to=1)
    if mode != "TF" and weights:
        result = b.Mul(result, np.array(weights, np.float32))
    return result if x.tensor.rank == 2 else b.Squeeze(result, np.array([0]))


def _grams(pool: list, starts: Sequence[int]) -> list[tuple[int, int, list[list]]]:
    """(length, number of the first n-gram, n-grams) per length."""
    runs, number = [], 0
    ends = [*starts[1:], len(pool)]
    for length, (start, end) in enumerate(zip(starts, ends), 1):
        grams = [pool[p : p + length] for p in range(start, end - length + 1, length)]
        runs.append((length, number, grams))
        number += len(grams)
    return runs


def _count(b: Builder, rows: Value, grams: np.ndarray, max_skip: int) -> Any:
    """f32[B, M]: how often each n-gram (a row of `grams`) occurs in each row."""
    size = grams.shape[1]
    batch, extent = rows.tensor.dims
    total = None
    for step in range(1, 2 if size == 1 else max_skip + 2):  # skips do not change unigrams
        reach = (size - 1) * step
        if at_most(extent, reach):
            break
        match = None
        for n in range(size):
            window = _window(b, rows, n * step, reach)
            same = b.Equal(b.Unsqueeze(window, np.array([2])), grams[None, None, :, n])
            match = same if match is None else b.And(match, same)
        if not isinstance(extent, int):
            match = b.And(match, b.Less(counted(b, extent, reach, shape=(1, -1, 1)), extent))
        counts = b.ReduceSum(b.Cast(match, to=1), np.array([1]), keepdims=0)
        total = counts if total is None else b.Add(total, counts)
    return filled(b, 0.0, (batch, len(grams)), f32) if total is None else total


def _window(b: Builder, rows: Value, start: int, reach: int) -> Value:
    """The columns from `start` on, as many as there are but `reach`. Of an open number of columns,
    as many as there are, the last one repeated."""
    extent = rows.tensor.dims[1]
    if isinstance(extent, int):
        return sliced(b, rows, start, start + extent - reach, 1)
    if start == 0:
        return rows
    return b.Gather(rows, b.Min(counted(b, extent, start), extent - 1), axis=1)


def _spread(b: Builder, rows: Value, counts: list, columns: list[int], width: int) -> Any:
    """f32[B, width] with each n-gram's count added to its column."""
    batch = rows.tensor.dims[0]
    doubled = len(set(columns)) < len(columns)
    check_table(len(columns) if doubled else 1, width)
    if doubled:
        matrix = np.zeros((len(columns), width), np.float32)
        matrix[np.arange(len(columns)), columns] = 1
        return b.MatMul(joined(b, counts, 1), matrix)
    if len(columns) < width:
        counts = [*counts, filled(b, 0.0, (batch, 1), f32)]
    source = np.full(width, len(columns), np.int64)  # the column of zeros
    source[columns] = np.arange(len(columns))
    return b.Gather(joined(b, counts, 1), source, axis=1)
