"""Resize: resampling on a regular grid.

It works in exact rational arithmetic. Output position i lies at input position (a*i + b) / c
with integers a, b, c, so the nearest taps and the fraction between them are integer expressions of
the index: nothing is rounded before the weights, and a factor of 2 comes down to `i // 2`. A scale
given as a float stands for the simplest fraction that rounds to it (0.6 means 3/5).

The length of a resized axis is that of the output, floor(scale * length), also where the formula
of a coordinate transformation names it: ONNX Runtime and PyTorch have it so.

Lengths may be open. If the scale is the same at all sizes, a, b and c are numbers as ever; else
they are expressions over the sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np

from graphc.errors import ModelError, UnsupportedError
from graphc.ir import dtypes
from graphc.ir.dtypes import DType, f32, i64
from graphc.ir.expr import (
    Const,
    Expr,
    Index,
    as_expr,
    call,
    cast,
    maximum,
    minimum,
    reduce,
    select,
)
from graphc.ir.extents import as_dim, least, most
from graphc.ir.opdef import Any_, Float, Int, Known, Operand, OutIndex, axes, op
from graphc.ir.ops.helpers import dims_of, shorter
from graphc.ir.ops.interpolation import cubic_weight, cubic_weights, linear_weight, linear_weights
from graphc.ir.simplify import simplify
from graphc.ir.types import Dim, Shape
from graphc.records import dataclass

MOST_COMPARED = 1 << 20  # lengths that are scaled to tell how they are rounded

# ---------------------------------------------------------------- coordinates


def simplest_fraction(value: float) -> Fraction:
    """The fraction with the smallest denominator that rounds to this float32."""
    target = np.float32(value)
    exact = Fraction(float(target))
    for digits in range(1, 9):
        near = exact.limit_denominator(10**digits)
        if np.float32(float(near)) == target:
            return near
    return exact


@dataclass(frozen=True)
class Ratio:
    """A scale that is not the same at all sizes: one length by another."""

    numerator: Dim
    denominator: Dim


def ratio(out: Dim, extent: Dim) -> Fraction | Ratio:
    """How many times an extent goes into an output's: a number if it is the same at all sizes."""
    if isinstance(out, int) and isinstance(extent, int):
        return Fraction(out, max(extent, 1))
    at_largest = Fraction(most(out), max(most(extent), 1))
    number, by = at_largest.numerator, at_largest.denominator
    constant = as_dim(out * by - extent * number) == 0
    return at_largest if constant else Ratio(out, extent)


@dataclass(frozen=True)
class ResizeAxis:
    """One resized axis: `extent` elements become `out`, `scale` is out / extent before rounding.

    start and end bound the region of interest as fractions of the axis.
    """

    extent: Dim
    out: Dim
    scale: Fraction | Ratio
    start: Fraction = Fraction(0)
    end: Fraction = Fraction(1)

    @property
    def is_identity(self) -> bool:
        same = as_dim(self.out - self.extent) == 0
        return self.scale == 1 and same and (self.start, self.end) == (0, 1)

    @property
    def may_shrink(self) -> bool:
        """Whether the scale is below 1, at some sizes."""
        return isinstance(self.scale, Ratio) or self.scale < 1

    @property
    def shrinking(self) -> Fraction | Ratio:
        """The scale, or 1 if that is less."""
        if isinstance(self.scale, Ratio):
            below = self.scale.denominator
            return Ratio(shorter(self.scale.numerator, below), below)
        return min(self.scale, Fraction(1))

    def line(self, mode: str) -> tuple[Dim, Dim, Dim]:
        """a, b and c, so that output i lies at input position (a*i + b) / c, by coordinate
        transformation mode. UnsupportedError if an open length does not go with the mode."""
        up, down = self.scale.numerator, self.scale.denominator
        last = self.extent - 1
        if mode == "asymmetric":
            return down, 0, up
        if mode == "align_corners":
            return last, 0, self.steps
        if mode == "tf_crop_and_resize":
            return self._crop_line()
        if mode == "tf_half_pixel_for_nn":
            return 2 * down, down, 2 * up
        if mode == "pytorch_half_pixel" and self.steps == self.out:  # 1
            return 0, 0, 1
        if mode in ("half_pixel", "pytorch_half_pixel"):
            return 2 * down, down - up, 2 * up
        if mode == "half_pixel_symmetric":
            lost = self.extent * up - self.out * down  # of the input, as the output is whole
            return 2 * down, lost + down - up, 2 * up
        raise UnsupportedError(f"coordinate_transformation_mode {mode!r} is not known")

    @property
    def steps(self) -> Dim:
        """Steps between the first and the last output."""
        if isinstance(self.out, int):
            return max(self.out - 1, 1)
        if least(self.out) < 2:
            raise UnsupportedError(f"an axis of {self.out} elements may have one alone")
        return self.out - 1

    def _crop_line(self) -> tuple[Dim, Dim, Dim]:
        last, steps = self.extent - 1, self.steps
        size, start = self.end - self.start, self.start
        if self.out == 1:
            start += size / 2
        common = math.lcm(size.denominator, start.denominator)
        return last * int(size * common), last * steps * int(start * common), steps * common

    def position(self, i: Expr, mode: str) -> Rational:
        """The input position of output `i`."""
        slope, offset, under = self.line(mode)
        if isinstance(slope, int) and isinstance(offset, int) and isinstance(under, int):
            common = math.gcd(slope, offset, under)
            slope, offset, under = slope // common, offset // common, under // common
        return Rational(simplify(as_expr(i * slope + offset, i64)), as_dim(under))


@dataclass(frozen=True)
class Rational:
    """numerator / denominator, with a positive denominator that is the same for all indices."""

    numerator: Expr
    denominator: Dim

    @property
    def floor(self) -> Expr:
        return simplify(self.numerator // self.denominator)

    def fraction(self, dtype: DType) -> Expr:
        """The part after the point, as a float in 0 .. 1."""
        rest = simplify(self.numerator % self.denominator)
        if isinstance(self.denominator, int):
            return cast(rest, dtype) * (1 / self.denominator)
        return cast(rest, dtype) * (1 / cast(self.denominator, dtype))

    def nearest(self, mode: str) -> Expr:
        """The nearest integer, by nearest_mode."""
        n, d = self.numerator, self.denominator
        choices = {
            "floor": lambda: n // d,
            "ceil": lambda: (n + (d - 1)) // d,
            "round_prefer_floor": lambda: (n * 2 + (d - 1)) // (2 * d),
            "round_prefer_ceil": lambda: (n * 2 + d) // (2 * d),
        }
        if mode not in choices:
            raise ModelError(f"nearest_mode {mode!r} is not one of {sorted(choices)}")
        return simplify(choices[mode]())

    def outside(self, extent: Dim) -> Expr:
        """Whether it lies before the first or after the last of `extent` elements."""
        return (self.numerator < 0) | (self.numerator > self.denominator * (extent - 1))


# ---------------------------------------------------------------- taps


@dataclass(frozen=True)
class Tap:
    """An input index on one axis, its weight (None: 1), and the reduction axes it runs over."""

    index: Expr
    weight: Expr | None = None
    over: tuple[Index, ...] = ()


@dataclass(frozen=True)
class Interpolation:
    """How Resize weighs its taps."""

    mode: str
    coordinates: str
    nearest_mode: str
    cubic_a: float
    antialias: bool
    exclude_outside: bool
    dtype: DType

    def taps(self, axis: ResizeAxis, i: Expr, number: int) -> list[Tap]:
        """The taps of output `i` on an axis, the `number`-th to be resized."""
        if axis.is_identity:
            return [Tap(i)]
        position = axis.position(i, self.coordinates)
        if self.mode == "nearest":
            return [Tap(clamp(position.nearest(self.nearest_mode), axis.extent))]
        if self.antialias and axis.may_shrink:
            return [self.wide_tap(axis, position, number)]
        fraction = position.fraction(self.dtype)
        cubic = self.mode == "cubic"
        weights = cubic_weights(fraction, self.cubic_a) if cubic else linear_weights(fraction)
        where = [position.floor + (n - cubic) for n in range(len(weights))]
        if self.exclude_outside:
            weights = exclude(weights, where, axis.extent)
        return [Tap(clamp(p, axis.extent), w) for p, w in zip(where, weights)]

    def wide_tap(self, axis: ResizeAxis, position: Rational, number: int) -> Tap:
        """When shrinking without aliases the kernel spans 1 / scale times as many elements."""
        kernel = cubic_weight(self.cubic_a) if self.mode == "cubic" else linear_weight
        taps = reach(axis, self.mode, True)
        first = as_dim(1 - taps // 2)
        fraction = position.fraction(self.dtype)
        narrowing = as_float(axis.shrinking, self.dtype)

        def weighed(k: Index) -> tuple[Expr, Expr]:
            offset = k + first
            where = simplify(position.floor + offset)
            weight = kernel((cast(offset, self.dtype) - fraction) * narrowing)
            if self.exclude_outside:
                weight = select((where >= 0) & (where < axis.extent), weight, 0)
            return where, weight

        (k,) = axes(taps, name=f"t{number}_")
        (total_axis,) = axes(taps, name=f"s{number}_")
        where, weight = weighed(k)
        total = reduce("sum", weighed(total_axis)[1], (total_axis,))
        return Tap(clamp(where, axis.extent), weight / total, (k,))


def reach(axis: ResizeAxis, mode: str, antialias: bool) -> Dim:
    """How many taps an interpolation has along an axis, `mode` linear or cubic."""
    side: Dim = 2 if mode == "cubic" else 1
    if antialias and axis.may_shrink:
        by = axis.shrinking
        side = as_dim((side * by.denominator + by.numerator - 1) // by.numerator)
    return side * 2


def as_float(scale: Fraction | Ratio, dtype: DType) -> Expr | float:
    """A scale as a number of a float type."""
    if isinstance(scale, Fraction):
        return float(scale)
    above, below = (cast(as_expr(n, i64), dtype) for n in (scale.numerator, scale.denominator))
    return above / below


def clamp(index: Expr, extent: Dim) -> Expr:
    """The nearest index inside the axis."""
    return simplify(minimum(maximum(index, 0), extent - 1))


def exclude(weights: list[Expr], where: list[Expr], extent: Dim) -> list[Expr]:
    """Weights with those of taps outside set to 0 and the rest scaled to a sum of 1."""
    kept = [
        select(simplify((p >= 0) & (p < extent)), w, 0) if isinstance(p, Expr) else w
        for p, w in zip(where, weights)
    ]
    total = sum(kept[1:], kept[0])
    return [w / total for w in kept]


def blend(load: Callable[[tuple], Expr], taps: Sequence[list[Tap]], prefix: tuple = ()) -> Expr:
    """The weighted sum of load(index) over the taps of every axis, outer axes outermost."""
    if not taps:
        return load(prefix)
    first, *rest = taps
    terms = []
    for tap in first:
        value = blend(load, rest, (*prefix, tap.index))
        term = value if tap.weight is None else value * tap.weight
        terms.append(reduce("sum", term, tap.over) if tap.over else term)
    return sum(terms[1:], terms[0])


def to_dtype(value: Expr, dtype: DType) -> Expr:
    """Rounded and saturated if the target is an integer type."""
    if dtype.is_integer and value.dtype.is_float:
        value = minimum(maximum(call("round", value), float(dtype.min)), float(dtype.max))
    return cast(value, dtype)


# ---------------------------------------------------------------- Resize


def resize_axes(
    shape: Sequence[Dim], roi: np.ndarray | None, scales: np.ndarray | None,
    sizes: np.ndarray | None, resized: Sequence[int] | None, policy: str, mode: str,
) -> list[ResizeAxis]:  # fmt: skip
    """What becomes of each axis; exactly one of `scales` and `sizes` is given (not empty)."""
    rank = len(shape)
    which = [a % rank for a in resized] if resized else list(range(rank))
    given = sizes if sizes is not None and sizes.size else scales
    if given is None or not given.size:
        raise ModelError("needs one of scales and sizes")
    if given.size != len(which):
        raise ModelError(f"{given.size} scales or sizes for {len(which)} axes")
    result = [ResizeAxis(extent, extent, Fraction(1)) for extent in shape]
    if given is scales:
        for a, scale in zip(which, scales):
            result[a] = ResizeAxis(shape[a], _scaled(shape[a], scale), simplest_fraction(scale))
    else:
        outs = _keep_aspect([shape[a] for a in which], dims_of(given), policy)
        for a, (out, scale) in zip(which, outs):
            result[a] = ResizeAxis(shape[a], out, scale)
    if mode == "tf_crop_and_resize":
        if roi is None or roi.size != 2 * len(which):
            raise ModelError("tf_crop_and_resize needs a roi with a start and an end per axis")
        for a, start, end in zip(which, roi[: len(which)], roi[len(which) :]):
            own = result[a]
            bounds = (simplest_fraction(start), simplest_fraction(end))
            result[a] = ResizeAxis(own.extent, own.out, own.scale, *bounds)
    return result


def _scaled(extent: Dim, scale: float) -> Dim:
    """The length of a scaled axis, a product of float32 rounded down. UnsupportedError if it is
    open, and no fraction gives the same at all its sizes."""
    if isinstance(extent, int):
        return int(np.floor(np.float32(scale) * np.float32(extent)))
    exact = Fraction(float(scale))
    if most(extent) * exact.numerator < 1 << 24:
        return as_dim(extent * exact.numerator // exact.denominator)
    simple, longest = simplest_fraction(scale), most(extent)
    if longest <= MOST_COMPARED:
        lengths = np.arange(longest + 1)
        rounded = np.floor(np.float32(scale) * lengths.astype(np.float32))
        if np.array_equal(rounded, lengths * simple.numerator // simple.denominator):
            return as_dim(extent * simple.numerator // simple.denominator)
    raise UnsupportedError(f"{extent} elements by {scale}: the number of elements is rounded")


def _keep_aspect(
    extents: Sequence[Dim], sizes: Sequence[Dim], policy: str
) -> Sequence[tuple[Dim, Fraction | Ratio]]:
    """Sizes and scales per axis; all axes get the same scale unless the policy is stretch."""
    scales = [ratio(size, extent) for size, extent in zip(sizes, extents)]
    if policy == "stretch":
        return list(zip(sizes, scales))
    if policy not in ("not_larger", "not_smaller"):
        raise ModelError(f"keep_aspect_ratio_policy {policy!r} is not known")
    scale = scales[0]
    for other in scales[1:]:
        scale = _extreme(scale, other, larger=policy == "not_smaller")
    above, below = scale.numerator, scale.denominator
    return [(as_dim((extent * 2 * above + below) // (2 * below)), scale) for extent in extents]


def _extreme(one: Fraction | Ratio, other: Fraction | Ratio, larger: bool) -> Fraction | Ratio:
    """The larger or the smaller of two scales."""
    if isinstance(one, Fraction) and isinstance(other, Fraction):
        return max(one, other) if larger else min(one, other)
    (a, b), (c, d) = (
        (as_expr(scale.numerator, i64), as_expr(scale.denominator, i64)) for scale in (one, other)
    )
    is_first = a * d >= c * b if larger else a * d <= c * b
    return Ratio(as_dim(select(is_first, a, c)), as_dim(select(is_first, b, d)))


def _resize_shape(
    x: Operand, roi: np.ndarray | None, scales: np.ndarray | None, sizes: np.ndarray | None, *,
    axes: Sequence[int] | None, keep_aspect_ratio_policy: str, coordinate_transformation_mode: str,
) -> Shape:  # fmt: skip
    plan = resize_axes(
        x.shape, roi, scales, sizes, axes, keep_aspect_ratio_policy, coordinate_transformation_mode
    )
    for number, axis in enumerate(plan):
        if axis.extent == 0 and isinstance(axis.out, int) and axis.out:
            raise ModelError(f"axis {number} is empty: there is nothing to make {axis.out} of")
    return tuple(axis.out for axis in plan)


@op("Resize", infer=_resize_shape)
def resize(
    i: OutIndex, x: Any_, roi: Known(Float) | None = None, scales: Known(Float) | None = None,
    sizes: Known(Int) | None = None, *, antialias: int = 0, axes: Sequence[int] | None = None,
    coordinate_transformation_mode: str = "half_pixel", cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0, extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch", mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> Expr:  # fmt: skip
    """x resampled along its axes with nearest, linear or cubic interpolation."""
    if mode not in ("nearest", "linear", "cubic"):
        raise ModelError(f"mode {mode!r} is not one of nearest, linear, cubic")
    plan = resize_axes(
        x.shape, roi, scales, sizes, axes, keep_aspect_ratio_policy, coordinate_transformation_mode
    )
    wide = x.dtype.compute if x.dtype.is_float else f32
    how = Interpolation(
        mode, coordinate_transformation_mode, nearest_mode, cubic_coeff_a, bool(antialias),
        bool(exclude_outside), wide,
    )  # fmt: skip
    taps = [how.taps(axis, position, n) for n, (axis, position) in enumerate(zip(plan, i))]
    value = blend(x.__getitem__ if mode == "nearest" else lambda at: cast(x[at], wide), taps)
    value = to_dtype(value, x.dtype)
    if coordinate_transformation_mode != "tf_crop_and_resize":
        return value
    outside: Expr = Const(False, dtypes.boolean)
    for axis, position in zip(plan, i):
        if not axis.is_identity:
            where = axis.position(position, coordinate_transformation_mode)
            outside = outside | simplify(where.outside(axis.extent))
    return select(outside, as_expr(extrapolation_value, x.dtype), value)
