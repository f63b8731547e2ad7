"""What rules ask about values: sizes, signs, constants."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from graphc.ir.extents import most
from graphc.ir.graph import Op, Value
from graphc.passes.analysis.ranges import range_of
from graphc.passes.pattern import attribute


def array_of(value: Value | None) -> np.ndarray | None:
    """The contents of a constant of numbers."""
    array = None if value is None else value.constant
    return array if array is not None and array.dtype.kind != "O" else None


def ints(value: Value | None) -> list[int] | None:
    """The elements of a constant of integers."""
    array = array_of(value)
    return None if array is None else [int(n) for n in array.reshape(-1)]


def all_equal(value: Value | None, number: float) -> bool:
    """Whether a constant's elements are all this number (0.0 is not -0.0)."""
    array = array_of(value)
    if array is None or array.size == 0 or array.dtype.kind == "c":
        return False
    flat = array.reshape(-1).astype(np.float64)
    return bool((flat == number).all() and (np.signbit(flat) == np.signbit(number)).all())


def is_normal(array: np.ndarray) -> bool:
    """Whether all elements are finite and none is zero or close to underflow."""
    if array.dtype.kind in "iub":
        return True
    magnitude = np.abs(array.astype(np.float64))
    limit = 1e30 if array.dtype.itemsize >= 4 else 1e4
    return bool(((magnitude < limit) & (magnitude > 1 / limit)).all())


def shape_of(value: Value) -> tuple[int, ...]:
    """The static shape of a tensor."""
    return value.tensor.static_shape


def most_of(value: Value) -> int:
    """The number of elements of a tensor, at the largest sizes."""
    return math.prod(map(most, value.tensor.dims))


def is_static(value: Value) -> bool:
    """Whether all dims are known; not while the type is not."""
    return value.is_static


def permutation(op: Op) -> tuple[int, ...]:
    """The perm of a Transpose, counted from the front."""
    rank = op.output.tensor.rank
    perm = attribute(op, "perm")
    return tuple(range(rank))[::-1] if perm is None else tuple(p % rank for p in perm)


def inverse(perm: Sequence[int]) -> tuple[int, ...]:
    """The permutation that undoes `perm`."""
    return tuple(int(p) for p in np.argsort(perm))


def channel_vector(value: Value | None, rank: int, axis: int, channels: int) -> np.ndarray | None:
    """A constant that varies along one axis of a tensor of this rank only, as one number per
    channel; None for anything else."""
    array = array_of(value)
    if array is None or array.ndim > rank:
        return None
    shape = (1,) * (rank - array.ndim) + array.shape
    if any(extent != 1 for n, extent in enumerate(shape) if n != axis):
        return None
    flat = array.reshape(-1)
    if flat.size not in (1, channels):
        return None
    return np.ascontiguousarray(np.broadcast_to(flat, (channels,)))


def is_nonnegative(value: Value | None) -> bool:
    """Whether no element can be below 0, or -0.0 (NaN is possible): squares, exponentials, and
    sums and means of these."""
    return range_of(value).is_nonnegative


def is_never_infinite(value: Value | None) -> bool:
    """Whether no element can be infinite (NaN is possible)."""
    return range_of(value).is_finite
