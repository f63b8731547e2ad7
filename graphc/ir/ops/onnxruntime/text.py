"""Operators of ONNX Runtime's domain on text, which run on the host: tokens and hashes.

Reference: docs/ContribOperators.md of ONNX Runtime, and its kernels where that says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from graphc.errors import ModelError
from graphc.ir.dtypes import i32, u32
from graphc.ir.opdef import Number, String, host
from graphc.ir.ops.helpers import RUNTIME
from graphc.ir.ops.strings import each_of, padded, pattern_of, text
from graphc.ir.regular import Pattern
from graphc.ir.types import TensorType

# ---------------------------------------------------------------- MurmurHash3

MASK = 0xFFFFFFFF
FACTORS, ADDED = (0xCC9E2D51, 0x1B873593), 0xE6546B64
MIXED = ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1))  # shifts, and the factor after each


def _rotated(value: int, by: int) -> int:
    """32 bits rotated to the left."""
    return (value << by | value >> (32 - by)) & MASK


def _block(data: bytes) -> int:
    value = int.from_bytes(data, "little")
    return _rotated(value * FACTORS[0] & MASK, 15) * FACTORS[1] & MASK


def murmur(data: bytes, seed: int) -> int:
    """MurmurHash3 for x86, of 32 bits (Austin Appleby; in the public domain)."""
    state, whole = seed & MASK, len(data) & ~3
    for start in range(0, whole, 4):
        state ^= _block(data[start : start + 4])
        state = (_rotated(state, 13) * 5 + ADDED) & MASK
    state ^= _block(data[whole:]) ^ len(data)
    for shift, factor in MIXED:
        state = (state ^ state >> shift) * factor & MASK
    return state


@host("MurmurHash3", domain=RUNTIME,
      infer=lambda x, positive: TensorType(u32 if positive else i32, x.shape))  # fmt: skip
def murmur_hash3(x: String | Number, *, seed: int = 0, positive: int = 1) -> np.ndarray:
    """The hash of each element: of the bytes of a number, or of text in UTF-8."""
    array = np.asarray(x)
    if array.dtype.kind in "OUS":
        hashes = each_of(lambda s: murmur(s.encode(), seed), text(array), np.uint32)
    else:
        hashes = each_of(lambda n: murmur(n.tobytes(), seed), array, np.uint32)
    return hashes if positive else hashes.view(np.int32)


# ---------------------------------------------------------------- Tokenizer

START, END = "\x02", "\x03"


@host("Tokenizer", domain=RUNTIME)
def tokenizer(
    x: String, *, mark: int, mincharnum: int, pad_value: str,
    separators: Sequence[str] | None = None, tokenexp: str | None = None,
) -> np.ndarray:  # fmt: skip
    """The tokens of each string of [C] or [N, C] along a new last dimension, padded.

    Tokens are what lies between separators, which are regular expressions (ir/regular.py) and taken
    one after the other; or the longest matches of `tokenexp`; or characters, if the only separator
    is empty or tokenexp is ".". Those of fewer than `mincharnum` characters are left out. With
    `mark`, each string's begin with U+0002 and end with U+0003.
    """
    source = text(x)
    if source.ndim not in (1, 2):
        raise ModelError(f"takes text of shape [C] or [N, C], found {list(source.shape)}")
    if mincharnum <= 0:
        raise ModelError(f"mincharnum must be positive, found {mincharnum}")
    if not source.size:
        return np.zeros((*source.shape[: source.ndim - 1], 0), object)
    split = _splitter(separators, tokenexp, mincharnum)
    rows = [list(split(s)) for s in source.reshape(-1)]
    if mark and any(rows):
        rows = [[START, *row, END] for row in rows]
    tokens = padded(rows, pad_value)
    return tokens.reshape(*source.shape, tokens.shape[1])


def _splitter(
    separators: Sequence[str] | None, tokenexp: str | None, least: int
) -> Callable[[str], Iterator[str]]:
    """What takes a string apart."""
    if separators is not None and not separators:
        raise ModelError("separators must not be empty")
    characters = tokenexp == "." if separators is None else tuple(separators) == ("",)
    if characters:
        if least > 1:
            raise ModelError(f"mincharnum {least} is too large for tokens of one character")
        return iter
    if separators is None and not tokenexp:
        raise ModelError("needs separators or a tokenexp")
    if separators is None:
        pattern = pattern_of(str(tokenexp))
        return lambda s: _matches(pattern, s, least)
    patterns = [pattern_of(separator) for separator in separators]
    return lambda s: _between(patterns, s, least)


def _matches(pattern: Pattern, s: str, least: int) -> Iterator[str]:
    """The longest matches, from left to right, of at least so many characters."""
    start = 0
    for begin, end in enumerate(pattern.ends(s) if len(s) >= least else ()):
        if begin >= start and end - begin >= least:
            yield s[begin:end]
            start = end


def _between(patterns: list[Pattern], s: str, least: int) -> Iterator[str]:
    parts = [s]
    for pattern in patterns:
        parts = [t for part in parts for t in _cut(pattern, part) if len(t) >= least]
    return iter(parts)


def _cut(pattern: Pattern, s: str) -> Iterator[str]:
    """What lies between the longest matches; an empty match takes the character behind it."""
    start = 0
    for begin, end in enumerate(pattern.ends(s)):
        if begin >= start and end >= 0:
            yield s[start:begin]
            start = max(end, begin + 1)
    if start <= len(s):
        yield s[start:]
