"""Real factors in fixed point, and sums that are rescaled by them."""

from __future__ import annotations

import math

import numpy as np

from graphc.ir.graph import Value
from graphc.ir.ops.fixed_point import DOMAIN, TO_EVEN, TO_ODD, UP
from graphc.passes.rewriter import Rewriter
from graphc.passes.rules.quantised.values import Target

MULTIPLIER_BITS = 31
LARGEST_SUM = (1 << 31) - 1
LARGEST_SHIFT = 62


def fixed_point(rw: Rewriter, factors: np.ndarray) -> tuple[np.ndarray, int] | None:
    """int32 multipliers and the shift s with multipliers / 2**s = factors."""
    largest = float(np.abs(factors).max(initial=0))
    if not (np.isfinite(factors).all() and largest > 0):
        return rw.skip("a factor is not finite, or all are zero")
    shift = MULTIPLIER_BITS - 1 - math.frexp(largest)[1]
    if not 1 <= shift <= LARGEST_SHIFT:
        return rw.skip(f"a factor of {largest} is out of reach of fixed point")
    multipliers = np.rint(np.ldexp(factors, shift))
    if multipliers.max() > LARGEST_SUM:  # just below a power of two
        shift -= 1
        multipliers = np.rint(np.ldexp(factors, shift))
    return multipliers.astype(np.int32), shift


def gives_halves(multipliers: np.ndarray) -> bool:
    """Whether a whole number times a multiplier / 2**s can be k + 1/2 with |k| below 512.

    Then the odd part of the multiplier divides 2 * k + 1.
    """
    some = multipliers[multipliers != 0].astype(np.int64)
    return bool((np.abs(some // (some & -some)) < 1024).any())


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
    found = fixed_point(rw, both)
    if found is None:
        return None
    multipliers, shift = found
    if bias.any():
        total = rw.Add(total, rw.constant(along(bias.astype(np.int32), axis, total.tensor.rank)))
    above = multipliers.reshape(-1)[: factors.size]
    above = above.reshape(factors.shape) if factors.ndim > 1 else above
    operands = [total, rw.constant(above)]
    if below is not None:
        operands.append(rw.constant(multipliers[factors.size :]))
    halves = UP
    if gives_halves(multipliers):
        halves = TO_ODD if after_zero_point and target.zero_point % 2 else TO_EVEN
    return rw.op(
        "Requantize", *operands, domain=DOMAIN, axis=axis, shift=shift,
        zero_point=target.zero_point, even=halves, **target.attrs(),
    )  # fmt: skip
