"""Forms of requantisation that round once give what rounding twice gives, for every sum."""

from __future__ import annotations

import numpy as np
import pytest

from graphc.frontend.tflite import arithmetic, sums
from graphc.frontend.tflite.rescaling import Factors, Limits, Span, once
from graphc.ir.dtypes import i8

CHANNELS = 6


def case(seed: int, zero: int, low: int) -> tuple[Factors, Span, Limits]:
    """Factors that differ up to eightfold, and spans of which one holds no step."""
    rng = np.random.default_rng(seed)
    factors = Factors.of(*rng.uniform(0.002, 0.016, CHANNELS))
    middle, reach = rng.integers(-3000, 3000, CHANNELS), rng.integers(2000, 30000, CHANNELS)
    reach[0] = 3
    return factors, Span(middle - reach, middle + reach), Limits(zero, low, 127, i8)


def results(form, x: np.ndarray, limits: Limits) -> np.ndarray:
    """What the form gives for the sums of each channel."""
    fine = (x << form.finer) + form.offset[:, None]
    assert np.abs(fine).max() < 1 << 31
    whole = (fine * form.multiplier[:, None] + (1 << form.shift - 1)) >> form.shift
    return np.clip(whole + limits.zero_point, limits.low, limits.high)


@pytest.mark.parametrize("seed", range(12))
def test_every_sum_after_a_relu(seed):
    factors, span, limits = case(seed, -128, -128)
    form = once(factors, span, limits)
    assert form is not None
    for channel in range(CHANNELS):
        x = np.arange(span.low[channel], span.high[channel] + 1)[None].repeat(CHANNELS, 0)
        x = np.clip(x, span.low[:, None], span.high[:, None])
        expected = np.clip(factors.scaled(x) - 128, -128, 127)
        np.testing.assert_array_equal(results(form, x, limits), expected)


def test_where_the_second_rounding_matters_no_form_is_claimed():
    factors, span, limits = case(0, 3, -128)
    assert once(factors, span, limits) is None


@pytest.mark.suite("all")
@pytest.mark.parametrize("real", [0.5, 0.75, 0.999])
def test_factors_that_are_rounded_once_have_a_form(real):
    """Their exponent is 0, so nothing is divided."""
    factors, limits = Factors.of(real), Limits(5, -128, 127, i8)
    span = Span(np.array([-400]), np.array([400]))
    form = once(factors, span, limits)
    assert form is not None
    x = np.arange(-400, 401)[None]
    expected = np.clip(factors.scaled(x) + 5, -128, 127)
    np.testing.assert_array_equal(results(form, x, limits), expected)


def test_sums_of_two_bytes_in_one_form():
    found = 0
    for seed in range(8):
        rng = np.random.default_rng(seed)
        scales = [np.float32(s) for s in (*rng.uniform(0.02, 0.1, 2), rng.uniform(0.06, 0.2))]
        zeros, limits = list(rng.integers(-128, 128, 2)), Limits(-128, -128, 127, i8)
        real = sums._real_factors(scales, 20, False)
        form = sums._one_form(real, zeros, 1, limits)
        if form is None:
            continue
        found += 1
        by, offset, shift = form
        every = np.arange(-128, 128)
        total = every[:, None] * by[0] + every * by[1] + offset
        expected = sums._expected(real, zeros, 1, limits)
        np.testing.assert_array_equal(np.clip(total >> shift, -128, 127), expected)
    assert found


def test_functions_in_fixed_point_are_near_the_real_ones():
    x = np.arange(-128, 128)
    exact = np.exp(-np.arange(256) * 0.04)
    assert np.abs(arithmetic.softmax_table(0.04, 1.0) / 2**31 - exact).max() < 1e-6
    sigmoid = 256 / (1 + np.exp(-x * 0.05)) - 128
    assert np.abs(arithmetic.logistic_table(x, 0.05) - np.clip(sigmoid, -128, 127)).max() <= 0.51
    tanh = np.clip(np.tanh(x * 0.03) * 128, -128, 127)
    assert np.abs(arithmetic.tanh_table(x, 0.03) - tanh).max() <= 0.51
    swish = x * 0.05 * np.clip(x * 0.05 + 3, 0, 6) / 6 / 0.04
    assert np.abs(arithmetic.hard_swish_table(x, 0.05, 0.04) - swish).max() <= 1
