"""Requantisation in fixed point: integer arithmetic in place of scales, the target of passes/rules.

A real factor f is applied to integers as a multiplier m and a shift s with m / 2**s = f, after B.
Jacob et al., Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only
Inference (2018). Halves are rounded up; to even where `even` is 1; or to odd where it is 2, for
results that a zero point makes even (few multipliers give halves at all). The result is kept within
`low` and `high`, which also hold the limits of a fused activation, so that it always fits the type
`to`.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphc.ir import dtypes
from graphc.ir.dtypes import DType, i32, i64
from graphc.ir.expr import TRUE, Expr, call, cast, maximum, minimum, reduce, select
from graphc.ir.opdef import Int, Number, Operand, OutIndex, axes, op
from graphc.ir.ops.helpers import normal_axis, only_element, replaced, same_shape
from graphc.ir.types import Shape
from graphc.ir.window import POOL, guard, make_window, pooled_shape, positions

DOMAIN = "graphc"
UP, TO_EVEN, TO_ODD = 0, 1, 2  # what becomes of halves
SHIFTS = ("shr", "shr_to_even", "shr_to_odd")  # of the scalar table
NEAR = 16  # bits of a fraction that tell whether it is one half


def _shifted(value: Expr, shift: int, even: int) -> Expr:
    """value / 2**shift, rounded down after one half has been added; halves as `even` says."""
    if even and shift > NEAR:
        value = (value + (1 << shift - NEAR - 1)) >> shift - NEAR
        shift = NEAR
    return call(SHIFTS[even], value, shift).cast(i32)


def _limited(value: Expr, low: int, high: int, to: int) -> Expr:
    return minimum(maximum(value, low), high).cast(dtypes.of(to))


@op("Requantize", domain=DOMAIN, infer=same_shape)
def requantize(
    i: OutIndex, x: Int, multiplier: Int, below: Int | None = None, *, axis: int = 1, shift: int,
    zero_point: int, low: int, high: int, to: int, even: int = 0,
) -> Expr:  # fmt: skip
    """x * multiplier / 2**shift + zero_point, in int64.

    There is one multiplier, or one per position of `axis`, or a tensor of them that broadcasts to
    x. Where x is negative, the multipliers are `below`.
    """
    by = along(i, x, multiplier, axis)
    if below is not None:
        by = select(x[i] < 0, along(i, x, below, axis), by)
    scaled = x[i].cast(i64) * by.cast(i64) + (1 << shift - 1)
    whole = _shifted(scaled, shift, even)
    return with_zero_point(whole, zero_point, low, high, dtypes.of(to))


def with_zero_point(whole: Expr, zero_point: int, low: int, high: int, dtype: DType) -> Expr:
    """The sum within limits, in whose comparisons one instruction finds the limits of a type."""
    if (low, high) == (dtype.min, dtype.max):
        return _limited(whole + zero_point, low, high, dtype.onnx)
    inside = minimum(maximum(whole, low - zero_point), high - zero_point)  # 0..255 after a Relu
    return (inside + zero_point).cast(dtype)


def along(i: OutIndex, x: Operand, multiplier: Operand, axis: int) -> Expr:
    """The multiplier of an element: the only one, that of its position on an axis, or its own."""
    if multiplier.size == 1:
        return only_element(multiplier)
    return multiplier[i[normal_axis(axis, x.rank)] if multiplier.rank == 1 else i]


def _channel_shape(x: Operand) -> Shape:
    return (*x.shape[:2], *(1,) * (x.rank - 2))


@op("ChannelSum", domain=DOMAIN, infer=_channel_shape)
def channel_sum(i: OutIndex, x: Int) -> Expr:
    """The sum over all spatial positions, in int32."""
    taps = axes(*x.shape[2:])
    position = (*i[:2], *taps)
    return reduce("sum", x[position].cast(i32), taps)


@op("RescaledSum", domain=DOMAIN)
def rescaled_sum(
    i: OutIndex, a: Int, b: Int, *, a_multiplier: int, b_multiplier: int, offset: int, shift: int,
    low: int, high: int, to: int, even: int = 0,
) -> Expr:  # fmt: skip
    """(a * a_multiplier + b * b_multiplier + offset) / 2**shift, in int64.

    The offset holds the zero points and one half.
    """
    total = a[i].cast(i64) * a_multiplier + b[i].cast(i64) * b_multiplier + offset
    return _limited(_shifted(total, shift, even), low, high, to)


@op("WindowSum", domain=DOMAIN, infer=pooled_shape)
def window_sum(
    i: OutIndex, x: Int, *, kernel_shape: Sequence[int], zero_point: int, **attrs: POOL
) -> Expr:
    """The sum of x - zero_point over each window, in int32; padding counts as nothing."""
    window = make_window(x.shape[2:], kernel_shape, **attrs)
    window = tuple(axis.trimmed() for axis in window)
    taps = axes(*(axis.kernel for axis in window))
    value = x[i[:2] + positions(window, i[2:], taps)].cast(i32) - zero_point
    inside = guard(window, i[2:], taps)
    return reduce("sum", value if inside is TRUE else select(inside, value, 0), taps)


@op("Lookup", domain=DOMAIN, infer=same_shape)
def lookup(i: OutIndex, x: Int, table: Number) -> Expr:
    """table[x], the table beginning with the result for the smallest value of x's type."""
    return table[x[i].cast(i64) - int(x.dtype.min)]


@op("Stepwise", domain=DOMAIN, infer=same_shape)
def stepwise(i: OutIndex, x: Int, limits: Int, *, shift: int, low: int, to: int) -> Expr:
    """`low` plus how many of the ascending `limits` do not exceed x, which is about x / 2**shift.

    To be precise, x / 2**shift rounded down is that number or one less.
    """
    about = minimum(maximum(x[i] >> shift, 0), limits.size - 1)
    more = select(x[i] >= limits[about.cast(i64)], cast(1, i32), cast(0, i32))
    return (about + more + low).cast(dtypes.of(to))


@op("QuantisedSoftmax", domain=DOMAIN, infer=same_shape)
def quantised_softmax(
    i: OutIndex, x: Int, table: Int, *, axis: int, factor: int, shift: int, wide: int,
    zero_point: int, low: int, high: int, to: int,
) -> Expr:  # fmt: skip
    """exp(x) / sum(exp(x)) along `axis`, times factor / 2**shift, plus zero_point.

    table[n] is exp(-n) in units of the scale of x and of any precision; the quotient is rounded,
    halves up, in int64 if it is `wide`.
    """
    axis = normal_axis(axis, x.rank)
    dtype = i64 if wide else i32
    (k,), (m,) = axes(x.shape[axis]), axes(x.shape[axis], name="m")
    largest = reduce("max", x[replaced(tuple(i), axis, m)].cast(i32), (m,))

    def power(index: tuple) -> Expr:
        return table[(largest - x[index].cast(i32)).cast(i64)].cast(dtype)

    total = reduce("sum", power(replaced(tuple(i), axis, k)), (k,)) << shift
    whole = (power(tuple(i)) * factor + (total >> 1)) // total
    return _limited(whole.cast(i32) + zero_point, low, high, to)
