"""Real factors in fixed point, and sums that are rescaled by them."""

from __future__ import annotations

import math

import numpy as np

from graphc.ir.graph import Value
from graphc.ir.ops.fixed_point import DOMAIN, NEAR, TO_EVEN, TO_ODD, UP
from graphc.passes.rewriter import Rewriter
from graphc.passes.rules.quantised.values import Target

MULTIPLIER_BITS = 31
LARGEST_SUM = (1 << 31) - 1
LARGEST_SHIFT = 62


def fixed_point(factors: np.ndarray) -> tuple[np.ndarray, int] | None:
    """int32 multipliers and the shift s with multipliers / 2**s = factors; None where there are
    none: for numbers that are not finite, or too large or small."""
    largest = float(np.abs(factors).max(initial=0))
    if not (np.isfinite(factors).all() and largest > 0):
        return None
    shift = MULTIPLIER_BITS - 1 - math.frexp(largest)[1]
    if np.rint(np.ldexp(factors, shift)).max() > LARGEST_SUM:  # just below a power of two
        shift -= 1
    if not 1 <= shift <= LARGEST_SHIFT:
        return None
    return np.rint(np.ldexp(factors, shift)).astype(np.int32), shift


def gives_halves(multipliers: np.ndarray, shift: int) -> bool:
    """Whether whole numbers times multipliers / 2**shift often are about k + 1/2.

    They are if the factors are nearly fractions with small denominators, as of round scales.
    """
    by = np.unique(np.abs(multipliers.reshape(-1).astype(np.int64)))
    return many_halves(by[:, None] * np.arange(1, 4096), shift)


def many_halves(values: np.ndarray, shift: int) -> bool:
    """Whether at least one in 512 of these values / 2**shift is about k + 1/2."""
    half = 1 << shift - 1
    near = np.abs((values & ((1 << shift) - 1)) - half) <= half >> NEAR + 1
    return bool(near.mean() >= 1 / 512)


def along(values: np.ndarray, axis: int, rank: int) -> np.ndarray:
    """A vector as a tensor that broadcasts along one axis."""
    shape = [1] * rank
    shape[axis] = values.size
    return values.reshape(shape)


def rescaled(
    rw: Rewriter, total: Value, bias: np.ndarray, factors: np.ndarray, axis: int, target: Target,
    below: np.ndarray | None = None, after_zero_point: bool = False,
) -> Value | None:
    """(total + bias) * factors, quantised, halves to even (with the zero point if so asked).

    `bias` and `factors` hold one number, or one per position of `axis`; `factors` may also be a
    tensor that broadcasts to the total. Where the sum is negative, `below` are its factors.
    """
    both = factors if below is None else np.concatenate([factors.reshape(-1), below.reshape(-1)])
    found = fixed_point(both)
    if found is None:
        return rw.skip("a factor is out of reach of fixed point")
    multipliers, shift = found
    if bias.any():
        total = rw.Add(total, rw.constant(along(bias.astype(np.int32), axis, total.tensor.rank)))
    above = multipliers.reshape(-1)[: factors.size]
    above = above.reshape(factors.shape) if factors.ndim > 1 else above
    operands = [total, rw.constant(above)]
    if below is not None:
        operands.append(rw.constant(multipliers[factors.size :]))
    halves = UP
    if gives_halves(multipliers, shift):
        halves = TO_ODD if after_zero_point and target.zero_point % 2 else TO_EVEN
    return rw.op(
        "Requantize", *operands, domain=DOMAIN, axis=axis, shift=shift,
        zero_point=target.zero_point, even=halves, **target.attrs(),
    )  # fmt: skip
