"""Gathers: loads whose index is itself loaded. Negative indices count from the end.

Indices that are out of range, which ONNX forbids, fail the run (ir/checks.py); they are clamped
besides: no backend reads outside a tensor.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphc.errors import ModelError
from graphc.ir.build import Builder
from graphc.ir.checks import must_lie
from graphc.ir.dtypes import i64
from graphc.ir.expr import Expr, minimum, select
from graphc.ir.graph import Value
from graphc.ir.opdef import Any_, Int, Known, Number, Operand, OutIndex, composite, op
from graphc.ir.ops.helpers import normal_axis, replaced, scalar_of, wrap_index
from graphc.ir.types import Dim, Shape


def _require_elements(extent: Dim, axis: int) -> None:
    if isinstance(extent, int) and extent == 0:
        raise ModelError(f"cannot gather from axis {axis}: it is empty")


def _gathered(x: Operand, indices: Operand, *, axis: int) -> Shape:
    axis = normal_axis(axis, x.rank)
    if indices.size != 0:
        _require_elements(x.shape[axis], axis)
    return (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])


@op("Gather", infer=_gathered)
def gather(i: OutIndex, x: Any_, indices: Int, *, axis: int = 0) -> Expr:
    """x[..., indices, ...]: slices of x along `axis`."""
    axis = normal_axis(axis, x.rank)
    end = axis + indices.rank
    position = wrap_index(indices[i[axis:end]], x.shape[axis])
    return x[i[:axis] + (position,) + i[end:]]


def _gathered_elements(x: Operand, indices: Operand, *, axis: int) -> Shape:
    if x.rank != indices.rank:
        raise ModelError(f"data has rank {x.rank}, indices {indices.rank}")
    axis = normal_axis(axis, x.rank)
    if indices.size != 0:
        _require_elements(x.shape[axis], axis)
    return indices.shape


@op("GatherElements", infer=_gathered_elements)
def gather_elements(i: OutIndex, x: Any_, indices: Int, *, axis: int = 0) -> Expr:
    """Each index replaces the position along `axis`; the others are those of the index itself."""
    axis = normal_axis(axis, x.rank)
    return x[replaced(tuple(i), axis, wrap_index(indices[i], x.shape[axis]))]


def _gathered_nd(x: Operand, indices: Operand, *, batch_dims: int) -> Shape:
    if indices.rank < 1 or not isinstance(indices.shape[-1], int):
        raise ModelError(f"indices {list(indices.shape)} need a last dimension of known extent")
    depth = indices.shape[-1]
    if batch_dims + depth > x.rank or batch_dims >= indices.rank:
        raise ModelError(f"{depth} indices after {batch_dims} batch dims exceed rank {x.rank}")
    return (*indices.shape[:-1], *x.shape[batch_dims + depth :])


@op("GatherND", infer=_gathered_nd)
def gather_nd(i: OutIndex, x: Any_, indices: Int, *, batch_dims: int = 0) -> Expr:
    """The last dimension of `indices` holds positions in x after its batch dimensions."""
    depth, outer = indices.shape[-1], tuple(i[: indices.rank - 1])
    selected = [wrap_index(indices[outer + (k,)], x.shape[batch_dims + k]) for k in range(depth)]
    return x[outer[:batch_dims] + tuple(selected) + i[indices.rank - 1 :]]


def _one_hot_shape(indices: Operand, depth: np.ndarray, values: Operand, *, axis: int) -> Shape:
    axis = normal_axis(axis, indices.rank + 1)
    number = scalar_of(depth, "depth")
    classes = number if isinstance(number, Expr) else int(number)
    return (*indices.shape[:axis], classes, *indices.shape[axis:])


@op("OneHot", infer=_one_hot_shape)
def one_hot(
    i: OutIndex, indices: Number, depth: Known(Number), values: Any_, *, axis: int = -1
) -> Expr:
    """values[1] at the index along a new axis, values[0] elsewhere and for indices out of range."""
    axis = normal_axis(axis, indices.rank + 1)
    index = indices[i[:axis] + i[axis + 1 :]].cast(i64)
    wrapped = select(index < 0, index + i.shape[axis], index)
    return select(wrapped.eq(i[axis]), values[1], values[0])


def _reversed_shape(x: Operand, lengths: Operand, *, batch_axis: int) -> Shape:
    if lengths.shape != x.shape[batch_axis : batch_axis + 1]:
        raise ModelError(f"found lengths {lengths.type} for {x.shape[batch_axis]} sequences")
    return x.shape


@op("ReverseSequence", infer=_reversed_shape)
def reverse_sequence(
    i: OutIndex, x: Any_, lengths: Int, *, batch_axis: int = 1, time_axis: int = 0
) -> Expr:
    """The first lengths[n] steps of sequence n reversed, the rest as they are."""
    if {batch_axis, time_axis} != {0, 1} or x.rank < 2:
        raise ModelError(f"batch_axis {batch_axis} and time_axis {time_axis} must be 0 and 1")
    step = i[time_axis]
    length = lengths[i[batch_axis]].cast(i64)
    must_lie(length, 0, x.shape[time_axis], "length")
    length = minimum(length, x.shape[time_axis])
    mirrored = select(step < length, length - 1 - step, step)
    return x[replaced(tuple(i), time_axis, mirrored)]


@composite("Hardmax")
def hardmax(b: Builder, x: Number, *, axis: int = -1) -> Value:
    """1 at the first largest element along `axis`, 0 elsewhere."""
    dtype, axis = x.tensor.dtype, normal_axis(axis, x.tensor.rank)
    if x.tensor.dims[axis] == 0:
        return b.Identity(x)
    largest = b.ArgMax(x, axis=axis, keepdims=0)
    values = b.constant([0, 1], dtype)
    return b.OneHot(largest, b.dims(np.array(x.tensor.dims[axis], object)), values, axis=axis)


@composite("Overlay", domain="graphc")
def overlay(b: Builder, x: Any_, part: Any_, *, positions: Sequence[int], axis: int = 0) -> Value:
    """x with other contents at `positions` of an axis, each there once: those of `part`."""
    axis = normal_axis(axis, x.tensor.rank)
    dims, own = x.tensor.static_shape, part.tensor.static_shape
    expected = (*dims[:axis], len(positions), *dims[axis + 1 :])
    if own != expected:
        raise ModelError(f"part must have shape {list(expected)}, found {list(own)}")
    if len(set(positions)) < len(positions) or not all(0 <= p < dims[axis] for p in positions):
        raise ModelError(
            f"positions must be from 0 to {dims[axis] - 1}, each there once, found "
            f"{list(positions)}"
        )
    places = np.full(dims[axis], -1)
    places[list(positions)] = np.arange(len(positions))
    others = tuple(d for d in range(x.tensor.rank) if d != axis)
    taken = b.Gather(part, np.maximum(places, 0), axis=axis)
    return b.Where(np.expand_dims(places >= 0, others), taken, x)
