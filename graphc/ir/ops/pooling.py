"""Poolings: max, mean and p-norm over a sliding window or the whole image."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from graphc.errors import ModelError
from graphc.ir.dtypes import i64
from graphc.ir.expr import (
    TRUE,
    Const,
    Expr,
    Index,
    absolute,
    as_expr,
    cast,
    isnan,
    reduce,
    select,
    sqrt,
)
from graphc.ir.opdef import FIRST, Float, Number, Operand, OutIndex, axes, linear, op
from graphc.ir.types import Shape
from graphc.ir.window import (
    POOL,
    WindowAxis,
    guard,
    make_window,
    pooled_shape,
    positions,
)


def _max_pool_shape(
    x: Operand, *, count: int, kernel_shape: Sequence[int], **attrs: POOL
) -> list[Shape]:
    return [pooled_shape(x, kernel_shape=kernel_shape, **attrs)] * count


def _pool(
    name: str, x: Operand, i: OutIndex, window: Sequence[WindowAxis], term: Callable,
    otherwise: float,
) -> Expr:  # fmt: skip
    """The reduction of term(element) over each window; padding counts as `otherwise`."""
    window = [axis.trimmed() for axis in window]
    taps = axes(*(axis.kernel for axis in window))
    return reduce(name, term(_tap(x, i, window, taps, Const(otherwise, x.dtype))), taps)


def _tap(
    x: Operand, i: OutIndex, window: Sequence[WindowAxis], taps: Sequence[Index], otherwise: Const
) -> Expr:
    """x at one tap of the window, or `otherwise` in the padding."""
    value = x[i[:2] + positions(window, i[2:], taps)]
    inside = guard(window, i[2:], taps)
    return value if inside is TRUE else select(inside, value, otherwise)


@op("MaxPool", infer=_max_pool_shape, outputs=None, traits=(FIRST,))
def max_pool(
    i: OutIndex, x: Number, *, kernel_shape: Sequence[int], storage_order: int = 0, **attrs: POOL
) -> Expr:
    """The largest element of each window; second output: its offset in x (see `_position`)."""
    window = make_window(x.shape[2:], kernel_shape, **attrs)
    largest = _pool("max", x, i, window, lambda v: v, x.dtype.min)
    if i.output == 0:
        return largest
    return _position(i, x, window, largest, column_major=bool(storage_order))


def _position(
    i: OutIndex, x: Operand, window: Sequence[WindowAxis], largest: Expr, *, column_major: bool
) -> Expr:
    """The offset of the first element equal to the largest, or of the first NaN; its image is
    counted by rows, or by columns if `column_major`, and images follow each other."""
    window = [axis.trimmed() for axis in window]
    taps = axes(*(axis.kernel for axis in window), name="m")
    where = positions(window, i[2:], taps)
    image = list(zip(where, x.shape[2:]))
    if column_major:
        image.reverse()
    spatial = linear([p for p, _ in image], [extent for _, extent in image])
    offset = linear(i[:2], x.shape[:2]) * math.prod(x.shape[2:]) + spatial
    value = x[i[:2] + where]
    wanted = value.eq(largest)
    if x.dtype.is_float:
        wanted = wanted | isnan(value)  # the largest is NaN too
    nowhere, inside = Const(i64.max, i64), guard(window, i[2:], taps)
    offset_there = select(wanted, offset, nowhere)  # of an element that is there
    return reduce(
        "min", offset_there if inside is TRUE else select(inside, offset_there, nowhere), taps
    )


@op("AveragePool", infer=pooled_shape)
def average_pool(
    i: OutIndex, x: Float, *, kernel_shape: Sequence[int], count_include_pad: int = 0, **attrs: POOL
) -> Expr:
    """The mean of each window, over the elements inside x (or inside its padding too)."""
    window = make_window(x.shape[2:], kernel_shape, **attrs)
    total = _pool("sum", x, i, window, lambda v: v, 0)
    counts = [a.count(o, padded=bool(count_include_pad)) for a, o in zip(window, i[2:])]
    return total / cast(math.prod(counts, start=as_expr(1, i64)), x.dtype)


def power(x: Expr, p: float) -> Expr:
    """|x| to the power p."""
    return absolute(x) if p == 1 else x * x if p == 2 else absolute(x) ** p


def root(x: Expr, p: float) -> Expr:
    """The p-th root of x, which is not negative."""
    return x if p == 1 else sqrt(x) if p == 2 else x ** (1 / p)


@op("LpPool", infer=pooled_shape)
def lp_pool(
    i: OutIndex, x: Float, *, kernel_shape: Sequence[int], p: int = 2, **attrs: POOL
) -> Expr:
    """The p-norm of each window; padding counts as zero."""
    window = make_window(x.shape[2:], kernel_shape, **attrs)
    return root(_pool("sum", x, i, window, lambda v: power(v, p), 0), p)


# ---------------------------------------------------------------- whole images


def _global_shape(x: Operand) -> Shape:
    if x.rank < 2:
        raise ModelError(f"takes rank 2 or more, found {x.rank}")
    return (*x.shape[:2], *(1,) * (x.rank - 2))


@op("GlobalAveragePool", infer=_global_shape)
def global_average_pool(i: OutIndex, x: Float) -> Expr:
    """Mean over all spatial positions."""
    k = axes(*x.shape[2:])
    count = math.prod(x.shape[2:], start=as_expr(1, i64))
    return reduce("sum", x[i[:2] + k], k) / cast(count, x.dtype)


@op("GlobalMaxPool", infer=_global_shape, traits=(FIRST,))
def global_max_pool(i: OutIndex, x: Number) -> Expr:
    """Maximum over all spatial positions."""
    k = axes(*x.shape[2:])
    return reduce("max", x[i[:2] + k], k)


@op("GlobalLpPool", infer=_global_shape)
def global_lp_pool(i: OutIndex, x: Float, *, p: int = 2) -> Expr:
    """p-norm over all spatial positions."""
    k = axes(*x.shape[2:])
    return root(reduce("sum", power(x[i[:2] + k], p), k), p)
