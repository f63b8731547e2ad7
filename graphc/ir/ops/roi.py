"""Pooling over regions of interest given as data, one bin at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from graphc.errors import ModelError
from graphc.ir.checks import must_lie
from graphc.ir.dtypes import i64
from graphc.ir.expr import (
    Const,
    Expr,
    as_expr,
    call,
    cast,
    ceil,
    floor,
    maximum,
    minimum,
    select,
)
from graphc.ir.imperative.collectives import Collectives
from graphc.ir.imperative.sampling import Bin, Place, Sampled, Tap
from graphc.ir.opdef import Float, Int, Operand, axes, imperative
from graphc.ir.ops.helpers import clamped
from graphc.ir.types import Dim, TensorType
from graphc.records import dataclass

Let = Callable[[Expr], Expr]  # gives a value a name


def _max_roi_type(x: Operand, rois: Operand, *, pooled_shape: Sequence[int]) -> TensorType:
    if x.rank != 4 or rois.rank != 2 or rois.shape[1] != 5 or len(pooled_shape) != 2:
        raise ModelError(
            f"takes images [N, C, H, W], regions [count, 5] and a pooled_shape of two, "
            f"found {x.type}, {rois.type} and {list(pooled_shape)}"
        )
    return TensorType(x.dtype, (rois.shape[0], x.shape[1], *pooled_shape))


def region_bin(
    roi: Callable[[int], Expr], where: Sequence[Expr], pooled: Sequence[int], image: Sequence[Dim],
    scale: float,
) -> list[tuple[Expr, Expr]]:  # fmt: skip
    """First element and end of a bin, `where` of those `pooled`, on each axis of an image. A region
    has numbers (image, x1, y1, x2, y2)."""
    x1, y1, x2, y2 = (floor(roi(n) * scale + 0.5) for n in range(1, 5))
    sides = zip(where, (y1, x1), (y2, x2), pooled, image)
    return [_bin(o, first, last, bins, extent) for o, first, last, bins, extent in sides]


def _bin(o: Expr, first: Expr, last: Expr, bins: int, extent: Dim) -> tuple[Expr, Expr]:
    """Start and end of bin `o` of the `bins` that positions first..last are divided into."""
    size = maximum(last - first + 1, 1) / float(bins)
    start = floor(cast(o, size.dtype) * size) + first
    end = ceil(cast(o + 1, size.dtype) * size) + first
    first_element, after_last = (
        minimum(maximum(cast(edge, i64), 0), extent) for edge in (start, end)
    )
    return first_element, after_last


@imperative("MaxRoiPool", infer=_max_roi_type)
def max_roi_pool(
    k: Collectives, x: Float, rois: Float, *, pooled_shape: Sequence[int],
    spatial_scale: float = 1.0,
) -> None:  # fmt: skip
    """Largest element of each bin of each region; 0 in empty bins.

    A region is (image, x1, y1, x2, y2); corners are scaled and rounded half up, both included.
    """
    (y,) = k.outputs
    (roi,) = axes(rois.shape[0])
    must_lie(rois[roi, 0], 0, x.shape[0] - 1)

    def largest(place: Place) -> Bin:
        region, *where = place
        sides = region_bin(
            lambda n: rois[region, n], where, pooled_shape, x.shape[2:], spatial_scale
        )
        (top, bottom), (left, right) = (tuple(map(k.let, side)) for side in sides)
        image = k.let(clamped(rois[region, 0], x.shape[0]))
        filled = k.let((bottom > top) & (right > left))
        return Bin(
            (k.let(maximum(bottom - top, 0)), k.let(maximum(right - left, 0))),
            lambda at: [Tap(image, (k.let(top + at[0]), k.let(left + at[1])))],
            Const(x.dtype.min, x.dtype),
            lambda old, values, _: maximum(old, values[0]),
            lambda value: select(filled, value, 0),
        )

    k.sampled(Sampled(x, y, x.dtype, largest))


# ---------------------------------------------------------------- RoiAlign


def _roi_align_type(
    x: Operand, rois: Operand, batch_indices: Operand, *, output_height: int, output_width: int
) -> TensorType:
    if x.rank != 4 or rois.rank != 2 or rois.shape[1] != 4:
        raise ModelError(f"takes images of rank 4 and 4 corners each, found {x.type}, {rois.type}")
    if batch_indices.shape != rois.shape[:1]:
        raise ModelError(f"found batch_indices {batch_indices.type} for {rois.shape[0]} rois")
    return TensorType(x.dtype, (rois.shape[0], x.shape[1], output_height, output_width))


@imperative("RoiAlign", infer=_roi_align_type)
def roi_align(
    k: Collectives, x: Float, rois: Float, batch_indices: Int, *,
    coordinate_transformation_mode: str = "half_pixel", mode: str = "avg", output_height: int = 1,
    output_width: int = 1, sampling_ratio: int = 0, spatial_scale: float = 1.0,
) -> None:  # fmt: skip
    """Mean or maximum of bilinear samples in each bin of each region (x1, y1, x2, y2).

    Without a sampling ratio a bin has as many samples per axis as it is elements long. The maximum
    is over the four weighted neighbours of every sample (ONNX's choice).
    """
    if mode not in ("avg", "max"):
        raise ModelError(f"mode {mode!r} is not one of avg, max")
    wide = x.dtype.compute
    half_pixel = coordinate_transformation_mode == "half_pixel"
    (y,) = k.outputs
    (roi,) = axes(rois.shape[0])
    must_lie(batch_indices[roi], 0, x.shape[0] - 1)
    combined = _summed if mode == "avg" else _largest

    def bin_of(place: Place) -> Bin:
        region, *where = place
        sides = []
        for axis, (o, bins) in enumerate(zip(where, (output_height, output_width))):
            corners = [cast(rois[region, 1 - axis + 2 * end], wide) for end in (0, 1)]
            side = bin_samples(
                k.let, [corner * spatial_scale for corner in corners], o, bins, x.shape[2 + axis],
                sampling_ratio, half_pixel,
            )  # fmt: skip
            sides.append(replace(side, near=Const(0, i64)) if 0 in x.shape else side)
        image = k.let(clamped(batch_indices[region], x.shape[0]))
        down, across = sides
        number = k.let(maximum(cast(down.count, wide) * cast(across.count, wide), 1))

        def taps(sample: Place) -> list[Tap]:
            at = tuple(k.let(side.position(n)) for n, side in zip(sample, sides))
            return _neighbours(k.let, image, x.shape[2:], at)

        def finish(value: Expr) -> Expr:
            if mode == "avg":
                return value / number
            whole = down.near.eq(down.count) & across.near.eq(across.count)
            return select(whole, value, maximum(value, 0))

        return Bin((down.near, across.near), taps, Const(0, wide), combined, finish)

    k.sampled(Sampled(x, y, wide, bin_of))


def _summed(old: Expr, values: Sequence[Expr], _: Place) -> Expr:
    return old + values[0] + values[1] + values[2] + values[3]


def _largest(old: Expr, values: Sequence[Expr], sample: Place) -> Expr:
    """The largest so far, which starts with the first sample, be it NaN."""
    best = maximum(maximum(values[0], values[1]), maximum(values[2], values[3]))
    first = sample[0].eq(0) & sample[1].eq(0)
    return select(first | (best > old), best, old)


@dataclass(frozen=True)
class Samples:
    """The samples of a bin on one axis: `count` of them over a length of `size` from `start` on.
    All but `near` of them, from number `first` on, lie outside of the image, where they are 0."""

    start: Expr
    size: Expr
    count: Expr
    first: Expr
    near: Expr

    def position(self, n: Expr) -> Expr:
        """Of the n-th of those that are near."""
        number = cast(self.first + n, self.size.dtype)
        return self.start + (number + 0.5) * self.size / cast(self.count, self.size.dtype)


def bin_samples(
    let: Let, corners: Sequence[Expr], o: Expr, bins: int, extent: int, ratio: int,
    half_pixel: bool,
) -> Samples:  # fmt: skip
    """The samples of bin `o`, between corners in elements: `ratio`, or as many as it is elements
    long, be that millions."""
    corner, end = (corner - 0.5 * half_pixel for corner in corners)
    corner = let(corner)
    size = end - corner
    size = let((size if half_pixel else maximum(size, 1)) / float(bins))
    start = let(corner + cast(o, size.dtype) * size)
    if ratio > 0:
        count = as_expr(ratio, i64)
        return Samples(start, size, count, Const(0, i64), count)
    count = let(maximum(cast(ceil(size), i64), 0))
    spacing = let(size / cast(count, size.dtype))

    def number(edge: Expr) -> Expr:
        return let(minimum(maximum(cast(edge, i64), 0), count))

    first = number(floor((-1 - start) / spacing) - 1)
    after = number(ceil((extent - start) / spacing) + 1)
    return Samples(start, size, count, first, let(maximum(after - first, 0)))


def _neighbours(let: Let, image: Expr, extents: tuple, where: tuple) -> list[Tap]:
    """The four weighted neighbours of a position; weights are 0 where it is more than 1 outside."""
    inside = None
    per_axis = []
    for position, extent in zip(where, extents):
        near, pair = weighted_pair(let, position, extent)
        inside = near if inside is None else inside & near
        per_axis.append(pair)
    rows, columns = per_axis
    return [
        Tap(image, (r, c), let(select(inside, wr * wc, 0))) for r, wr in rows for c, wc in columns
    ]


def weighted_pair(
    let: Let, position: Expr, extent: int
) -> tuple[Expr, tuple[tuple[Expr, Expr], tuple[Expr, Expr]]]:
    """Whether a position is at most 1 outside of an axis; the two elements next to it, each with
    its weight."""
    near = (position >= -1.0) & (position <= float(extent))
    clamped = let(minimum(maximum(position, 0), float(extent - 1)))
    low = let(cast(call("floor", clamped), i64))
    high = let(minimum(low + 1, extent - 1))
    weight = let(clamped - cast(low, position.dtype))
    return near, ((low, 1 - weight), (high, weight))
