"""Boxes and regions that are inputs, and orders, of well-behaved numbers or of nasty ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from generator import Decline, Generator

from graphc.ir import dtypes
from graphc.ir.dtypes import DType, f32, i64
from graphc.ir.graph import Value
from templates.table import template

FAMILY = "regions"
NASTY = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -7.0)
FAR = (1e30, -1e30)


def given(g: Generator, values: np.ndarray, dtype: DType = f32) -> Value:
    """An input of these contents, which nothing else is computed of."""
    value = g.input(dtype, values.shape)
    g.inputs[-1] = values.astype(dtype.np)
    g.pool.remove(value)
    return value


def spoilt(g: Generator, values: np.ndarray, items: Sequence[float] = NASTY) -> np.ndarray:
    """With some nasty numbers among them, which ONNX Runtime does not judge."""
    if g.chance(0.6) or not values.size:
        return values
    g.for_onnxruntime = False
    where = g.rng.random(values.shape) < g.choice((0.03, 0.2, 0.7))
    return np.where(where, g.rng.choice(items, values.shape), values)


def corners(g: Generator, shape: Sequence[int], most: int) -> np.ndarray:
    """Boxes of two corners."""
    low = g.rng.integers(0, most, (*shape, 2))
    high = low + g.rng.integers(0 if g.chance(0.2) else 1, 9, low.shape)
    return np.concatenate([low, high], -1).astype(np.float32)


@template(3, family=FAMILY)
def boxes_that_stand_out(g: Generator) -> None:
    batch, classes = g.choice((1, 1, 2)), g.choice((1, 1, 2, 5, 17))
    count = g.choice((0, 1, 2, 3, 7, 8, 9, 16, 17, 33, 100))
    boxes = corners(g, (batch, count), g.choice((3, 20, 100)))
    if g.chance(0.2):
        boxes = boxes[..., [2, 3, 0, 1]]  # corners in another order
    scores = g.rng.permutation(batch * classes * count).reshape(batch, classes, count) / 256
    if g.chance(0.3):
        scores = np.floor(scores * 8) / 8  # ties
        g.for_onnxruntime = False
    g.for_onnxruntime &= count > 0
    boxes = spoilt(g, boxes, NASTY + FAR)
    scores = spoilt(g, scores, NASTY + FAR)
    most = np.array([g.choice((0, 1, 3, 100, 1 << 40))], np.int64)
    threshold = np.array([g.choice((0.0, 0.1, 0.33, 0.7, 1.0))], np.float32)
    least = [np.array([g.choice((0.11, -1.0, 0.0))], np.float32)] if g.chance(0.5) else []
    g.emit("NonMaxSuppression", given(g, boxes), given(g, scores), most, threshold, *least,
           center_point_box=g.choice((0, 0, 1)), final=True)  # fmt: skip


def image(g: Generator) -> Value:
    x = g.data(g.integer(1, 3), g.choice((1, 2, 3, 8, 17)), g.integer(1, 20), g.integer(1, 20),
               dtype=g.choice((f32, f32, f32, dtypes.f64, dtypes.f16)))  # fmt: skip
    if g.chance(0.3):
        x = g.emit("Transpose", x, perm=[0, 1, 3, 2], keeps=True)
    return x


def which_images(g: Generator, x: Value, count: int) -> np.ndarray:
    low = -x.tensor.dims[0] - 1 if g.chance(0.1) else 0
    if low:
        g.for_onnxruntime = False
    return g.rng.integers(low, x.tensor.dims[0] - 2 * low, count)


@template(2, family=FAMILY)
def averages_of_regions(g: Generator) -> None:
    x = image(g)
    count, ratio = g.choice((0, 1, 2, 5)), g.integer(0, 3)
    boxes = corners(g, (count,), 12) + np.float32(0.25)
    boxes = spoilt(g, boxes, NASTY + FAR)
    which = given(g, which_images(g, x, count), i64)
    mode = g.choice(("avg", "avg", "max"))
    g.for_onnxruntime &= mode == "avg" and x.tensor.dtype is f32 and count > 0
    g.emit("RoiAlign", x, given(g, boxes, x.tensor.dtype), which, mode=mode, sampling_ratio=ratio,
           output_height=g.integer(1, 9), output_width=g.integer(1, 17),
           spatial_scale=g.choice((0.5, 1.0, 2.0)),
           coordinate_transformation_mode=g.choice(("half_pixel", "output_half_pixel"))
           )  # fmt: skip


@template(2, family=FAMILY)
def largest_of_regions(g: Generator) -> None:
    x = image(g)
    count = g.choice((0, 1, 2, 5))
    boxes = corners(g, (count,), 12)
    regions = np.concatenate([which_images(g, x, count)[:, None], boxes], -1)
    regions = spoilt(g, regions, NASTY + FAR)
    g.for_onnxruntime &= count > 0 and x.tensor.dtype is f32
    g.emit("MaxRoiPool", x, given(g, regions, x.tensor.dtype),
           pooled_shape=[g.integer(1, 9), g.integer(1, 17)],
           spatial_scale=g.choice((0.5, 1.0, 2.0)), keeps=True)  # fmt: skip


@template(3, family=FAMILY)
def orders(g: Generator) -> None:
    """The largest or smallest, of few or many, with ties, NaN and infinities."""
    rank = g.integer(1, 3)
    dims = [g.extent(1, (1025, 129, 17)[rank - 1]) for _ in range(rank)]
    if g.chance(0.05):
        dims[g.integer(0, rank - 1)] = 0
    dtype = g.choice(tuple(map(dtypes.of, ("f32", "f32", "f64", "f16", "i32", "i64", "u8", "i8"))))
    values = g.array(dtype, dims)
    if g.chance(0.4):
        values = values // dtype.np.type(2)
    if dtype.is_float:
        values = spoilt(g, values, NASTY + (1e4, -1e4))
    x = given(g, values, dtype)
    g.exact.add(x)
    if g.chance(0.3):
        x = g.emit("Transpose", x, perm=[int(n) for n in g.rng.permutation(rank)], keeps=True)
    axis = g.axis(x)
    length = x.tensor.dims[axis]
    if x.tensor.size == 0:
        g.for_onnxruntime = False
    count = g.choice((0, 1, 2, 5, length // 2, length))
    if count > length:
        raise Decline
    in_order = g.choice((1, 1, 1, 0))
    g.for_onnxruntime &= dtype in (f32, dtypes.f64, i64, dtypes.i32) and count > 0 and in_order > 0
    g.emit("TopK", x, np.array([count], np.int64), axis=axis, largest=g.integer(0, 1),
           sorted=in_order, outputs=2, keeps=True)  # fmt: skip


@template(1, family=FAMILY)
def kept(g: Generator) -> None:
    """Elements that are not zero, compressed or unique ones."""
    dims = [g.extent(1, most) for most in g.choice(((1025,), (33, 65), (5, 9, 17)))]
    dtype = g.choice((f32, dtypes.f16, i64, dtypes.u8))
    values = np.where(g.rng.random(dims) < 0.5, g.array(dtype, dims), dtype.np.type(0))
    if dtype.is_float:
        values = spoilt(g, values)
    x = given(g, values, dtype)
    g.exact.add(x)
    name = g.choice(("NonZero", "Compress", "Unique"))
    g.for_onnxruntime &= dtype in (f32, i64)
    if name == "NonZero":
        g.emit(name, x, final=True)
    elif name == "Compress":
        axis = g.integer(0, len(dims) - 1)
        mask = given(g, g.rng.random(dims[axis]) < g.choice((0.0, 0.5, 1.0)), dtypes.boolean)
        g.emit(name, x, mask, axis=axis, final=True)
    else:
        axis = {"axis": g.integer(0, len(dims) - 1)} if g.chance(0.4) else {}
        g.for_onnxruntime = False
        g.emit(name, x, final=True, outputs=4, sorted=g.integer(0, 1), **axis)
