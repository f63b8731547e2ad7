"""Operators that write to computed positions: the Scatter family and MaxUnpool.

Each copies its data and then stores update after update in order, so that with duplicate indices
the last one wins (or all are combined). Negative indices count from the end. An update whose index
is out of range fails the run (ir/checks.py); it is ignored besides, as memory must stay safe.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from graphc.errors import ModelError, UnsupportedError
from graphc.ir import dtypes
from graphc.ir.addresses import unflatten_index
from graphc.ir.checks import must_lie
from graphc.ir.dtypes import DType, i64
from graphc.ir.expr import Const, Expr, as_expr, call, cast, select
from graphc.ir.extents import at_most
from graphc.ir.imperative.collectives import Collectives, Place, Scattered
from graphc.ir.kernel import Buffer, KernelBuilder
from graphc.ir.opdef import Any_, Int, Known, Operand, OutIndex, axes, imperative, op
from graphc.ir.ops.helpers import normal_axis
from graphc.ir.types import Shape, TensorType, elements_of

_COMBINE = {"add": "add", "mul": "mul", "max": "max", "min": "min"}
_COMBINE_BOOL = {"add": "or", "max": "or", "mul": "and", "min": "and"}


def _same_dtype(x: Operand, updates: Operand) -> None:
    if updates.dtype is not x.dtype:
        raise ModelError(f"data is {x.type}, updates {updates.type}: their types must be equal")


def _scattered_elements(x: Operand, indices: Operand, updates: Operand, *, axis: int) -> TensorType:
    _same_dtype(x, updates)
    normal_axis(axis, x.rank)
    if indices.rank != x.rank:
        raise ModelError(f"data has rank {x.rank}, indices {indices.rank}")
    _check_shapes("updates", updates.shape, indices.shape)
    return x.type


def _scattered_nd(x: Operand, indices: Operand, updates: Operand) -> TensorType:
    _same_dtype(x, updates)
    depth = indices.shape[-1] if indices.rank else 0
    if not indices.rank or depth > x.rank:
        raise ModelError(f"indices are {indices.type}, but data has rank {x.rank}")
    _check_shapes("updates", updates.shape, (*indices.shape[:-1], *x.shape[depth:]))
    return x.type


def _copy(k: KernelBuilder, target: Buffer, source: Buffer) -> None:
    with k.loops(*source.shape, kind="parallel") as where:
        k.store(target, where, source[where])


def _from_end(index: Expr, extent: int) -> Expr:
    """An index into `extent` elements, negative ones counted from the end."""
    wide = cast(index, i64)
    return select(wide < 0, wide + extent, wide)


def _inside(index: Sequence[Expr], extents: Sequence[int]) -> Expr:
    inside: Expr = Const(True)
    for position, extent in zip(index, extents):
        inside = inside & (position >= 0) & (position < extent)
    return inside


def _combination(reduction: str, dtype: DType) -> Callable[[Expr, Expr], Expr] | None:
    """What an update makes of an old and a new value; None if the new one replaces the old."""
    if reduction == "none":
        return None
    table = _COMBINE_BOOL if dtype is dtypes.boolean else _COMBINE
    if reduction not in table:
        raise ModelError(f"reduction {reduction!r} is not one of none, {', '.join(table)}")
    if not dtype.is_number and dtype is not dtypes.boolean:
        raise UnsupportedError(f"reduction {reduction!r} of {dtype}")
    return partial(call, table[reduction])


def _check_shapes(name: str, found: tuple, expected: tuple) -> None:
    if tuple(found) != tuple(expected):
        raise ModelError(f"{name} has shape {list(found)}, expected {list(expected)}")


@imperative("ScatterElements", infer=_scattered_elements)
def scatter_elements(
    k: Collectives, data: Any_, indices: Int, updates: Any_, *, axis: int = 0,
    reduction: str = "none",
) -> None:  # fmt: skip
    """data with data[.., indices[p], ..] = updates[p] for every position p of indices."""
    axis = normal_axis(axis, data.rank)
    (y,) = k.outputs
    must_lie(indices[axes(*indices.shape)], -data.shape[axis], data.shape[axis] - 1)
    _copy(k, y, data)

    def place(where: Place) -> tuple[Place, Expr]:
        along = k.let(_from_end(indices[where], data.shape[axis]))
        target = (*where[:axis], along, *where[axis + 1 :])
        return target, _inside(target, data.shape)

    apart = tuple(d for d in range(data.rank) if d != axis)
    combined = _combination(reduction, data.dtype)
    k.scattered(
        Scattered(y, indices.shape, (), place, lambda where, _: updates[where], combined, apart)
    )


@imperative("ScatterND", infer=_scattered_nd)
def scatter_nd(
    k: Collectives, data: Any_, indices: Int, updates: Any_, *, reduction: str = "none"
) -> None:
    """data with data[indices[p]] = updates[p], where indices[p] picks an element or a slice."""
    depth = indices.shape[-1]
    (y,) = k.outputs
    for d, extent in enumerate(data.shape[:depth]):
        must_lie(indices[axes(*indices.shape[:-1]) + (d,)], -extent, extent - 1)
    _copy(k, y, data)

    def place(where: Place) -> tuple[Place, Expr]:
        place = [indices[where + (d,)] for d in range(depth)]
        at = tuple(k.let(_from_end(x, extent)) for x, extent in zip(place, data.shape))
        return at, _inside(at, data.shape)

    def value(where: Place, inner: Place) -> Expr:
        return updates[where + inner]

    combined = _combination(reduction, data.dtype)
    k.scattered(Scattered(y, indices.shape[:-1], data.shape[depth:], place, value, combined))


def _tensor_scatter_shape(
    past: Operand, update: Operand, write_indices: Operand | None = None, *, axis: int
) -> Shape:
    axis = normal_axis(axis, past.rank)
    extents = list(past.shape)
    extents[axis] = update.shape[axis] if update.rank == past.rank else extents[axis]
    _check_shapes("update", update.shape, tuple(extents))
    if write_indices is not None:
        _check_shapes("write_indices", write_indices.shape, past.shape[:1])
    return past.shape


@op("TensorScatter", infer=_tensor_scatter_shape)
def tensor_scatter(
    i: OutIndex, past: Any_, update: Any_, write_indices: Int = None, *, axis: int = -2,
    mode: str = "linear",
) -> Expr:  # fmt: skip
    """past with `update` written along `axis` from write_indices[batch] on, or wrapping around."""
    axis = normal_axis(axis, past.rank)
    if mode not in ("linear", "circular"):
        raise ModelError(f"mode {mode!r} is not linear or circular")
    start = as_expr(0, i64) if write_indices is None else cast(write_indices[i[0]], i64)
    last = past.shape[axis] - update.shape[axis] if mode == "linear" else i64.max
    if write_indices is not None:
        must_lie(start, 0, last)
    offset = i[axis] - start
    if mode == "circular":
        offset = offset % past.shape[axis]
    inside = (offset >= 0) & (offset < update.shape[axis])
    return select(inside, update[i[:axis] + (offset,) + i[axis + 1 :]], past[i])


# ---------------------------------------------------------------- MaxUnpool


def unpooled_shape(
    x: Buffer | Operand | TensorType,
    kernel_shape: Sequence[int],
    strides: Sequence[int],
    pads: Sequence,
) -> tuple:
    """The shape that the pooling had as input, as far as its attributes tell."""
    spatial = len(kernel_shape)
    if x.rank != spatial + 2:
        raise ModelError(f"kernel_shape has {spatial} dims, the input has rank {x.rank}")
    strides = strides or (1,) * spatial
    pads = pads or (0,) * (2 * spatial)
    dims = (
        (x.shape[d + 2] - 1) * strides[d] + kernel_shape[d] - pads[d] - pads[d + spatial]
        for d in range(spatial)
    )
    return (*x.shape[:2], *dims)


def _unpool_type(
    x: Operand, indices: Operand, output_shape: np.ndarray, kernel_shape: Sequence[int],
    strides: Sequence[int], pads: Sequence,
) -> TensorType:  # fmt: skip
    _check_shapes("indices", indices.shape, x.shape)
    shape = unpooled_shape(x, kernel_shape, strides, pads)
    if output_shape is not None:
        given = tuple(int(d) for d in np.asarray(output_shape).reshape(-1))
        if len(given) != len(shape) or not all(map(at_most, shape, given)):
            raise ModelError(f"output_shape {list(given)} is smaller than {list(shape)}")
        shape = given
    return x.type.with_shape(shape)


@imperative("MaxUnpool", infer=_unpool_type)
def max_unpool(
    k: Collectives, x: Any_, indices: Int, output_shape: Known(Int) = None, *,
    kernel_shape: Sequence[int], strides: Sequence[int] = (), pads: Sequence = (),
) -> None:  # fmt: skip
    """Zeros with x[p] at flat position indices[p] of the tensor that was pooled.

    A larger output_shape puts that tensor in the leading corner of the output.
    """
    (y,) = k.outputs
    inner = unpooled_shape(x, kernel_shape, strides, pads)
    must_lie(indices[axes(*indices.shape)], 0, y.size - 1)
    with k.loops(*y.shape, kind="parallel") as where:
        k.store(y, where, Const(0, y.dtype))

    def place(where: Place) -> tuple[Place, Expr]:
        flat = k.let(cast(indices[where], i64))
        return unflatten_index(flat, inner), (flat >= 0) & (flat < elements_of(inner))

    k.scattered(Scattered(y, x.shape, (), place, lambda where, _: x[where]))
