"""Factors in fixed point: by a word where that is exact enough, else with all bits there are."""

from __future__ import annotations

import numpy as np
import pytest

from graphc.passes.rules.quantised.rescale import FEWEST_BITS, WORD, fixed_point, high_word

pytestmark = pytest.mark.suite("all")

LEAST = 2.0 ** (FEWEST_BITS - 1 - WORD)  # whose multiplier of 22 bits is exact


@pytest.mark.parametrize("largest", [0.12, 0.05, 0.003])
def test_a_word_suffices_for_factors_that_keep_their_bits(largest):
    factors = np.array([LEAST, 0.0, largest, -largest])
    multipliers, shift = high_word(factors)
    assert shift == WORD < fixed_point(factors)[1]
    error = np.abs(multipliers / 2.0**shift - factors)
    assert (error <= np.abs(factors) * 2.0**-FEWEST_BITS).all()


def test_smaller_factors_keep_all_bits():
    factors = np.array([LEAST * 0.99, 0.1])
    for made, expected in zip(high_word(factors), fixed_point(factors)):
        assert np.array_equal(made, expected)


@pytest.mark.parametrize("factor", [0.5, 3.0, 1e6])
def test_larger_factors_have_smaller_shifts(factor):
    multipliers, shift = high_word(np.array([factor]))
    assert shift <= WORD and multipliers[0] / 2.0**shift == pytest.approx(factor, rel=1e-9)


@pytest.mark.parametrize("factor", [0.0, np.nan, np.inf])
def test_there_may_be_none(factor):
    assert high_word(np.array([factor])) is None
