"""The arithmetic of TensorFlow Lite's reference kernels: fixed point that is rounded twice.

gemmlowp's product of two numbers in -1..1, of 31 fractional bits, is (a * b + 2**30) >> 31: halves
are rounded up. Its division by a power of two rounds halves away from zero. TensorFlow Lite scales
sums by one after the other, so its results differ by one, now and then, from those that are rounded
once (graphc.ir.ops.fixed_point). A division of y by 2**e is itself such a product, of
y - (1 if y < 0) and 2**(32 - e), of which the upper 32 bits are taken.
"""

from __future__ import annotations

from graphc.ir import dtypes
from graphc.ir.dtypes import i32, i64, u32
from graphc.ir.expr import Const, Expr, bitcast, call, cast, maximum, minimum, reduce, select
from graphc.ir.opdef import Int, OutIndex, axes, op
from graphc.ir.ops.fixed_point import DOMAIN, along, with_zero_point
from graphc.ir.ops.helpers import replaced, same_shape
from graphc.ir.window import POOL, guard, make_window, pooled_shape, positions

WORD = 32
ONE = (1 << 31) - 1  # the largest number of 31 fractional bits, which stands for 1
ACCUMULATED = 12  # integer bits of the sum of a softmax's exponentials
FRACTION = 31 - 2  # fractional bits of numbers of two integer bits
FIRST_GUESS = 1515870810, -1010580540  # 48/17 and -32/17, of two integer bits: Newton's method
STEPS = 3


@op("Rescale", domain=DOMAIN, infer=same_shape)
def rescale(
    i: OutIndex, x: Int, multiplier: Int, unit: Int, *, axis: int = 1, doubled: int = 0,
    zero_point: int, low: int, high: int, to: int,
) -> Expr:  # fmt: skip
    """x * multiplier / 2**31, rounded, divided by 2**e, rounded, plus zero_point, within limits.

    The operand `unit` is 2**(32 - e), in int64 where some e is below 2. Multipliers and units are
    one, or one per position of `axis`. `doubled`: x is twice what is meant. What is shifted left
    before it is multiplied has a multiplier of int64.
    """
    by = along(i, x, multiplier, axis).cast(i64)
    shift = WORD if doubled else WORD - 1
    whole = ((x[i].cast(i64) * by + (1 << shift - 1)) >> shift).cast(i32)
    parts = along(i, x, unit, axis)
    below = whole >> WORD - 1  # -1 if it is negative
    if parts.dtype is i64:
        below = select(parts > 1 << WORD - 1, cast(0, i32), below)
    whole = (((whole + below).cast(i64) * parts.cast(i64) + (1 << WORD - 1)) >> WORD).cast(i32)
    return with_zero_point(whole, zero_point, low, high, dtypes.of(to))


@op("RoundedMean", domain=DOMAIN, infer=pooled_shape)
def rounded_mean(
    i: OutIndex, x: Int, *, kernel_shape: tuple[int, ...], low: int, high: int, **attrs: POOL
) -> Expr:
    """The mean of each window, halves rounded away from zero; padding does not count."""
    window = make_window(x.shape[2:], kernel_shape, **attrs)
    window = tuple(axis.trimmed() for axis in window)
    taps = axes(*(axis.kernel for axis in window))
    inside = guard(window, i[2:], taps)
    value = x[i[:2] + positions(window, i[2:], taps)].cast(i32)
    total = reduce("sum", select(inside, value, 0), taps)
    count: Expr = cast(1, i32)
    for axis, o in zip(window, i[2:]):
        count = count * cast(axis.count(o, padded=False), i32)
    mean = (total + select(total > 0, count >> 1, -(count >> 1))) / count
    return minimum(maximum(mean, low), high).cast(x.dtype)


@op("FixedPointSoftmax", domain=DOMAIN, infer=same_shape)
def fixed_point_softmax(i: OutIndex, x: Int, table: Int, *, to: int) -> Expr:
    """exp(x) / sum(exp(x)) along the last axis, table[n] being exp of -n times the scale of x, in
    31 fractional bits; the result's are all bits of its type, whose smallest value means 0."""
    dtype, last = dtypes.of(to), x.rank - 1
    (k,), (m,) = axes(x.shape[last]), axes(x.shape[last], name="m")
    largest = reduce("max", x[replaced(tuple(i), last, m)].cast(i32), (m,))

    def power(index: tuple) -> Expr:
        return table[(largest - x[index].cast(i32)).cast(i64)]

    total = reduce(
        "sum", call("shr_rounded", power(replaced(tuple(i), last, k)), ACCUMULATED), (k,)
    )
    zeros = _leading_zeros(total)
    rest = bitcast((bitcast(total, u32) << zeros.cast(u32)) - Const(1 << WORD - 1, u32), i32)
    scaled = product(_one_over_one_plus(rest), power(tuple(i)))
    exponent = ACCUMULATED - zeros + WORD - 1 - dtype.bits
    whole = call("shr_rounded", scaled, exponent) + int(dtype.min)
    return minimum(maximum(whole, int(dtype.min)), int(dtype.max)).cast(dtype)


def product(a: Expr, b: Expr) -> Expr:
    """a * b / 2**31 of two i32, halves rounded up."""
    return ((a.cast(i64) * b.cast(i64) + (1 << WORD - 2)) >> WORD - 1).cast(i32)


def _leading_zeros(value: Expr) -> Expr:
    """How many bits of a positive i32 are 0 before the first that is not."""
    count: Expr = cast(1, i32)
    for bit in range(1, WORD - 1):
        count = count + select(value < 1 << bit, cast(1, i32), cast(0, i32))
    return count


def _one_over_one_plus(value: Expr) -> Expr:
    """1 / (1 + x) for x in 0..1, of 31 fractional bits, by Newton's method."""
    half = ((value.cast(i64) + ONE + 1) / 2).cast(i32)
    x = product(half, cast(FIRST_GUESS[1], i32)) + FIRST_GUESS[0]
    for _ in range(STEPS):
        error = cast(1 << FRACTION, i32) - product(half, x)
        x = x + _shifted_left(product(x, error), 2)
    return _shifted_left(x, 1)


def _shifted_left(value: Expr, bits: int) -> Expr:
    """value * 2**bits, kept within an i32."""
    wide = value.cast(i64) << bits
    return minimum(maximum(wide, -(1 << WORD - 1)), ONE).cast(i32)
