"""Requantisation: real factors in fixed point, and sums that are rescaled by them.

The multiplier of 31 bits is scaled by the largest of several factors, so channels whose weights are
all (nearly) zero may be left with a few bits. Their sums are a constant, so they come out right if
the constant is given in units of the factor that the multiplier really stands for.
"""

from __future__ import annotations

import math

import numpy as np

from graphc.ir.graph import Value
from graphc.ir.ops.fixed_point import DOMAIN, NEAR, TO_EVEN, UP
from graphc.passes.rewriter import Rewriter
from graphc.passes.rules.quantised.values import Target

MULTIPLIER_BITS = 31
WORD = 32
FEWEST_BITS = 22  # of multipliers that are as exact as ONNX Runtime's three roundings of floats
LEAST_FACTOR = 2.0 ** (FEWEST_BITS - 1 - WORD)  # that has these in a high word
LARGEST_SUM = (1 << 31) - 1
LARGEST_SHIFT = 62
WHOLE_NUMBERS = np.arange(1, 4096)
TOGETHER = 8  # multipliers tried at a time: what fits into a cache


def fixed_point(factors: np.ndarray) -> tuple[np.ndarray, int] | None:
    """int32 multipliers and the shift s with multipliers / 2**s = factors; None where there are
    none: for numbers that are not finite, or too large or small. Only 0 has the multiplier 0."""
    largest = float(np.abs(factors).max(initial=0))
    if not (np.isfinite(factors).all() and largest > 0):
        return None
    shift = MULTIPLIER_BITS - 1 - math.frexp(largest)[1]
    if np.rint(np.ldexp(factors, shift)).max() > LARGEST_SUM:  # just below a power of two
        shift -= 1
    if not 1 <= shift <= LARGEST_SHIFT:
        return None
    exact = np.ldexp(factors, shift)
    return np.where(np.abs(exact) < 1, np.sign(exact), np.rint(exact)).astype(np.int32), shift


def high_word(factors: np.ndarray) -> tuple[np.ndarray, int] | None:
    """As `fixed_point`, for results of 8 bits: the shift is by a word where all multipliers keep
    bits enough. One instruction gives the rounded high word of a product, and layers with equal
    shifts share their code."""
    fixed = fixed_point(factors)
    if fixed is None or fixed[1] <= WORD:
        return fixed
    high = np.rint(np.ldexp(factors, WORD)).astype(np.int32)
    exact = (np.abs(high) >= 1 << FEWEST_BITS - 1) | (factors == 0)
    return (high, WORD) if exact.all() else fixed


def gives_halves(multipliers: np.ndarray, shift: int) -> bool:
    """Whether whole numbers times multipliers / 2**shift often are about k + 1/2.

    They are if the factors are nearly fractions with small denominators, as of round scales.
    (Often: one of the first 4095 in 512, for all multipliers together.)
    """
    by = np.unique(np.abs(multipliers.reshape(-1).astype(np.int64)))
    half = 1 << shift - 1
    near = half >> NEAR + 1
    hits = 0
    for start in range(0, by.size, TOGETHER):
        values = np.multiply.outer(by[start : start + TOGETHER], WHOLE_NUMBERS)
        values += near - half
        values &= (1 << shift) - 1
        hits += np.count_nonzero(values <= 2 * near)
    return bool(hits >= by.size * WHOLE_NUMBERS.size / 512)


def along(values: np.ndarray, axis: int, rank: int) -> np.ndarray:
    """A vector as a tensor that broadcasts along one axis."""
    shape = [1] * rank
    shape[axis] = values.size
    return values.reshape(shape)


def rescaled(
    rw: Rewriter,
    total: Value,
    offset: np.ndarray,
    factors: np.ndarray,
    axis: int,
    target: Target,
    below: np.ndarray | None = None,
    halves: int | None = None,
    bias: np.ndarray | None = None,
    largest: float = LARGEST_SUM,
) -> Value | None:
    """(total + offset + bias) * factors, quantised, halves to even if there are many, or as asked.

    The integers `offset`, those of `bias`, and `factors` are one, or one per position of `axis`;
    `factors` may also be a tensor that broadcasts to the total. Where the sum is negative, `below`
    are its factors. No sum exceeds `largest`.
    """
    both = factors if below is None else np.concatenate([factors.reshape(-1), below.reshape(-1)])
    fixed = high_word(both) if target.dtype.bits == 8 else fixed_point(both)
    if fixed is None:
        return rw.skip("a factor is out of reach of fixed point")
    multipliers, shift = fixed
    above = multipliers.reshape(-1)[: factors.size].reshape(factors.shape)
    if bias is not None and bias.any():
        units = np.ldexp(factors, shift) / np.where(above == 0, 1, above)
        offset = offset + np.rint(bias * np.minimum(units, LARGEST_SUM / largest))
    if offset.any():
        total = rw.Add(total, rw.constant(along(offset.astype(np.int32), axis, total.tensor.rank)))
    operands = [total, rw.constant(above if above.ndim > 1 else above.reshape(-1))]
    if below is not None:
        operands.append(rw.constant(multipliers[factors.size :]))
    if halves is None:
        halves = TO_EVEN if gives_halves(multipliers, shift) else UP
    return rw.op(
        "Requantize", *operands, domain=DOMAIN, axis=axis, shift=shift,
        zero_point=target.zero_point, even=halves, **target.attrs(),
    )  # fmt: skip
