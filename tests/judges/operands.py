"""Operands of cases: functions of a generator and an element type that give an array."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np

Make = Callable[[np.random.Generator, np.dtype], np.ndarray]


def normal(*shape: int, scale: float = 1.0, offset: float = 0.0) -> Make:
    """Normal numbers."""
    return lambda rng, dtype: (rng.standard_normal(shape) * scale + offset).astype(dtype)


def uniform(low: float, high: float, *shape: int) -> Make:
    return lambda rng, dtype: rng.uniform(low, high, shape).astype(dtype)


def integers(low: int, high: int, *shape: int, dtype=None) -> Make:
    """Whole numbers of low .. high - 1, of the case's type or of a given one."""
    return lambda rng, kind: rng.integers(low, high, shape).astype(dtype or kind)


def bits(*shape: int) -> Make:
    """Integers of the whole range of the type."""

    def make(rng: np.random.Generator, dtype: np.dtype) -> np.ndarray:
        count = int(np.prod(shape)) * dtype.itemsize
        made = np.frombuffer(rng.bytes(count), dtype).reshape(shape).copy()
        edges = [np.iinfo(dtype).min, np.iinfo(dtype).max, 0, 1]
        made.reshape(-1)[: len(edges)] = edges[: made.size]
        return made

    return make


def booleans(*shape: int) -> Make:
    return lambda rng, dtype: rng.integers(0, 2, shape).astype(bool)


def nasty(low: float = -np.inf, high: float = np.inf, nan: bool = True) -> Make:
    """NaN, infinities, zeros, subnormals, the largest numbers and ordinary ones, in low .. high."""

    def make(rng: np.random.Generator, dtype: np.dtype) -> np.ndarray:
        info = ml_dtypes.finfo(dtype)
        tiny, small, big = float(info.smallest_subnormal), float(info.tiny), float(info.max)
        edges = [np.inf, big, big / 2, 1e4, 88.0, 20.0, 5.5, 2.5, 1.5, 1.0, 0.75, 0.5, 1e-3, small,
                 3 * tiny, 0.0]  # fmt: skip
        values = [*edges, *(-e for e in edges), *rng.standard_normal(15)]
        kept = [v for v in values if low <= v <= high]
        return np.array([np.nan] * nan + kept).astype(dtype)

    return make


def nasty_pairs(first: bool, *extra: float) -> Make:
    """One side of all pairs of special values."""
    specials = [
        np.nan,
        np.inf,
        -np.inf,
        0.0,
        -0.0,
        1.0,
        -1.0,
        2.5,
        -2.5,
        0.5,
        3.0,
        -3.0,
        1e-3,
        *extra,
    ]

    def make(rng: np.random.Generator, dtype: np.dtype) -> np.ndarray:
        sides = np.meshgrid(specials, specials, indexing="ij")
        return sides[0 if first else 1].astype(dtype)

    return make
