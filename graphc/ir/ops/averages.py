"""Means of integers whose ties are rounded as a computation in float32 would round them.

The mean of n integers times a factor often is halfway between two integers, if the factor is 1 or
any other simple fraction (for factor 1 and windows of 2 x 2 it is so in one of four). Then all
depends on the errors that float32 makes on the way, sx and sy being the scales:

    t = 0;  t = fl(t + fl(x * sx)) for each element x of the window, row by row
    w = fl(fl(t / n) / sy)
    the result is w rounded to even, plus the zero point    (quantised after a pool of floats)
    or fl(w + zero point) rounded to even                   (a pool of quantised values)

For what is close to a tie this is done in integers: a float is a multiple of 2**e, e being the
exponent of the last bit of sx, and fl() keeps the first 24 bits, halves to even. Sums have less
than 2**48 such units.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from graphc.ir import dtypes
from graphc.ir.dtypes import i32, i64
from graphc.ir.expr import Expr, absolute, cast, maximum, minimum, select
from graphc.ir.imperative.collectives import Collectives
from graphc.ir.kernel import Buffer, KernelBuilder
from graphc.ir.opdef import Int, Operand, imperative
from graphc.ir.ops.fixed_point import DOMAIN
from graphc.ir.types import TensorType
from graphc.ir.window import POOL, WindowAxis, guard, make_window, pooled_shape, positions
from graphc.records import dataclass

DIGITS = 24  # significant bits of float32
FIRST, SECOND = 11, 18  # bits kept below the unit by the first quotient, and more by the second
LARGEST_WINDOW = 1 << 15
FRACTION, CLOSE = 24, 12  # bits of a quotient below the unit, and those that may differ from a tie
FARTHEST = (-12, 1)  # exponents of sx / sy for which no step overflows


def _average_type(
    x: Operand, _: Operand, *, to: int, kernel_shape: Sequence[int], **attrs: POOL
) -> TensorType:
    return TensorType(dtypes.of(to), pooled_shape(x, kernel_shape=kernel_shape, **attrs))


@imperative("RoundedAverage", domain=DOMAIN, infer=_average_type)
def rounded_average(
    k: Collectives, x: Int, total: Int, *, kernel_shape: Sequence[int], x_mantissa: int,
    mantissa: int, exponent: int, x_zero_point: int, zero_point: int, added: int, low: int,
    high: int, to: int, count_include_pad: int = 0, **attrs: POOL,
) -> None:  # fmt: skip
    """The mean of x - x_zero_point over each window times sx / sy, rounded, plus zero_point.

    `total` holds the sums of the windows. The mantissas are the 24 bits of sx and of sy, and
    sx / sy is their quotient times 2**exponent. `added` is the zero point that is added to floats,
    0 if none is.
    """
    window = make_window(x.shape[2:], kernel_shape, **attrs)
    (out,) = k.outputs
    dtype = dtypes.of(to)
    with k.loops(*out.shape) as where:
        count: Expr = cast(1, i32)
        for axis, o in zip(window, where[2:]):
            count = count * cast(axis.count(o, padded=bool(count_include_pad)), i32)
        count = k.let(count)
        factor = 1.0 if x_mantissa == mantissa else x_mantissa / mantissa
        upper, close = _nearest(k, total[where], count, math.ldexp(factor, exponent))
        result = k.var(i32, upper + zero_point)
        with k.when(close):  # the mean is about upper - 1/2
            floats = _Floats(k, x_mantissa)
            sum_ = _window_sum(k, x, window, where, x_zero_point, floats)
            mean = floats.mean(sum_, count, mantissa, exponent)
            if added:
                mean = floats.rounded(mean + (added << FIRST + SECOND))
            up = floats.rounds_up(mean, upper + added)
            k.store(result, (), upper + zero_point - select(up, cast(0, i32), cast(1, i32)))
        limited = minimum(maximum(result[()], low), high)
        k.store(out, where, limited.cast(dtype))


def _nearest(k: KernelBuilder, total: Expr, count: Expr, factor: float) -> tuple[Expr, Expr]:
    """total / count * factor rounded to nearest, halves up, and whether it is close to a half."""
    if factor == 1:
        twice = k.let(total * 2 + count)
        upper = k.let(twice // (count * 2))
        return upper, twice.eq(upper * count * 2)
    by = round(math.ldexp(factor, FRACTION))
    offset = (1 << FRACTION - 1) + (1 << CLOSE)
    fixed = k.let(total.cast(i64) * by // count.cast(i64) + offset)
    upper = k.let((fixed >> FRACTION).cast(i32))
    return upper, (fixed & ((1 << FRACTION) - 1)) <= 2 << CLOSE


def _window_sum(
    k: KernelBuilder,
    x: Buffer,
    window: tuple[WindowAxis, ...],
    where: tuple,
    zero_point: int,
    floats: _Floats,
) -> Expr:
    """The sum of a window in floats, one element after the other."""
    window = tuple(axis.trimmed() for axis in window)
    total = k.var(i64, 0)
    with k.loops(*(axis.kernel for axis in window)) as taps:
        index = (*where[:2], *positions(window, where[2:], taps))
        with k.when(guard(window, where[2:], taps)):
            value = floats.product(x[index].cast(i64) - zero_point)
            k.store(total, (), floats.rounded(total[()] + value))
    return total[()]


@dataclass(frozen=True)
class _Floats:
    """Float32 arithmetic on integers in units of the last bit of a number with this mantissa."""

    k: KernelBuilder
    mantissa: int

    def rounded(self, value: Expr) -> Expr:
        """The first 24 bits of a value, halves to even."""
        k = self.k
        value = k.let(value)
        drop = k.var(i64, 0)
        with k.repeat((absolute(value) >> drop[()]) >= 1 << DIGITS):
            k.store(drop, (), drop[()] + 1)
        place = k.let(drop[()])
        half = (cast(1, i64) << place) >> 1
        odd = (value >> place) & 1
        up = select(place > 0, half - 1 + odd, 0)
        return k.let(((value + up) >> place) << place)

    def product(self, whole: Expr) -> Expr:
        """A whole number times the number itself."""
        return self.rounded(whole * self.mantissa)

    def mean(self, total: Expr, count: Expr, by: int, exponent: int) -> Expr:
        """total / count / by * 2**exponent, in units of 2**-(FIRST + SECOND)."""
        first = self.rounded(self._quotient(total << FIRST, count.cast(i64)))
        return self.rounded(self._quotient(first << SECOND + exponent, cast(by, i64)))

    def _quotient(self, value: Expr, by: Expr) -> Expr:
        """value / by with its last bit set if there is a remainder, so that it rounds rightly."""
        k = self.k
        size = k.let(absolute(value))
        whole = k.let(size // by)
        sticky = k.let(whole | select((whole * by).eq(size), cast(0, i64), cast(1, i64)))
        return select(value < 0, -sticky, sticky)

    def rounds_up(self, mean: Expr, upper: Expr) -> Expr:
        """Whether a mean close to upper - 1/2 rounds to `upper`."""
        half = (upper.cast(i64) * 2 - 1) << (FIRST + SECOND - 1)
        return (mean > half) | (mean.eq(half) & (upper & 1).eq(0))
