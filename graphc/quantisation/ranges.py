"""Scales and zero points from statistics.

A range is clipped where that lowers the error: by percentile, by the mean square of the error
(MSE), or by relative entropy (KL divergence; Migacz, 8-bit inference with TensorRT, 2017). 0 is
always exact: padding and rectified elements are zeros.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphc.ir import dtypes
from graphc.ir.dtypes import DType
from graphc.quantisation.statistics import Statistics

METHODS = ("minmax", "percentile", "mse", "entropy")
PERCENTILE = 99.999  # of elements within a range
SHRINKS = np.linspace(1.0, 0.2, 65)  # of a range that are tried
SMALLEST = 1e-30  # a scale that float32 holds with all digits


@dataclass(frozen=True)
class Parameters:
    """real = (integer - zero) * scale, for integers of a type."""

    scale: float
    zero: int
    dtype: DType

    @property
    def low(self) -> float:
        return (int(self.dtype.min) - self.zero) * self.scale

    @property
    def high(self) -> float:
        return (int(self.dtype.max) - self.zero) * self.scale

    def applied(self, array: np.ndarray) -> np.ndarray:
        """The integers of an array."""
        whole = np.rint(array / np.float32(self.scale)) + self.zero
        return np.clip(whole, int(self.dtype.min), int(self.dtype.max)).astype(self.dtype.np)


def parameters_of(low: float, high: float, dtype: DType) -> Parameters:
    """The parameters with which an integer type covers a range, and 0."""
    low, high = min(low, 0.0), max(high, 0.0)
    least, most = int(dtype.min), int(dtype.max)
    if dtype is dtypes.i16:  # symmetric: kernels for 16 bits have no zero points
        return Parameters(float(np.float32(max(-low, high, SMALLEST) / most)), 0, dtype)
    scale = float(np.float32(max((high - low) / (most - least), SMALLEST)))
    zero = int(np.clip(np.rint(least - low / scale), least, most))
    return Parameters(scale, zero, dtype)


def chosen(statistics: Statistics, dtype: DType, method: str) -> Parameters:
    """The parameters for the values that statistics are of."""
    low, high = statistics.low, statistics.high
    if not statistics.count or low >= high and low == 0:
        return parameters_of(0.0, 1.0, dtype)
    if method == "percentile":
        low, high = _percentiles(statistics)
    elif method == "mse":
        return _least(statistics, dtype, _squares)
    elif method == "entropy":
        return _least(statistics, dtype, _divergence)
    return parameters_of(low, high, dtype)


def _percentiles(statistics: Statistics) -> tuple[float, float]:
    outside = (1 - PERCENTILE / 100) / 2 * statistics.count
    sums = np.cumsum(statistics.bins)
    edges = np.append(statistics.centres, 0) - statistics.reach / len(statistics.bins)
    below = int(np.searchsorted(sums, outside, "right"))
    above = int(np.searchsorted(sums, sums[-1] - outside, "left"))
    last = len(statistics.bins) - 1
    low = float(edges[min(below, last)])
    high = float(edges[min(above, last)] + 2 * statistics.reach / len(statistics.bins))
    return max(low, statistics.low), min(high, statistics.high)


def _least(statistics: Statistics, dtype: DType, error: object) -> Parameters:
    """The parameters of least error: of both ends shrunk alike, then of each end on its own."""
    assert callable(error)
    low, high = min(statistics.low, 0.0), max(statistics.high, 0.0)
    tried = [parameters_of(low * s, high * s, dtype) for s in SHRINKS]
    best = min(tried, key=lambda p: error(statistics, p))
    share = (best.high - best.low) / (high - low) if high > low else 1.0
    low, high = low * min(share, 1.0), high * min(share, 1.0)
    ends = np.linspace(1.25, 0.7, 23)
    if low < 0:
        tried = [parameters_of(max(low * s, statistics.low), high, dtype) for s in ends]
        best = min([best, *tried], key=lambda p: error(statistics, p))
        low = max(best.low, statistics.low)
    tried = [parameters_of(low, min(high * s, statistics.high), dtype) for s in ends]
    return min([best, *tried], key=lambda p: error(statistics, p))


def _squares(statistics: Statistics, p: Parameters) -> float:
    """The sum of squared errors: a step's own inside the range, the distance to it outside."""
    centres, bins = statistics.centres, statistics.bins
    first, last = np.searchsorted(centres, (p.low, p.high))
    below, above = p.low - centres[:first], centres[last:] - p.high
    inside = bins[first:last].sum() * p.scale**2 / 12
    return float(inside + (bins[:first] * below**2).sum() + (bins[last:] * above**2).sum())


def _divergence(statistics: Statistics, p: Parameters) -> float:
    """The relative entropy between the clipped distribution and the one of levels."""
    centres, bins = statistics.centres, statistics.bins.astype(np.float64)
    whole = np.clip(
        np.rint(centres / p.scale), int(p.dtype.min) - p.zero, int(p.dtype.max) - p.zero
    )
    inside = (centres >= p.low - p.scale / 2) & (centres <= p.high + p.scale / 2)
    first, last = (int(x) for x in (np.argmax(inside), len(bins) - 1 - np.argmax(inside[::-1])))
    clipped = np.where(inside, bins, 0)
    reference = clipped.copy()
    reference[first] += bins[:first].sum()
    reference[last] += bins[last + 1 :].sum()
    levels = (whole - whole.min()).astype(np.int64)
    sums = np.bincount(levels, clipped)
    filled = np.bincount(levels, clipped > 0)
    spread = np.where(clipped > 0, (sums / np.maximum(filled, 1))[levels], 0)
    total, other = reference.sum(), spread.sum()
    if not total or not other:
        return float("inf")
    a, b = reference / total, np.maximum(spread / other, 1e-9)
    used = a > 0
    return float((a[used] * np.log(a[used] / b[used])).sum())
