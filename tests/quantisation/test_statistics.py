"""Histograms that widen, and the ranges chosen from them, next to numpy on all elements at once."""

from __future__ import annotations

import numpy as np
import pytest

from graphc.ir import dtypes
from graphc.quantisation import ranges, rounding
from graphc.quantisation.statistics import Statistics


def statistics_of(*arrays):
    statistics = Statistics()
    for array in arrays:
        statistics.add(np.asarray(array, np.float32))
    return statistics


def test_widening_loses_no_element():
    rng = np.random.default_rng(0)
    parts = [rng.standard_normal(1000) * size for size in (0.01, 1, 300, 2)]
    statistics, whole = statistics_of(*parts), np.concatenate(parts).astype(np.float32)
    assert statistics.low == whole.min() and statistics.high == whole.max()
    assert statistics.count == 4000 and statistics.bins.sum() == 4000
    width = 2 * statistics.reach / len(statistics.bins)
    counts, _ = np.histogram(whole, np.append(statistics.centres - width / 2, statistics.reach))
    assert np.abs(counts - statistics.bins).sum() <= 8  # of elements on edges


def test_zeros_are_counted_apart():
    statistics = statistics_of([0, -0.0, 1, -1], [0, 0])
    assert statistics.zeros == 4 and statistics.bins.sum() == 2


def test_merging_is_adding_to_one():
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal(500), 9 * rng.standard_normal(700)
    merged, both = statistics_of(a).merged(statistics_of(b)), statistics_of(a, b)
    assert (merged.low, merged.high, merged.count) == (both.low, both.high, both.count)
    np.testing.assert_array_equal(merged.bins, both.bins)


@pytest.mark.parametrize("dtype", [dtypes.i8, dtypes.u8, dtypes.i16], ids=str)
@pytest.mark.parametrize(("low", "high"), [(-1, 3), (0, 6), (-5, -1), (2, 2), (0, 0), (1e-38, 1)])
def test_zero_is_exact_and_the_range_is_covered(low, high, dtype):
    p = ranges.parameters_of(low, high, dtype)
    assert dtype.min <= p.zero <= dtype.max and p.scale > 0
    for number in (low, high):
        assert p.low - p.scale <= number <= p.high + p.scale


def error(array, p):
    return ((p.applied(array).astype(np.float64) - p.zero) * p.scale - array) ** 2


@pytest.mark.parametrize("shape", ["normal", "long tail", "rectified", "two humps"])
def test_least_squares_come_near_the_best_of_a_search(shape):
    rng = np.random.default_rng(2)
    array = rng.standard_normal(20000)
    if shape == "long tail":
        array = array**5
    elif shape == "rectified":
        array = np.maximum(array, 0)
    elif shape == "two humps":
        array = np.concatenate([array, array + 40])
    array = array.astype(np.float32)
    p = ranges.chosen(statistics_of(array), dtypes.i8, "mse")
    tried = [
        error(array, ranges.parameters_of(array.min() * s, array.max() * t, dtypes.i8)).mean()
        for s in np.linspace(0.1, 1, 19) for t in np.linspace(0.1, 1, 19)
    ]  # fmt: skip
    assert error(array, p).mean() <= 1.08 * min(tried)


def test_percentiles_leave_out_what_is_rare():
    array = np.append(np.linspace(-1, 1, 1_000_000), [1000.0]).astype(np.float32)
    p = ranges.chosen(statistics_of(array), dtypes.i8, "percentile")
    assert p.high < 2 and ranges.chosen(statistics_of(array), dtypes.i8, "minmax").high > 900


def test_entropy_clips_an_outlier():
    rng = np.random.default_rng(3)
    array = np.append(rng.standard_normal(100_000), [60.0]).astype(np.float32)
    assert 2 < ranges.chosen(statistics_of(array), dtypes.i8, "entropy").high < 50


def test_feedback_lowers_the_error_of_sums():
    rng = np.random.default_rng(4)
    reads = rng.standard_normal((400, 6)) @ rng.standard_normal((6, 24)) + 0.1
    moments, rows = reads.T @ reads / 400, rng.standard_normal((10, 24))
    for largest in (7, 127):
        scales = rounding.scales_of(rows, largest)
        plain = rounding.nearest(rows, scales, largest)
        better = rounding.with_feedback(rows, scales, largest, moments)
        assert np.abs(better).max() <= largest and (better == np.rint(better)).all()

        def wrong(whole, scales=scales):
            return float((((whole * scales[:, None] - rows) @ reads.T) ** 2).sum())

        assert wrong(better) < 0.3 * wrong(plain)


def test_one_scale_for_all_rows_trades_clipping_for_smaller_steps():
    rows = np.random.default_rng(5).standard_normal((400, 64))
    rows[0, 0] = 12.0  # an outlier, which clipping costs less than larger steps of all others
    own = rounding.scales_of(rows, 127)
    shared = rounding.shared_scale(rows, own, 127)
    assert (shared == shared[0]).all() and shared[0] < own.max()

    def wrong(scales):
        return float(((rounding.nearest(rows, scales, 127) * scales[:, None] - rows) ** 2).sum())

    assert wrong(own) < wrong(shared) < wrong(np.full(400, own.max()))
