"""ONNX Runtime's operators on images: poolings, crops, slices, and a transposed convolution.

Reference: docs/ContribOperators.md of ONNX Runtime, and its CPU kernels where that says nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphc.errors import ModelError, UnsupportedError
from graphc.ir import dtypes
from graphc.ir.build import Builder
from graphc.ir.expr import (
    Const,
    Expr,
    as_expr,
    cast,
    ceil,
    floor,
    maximum,
    minimum,
    reduce,
    select,
)
from graphc.ir.graph import Value
from graphc.ir.opdef import Any_, Float, Int, Known, Operand, OutIndex, axes, composite, linear, op
from graphc.ir.ops.helpers import RUNTIME, RUNTIME_TRAITS, ints_of, normal_axis, plain_index
from graphc.ir.ops.onnxruntime.fused import with_channels_second
from graphc.ir.types import Shape
from graphc.ir.window import POOL, guard, make_window, pooled_shape, positions

LOWEST = float(np.finfo(np.float32).min)

# ---------------------------------------------------------------- poolings


@composite("NhwcMaxPool", domain=RUNTIME, traits=RUNTIME_TRAITS)
def nhwc_max_pool(b: Builder, x: Int, *, kernel_shape: Sequence[int], **attrs: POOL) -> Value:
    """MaxPool of x and a result with the channels last."""
    return with_channels_second(b, x, lambda v: b.MaxPool(v, kernel_shape=kernel_shape, **attrs))


def _masked_shape(
    x: Operand, mask: Operand, *, kernel_shape: Sequence[int], **attrs: POOL
) -> Shape:
    if mask.shape != (1, 1, *x.shape[2:]):
        raise UnsupportedError(
            f"the mask must be {[1, 1, *x.shape[2:]]}, found {mask.type}: ONNX Runtime reads masks "
            "of several channels at positions that are not theirs"
        )
    return pooled_shape(x, kernel_shape=kernel_shape, **attrs)


@op("MaxpoolWithMask", domain=RUNTIME, infer=_masked_shape)
def max_pool_with_mask(
    i: OutIndex, x: Float, mask: Int, *, kernel_shape: Sequence[int], storage_order: int = 0,
    **attrs: POOL,
) -> Expr:  # fmt: skip
    """The largest element of each window, in each of whose rows nothing counts from the first on
    whose mask is 0; the first element of an image counts always, unless there is one axis only."""
    window = make_window(x.shape[2:], kernel_shape, **attrs)
    taps, (last,) = axes(*kernel_shape), axes(kernel_shape[-1], name="m")
    where = positions(window, i[2:], taps)
    before = (*where[:-1], window[-1].position(i[-1], last))
    at = (0, 0, *before)
    hidden = mask[at].eq(0)
    if len(window) > 1:
        hidden = hidden & linear(before, x.shape[2:]).ne(0)
    inside = guard(window, i[2:], (*taps[:-1], last))
    seen = reduce("max", select((last <= taps[-1]) & inside & hidden, 1, 0), (last,)).eq(0)
    lowest = Const(LOWEST, x.dtype)
    counts = guard(window, i[2:], taps) & seen
    value = x[i[:2] + where]
    return reduce("max", select(counts & (value > lowest), value, lowest), taps)


# ---------------------------------------------------------------- convolution, slices


@composite("ConvTransposeWithDynamicPads", domain=RUNTIME, traits=RUNTIME_TRAITS)
def conv_transpose_with_dynamic_pads(
    b: Builder, x: Float, w: Float, pads: Known(Int) = None, bias: Float | None = None, *,
    auto_pad: str = "NOTSET", dilations: Sequence[int] | None = None, group: int = 1,
    kernel_shape: Sequence[int] | None = None, output_padding: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Value:  # fmt: skip
    """ConvTranspose whose pads are an operand."""
    return b.ConvTranspose(
        x, w, bias, auto_pad=auto_pad, dilations=dilations, group=group, kernel_shape=kernel_shape,
        output_padding=output_padding, pads=None if pads is None else ints_of(pads),
        strides=strides,
    )  # fmt: skip


def _unfolded_shape(x: Operand, *, dim: int, size: int, step: int) -> Shape:
    axis = normal_axis(dim, x.rank, "dim")
    if size < 1 or step < 1 or size > x.shape[axis]:
        raise ModelError(f"slices of {size}, {step} apart, do not fit into {x.type}")
    return (*x.shape[:axis], (x.shape[axis] - size) // step + 1, *x.shape[axis + 1 :], size)


@op("UnfoldTensor", domain=RUNTIME, infer=_unfolded_shape)
def unfold_tensor(i: OutIndex, x: Any_, *, dim: int = -1, size: int, step: int = 1) -> Expr:
    """The slices of `size` along a dim, `step` apart; what is in a slice becomes the last dim."""
    axis = normal_axis(dim, x.rank)
    return x[i[:axis] + (i[axis] * step + i[-1],) + i[axis + 1 : -1]]


# ---------------------------------------------------------------- CropAndResize


def _cropped_shape(x: Operand, boxes: Operand, images: Operand, size: np.ndarray) -> Shape:
    sizes = ints_of(size)
    if x.rank != 4 or boxes.rank != 2 or boxes.shape != (*images.shape, 4):
        raise ModelError(
            f"takes [N, C, H, W], [R, 4] and [R], found {x.type}, {boxes.type} and {images.type}"
        )
    if len(sizes) != 2 or min(sizes) < 1:
        raise ModelError(f"crop_size must be two positive numbers, found {sizes}")
    return (boxes.shape[0], x.shape[1], *sizes)


@op("CropAndResize", domain=RUNTIME, infer=_cropped_shape)
def crop_and_resize(
    i: OutIndex, x: Float, boxes: Float, images: Int, size: Known(Int), *,
    extrapolation_value: float = 0.0, mode: str = "bilinear",
) -> Expr:  # fmt: skip
    """A box (y1, x1, y2, x2) of an image each, from 0 to 1, sampled at crop_size points from
    corner to corner; what lies outside is `extrapolation_value`."""
    if mode not in ("bilinear", "nearest"):
        raise ModelError(f"mode must be bilinear or nearest, found {mode!r}")
    image = plain_index(images[i[0]], x.shape[0])
    points = [
        _sampled(boxes, i[0], axis, i[2 + axis], ints_of(size)[axis], x.shape[2 + axis])
        for axis in range(2)
    ]
    outside = Const(False, dtypes.boolean)
    for point, extent in zip(points, x.shape[2:]):
        outside = outside | (point < 0) | (point > extent - 1)

    def at(*where: Expr) -> Expr:
        inner = tuple(map(_within, where, x.shape[2:]))
        return x[(image, i[1]) + inner]

    if mode == "nearest":
        value: Expr = at(*map(_nearest, points))
    else:
        y, z = points
        top, left = floor(y), floor(z)
        upper, lower = (
            _between(at(row, left), at(row, ceil(z)), z - left) for row in (top, ceil(y))
        )
        value = _between(upper, lower, y - top)
    return select(outside, extrapolation_value, value)


def _nearest(point: Expr) -> Expr:
    """The whole number next to a point, the upper one of two."""
    return select(point - floor(point) >= 0.5, ceil(point), floor(point))


def _between(a: Expr, b: Expr, way: Expr) -> Expr:
    return a + (b - a) * way


def _sampled(boxes: Operand, box: Expr, axis: int, o: Expr, count: int, extent: int) -> Expr:
    """The position of point `o` of `count` from one side of a box to the other."""
    start, end = boxes[box, axis], boxes[box, axis + 2]
    if count == 1:
        return (start + end) * 0.5 * (extent - 1)
    step = (end - start) * (extent - 1) / (count - 1)
    inner = start * (extent - 1) + cast(o, boxes.dtype) * step
    return select(o.eq(count - 1), end * (extent - 1), inner)


def _within(position: Expr, extent: int) -> Expr:
    """A position as an index in range, wherever it lies."""
    bounded = minimum(maximum(position, 0.0), float(extent - 1))
    return cast(bounded, dtypes.i64) if extent > 1 else as_expr(0, dtypes.i64)
