"""Gradients of pooling over regions of interest, by the images alone, as in torchvision.

RoiAlign by means is linear in the images, and bilinear weights are products of one for each axis.
So it is two products with matrices of weights: of the rows of the image for each row of bins, and
of its columns for each column. MaxRoiPool takes elements, whose places are computed again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphc.errors import UnsupportedError
from graphc.ir.build import Builder
from graphc.ir.dtypes import DType, i64
from graphc.ir.expr import (
    Const,
    Expr,
    Index,
    Load,
    Reduce,
    as_expr,
    cast,
    ceil,
    maximum,
    minimum,
    select,
)
from graphc.ir.graph import Op, Value
from graphc.ir.ops.generic import generic_op
from graphc.ir.ops.helpers import choose, clamped
from graphc.ir.ops.roi import Samples, bin_samples, region_bin, weighted_pair

NEAR = 7  # samples less than 1 from an element, where they are more than 1/2 apart, and one more
ALIGN = {
    "coordinate_transformation_mode": "half_pixel", "sampling_ratio": 0, "spatial_scale": 1.0,
    "output_height": 1, "output_width": 1, "mode": "avg",
}  # fmt: skip


def aligned(b: Builder, op: Op, cotangents: Sequence[Value | None]) -> list[Value | None]:
    """RoiAlign: the transposed products, summed over all regions of an image."""
    (g,) = cotangents
    assert g is not None
    attrs = {**ALIGN, **op.attrs}
    require_mean(op)
    images = op.operand(0).tensor
    down, across = (_weights(b, op, axis, attrs) for axis in (0, 1))
    rows = b.Einsum(g, across, equation="rcpq,rqw->rcpw")
    own = _of_image(b, op, down, images.static_shape[0])
    return [b.Einsum(own, rows, equation="nrph,rcpw->nchw"), None, None]


def require_mean(op: Op) -> None:
    """UnsupportedError for a RoiAlign that takes maxima."""
    if op.attrs.get("mode", "avg") != "avg":
        raise UnsupportedError(
            f"{op.where()}: RoiAlign has no derivative in mode max; use mode avg"
        )


def _kept(value: Expr) -> Expr:
    return value


def _weights(b: Builder, op: Op, axis: int, attrs: dict) -> Value:
    """What each element along an axis counts in a bin of a region: [regions, bins, extent]."""
    images, rois = op.operand(0).tensor, b.op("StopGradient", op.operand(1), domain="graphc")
    wide, extent = images.dtype.compute, images.static_shape[2 + axis]
    bins = attrs["output_width" if axis else "output_height"]
    space = [Index("i0", rois.tensor.static_shape[0]), Index("i1", bins), Index("i2", extent)]
    region, o, element = space
    corners = [
        cast(Load("1", [region, as_expr(n, i64)], rois.tensor.dtype), wide) * attrs["spatial_scale"]
        for n in (1 - axis, 3 - axis)
    ]
    half_pixel = attrs["coordinate_transformation_mode"] == "half_pixel"
    ratio = attrs["sampling_ratio"]
    samples = bin_samples(_kept, corners, o, bins, extent, ratio, half_pixel)
    k = Index("k", ratio if ratio > 0 else NEAR)
    n = k + _first_near(samples, element) if ratio <= 0 else k
    at = Samples(samples.start, samples.size, samples.count, Const(0, i64), samples.count)
    inside, pair = weighted_pair(_kept, at.position(n), extent)
    weight = sum((select(place.eq(element), w, 0) for place, w in pair), as_expr(0.0, wide))
    total = Reduce("sum", select(inside & (n < samples.count), weight, 0), (k,))
    body = total / cast(maximum(samples.count, 1), wide)
    return generic_op(b, space, cast(body, images.dtype), lambda _: rois)


def _first_near(samples: Samples, element: Expr) -> Expr:
    """The first sample that may be less than 1 from an element, or one before."""
    dtype: DType = samples.size.dtype
    spacing = samples.size / cast(samples.count, dtype)
    number = ceil((cast(element, dtype) - 1 - samples.start) / spacing - 0.5)
    return minimum(maximum(cast(number, i64) - 1, 0), samples.count)


def _of_image(b: Builder, op: Op, weights: Value, count: int) -> Value:
    """The weights of regions for their own image, 0 for others: [images, regions, bins, extent]."""
    type, images = weights.tensor, op.operand(2)
    space = [Index(f"i{d}", n) for d, n in enumerate((count, *type.static_shape))]
    own = clamped(Load("2", [space[1]], images.tensor.dtype), count)
    body = select(own.eq(space[0]), Load("w", space[1:], type.dtype), 0)
    return generic_op(b, space, body, {"2": images, "w": weights}.__getitem__)


# ---------------------------------------------------------------- MaxRoiPool


def pooled(b: Builder, op: Op, cotangents: Sequence[Value | None]) -> list[Value | None]:
    """MaxRoiPool: the first of the largest elements of a bin gets what the bin gets."""
    (g,) = cotangents
    images = op.operand(0).tensor
    places, is_there = places_of_maxima(b, op)
    updates = b.Where(is_there, g, b.constant(0, images.dtype))
    zeros = b.constant(np.zeros(flat_shape(images.static_shape), images.dtype.np))
    total = b.ScatterND(zeros, places, updates, reduction="add")
    return [b.Reshape(total, np.array(images.dims, np.int64)), None]


def flat_shape(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """The shape of images whose rows follow each other."""
    return (*shape[:2], shape[2] * shape[3])  # type: ignore[return-value]


def places_of_maxima(b: Builder, op: Op) -> tuple[Value, Value]:
    """Where the first of the largest elements of each bin is, [..., 3]: image, channel, position in
    the flat image; and whether there is one."""
    x, rois = op.operand(0).tensor, op.operand(1)
    space = [Index(f"i{d}", n) for d, n in enumerate(op.output.tensor.static_shape)]
    region, channel, *where = space
    scale, pooled_shape = op.attrs.get("spatial_scale", 1.0), op.attrs["pooled_shape"]

    def roi(n: int) -> Expr:
        return Load("1", [region, as_expr(n, i64)], rois.tensor.dtype)

    taps = (Index("k0", x.static_shape[2]), Index("k1", x.static_shape[3]))
    sides = region_bin(roi, where, pooled_shape, x.static_shape[2:], scale)
    image = clamped(roi(0), x.dims[0])
    reaches = Load("0", [image, channel, *taps], x.dtype).eq(Load("y", space, x.dtype))
    for tap, (first, end) in zip(taps, sides):
        reaches = (tap >= first) & (tap < end) & reaches
    nowhere, position = Const(i64.max, i64), taps[0] * x.static_shape[3] + taps[1]
    body = Reduce("min", select(reaches, position, nowhere), taps)
    sources = {"0": op.operand(0), "1": rois, "y": op.output}
    found = generic_op(b, space, body, sources.__getitem__)
    is_there = b.Less(found, b.constant(i64.max, i64))
    axis = Index("i4", 3)
    number = minimum(Load("p", space, i64), max(x.static_shape[2] * x.static_shape[3] - 1, 0))
    parts = choose(axis, [cast(image, i64), channel, number])
    return generic_op(b, [*space, axis], parts, {**sources, "p": found}.__getitem__), is_there
