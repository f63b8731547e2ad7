"""Sampling at positions that are data: GridSample, AffineGrid, which makes grids, and DeformConv.

Positions are floats, so elements are loaded at computed indices, and only then is it known which
lie outside: each tap has an element to read and a condition on which it counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from graphc.errors import ModelError
from graphc.ir.dtypes import DType, f32, i64
from graphc.ir.expr import (
    TRUE,
    Expr,
    call,
    cast,
    floor,
    maximum,
    minimum,
    reduce,
    select,
)
from graphc.ir.opdef import Float, Int, Known, Number, Operand, OutIndex, axes, linear, op
from graphc.ir.ops.convolution import conv_window, group_channel
from graphc.ir.ops.interpolation import cubic_weights, linear_weights
from graphc.ir.types import Shape
from graphc.ir.window import make_window, positions
from graphc.records import dataclass

# ---------------------------------------------------------------- grids


def _grid_sample_shape(x: Operand, grid: Operand) -> Shape:
    if grid.rank != x.rank or grid.shape[-1] != x.rank - 2:
        raise ModelError(f"grid {list(grid.shape)} does not fit an input of {list(x.shape)}")
    return (*x.shape[:2], *grid.shape[1:-1])


@dataclass(frozen=True)
class SampledAxis:
    """One axis of the image that GridSample reads, `extent` elements long."""

    extent: int
    padding: str
    align_corners: bool

    def position(self, coordinate: Expr) -> Expr:
        """-1 .. 1 stretched over the axis: from centre to centre of the outermost elements if
        corners are aligned, else from border to border."""
        if self.align_corners:
            return (coordinate + 1) / 2 * (self.extent - 1)
        return ((coordinate + 1) * self.extent - 1) / 2

    @property
    def borders(self) -> tuple[float, float]:
        return (0.0, self.extent - 1.0) if self.align_corners else (-0.5, self.extent - 0.5)

    def fold_back(self, v: Expr) -> Expr:
        """A position outside the borders brought inside as the padding mode says."""
        low, high = self.borders
        if self.padding == "border":
            inside = minimum(maximum(v, 0), self.extent - 1)
            return select((v < low) | (v > high), inside, v)
        if self.padding == "zeros":
            return v
        size = high - low
        if size == 0:
            return v * 0
        beyond = maximum(low - v, v - high)
        times = floor(beyond / size)
        rest = beyond - times * size
        even = call("rem", times, 2.0).eq(0)
        near, far = select(even, rest, size - rest), select(even, size - rest, rest)
        return select(v < low, low + near, select(v > high, low + far, v))

    def pixel(self, p: Expr) -> tuple[Expr, Expr]:
        """The element to read for integer position `p`, and whether it counts (zeros padding)."""
        n = self.extent
        if self.padding == "zeros":
            return p, (p >= 0) & (p < n)
        if self.padding == "border":
            return minimum(maximum(p, 0), n - 1), TRUE
        period = max(2 * (n - 1), 1) if self.align_corners else 2 * n
        q = p % period
        mirrored = period - q if self.align_corners else period - 1 - q
        return select(q < n, q, mirrored), TRUE


@op("GridSample", infer=_grid_sample_shape)
def grid_sample(
    i: OutIndex, x: Number, grid: Float, *, align_corners: int = 0, mode: str = "linear",
    padding_mode: str = "zeros",
) -> Expr:  # fmt: skip
    """x at the positions that grid holds in its last axis, innermost axis of x first."""
    if padding_mode not in ("zeros", "border", "reflection"):
        raise ModelError(f"padding_mode {padding_mode!r} is not one of zeros, border, reflection")
    spatial = x.rank - 2
    plan = [SampledAxis(extent, padding_mode, bool(align_corners)) for extent in x.shape[2:]]
    where = [
        axis.position(cast(grid[i[:1] + i[2:] + (spatial - 1 - d,)], grid.dtype.compute))
        for d, axis in enumerate(plan)
    ]
    wide = x.dtype.compute if x.dtype.is_float else f32
    return cast(sample(x, tuple(i[:2]), plan, where, mode, wide), x.dtype)


def sample(
    x: Operand, prefix: tuple, plan: Sequence[SampledAxis], where: Sequence[Expr], mode: str,
    wide: DType,
) -> Expr:  # fmt: skip
    """x interpolated at fractional positions of its last axes."""
    if mode not in ("nearest", "linear", "bilinear", "cubic", "bicubic"):
        raise ModelError(f"mode {mode!r} is not one of nearest, linear, cubic")
    taps: list[list[tuple[Expr, Expr, Expr | None]]] = []
    for axis, position in zip(plan, where):
        if mode == "nearest":
            position = axis.fold_back(call("round", position))
            taps.append([(*axis.pixel(cast(position, i64)), None)])
            continue
        cubic = mode in ("cubic", "bicubic")
        if not cubic:  # each of the four taps of a cubic is padded by itself
            position = axis.fold_back(position)
        base = floor(position)
        fraction = cast(position - base, wide)
        weights = cubic_weights(fraction) if cubic else linear_weights(fraction)
        first = cast(base, i64) - (1 if cubic else 0)
        taps.append([(*axis.pixel(first + n), w) for n, w in enumerate(weights)])
    return _blend_guarded(x, prefix, taps, TRUE, wide)


def _blend_guarded(
    x: Operand, index: tuple, taps: Sequence[Sequence[Sequence[Expr | None]]], inside: Expr,
    wide: DType,
) -> Expr:  # fmt: skip
    if not taps:
        value = cast(x[index], wide)
        return value if inside is TRUE else select(inside, value, 0)
    terms = []
    for p, counts, weight in taps[0]:
        value = _blend_guarded(x, (*index, p), taps[1:], inside & counts, wide)
        terms.append(value if weight is None else value * weight)
    return sum(terms[1:], terms[0])


def _affine_grid_shape(theta: Operand, size: np.ndarray) -> Shape:
    spatial = len(size) - 2
    if theta.shape[1:] != (spatial, spatial + 1) or theta.shape[0] != size[0]:
        expected = [int(size[0]), spatial, spatial + 1]
        raise ModelError(f"theta must have shape {expected}, found {theta.type}")
    return (theta.shape[0], *map(int, size[2:]), len(size) - 2)


@op("AffineGrid", infer=_affine_grid_shape)
def affine_grid(i: OutIndex, theta: Float, size: Known(Int), *, align_corners: int = 0) -> Expr:
    """The grid for GridSample that applies the affine map theta (batch, d, d + 1)."""
    n, *where, row = i
    extents = [int(e) for e in size[2:]]
    total = theta[n, row, len(extents)]
    for column, (extent, p) in enumerate(zip(reversed(extents), reversed(where))):
        steps = (2 * p, extent - 1) if align_corners else (2 * p + 1, extent)
        coordinate = cast(steps[0], theta.dtype) / max(steps[1], 1) - 1
        total = total + theta[n, row, column] * coordinate
    return total


# ---------------------------------------------------------------- deformable convolution


def _deform_conv_shape(
    x: Operand, w: Operand, offset: Operand, b: Operand | None = None, mask: Operand | None = None,
    *, dilations: Sequence[int] | None, group: int, kernel_shape: Sequence[int] | None,
    offset_group: int, pads: Sequence[int] | None, strides: Sequence[int] | None,
) -> Shape:  # fmt: skip
    window = conv_window(
        x, w, group=group, kernel_shape=kernel_shape, pads=pads, strides=strides,
        dilations=dilations,
    )  # fmt: skip
    if offset_group < 1 or x.shape[1] % offset_group:
        raise ModelError(f"{x.shape[1]} channels do not divide into {offset_group} offset groups")
    out = tuple(axis.out for axis in window)
    taps = offset_group * math.prod(w.shape[2:])
    for name, operand, count in (("offset", offset, taps * len(out)), ("mask", mask, taps)):
        expected = (x.shape[0], count, *out)
        if operand is not None and operand.shape != expected:
            raise ModelError(f"{name} must have shape {list(expected)}, found {operand.type}")
    return (x.shape[0], w.shape[0], *out)


@op("DeformConv", infer=_deform_conv_shape)
def deform_conv(
    i: OutIndex, x: Float, w: Float, offset: Float, b: Float | None = None,
    mask: Float | None = None, *, dilations: Sequence[int] | None = None, group: int = 1,
    kernel_shape: Sequence[int] | None = None, offset_group: int = 1,
    pads: Sequence[int] | None = None, strides: Sequence[int] | None = None,
) -> Expr:  # fmt: skip
    """Convolution whose taps read x at given offsets from their regular places, bilinearly.

    Offsets are (batch, offset groups * taps * spatial axes, positions): per tap one per axis.
    """
    window = make_window(
        x.shape[2:], w.shape[2:], pads=pads, strides=strides, dilations=dilations, pools=False
    )
    (n, oc), out = i[:2], i[2:]
    (ic,), taps = axes(w.shape[1]), axes(*w.shape[2:], name="t")
    channel = group_channel(oc, ic, w, group)
    own_offsets = channel // (x.shape[1] // offset_group) if offset_group > 1 else 0
    tap = linear((own_offsets, *taps), (offset_group, *w.shape[2:]))
    plan = [SampledAxis(extent, "zeros", True) for extent in x.shape[2:]]
    regular = positions(window, out, taps)
    where = [
        cast(p, x.dtype) + offset[(n, tap * len(plan) + d) + out] for d, p in enumerate(regular)
    ]
    value = sample(x, (n, channel), plan, where, "linear", x.dtype)
    if mask is not None:
        value = value * mask[(n, tap) + out]
    total = reduce("sum", value * w[(oc, ic) + taps], (ic, *taps))
    return total if b is None else total + b[oc]
