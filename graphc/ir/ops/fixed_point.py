"""Integer arithmetic in place of scales: what quantised graphs are rewritten to (passes/rules).

A real factor f is applied to integers as a multiplier m and a shift s with m / 2**s = f, after B.
Jacob et al., Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only
Inference (2018). Halves are rounded up, or
to even where `even` is set (only multipliers with many trailing zeros give halves); the result is
kept within `low` and `high`, which also hold
the limits of a fused activation, so that it always fits the type `to`.
"""

from __future__ import annotations

from graphc.ir import dtypes
from graphc.ir.dtypes import i32, i64
from graphc.ir.expr import Expr, maximum, minimum, reduce, select
from graphc.ir.opdef import Int, axes, op
from graphc.ir.ops.helpers import normal_axis, only_element

DOMAIN = "graphc"


def _first_shape(x, *_):
    return x.shape


def _shifted(value: Expr, shift: int, even: int) -> Expr:
    """value / 2**shift, rounded down after one half has been added; halves to even if asked for."""
    whole = value >> shift
    if even:
        half = (value & ((1 << shift) - 1)).eq(0)
        whole = whole - select(half, whole & 1, 0)
    return whole.cast(i32)


def _limited(value: Expr, low: int, high: int, to: int) -> Expr:
    return minimum(maximum(value, low), high).cast(dtypes.of(to))


@op("Requantize", domain=DOMAIN, infer=_first_shape)
def requantize(
    i, x: Int, multiplier: Int, *, axis: int = 1, shift: int, zero_point: int, low: int,
    high: int, to: int, even: int = 0,
):  # fmt: skip
    """x * multiplier / 2**shift + zero_point, in int64; one multiplier, or one per `axis`."""
    axis = normal_axis(axis, x.rank)
    by = only_element(multiplier) if multiplier.size == 1 else multiplier[i[axis]]
    scaled = x[i].cast(i64) * by.cast(i64) + (1 << shift - 1)
    whole = _shifted(scaled, shift, even)
    dtype = dtypes.of(to)
    if (low, high) == (dtype.min, dtype.max):
        return _limited(whole + zero_point, low, high, to)
    inside = minimum(maximum(whole, low - zero_point), high - zero_point)  # 0..255 after a Relu
    return (inside + zero_point).cast(dtype)


def _channel_shape(x):
    return (*x.shape[:2], *(1,) * (x.rank - 2))


@op("ChannelSum", domain=DOMAIN, infer=_channel_shape)
def channel_sum(i, x: Int):
    """The sum over all spatial positions, in int32."""
    taps = axes(*x.shape[2:])
    position = (*i[:2], *taps)
    return reduce("sum", x[position].cast(i32), taps)


@op("RescaledSum", domain=DOMAIN)
def rescaled_sum(
    i, a: Int, b: Int, *, a_multiplier: int, b_multiplier: int, offset: int, shift: int,
    low: int, high: int, to: int, even: int = 0,
):  # fmt: skip
    """(a * a_multiplier + b * b_multiplier + offset) / 2**shift, in int64.

    The offset holds the zero points and one half.
    """
    total = a[i].cast(i64) * a_multiplier + b[i].cast(i64) * b_multiplier + offset
    return _limited(_shifted(total, shift, even), low, high, to)
