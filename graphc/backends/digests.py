"""Digests that show damage to files, fast enough for weights that are mapped.

A digest is the SHA-256 of a size and of one sum for each 64 KiB: of its 32-bit words (little
endian, the last one filled up with zeros), each times a fixed odd 32-bit factor of its place,
modulo 2^64. The factors are those of a universal hash ("multilinear": Carter and Wegman), so that
any change within one word is seen for certain, and any other one but for a chance of 2^-31 a piece.
It costs a multiplication and an addition per word, where SHA-256 alone would read no faster than
most disks.

That is protection against damage, not against malice: who may write a file may write its digests as
well. Whether to trust a file is for its reader to say.

This module is also copied beside compiled GPU models: it needs numpy and nothing of graphc.
graphc_model.h has the same sums in C++.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

CHUNK = 1 << 16  # bytes of a sum
_WORDS = CHUNK // 4
_PIECE = 32 * CHUNK  # bytes that a thread takes at a time
_FOLD = 0x9E3779B97F4A7C15  # odd, so that no sum is lost
_MOST_THREADS = 8  # more do not read memory faster

Sums = Callable[[np.ndarray], np.ndarray]


def digest(data: Any) -> str:
    """The digest of a buffer, as 64 hexadecimal digits."""
    return digests([data], threads=1)[0]


def digests(
    parts: Sequence[Any], threads: int | None = None, sums: Sums | None = None
) -> list[str]:
    """The digest of each buffer; large ones are read by several threads (default: one for each core
    that there is). `sums` computes what `chunk_sums` does, faster."""
    sums = sums or chunk_sums
    views = [np.frombuffer(part, np.uint8) if len(part) else _EMPTY for part in map(_bytes, parts)]
    pieces = [view[at : at + _PIECE] for view in views for at in range(0, view.size, _PIECE)]
    summed = _mapped(sums, pieces, min(threads or _cores(), _MOST_THREADS))
    texts = []
    for view in views:
        state = hashlib.sha256(struct.pack("<Q", view.size))
        for _ in range(0, view.size, _PIECE):
            state.update(next(summed).astype("<u8").data)
        texts.append(state.hexdigest())
    return texts


def _mapped(sums: Sums, pieces: list[np.ndarray], threads: int) -> Iterator[np.ndarray]:
    """The sums of each piece, by several threads where there are several pieces."""
    if min(threads, len(pieces)) > 1:
        try:
            from concurrent.futures import ThreadPoolExecutor  # small files need none

            with ThreadPoolExecutor(min(threads, len(pieces))) as pool:
                return iter(list(pool.map(sums, pieces)))
        except RuntimeError:  # the interpreter ends, and starts no threads any more
            pass
    return map(sums, pieces)


def folded(data: Any) -> int:
    """All sums of a buffer and its size in one number of 64 bits: what graphc_model.h checks."""
    view = np.frombuffer(data, np.uint8) if len(data) else _EMPTY
    result = view.size
    for chunk_sum in chunk_sums(view).tolist():
        result = (result ^ chunk_sum) * _FOLD % (1 << 64)
    return result


def chunk_sums(data: np.ndarray) -> np.ndarray:
    """The sum of every 64 KiB of an array of bytes, the last of which may be fewer."""
    whole = data.size // CHUNK
    words = data[: whole * CHUNK].view("<u4").reshape(whole, _WORDS)
    result = np.empty(-(-data.size // CHUNK), np.uint64)
    for n in range(whole):  # each stays in the nearest cache while it is widened
        result[n] = np.dot(words[n].astype(np.uint64), factors())
    if whole < result.size:
        rest = data[whole * CHUNK :].tobytes()
        last = np.frombuffer(rest + bytes(-len(rest) % 4), "<u4").astype(np.uint64)
        result[whole] = np.dot(last, factors()[: last.size])
    return result


@lru_cache(maxsize=1)
def factors() -> np.ndarray:
    """The factor of each word of a chunk: the upper half of SplitMix64's n-th number, made odd."""
    state = np.arange(1, _WORDS + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((state ^ (state >> np.uint64(31))) >> np.uint64(32)) | np.uint64(1)


_EMPTY = np.empty(0, np.uint8)


def _bytes(part: Any) -> memoryview:
    return memoryview(part).cast("B")


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        return os.cpu_count() or 1
