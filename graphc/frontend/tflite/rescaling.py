"""Requantisation that gives what TensorFlow Lite's gives, in as few instructions as that allows.

Its kernels round twice (graphc.ir.ops.gemmlowp). For an integer x within known limits a result is a
number of steps: it is at least v from some x on. So a form that rounds once, which is cheaper,

    (x * 2**k + offset) * multiplier >> shift

is as good if it takes the same steps, at most 255 a channel, and that is looked at here, for all of
them. Where results are of both signs there often is none, as the second rounding, halves away from
zero, moves the steps apart. A sum of two values of 8 bits is compared for all pairs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphc.errors import UnsupportedError
from graphc.frontend.tflite.arithmetic import product, quantise_multiplier
from graphc.ir.build import Builder
from graphc.ir.dtypes import DType
from graphc.ir.graph import Value
from graphc.ir.ops.fixed_point import DOMAIN

FINER = (0, 12, 10, 8, 6, 4, 13)  # bits that offsets have below the unit of sums
NEAR = tuple(sorted(range(-16, 17), key=abs))  # from the nearest multiplier
MOST_SHIFT = 53
LIMIT = 1 << 31
FARTHEST = 1 << 60
NO_OFFSET = np.zeros(1, np.int64)


@dataclass(frozen=True)
class Limits:
    """What results are: integers of a type from low to high, a zero point having been added."""

    zero_point: int
    low: int
    high: int
    dtype: DType

    def attrs(self) -> dict[str, Any]:
        return {
            "zero_point": self.zero_point, "low": self.low, "high": self.high,
            "to": self.dtype.onnx,
        }  # fmt: skip

    @property
    def steps(self) -> np.ndarray:
        """The results before the zero point is added, but for the lowest."""
        return np.arange(self.low - self.zero_point + 1, self.high - self.zero_point + 1)


@dataclass(frozen=True)
class Factors:
    """Real factors of sums, one or one per channel: multiplier / 2**31 * 2**exponent."""

    multiplier: np.ndarray
    exponent: np.ndarray

    @staticmethod
    def of(*real: float) -> Factors:
        """The kernels' form of real factors."""
        pairs = [quantise_multiplier(number) for number in real]
        return Factors(*(np.array(numbers, np.int64) for numbers in zip(*pairs)))

    def real(self) -> np.ndarray:
        return np.ldexp(self.multiplier.astype(np.float64), self.exponent - 31)

    def scaled(self, x: np.ndarray) -> np.ndarray:
        """Sums, channels first, as the kernels scale them."""
        m, e = self.multiplier[:, None], self.exponent[:, None]
        first = product(x << np.maximum(e, 0), m)
        right = np.maximum(-e, 0)
        half = (1 << right) >> 1
        return (first + half - ((first < 0) & (right > 0))) >> right


@dataclass(frozen=True)
class Span:
    """The least and the largest sum, of all or of each channel."""

    low: np.ndarray
    high: np.ndarray

    @property
    def farthest(self) -> int:
        """The distance from 0."""
        return int(max(np.abs(self.low).max(), np.abs(self.high).max()))


@dataclass(frozen=True)
class Once:
    """A form that rounds once: see the top of this file."""

    finer: int
    offset: np.ndarray
    multiplier: np.ndarray
    shift: int


def rescaled(
    b: Builder, total: Value, offset: np.ndarray, factors: Factors, span: Span, axis: int,
    limits: Limits,
) -> Value:  # fmt: skip
    """(total + offset) * factors, rounded as the kernels round. The sums, with the offset, lie in
    the span. All arrays have one element, or one per position of the axis."""
    form = once(factors, span, limits)
    if form is not None:
        if form.finer:
            total = b.Mul(total, b.constant(1 << form.finer, total.tensor.dtype))
        total = _added(b, total, (offset << form.finer) + form.offset, axis)
        return b.op(
            "Requantize", total, b.constant(_one_or_all(form.multiplier).astype(np.int32)),
            domain=DOMAIN, axis=axis, shift=form.shift, **limits.attrs(),
        )  # fmt: skip
    return scaled(b, total, offset, factors, span, axis, limits)


def scaled(
    b: Builder, total: Value, offset: np.ndarray, factors: Factors, span: Span, axis: int,
    limits: Limits,
) -> Value:  # fmt: skip
    """As `rescaled`, as the kernels do it. Twice the sums take the upper half of a product."""
    doubled = int(span.farthest < 1 << 30)
    if doubled:
        total = b.Mul(total, b.constant(2, total.tensor.dtype))
    left, right = np.maximum(factors.exponent, 0), np.maximum(-factors.exponent, 0)
    multiplier, unit = factors.multiplier << left, 1 << 32 - right
    return b.op(
        "Rescale", _added(b, total, offset << doubled, axis),
        b.constant(multiplier.astype(np.int64 if left.any() else np.int32)),
        b.constant(unit.astype(np.int32 if right.min() >= 2 else np.int64)), domain=DOMAIN,
        axis=axis, doubled=doubled, **limits.attrs(),
    )  # fmt: skip


def _added(b: Builder, total: Value, offset: np.ndarray, axis: int) -> Value:
    """The total, and a number for each position of an axis."""
    if not offset.any():
        return total
    shape = [1] * total.tensor.rank
    if total.tensor.rank:
        shape[axis] = offset.size
    return b.Add(total, b.constant(offset.astype(total.tensor.dtype.np).reshape(shape)))


def _one_or_all(numbers: np.ndarray) -> np.ndarray:
    """One number, if all are equal."""
    return numbers[:1] if (numbers == numbers[0]).all() else numbers


def once(factors: Factors, span: Span, limits: Limits) -> Once | None:
    """A form that gives the same for all sums of a span; None if there is none."""
    steps = limits.steps
    if not 0 < steps.size <= 255 or not factors.multiplier.any() or span.farthest >= LIMIT:
        return None
    first = _first_sums(factors, span, steps)
    inside = (first > span.low[:, None]) & (first <= span.high[:, None])
    both = inside[:, steps <= 0].any(1) & inside[:, steps > 0].any(1)
    if (both & (factors.exponent < 0)).any():
        return None  # the second rounding moves steps below and above 0 apart
    varying = np.broadcast_to(factors.real(), span.low.shape)[inside.any(1)]
    largest = math.frexp(float(varying.max(initial=2.0**-32)))[1]
    for finer in FINER:
        shift = 31 - largest + finer
        if 1 <= shift <= MOST_SHIFT:
            fitting = _fitting(factors, span, first, steps, finer, shift)
            if fitting is not None:
                return Once(finer, *fitting, shift)
    return None


def _first_sums(factors: Factors, span: Span, steps: np.ndarray) -> np.ndarray:
    """The least sum of each channel whose result is at least each step, by bisection; one more than
    the largest sum where there is none."""
    low = np.repeat(span.low[:, None] - 1, steps.size, 1)
    high = np.repeat(span.high[:, None] + 1, steps.size, 1)
    while (high - low).max(initial=0) > 1:
        middle = (low + high) >> 1
        above = factors.scaled(middle) >= steps
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return high


def _fitting(
    factors: Factors, span: Span, first: np.ndarray, steps: np.ndarray, finer: int, shift: int
) -> tuple[np.ndarray, np.ndarray] | None:
    """Offsets and multipliers with which no sum is on the wrong side of a step.

    With a multiplier, sums times 2**finer plus the offset reach a step from `need` on. Sums of a
    channel with one step at most are multiplied by so much that they stay within one of it.
    """
    low, high = span.low[:, None], span.high[:, None]
    start, before = np.maximum(first, low) << finer, np.minimum(first - 1, high) << finer
    reached, passed = first <= high, first > low
    steep = (reached & passed).sum(1) <= 1
    width = (span.high - span.low + 1) << finer + 2
    nearest = np.rint(np.ldexp(factors.real(), shift - finer)).astype(np.int64)
    half = 1 << shift - 1
    nearest = np.where(steep, np.clip((1 << shift) // width, 1, LIMIT // 2), nearest)
    offsets, multipliers = np.zeros_like(nearest), np.zeros_like(nearest)
    missing = np.arange(nearest.size)
    for distance in NEAR:
        by = np.clip(nearest[missing] + distance, 1, LIMIT - 1)
        need = -((half - (steps << shift)) // by[:, None])
        least = np.where(reached[missing], need - start[missing], -FARTHEST).max(1)
        most = np.where(passed[missing], need - 1 - before[missing], FARTHEST).min(1)
        middle = np.where(most == FARTHEST, least, least + most >> 1)
        offset = np.where(least == -FARTHEST, most, middle)
        ends = [np.abs((end[missing] << finer) + offset) for end in (span.low, span.high)]
        fits = (least <= most) & (np.maximum(*ends) < LIMIT)
        offsets[missing[fits]], multipliers[missing[fits]] = offset[fits], by[fits]
        missing = missing[~fits]
        if not missing.size:
            return offsets, multipliers
    return None


def rescaled_wide(
    b: Builder, total: Value, offset: np.ndarray, factors: Factors, span: Span, axis: int,
    limits: Limits,
) -> Value:  # fmt: skip
    """As `rescaled`, of sums in int64: multipliers have 15 bits, and it is rounded once."""
    reduced = np.minimum((factors.multiplier + (1 << 15)) >> 16, (1 << 15) - 1)
    distance = 15 - factors.exponent
    shift = int(distance.max())
    multiplier = reduced << shift - distance
    if (np.abs([span.low, span.high]).max(0) * multiplier.astype(float)).max() >= 2.0**62:
        raise UnsupportedError("the scales of its channels are too far apart")
    return b.op(
        "Requantize", _added(b, total, offset, axis), b.constant(multiplier), domain=DOMAIN,
        axis=axis, shift=shift, **limits.attrs(),
    )  # fmt: skip


def by_table(b: Builder, x: Value, table: np.ndarray) -> Value:
    """table[x] of int8, the table beginning with the result for -128; x within limits if that is
    what the table says."""
    every = np.arange(-128, 128)
    if table.dtype == np.int8 and (np.clip(every, table[0], table[-1]) == table).all():
        return limited(b, x, Limits(0, int(table[0]), int(table[-1]), x.tensor.dtype))
    return b.op("Lookup", x, b.constant(table), domain=DOMAIN)


def limited(b: Builder, x: Value, limits: Limits) -> Value:
    """Integers within the limits, where these are less than the type's."""
    dtype = x.tensor.dtype
    if limits.low > dtype.min:
        x = b.Max(x, b.constant(limits.low, dtype))
    return b.Min(x, b.constant(limits.high, dtype)) if limits.high < dtype.max else x
