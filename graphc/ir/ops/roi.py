"""Pooling over regions of interest given as data, one bin at a time."""

from __future__ import annotations

from graphc.errors import ModelError
from graphc.ir.dtypes import i64
from graphc.ir.expr import Expr, as_expr, call, cast, ceil, floor, maximum, minimum, select
from graphc.ir.kernel import Buffer, KernelBuilder
from graphc.ir.opdef import Float, Int, imperative
from graphc.ir.ops.helpers import wrap_index
from graphc.ir.types import TensorType


def _max_roi_type(x, rois, *, pooled_shape):
    if x.rank != 4 or rois.rank != 2 or rois.shape[1] != 5 or len(pooled_shape) != 2:
        raise ModelError(
            f"takes images [N, C, H, W], regions [count, 5] and a pooled_shape of two, "
            f"found {x.type}, {rois.type} and {list(pooled_shape)}"
        )
    return TensorType(x.dtype, (rois.shape[0], x.shape[1], *pooled_shape))


def _bin(o, first: Expr, last: Expr, bins: int, extent) -> tuple[Expr, Expr]:
    """Start and end of bin `o` of the `bins` that positions first..last are divided into."""
    size = maximum(last - first + 1, 1) / float(bins)
    start = floor(cast(o, size.dtype) * size) + first
    end = ceil(cast(o + 1, size.dtype) * size) + first
    first_element, after_last = (
        minimum(maximum(cast(edge, i64), 0), extent) for edge in (start, end)
    )
    return first_element, after_last


@imperative("MaxRoiPool", infer=_max_roi_type)
def max_roi_pool(k, x: Float, rois: Float, *, pooled_shape, spatial_scale=1.0):
    """Largest element of each bin of each region; 0 in empty bins.

    A region is (image, x1, y1, x2, y2); corners are scaled and rounded half up, both included.
    """
    (y,) = k.outputs
    with k.loops(*y.shape, kind="parallel") as (region, channel, *where):
        x1, y1, x2, y2 = (floor(rois[region, n] * spatial_scale + 0.5) for n in range(1, 5))
        (top, bottom), (left, right) = (
            tuple(map(k.let, _bin(o, first, last, bins, extent)))
            for o, first, last, bins, extent in zip(
                where, (y1, x1), (y2, x2), pooled_shape, x.shape[2:]
            )
        )
        image = k.let(wrap_index(rois[region, 0], x.shape[0]))
        largest = k.var(x.dtype, x.dtype.min)
        with k.loop(maximum(bottom - top, 0)) as h, k.loop(maximum(right - left, 0)) as w:
            k.store(largest, (), maximum(largest[()], x[image, channel, top + h, left + w]))
        filled = (bottom > top) & (right > left)
        k.store(y, (region, channel, *where), select(filled, largest[()], 0))


# ---------------------------------------------------------------- RoiAlign


def _roi_align_type(x, rois, batch_indices, *, output_height, output_width):
    if x.rank != 4 or rois.rank != 2 or rois.shape[1] != 4:
        raise ModelError(f"takes images of rank 4 and 4 corners each, found {x.type}, {rois.type}")
    if batch_indices.shape != rois.shape[:1]:
        raise ModelError(f"found batch_indices {batch_indices.type} for {rois.shape[0]} rois")
    return TensorType(x.dtype, (rois.shape[0], x.shape[1], output_height, output_width))


@imperative("RoiAlign", infer=_roi_align_type)
def roi_align(
    k, x: Float, rois: Float, batch_indices: Int, *, coordinate_transformation_mode="half_pixel",
    mode="avg", output_height=1, output_width=1, sampling_ratio=0, spatial_scale=1.0,
):  # fmt: skip
    """Mean or maximum of bilinear samples in each bin of each region (x1, y1, x2, y2).

    Without a sampling ratio a bin has as many samples per axis as it is elements long. The maximum
    is over the four weighted neighbours of every sample (ONNX's choice).
    """
    if mode not in ("avg", "max"):
        raise ModelError(f"mode {mode!r} is not one of avg, max")
    wide = x.dtype.compute
    half_pixel = coordinate_transformation_mode == "half_pixel"
    (y,) = k.outputs
    with k.loops(*y.shape, kind="parallel") as (region, channel, row, column):
        sides = []
        for axis, (o, bins) in enumerate(((row, output_height), (column, output_width))):
            corners = [
                cast(rois[region, 1 - axis + 2 * end], wide) * spatial_scale - 0.5 * half_pixel
                for end in (0, 1)
            ]
            sides.append(_bin_samples(k, corners, o, bins, sampling_ratio, half_pixel))
        (top, height, down), (left, width, across) = sides
        result = k.var(wide, 0)
        is_first = k.var(i64, 1)
        with k.loop(down) as p, k.loop(across) as q:
            at_row = k.let(top + (cast(p, wide) + 0.5) * height / cast(down, wide))
            at_column = k.let(left + (cast(q, wide) + 0.5) * width / cast(across, wide))
            image = wrap_index(batch_indices[region], x.shape[0])
            terms = _neighbours(k, x, (image, channel), (at_row, at_column))
            if mode == "avg":
                k.store(result, (), result[()] + terms[0] + terms[1] + terms[2] + terms[3])
            else:
                best = k.let(maximum(maximum(terms[0], terms[1]), maximum(terms[2], terms[3])))
                with k.when(is_first[()].eq(1) | (best > result[()])):
                    k.store(result, (), best)
                k.store(is_first, (), 0)
        value = result[()]
        if mode == "avg":
            value = value / cast(maximum(down * across, 1), wide)
        k.store(y, (region, channel, row, column), cast(value, x.dtype))


def _bin_samples(
    k: KernelBuilder, corners: list[Expr], o: Expr, bins: int, ratio: int, half_pixel: bool
) -> tuple[Expr, Expr, Expr]:
    """Start and length of bin `o` on one axis, and how many samples to take there."""
    start = k.let(corners[0])
    size = corners[1] - start
    size = k.let((size if half_pixel else maximum(size, 1)) / float(bins))
    count = as_expr(ratio, i64) if ratio > 0 else k.let(maximum(cast(ceil(size), i64), 0))
    return k.let(start + cast(o, size.dtype) * size), size, count


def _neighbours(k: KernelBuilder, x: Buffer, prefix: tuple, where: tuple) -> list[Expr]:
    """The four weighted neighbours of a position; zeros more than 1 outside of the image."""
    inside = None
    per_axis = []
    for position, extent in zip(where, x.shape[2:]):
        near = (position >= -1.0) & (position <= float(extent))
        inside = near if inside is None else inside & near
        clamped = k.let(minimum(maximum(position, 0), float(extent - 1)))
        low = k.let(cast(call("floor", clamped), i64))
        high = k.let(minimum(low + 1, extent - 1))
        weight = k.let(clamped - cast(low, position.dtype))
        per_axis.append(((low, 1 - weight), (high, weight)))
    rows, columns = per_axis
    return [
        k.let(select(inside, cast(x[prefix + (r, c)], wr.dtype) * (wr * wc), 0))
        for r, wr in rows
        for c, wc in columns
    ]
