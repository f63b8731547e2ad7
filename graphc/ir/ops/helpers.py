"""What operator bodies share: axes, guarded indices, wide arithmetic, choices among constants.

Bodies see static dimensions, but these helpers take symbolic ones wherever that is free. Arithmetic
with more than one rounding is done in `dtype.compute` (float32 for the narrow floats) and rounded
to the operand's type once, as ONNX Runtime does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from graphc.errors import ModelError, UnsupportedError
from graphc.ir import dtypes
from graphc.ir.build import Builder
from graphc.ir.checks import must_lie
from graphc.ir.dtypes import DType, boolean, i64
from graphc.ir.expr import TRUE, Const, Expr, as_expr, maximum, minimum, select
from graphc.ir.extents import as_dim
from graphc.ir.graph import Value
from graphc.ir.opdef import Operand
from graphc.ir.simplify import bounds
from graphc.ir.types import Dim, Shape

RUNTIME = "com.microsoft"  # the domain of ONNX Runtime's own operators
RUNTIME_TRAITS = ("alias",)  # they are replaced by ONNX's before rules look for those
MOST_GENERATED = 1 << 26  # elements of a table that an operator makes at compile time


def check_table(*shape: int) -> None:
    """UnsupportedError if an operator would make too large a table of this shape."""
    if math.prod(shape) > MOST_GENERATED:
        raise UnsupportedError(
            f"needs a table of shape {list(shape)}, at most {MOST_GENERATED} elements are possible"
        )


def wide(value: Expr) -> Expr:
    """`value` in the type that operations on it are carried out in. Bodies that round more than
    once are widened anyway (wide_bodies.py); this has comparisons and selections be wide too."""
    return value.cast(value.dtype.compute)


def zero(dtype: DType) -> Const:
    """The zero of a dtype; "" for strings."""
    if dtype.kind == "string":
        return Const("", dtype)
    return Const(False if dtype is boolean else 0, dtype)


def normal_axis(axis: int, rank: int, what: str = "axis") -> int:
    """A possibly negative axis as 0 .. rank-1; ModelError if it is out of range."""
    if not -rank <= axis < rank:
        raise ModelError(f"{what} {axis} is out of range for rank {rank}")
    return int(axis) % rank


def normal_axes(axes: Sequence[int] | np.ndarray, rank: int, what: str = "axis") -> list[int]:
    """Several axes as 0 .. rank-1, all different; a scalar is one."""
    given = np.asarray(axes)
    if given.ndim > 1:
        raise ModelError(f"axes must be a vector, found shape {list(given.shape)}")
    result = [normal_axis(int(a), rank, what) for a in given.reshape(-1)]
    if len(set(result)) != len(result):
        raise ModelError(f"axes {given.tolist()} name a dimension twice (rank {rank})")
    return result


def float_type(number: int, what: str) -> DType:
    """The float type of an ONNX number, which the attribute `what` holds. 0, no type, is float32,
    as ONNX Runtime has it."""
    dtype = dtypes.BY_ONNX.get(number or dtypes.f32.onnx)
    if dtype is None or not dtype.is_float:
        raise ModelError(f"{what} must be the number of a float type, found {number}")
    return dtype


def scalar_of(known: np.ndarray, what: str) -> Any:
    """The only element of a known operand, as a Python number, or what it is made of sizes."""
    array = np.asarray(known)
    if array.size != 1:
        raise ModelError(f"{what} must hold one element, found shape {list(array.shape)}")
    element = array.reshape(-1)[0]
    return element.item() if isinstance(element, np.generic) else element


def ints_of(known: np.ndarray | Sequence[int]) -> list[int]:
    """The elements of a known integer operand."""
    return [int(v) for v in np.asarray(known).reshape(-1)]


def numbers_of(known: np.ndarray) -> list[Dim]:
    """The elements of a known integer operand that may hold sizes."""
    return [v if isinstance(v, Expr) else int(v) for v in np.asarray(known).reshape(-1)]


def dims_of(known: np.ndarray, least: int = 1) -> list[Dim]:
    """The elements of a known operand that holds dimensions. ModelError if one of open size may be
    less than `least`: 0 and -1 have meanings of their own in some operators."""
    dims = numbers_of(known)
    for dim in dims:
        if isinstance(dim, Expr) and bounds(dim)[0] < least:
            raise ModelError(f"dimension {dim} may be less than {least}")
    return dims


def only_element(operand: Operand) -> Expr:
    """The element of an operand that holds exactly one, whatever its rank."""
    if operand.size != 1:
        raise ModelError(f"expected one element, found shape {list(operand.shape)}")
    return operand[(0,) * operand.rank]


def wrap_index(index: Expr, extent: Dim) -> Expr:
    """An index read from data: negative counts from the end. One that is out of range fails the
    run (ir/checks.py); it is kept in range nevertheless, so that no load strays."""
    index = index.cast(i64)
    must_lie(index, -extent, extent - 1)
    return clamped(select(index < 0, index + extent, index), extent)


def plain_index(index: Expr, extent: Dim) -> Expr:
    """As `wrap_index`, where a negative index is out of range."""
    index = index.cast(i64)
    must_lie(index, 0, extent - 1)
    return clamped(index, extent)


def clamped(index: Expr, extent: Dim) -> Expr:
    """The nearest index that is in range."""
    return minimum(maximum(index.cast(i64), 0), as_expr(extent, i64) - 1)


def shorter(one: Dim, other: Dim) -> Dim:
    """The smaller of two extents."""
    if isinstance(one, int) and isinstance(other, int):
        return min(one, other)
    return as_dim(minimum(as_expr(one, i64), as_expr(other, i64)))


def sliced(b: Builder, x: Value, start: Dim, end: Dim, axis: int) -> Value:
    """The positions from `start` up to `end` of an axis; x itself if these are all."""
    if (start, as_dim(end)) == (0, x.tensor.dims[axis]):
        return x
    return b.Slice(x, *(b.dims([as_dim(number)]) for number in (start, end, axis)))


def shaped(b: Builder, x: Value, *shape: Dim) -> Value:
    """The elements of x in another shape, whose zeros are extents."""
    shape = tuple(map(as_dim, shape))
    return b.Reshape(x, b.dims(shape), allowzero=1 if 0 in shape else None)


def filled(b: Builder, number: float, shape: Shape, dtype: DType) -> Value:
    """A tensor of one number."""
    if all(isinstance(extent, int) for extent in shape):
        return b.constant(np.full(shape, number, dtype.np))
    return b.Expand(b.constant(number, dtype), b.dims(shape))


def counted(
    b: Builder, count: Dim, start: Dim = 0, dtype: DType = i64, shape: tuple[int, ...] = (-1,)
) -> Value:
    """`count` integers from `start` on, in a shape of which one dimension is -1."""
    if isinstance(count, int) and isinstance(start, int):
        return b.constant(np.arange(start, start + count, dtype=dtype.np).reshape(shape))
    limits = (np.array(as_dim(limit), object) for limit in (start, start + count))
    numbers = b.Range(*map(b.dims, limits), np.array(1))
    numbers = numbers if dtype is i64 else b.Cast(numbers, to=dtype.onnx)
    return numbers if len(shape) == 1 else b.Reshape(numbers, np.array(shape))


def joined(b: Builder, values: Sequence[Value], axis: int) -> Value:
    """Values one after the other; only one as it is."""
    return values[0] if len(values) == 1 else b.Concat(*values, axis=axis)


def same_shape(x: Operand, *_: object) -> Shape:
    """A shape rule: that of the first operand."""
    return x.shape


def inside(position: Expr, extent: Dim) -> Expr:
    """0 <= position < extent."""
    return (position >= 0) & (position < extent)


def all_of(conditions: Sequence[Expr]) -> Expr:
    """The conjunction of boolean expressions."""
    result: Expr = TRUE
    for condition in conditions:
        result = result & condition
    return result


def choose(index: Expr, values: Sequence[Expr]) -> Expr:
    """values[index], as a balanced tree of selects."""
    return choose_segment(index, list(range(len(values))), values)


def choose_segment(position: Expr, starts: Sequence, values: Sequence[Expr]) -> Expr:
    """The value of the segment that `position` lies in; segment k begins at starts[k]."""
    if len(values) == 1:
        return values[0]
    half = len(values) // 2
    return select(
        position < starts[half],
        choose_segment(position, starts[:half], values[:half]),
        choose_segment(position, starts[half:], values[half:]),
    )


def replaced(index: Sequence, axis: int, value: Expr | int) -> tuple:
    """The index with another position at `axis`."""
    return (*index[:axis], value, *index[axis + 1 :])
