"""Resize: resampling on a regular grid.

It works in exact rational arithmetic. Output position i lies at input position (a*i + b) / c
with integers a, b, c, so the nearest taps and the fraction between them are integer expressions of
the index: nothing is rounded before the weights, and a factor of 2 comes down to `i // 2`. A scale
given as a float stands for the simplest fraction that rounds to it (0.6 means 3/5).

The length of a resized axis is that of the output, floor(scale * length), also where the formula
of a coordinate transformation names it: ONNX Runtime and PyTorch have it so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
from graphc.ir.opdef import Any_, Float, Int, Known, Operand, OutIndex, axes, op
from graphc.ir.ops.interpolation import cubic_weight, cubic_weights, linear_weight, linear_weights
from graphc.ir.simplify import simplify
from graphc.ir.types import Shape

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
class ResizeAxis:
    """One resized axis: `extent` elements become `out`, `scale` is out / extent before rounding.

    start and end bound the region of interest as fractions of the axis.
    """

    extent: int
    out: int
    scale: Fraction
    start: Fraction = Fraction(0)
    end: Fraction = Fraction(1)

    @property
    def is_identity(self) -> bool:
        return self.scale == 1 and self.out == self.extent and (self.start, self.end) == (0, 1)

    def slope_and_offset(self, mode: str) -> tuple[Fraction, Fraction]:
        """Input position = slope * output position + offset, by coordinate transformation mode."""
        inverse, half, last = 1 / self.scale, Fraction(1, 2), self.extent - 1
        steps = max(self.out - 1, 1)  # between the first and the last output
        if mode == "asymmetric":
            return inverse, Fraction(0)
        if mode == "align_corners":
            return Fraction(last, steps), Fraction(0)
        if mode == "tf_crop_and_resize":
            size = (self.end - self.start) * last
            middle = size / 2 if self.out == 1 else 0
            return size / steps, self.start * last + middle
        if mode == "tf_half_pixel_for_nn":
            return inverse, inverse / 2
        if mode == "pytorch_half_pixel" and self.out == 1:
            return Fraction(0), Fraction(0)
        if mode in ("half_pixel", "pytorch_half_pixel"):
            return inverse, inverse / 2 - half
        if mode == "half_pixel_symmetric":
            lost = self.extent - self.out * inverse  # of the input, as the output's length is whole
            return inverse, (lost + inverse) / 2 - half
        raise UnsupportedError(f"coordinate_transformation_mode {mode!r} is not known")

    def position(self, i: Expr, mode: str) -> Rational:
        """The input position of output `i`."""
        slope, offset = self.slope_and_offset(mode)
        common = math.lcm(slope.denominator, offset.denominator)
        numerator = i * int(slope * common) + int(offset * common)
        return Rational(simplify(as_expr(numerator, i64)), common)


@dataclass(frozen=True)
class Rational:
    """numerator / denominator, with a positive constant denominator."""

    numerator: Expr
    denominator: int

    @property
    def floor(self) -> Expr:
        return simplify(self.numerator // self.denominator)

    def fraction(self, dtype: DType) -> Expr:
        """The part after the point, as a float in 0 .. 1."""
        rest = simplify(self.numerator % self.denominator)
        return cast(rest, dtype) * (1 / self.denominator)

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

    def outside(self, extent: int) -> Expr:
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
        if self.antialias and axis.scale < 1:
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
        first = 1 - taps // 2
        fraction = position.fraction(self.dtype)

        def weighed(k: Index) -> tuple[Expr, Expr]:
            offset = k + first
            where = simplify(position.floor + offset)
            weight = kernel((cast(offset, self.dtype) - fraction) * float(axis.scale))
            if self.exclude_outside:
                weight = select((where >= 0) & (where < axis.extent), weight, 0)
            return where, weight

        (k,) = axes(taps, name=f"t{number}_")
        (total_axis,) = axes(taps, name=f"s{number}_")
        where, weight = weighed(k)
        total = reduce("sum", weighed(total_axis)[1], (total_axis,))
        return Tap(clamp(where, axis.extent), weight / total, (k,))


def reach(axis: ResizeAxis, mode: str, antialias: bool) -> int:
    """How many taps an interpolation has along an axis, `mode` linear or cubic."""
    side = 2 if mode == "cubic" else 1
    if antialias and axis.scale < 1:
        side = -math.floor(-side / axis.scale)
    return 2 * side


def clamp(index: Expr, extent: int) -> Expr:
    """The nearest index inside the axis."""
    return simplify(minimum(maximum(index, 0), extent - 1))


def exclude(weights: list[Expr], where: list[Expr], extent: int) -> list[Expr]:
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
    shape: Sequence[int], roi: np.ndarray | None, scales: np.ndarray | None,
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
            out = int(np.floor(np.float32(scale) * np.float32(shape[a])))
            result[a] = ResizeAxis(shape[a], out, simplest_fraction(scale))
    else:
        outs = _keep_aspect([shape[a] for a in which], [int(s) for s in sizes], policy)
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


def _keep_aspect(
    extents: Sequence[int], sizes: Sequence[int], policy: str
) -> list[tuple[int, Fraction]]:
    """Sizes and scales per axis; all axes get the same scale unless the policy is stretch."""
    scales = [Fraction(size, max(extent, 1)) for size, extent in zip(sizes, extents)]
    if policy == "stretch":
        return list(zip(sizes, scales))
    if policy not in ("not_larger", "not_smaller"):
        raise ModelError(f"keep_aspect_ratio_policy {policy!r} is not known")
    scale = min(scales) if policy == "not_larger" else max(scales)
    return [(math.floor(scale * extent + Fraction(1, 2)), scale) for extent in extents]


def _resize_shape(
    x: Operand, roi: np.ndarray | None, scales: np.ndarray | None, sizes: np.ndarray | None, *,
    axes: Sequence[int] | None, keep_aspect_ratio_policy: str, coordinate_transformation_mode: str,
) -> Shape:  # fmt: skip
    plan = resize_axes(
        x.shape, roi, scales, sizes, axes, keep_aspect_ratio_policy, coordinate_transformation_mode
    )
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
