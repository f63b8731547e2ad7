"""Operators that assemble a tensor from parts: joins, pads, crops, masks and generated contents.

Parts are guarded loads: `select(position inside, load, fill)`, whose untaken side is not evaluated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from graphc.errors import ModelError
from graphc.ir import dtypes
from graphc.ir.build import Builder
from graphc.ir.dtypes import DType, f32, i64
from graphc.ir.expr import Const, Expr, as_expr, maximum, reduce, select
from graphc.ir.extents import as_dim, at_most, divided
from graphc.ir.graph import Value
from graphc.ir.opdef import Any_, Float, Int, Known, Number, Operand, OutIndex, composite, op
from graphc.ir.opdef import axes as fresh_axes
from graphc.ir.ops.helpers import (
    all_of,
    choose,
    choose_segment,
    dims_of,
    inside,
    ints_of,
    normal_axes,
    normal_axis,
    numbers_of,
    only_element,
    replaced,
    scalar_of,
    wide,
    zero,
)
from graphc.ir.simplify import bounds
from graphc.ir.types import Dim, Shape, at

# ---------------------------------------------------------------- joins


def _joined(*parts: Operand, axis: int) -> Shape:
    axis = normal_axis(axis, parts[0].rank)
    first = replaced(parts[0].shape, axis, 0)
    for part in parts:
        if part.rank != len(first) or replaced(part.shape, axis, 0) != first:
            raise ModelError(f"parts {[list(p.shape) for p in parts]} differ outside axis {axis}")
    total = sum(part.shape[axis] for part in parts)
    return replaced(parts[0].shape, axis, total)


@op("Concat", infer=_joined)
def concat(i: OutIndex, *parts: Any_, axis: int) -> Expr:
    """The parts one after the other along `axis`."""
    axis = normal_axis(axis, parts[0].rank)
    starts, loads, start = [], [], 0
    for part in parts:
        extent = part.shape[axis]
        if isinstance(extent, int) and extent == 0 and len(parts) > 1:
            continue
        starts.append(start)
        loads.append(part[replaced(tuple(i), axis, i[axis] - start)])
        start = start + extent
    return choose_segment(i[axis], starts, loads) if loads else zero(parts[0].dtype)


# ---------------------------------------------------------------- pads and crops


def _paddings(x: Operand, pads: np.ndarray, axes: np.ndarray | None) -> dict[int, tuple[Dim, Dim]]:
    """Elements to add before and after each padded axis (negative: to drop)."""
    amounts = numbers_of(pads)
    chosen = list(range(x.rank)) if axes is None else normal_axes(axes, x.rank)
    if len(amounts) != 2 * len(chosen):
        raise ModelError(f"pads {amounts} must hold 2 values for each of {len(chosen)} axes")
    return dict(zip(chosen, zip(amounts, amounts[len(chosen) :])))


def _padded(x: Operand, pads: np.ndarray, value: Operand | None, axes: np.ndarray | None) -> Shape:
    amounts = _paddings(x, pads, axes)
    shape = tuple(as_dim(e + sum(amounts.get(n, (0, 0)))) for n, e in enumerate(x.shape))
    if not all(at_most(0, extent) for extent in shape):
        raise ModelError(f"{list(x.shape)} is padded to {list(shape)}, which may be less than 0")
    return shape


def _reflected(position: Expr, extent: Dim, before: Dim, after: Dim) -> Expr:
    """Mirrored at the first and last element, which are not repeated."""
    if extent == 1:
        return as_expr(0, i64)
    last = extent - 1
    if at_most(before, last) and at_most(after, last):
        mirrored = select(position > last, last * 2 - position, position)
        return select(position < 0, -position, mirrored)
    turn = position % as_dim(maximum(as_expr(2 * last, i64), 1))
    return select(turn > last, 2 * last - turn, turn)


def _clamped(position: Expr, extent: Dim, before: Dim, after: Dim) -> Expr:
    return select(position < 0, 0, select(position >= extent, extent - 1, position))


def _wrapped(position: Expr, extent: Dim, before: Dim, after: Dim) -> Expr:
    return position % extent


_FOLDS = {"reflect": _reflected, "edge": _clamped, "wrap": _wrapped}


@op("Pad", infer=_padded)
def pad(
    i: OutIndex, x: Any_, pads: Known(Int), value: Any_ = None, axes: Known(Int) = None, *,
    mode: str = "constant",
) -> Expr:  # fmt: skip
    """x with elements added around it: a constant, or x mirrored, clamped or wrapped.

    What negative pads drop is dropped first, and not repeated on the other side.
    """
    amounts = _paddings(x, pads, axes)
    index, guards = list(i), []
    for axis, (before, after) in amounts.items():
        extent, position = x.shape[axis], i[axis] - before
        if mode == "constant":
            guards += [position >= 0] * (not at_most(before, 0))
            guards += [position < extent] * (not at_most(after, 0))
        elif mode not in _FOLDS:
            raise ModelError(f"mode must be constant, reflect, edge or wrap, found {mode!r}")
        elif not (at_most(before, 0) and at_most(after, 0)):
            first = as_dim(maximum(as_expr(-before, i64), 0))
            kept = as_dim(extent - first - maximum(as_expr(-after, i64), 0))
            if not at_most(1, kept):
                raise ModelError(f"mode {mode} cannot pad axis {axis}: it is empty")
            position = _FOLDS[mode](position - first, kept, before, after) + first
        index[axis] = position
    if not guards:
        return x[tuple(index)]
    fill = zero(x.dtype) if value is None else only_element(value)
    return select(all_of(guards), x[tuple(index)], fill)


def _centred(x: Operand, shape: np.ndarray, *, axes: Sequence[int] | None) -> Shape:
    return _centre_sizes(x, shape, axes)


def _centre_sizes(x: Operand, shape: np.ndarray, axes: Sequence[int] | None) -> tuple:
    wanted = dims_of(shape, 0)
    chosen = list(range(x.rank)) if axes is None else normal_axes(axes, x.rank)
    if len(wanted) != len(chosen):
        raise ModelError(f"shape {wanted} must hold one extent for each of {len(chosen)} axes")
    sizes = list(x.shape)
    for axis, extent in zip(chosen, wanted):
        sizes[axis] = extent
    return tuple(sizes)


@op("CenterCropPad", infer=_centred)
def center_crop_pad(
    i: OutIndex, x: Any_, shape: Known(Int), *, axes: Sequence[int] | None = None
) -> Expr:
    """The middle of x, or x in the middle of zeros, axis by axis."""
    index, guards = [], []
    for position, extent, wanted in zip(i, x.shape, i.shape):
        more = as_expr(extent, i64) - wanted
        shift = as_dim(select(more > 0, more // 2, -(-more // 2)))
        index.append(position + shift)
        if not at_most(wanted, extent):
            guards.append(inside(position + shift, extent))
    load = x[tuple(index)]
    return select(all_of(guards), load, zero(x.dtype)) if guards else load


@op("Trilu", infer=lambda x, k: x.shape)
def trilu(i: OutIndex, x: Any_, k: Int = None, *, upper: int = 1) -> Expr:
    """The upper or lower triangle of each matrix, from diagonal k on; zeros elsewhere."""
    if x.rank < 2:
        raise ModelError(f"takes matrices, found rank {x.rank}")
    diagonal = i[-1] - i[-2]
    offset = as_expr(0, i64) if k is None else only_element(k).cast(i64)
    kept = diagonal >= offset if upper else diagonal <= offset
    return select(kept, x[i], zero(x.dtype))


# ---------------------------------------------------------------- generated contents


def _part_of_shape(x: Operand, start: Dim, end: int | None) -> list:
    return list(x.shape)[slice(start, end)]


def _clamped_range(x: Operand, *, start: Dim, end: int | None) -> Shape:
    return (len(_part_of_shape(x, start, end)),)


@op("Shape", infer=_clamped_range)
def shape_op(i: OutIndex, x: Any_, *, start: int = 0, end: int | None = None) -> Expr:
    """The extents of x, or those from `start` to `end`."""
    dims = [as_expr(extent, i64) for extent in _part_of_shape(x, start, end)]
    return choose(i[0], dims) if dims else as_expr(0, i64)


@op("Size", infer=lambda x: ())
def size_op(i: OutIndex, x: Any_) -> Expr:
    """The number of elements of x."""
    return as_expr(x.size, i64)


def _filled_shape(shape: np.ndarray) -> Shape:
    return tuple(dims_of(shape, 0))


@op("ConstantOfShape", infer=_filled_shape)
def constant_of_shape(i: OutIndex, shape: Known(Int), *, value: np.ndarray | None = None) -> Expr:
    """A tensor filled with one value, float32 zero by default."""
    if value is None:
        return Const(0, f32)
    if np.asarray(value).size != 1:
        raise ModelError(f"value must hold one element, found shape {list(np.shape(value))}")
    return literal(np.asarray(value).reshape(-1)[0], dtypes.of(np.asarray(value).dtype))


def literal(value: np.generic, dtype: DType) -> Const:
    """A constant from a numpy scalar of any dtype."""
    if dtype.is_float:
        return Const(float(value), dtype)
    return Const(int(value) if dtype.is_integer else value, dtype)


def _range_length(start: np.ndarray, limit: np.ndarray, delta: np.ndarray) -> Shape:
    if any(v.dtype.kind == "O" for v in (start, limit, delta)):
        return _open_length(start, limit, delta)
    first, last, by = (scalar_of(v, "an operand of Range") for v in (start, limit, delta))
    if by == 0:
        raise ModelError("delta must not be 0")
    if isinstance(by, float):
        return (max(0, math.ceil((last - first) / by)),)
    return (len(range(first, last, by)),)


def _open_length(start: np.ndarray, limit: np.ndarray, delta: np.ndarray) -> Shape:
    """The length of a range between dimensions; steps of 1."""
    first, last, by = (v.reshape(-1)[0] for v in (start, limit, delta))
    length = at(last - first, {})
    if isinstance(by, Expr) or by != 1 or isinstance(length, Expr) and bounds(length)[0] < 0:
        raise ModelError(f"a range from {first} to {last} by {by} may have no elements")
    return (length,)


@op("Range", infer=_range_length)
def range_op(
    i: OutIndex, start: Known(Number), limit: Known(Number), delta: Known(Number), *,
    stash_type: int = 1,
) -> Expr:  # fmt: skip
    """start, start + delta, ... up to limit, which is left out."""
    open_dims = any(v.dtype.kind == "O" for v in (start, limit, delta))
    dtype = i64 if open_dims else dtypes.of(np.asarray(start).dtype)
    stash = dtype.compute if stash_type == dtypes.f32.onnx else dtype
    held = (np.asarray(v).reshape(-1)[0] for v in (start, delta))
    first, by = ((v if isinstance(v, Expr) else literal(v, dtype)).cast(stash) for v in held)
    return (first + i[0].cast(stash) * by).cast(dtype)


@op("EyeLike", infer=lambda x: x.shape)
def eye_like(i: OutIndex, x: Any_, *, dtype: int | None = None, k: int = 0) -> Expr:
    """Ones on diagonal k of a matrix shaped as x, zeros elsewhere."""
    if x.rank != 2:
        raise ModelError(f"takes a matrix, found rank {x.rank}")
    target = x.dtype if dtype is None else dtypes.of(dtype)
    return (i[1] - i[0]).eq(k).cast(target)


# ---------------------------------------------------------------- images and columns


@composite("Upsample")
def upsample(b: Builder, x: Any_, scales: Known(Float), *, mode: str = "nearest") -> Value:
    """x enlarged by whole or fractional scales: Resize with asymmetric coordinates."""
    return b.Resize(
        x, None, scales, mode=mode, coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )  # fmt: skip


def _image_shape(x: Operand, image_shape: np.ndarray, block_shape: np.ndarray) -> Shape:
    block = math.prod(ints_of(block_shape))
    channels, rest = divided(x.shape[1], block) if x.rank == 3 else (0, 1)
    if rest != 0:
        raise ModelError(f"{list(x.shape)} does not hold columns of {block} elements")
    return (x.shape[0], channels, *ints_of(image_shape))


@op("Col2Im", infer=_image_shape)
def col2im(
    i: OutIndex, x: Number, image_shape: Known(Int), block_shape: Known(Int), *,
    dilations: Sequence[int] | None = None, pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Expr:  # fmt: skip
    """Columns added back into the image blocks they were taken from.

    A pixel p is reached by tap k of the block at b where b * stride + k * dilation = p + pad.
    """
    image, block = ints_of(image_shape), ints_of(block_shape)
    rank = len(image)
    dilation, stride = dilations or (1,) * rank, strides or (1,) * rank
    pad = pads or (0,) * (2 * rank)
    extents = [
        (image[d] + pad[d] + pad[d + rank] - dilation[d] * (block[d] - 1) - 1) // stride[d] + 1
        for d in range(rank)
    ]
    if math.prod(extents) != x.shape[2]:
        raise ModelError(f"{x.shape[2]} blocks found, {extents} expected")
    taps = fresh_axes(*block)
    reached = [i[d + 2] + pad[d] - taps[d] * dilation[d] for d in range(rank)]
    guards = [
        inside(r, n * s) if s == 1 else inside(r, (n - 1) * s + 1) & (r % s).eq(0)
        for r, n, s in zip(reached, extents, stride)
    ]
    column: Expr = i[1]
    place: Expr = as_expr(0, i64)
    for d in range(rank):
        column = column * block[d] + taps[d]
        place = place * extents[d] + reached[d] // stride[d]
    load = wide(x[i[0], column, place])
    return reduce("sum", select(all_of(guards), load, zero(load.dtype)), taps).cast(x.dtype)
