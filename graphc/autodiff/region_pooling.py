"""Gradients of pooling over regions of interest, by the images alone, as in torchvision.

RoiAlign by means is linear in the images, and bilinear weights are products of one for each axis.
So it is two products with matrices of weights: of the rows of the image for each row of bins, and
of its columns for each column. MaxRoiPool takes elements, whose places are computed again, and
RoiAlign by maxima one weighted neighbour of all samples, likewise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from graphc.autodiff.values import filled
from graphc.ir.addresses import flatten_index, unflatten_index
from graphc.ir.build import Builder
from graphc.ir.dtypes import DType, i64
from graphc.ir.expr import (
    Const,
    Expr,
    Index,
    Load,
    Reduce,
    as_expr,
    call,
    cast,
    ceil,
    maximum,
    minimum,
    select,
    substitute,
)
from graphc.ir.graph import Op, Value
from graphc.ir.ops.generic import generic_op
from graphc.ir.ops.helpers import choose, clamped
from graphc.ir.ops.roi import Samples, bin_samples, region_bin, weighted_pair
from graphc.ir.types import TensorType

SPACED = 2  # samples to an element, at most: a bin has as many as it is elements long, or one more
ROUNDING = 1e-6  # of products that are computed twice, by their size
NEAR = 7  # samples less than 1 from an element, where they are more than 1/2 apart, and one more
ALIGN = {
    "coordinate_transformation_mode": "half_pixel", "sampling_ratio": 0, "spatial_scale": 1.0,
    "output_height": 1, "output_width": 1, "mode": "avg",
}  # fmt: skip


def aligned(b: Builder, op: Op, cotangents: Sequence[Value | None]) -> list[Value | None]:
    """RoiAlign by means: the transposed products, summed over all regions of an image. By maxima:
    each neighbour that is taken gets its weight's share."""
    (g,) = cotangents
    assert g is not None
    images = op.operand(0).tensor
    if not takes_means(op):
        places, weights = weighted_maxima(b, op)
        return [_added(b, images, places, b.Mul(g, weights)), None, None]
    down, across = (_weights(b, op, axis) for axis in (0, 1))
    rows = b.Einsum(g, across, equation="rcpq,rqw->rcpw")
    own = _of_image(b, op, down, images.static_shape[0])
    return [b.Einsum(own, rows, equation="nrph,rcpw->nchw"), None, None]


def takes_means(op: Op) -> bool:
    """Whether a RoiAlign takes means of samples, not maxima."""
    return op.attrs.get("mode", "avg") == "avg"


def _kept(value: Expr) -> Expr:
    return value


def _samples(op: Op, rois: Value, region: Expr, o: Expr, axis: int) -> Samples:
    """The samples of bin `o` of a region along an axis."""
    attrs, images = {**ALIGN, **op.attrs}, op.operand(0).tensor
    corners = [
        cast(Load("1", [region, as_expr(n, i64)], rois.tensor.dtype), images.dtype.compute)
        * attrs["spatial_scale"]
        for n in (1 - axis, 3 - axis)
    ]
    return bin_samples(
        _kept, corners, o, _bins(op, axis), images.static_shape[2 + axis], attrs["sampling_ratio"],
        attrs["coordinate_transformation_mode"] == "half_pixel",
    )  # fmt: skip


def _bins(op: Op, axis: int) -> int:
    return int(op.output.tensor.static_shape[2 + axis])


def _weights(b: Builder, op: Op, axis: int) -> Value:
    """What each element along an axis counts in a bin of a region: [regions, bins, extent]."""
    images, rois = op.operand(0).tensor, b.op("StopGradient", op.operand(1), domain="graphc")
    wide, extent = images.dtype.compute, images.static_shape[2 + axis]
    space = [
        Index(f"i{d}", n)
        for d, n in enumerate((rois.tensor.static_shape[0], _bins(op, axis), extent))
    ]
    region, o, element = space
    ratio = op.attrs.get("sampling_ratio", 0)
    samples = _samples(op, rois, region, o, axis)
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


def weighted_maxima(b: Builder, op: Op) -> tuple[Value, Value]:
    """Of RoiAlign by maxima: where the first of the largest weighted neighbours of each bin is,
    [..., 3] as of `places_of_maxima`, and its weight; 0 where samples outside are larger."""
    x, rois = op.operand(0).tensor, b.op("StopGradient", op.operand(1), domain="graphc")
    space = [Index(f"i{d}", n) for d, n in enumerate(op.output.tensor.static_shape)]
    region, channel, *where = space
    sources = {"0": op.operand(0), "1": rois, "2": op.operand(2)}
    image = clamped(Load("2", [region], op.operand(2).tensor.dtype), x.dims[0])
    ratio, taps = op.attrs.get("sampling_ratio", 0), list[Index]()
    is_sample, whole, weight = as_expr(True), as_expr(True), as_expr(1.0, x.dtype.compute)
    place: list[Expr] = []
    for axis, extent in enumerate(x.static_shape[2:]):
        samples = _samples(op, rois, region, where[axis], axis)
        n, side = Index(f"k{axis}", ratio or SPACED * extent + 2 * NEAR), Index(f"e{axis}", 2)
        inside, pair = weighted_pair(_kept, samples.position(n), extent)
        place.append(select(side.eq(0), pair[0][0], pair[1][0]))
        weight *= select(inside, select(side.eq(0), pair[0][1], pair[1][1]), 0)
        is_sample &= n < samples.near
        whole &= samples.near.eq(samples.count)
        taps += [n, side]
    value = cast(Load("0", [image, channel, *place], x.dtype), weight.dtype) * weight
    lowest = Const(weight.dtype.min, weight.dtype)
    body = Reduce("max", select(is_sample, value, lowest), tuple(taps))
    sources["m"] = generic_op(b, space, body, sources.__getitem__)
    most = Load("m", space, weight.dtype)
    reaches = is_sample & (value >= most - call("abs", most) * ROUNDING) & (whole | (most > 0))
    extents = tuple(tap.extent for tap in taps)
    nowhere, number = Const(i64.max, i64), flatten_index(tuple(taps), extents)
    body = Reduce("min", select(reaches, number, nowhere), tuple(taps))
    sources["p"] = generic_op(b, space, body, sources.__getitem__)
    first = Load("p", space, i64)
    last = math.prod(tap.count for tap in taps) - 1
    own = dict(zip(taps, unflatten_index(minimum(first, last), extents)))
    axis3 = Index("i4", 3)
    flat = place[0] * x.static_shape[3] + place[1]
    parts = choose(axis3, [cast(image, i64), channel, substitute(flat, own)])
    share = cast(select(first.eq(nowhere), 0, substitute(weight, own)), x.dtype)
    places = generic_op(b, [*space, axis3], parts, sources.__getitem__)
    return places, generic_op(b, space, share, sources.__getitem__)


# ---------------------------------------------------------------- MaxRoiPool


def pooled(b: Builder, op: Op, cotangents: Sequence[Value | None]) -> list[Value | None]:
    """MaxRoiPool: the first of the largest elements of a bin gets what the bin gets."""
    (g,) = cotangents
    images = op.operand(0).tensor
    places, is_there = places_of_maxima(b, op)
    return [_added(b, images, places, b.Where(is_there, g, b.constant(0, images.dtype))), None]


def _added(b: Builder, images: TensorType, places: Value, updates: Value) -> Value:
    """What is added up at places of images, zeros elsewhere."""
    zeros = filled(b, images.with_shape(flat_shape(images.static_shape)), 0)
    total = b.ScatterND(zeros, places, updates, reduction="add")
    return b.Reshape(total, np.array(images.dims, np.int64))


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
    positions = generic_op(b, space, body, sources.__getitem__)
    is_there = b.Less(positions, b.constant(i64.max, i64))
    axis = Index("i4", 3)
    number = minimum(Load("p", space, i64), max(x.static_shape[2] * x.static_shape[3] - 1, 0))
    parts = choose(axis, [cast(image, i64), channel, number])
    return generic_op(b, [*space, axis], parts, {**sources, "p": positions}.__getitem__), is_there
