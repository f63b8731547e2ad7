"""Damage to files at random: bits that flip, bytes lost, added, overwritten, exchanged."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np


def damaged(whole: bytes, count: int, seed: int = 0) -> Iterator[tuple[str, bytes]]:
    """So many damaged copies, each with what was done to it; none equals the original."""
    rng = np.random.default_rng(seed)
    while count:
        kind = KINDS[int(rng.choice(len(KINDS), p=SHARES))]
        data = kind(bytearray(whole), rng)
        if data != whole:
            count -= 1
            yield f"{kind.__name__} (copy {count})", bytes(data)


def flip(data: bytearray, rng: np.random.Generator) -> bytearray:
    """One bit."""
    data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
    return data


def change(data: bytearray, rng: np.random.Generator) -> bytearray:
    """Up to eight bytes, anywhere."""
    for _ in range(int(rng.integers(1, 9))):
        data[int(rng.integers(len(data)))] = int(rng.integers(256))
    return data


def flip_signs(data: bytearray, rng: np.random.Generator) -> bytearray:
    """The same bit of two words a power of two apart: what weak sums do not see."""
    distance, bit = 4 << int(rng.integers(12)), 1 << int(rng.integers(8))
    start = int(rng.integers(max(1, len(data) - distance)))
    for at in (start, min(start + distance, len(data) - 1)):
        data[at] ^= bit
    return data


def clear(data: bytearray, rng: np.random.Generator) -> bytearray:
    """A stretch of zeros, or of ones."""
    start, size = int(rng.integers(len(data))), int(rng.integers(1, 4096))
    end = min(start + size, len(data))
    data[start:end] = bytes([int(rng.choice([0, 255]))]) * (end - start)
    return data


def exchange(data: bytearray, rng: np.random.Generator) -> bytearray:
    """Two pieces of the same size in each other's place."""
    size = min(int(rng.choice([4, 64, 512, 4096])), len(data) // 2)
    a, b = (int(at) * size for at in rng.integers(0, len(data) // size, 2))
    data[a : a + size], data[b : b + size] = data[b : b + size], data[a : a + size]
    return data


def truncate(data: bytearray, rng: np.random.Generator) -> bytearray:
    return data[: int(rng.integers(len(data)))]


def insert(data: bytearray, rng: np.random.Generator) -> bytearray:
    at = int(rng.integers(len(data) + 1))
    return data[:at] + rng.bytes(int(rng.choice([1, 4, 64, 4096]))) + data[at:]


def remove(data: bytearray, rng: np.random.Generator) -> bytearray:
    at = int(rng.integers(len(data)))
    return data[:at] + data[at + int(rng.choice([1, 4, 64, 4096])) :]


KINDS = (flip, change, flip_signs, clear, exchange, truncate, insert, remove)
SHARES = (0.4, 0.15, 0.15, 0.1, 0.05, 0.05, 0.05, 0.05)
