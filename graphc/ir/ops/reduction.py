"""Reductions over axes: sums, products, extremes, norms, and the positions of extremes.

Sums and products of narrow floats are carried out in float32 and rounded once. A reduction over
nothing gives the identity of the operation (0, 1, the largest or smallest value).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from graphc.errors import ModelError
from graphc.ir.dtypes import boolean, f32, i64
from graphc.ir.expr import (
    Const,
    Expr,
    Index,
    absolute,
    as_expr,
    exp,
    isinf,
    isnan,
    log,
    reduce,
    select,
    sqrt,
    substitute,
)
from graphc.ir.opdef import Bool, Int, Known, Number, Operand, OutIndex, TypeClass, op
from graphc.ir.opdef import axes as fresh_axes
from graphc.ir.ops.helpers import normal_axes, normal_axis, replaced, wide
from graphc.ir.types import Dim, Shape
from graphc.records import dataclass


@dataclass(frozen=True)
class Reduction:
    """The dimensions of `x` that go, their indices, and the element they select."""

    x: Operand
    gone: tuple[int, ...]
    indices: tuple[Index, ...]
    element: Expr

    @staticmethod
    def of(i: OutIndex, x: Operand, axes: np.ndarray | None, keepdims: int, noop: int) -> Reduction:
        gone = reduced_axes(x, axes, noop)
        indices = fresh_axes(*(x.shape[d] for d in gone))
        inner = dict(zip(gone, indices))
        if keepdims:
            index = tuple(inner.get(d, i[d]) for d in range(x.rank))
        else:
            kept = iter(i)
            index = tuple(inner[d] if d in inner else next(kept) for d in range(x.rank))
        return Reduction(x, gone, indices, x[index])

    @property
    def count(self) -> Dim:
        """How many elements each result is made of."""
        total: Dim = 1
        for index in self.indices:
            total = total * index.extent
        return total

    def over(self, name: str, body: Expr) -> Expr:
        return reduce(name, body, self.indices)

    def sum(self, body: Expr) -> Expr:
        return self.over("sum", body)

    def extreme(self, name: str, value: Expr) -> Expr:
        """The largest or smallest ("max", "min"), or for booleans whether any or all hold."""
        if value.dtype is boolean:
            name = {"max": "or", "min": "and"}[name]
        return self.over(name, value)


def reduced_axes(x: Operand, axes: np.ndarray | None, noop: int) -> tuple[int, ...]:
    """The axes to reduce; without any, all of them, or none if `noop` is set."""
    if axes is None or np.size(axes) == 0:
        return () if noop else tuple(range(x.rank))
    return tuple(sorted(normal_axes(axes, x.rank)))


def reduced_shape(
    x: Operand, axes: np.ndarray | None, *, keepdims: int, noop_with_empty_axes: int
) -> Shape:
    """The shape that is left, with 1 for each reduced dimension if keepdims is set."""
    gone = reduced_axes(x, axes, noop_with_empty_axes)
    if keepdims:
        return tuple(1 if d in gone else extent for d, extent in enumerate(x.shape))
    return tuple(extent for d, extent in enumerate(x.shape) if d not in gone)


def _reduction(name: str, accepts: TypeClass, doc: str) -> Callable:
    """Declares an operator by a function from a Reduction and its (wide) element to a result."""

    def declare(formula: Callable) -> Callable:
        def body(
            i: OutIndex, x: Operand, axes: np.ndarray | None = None, *, keepdims: int = 1,
            noop_with_empty_axes: int = 0,
        ) -> Expr:  # fmt: skip
            over = Reduction.of(i, x, axes, keepdims, noop_with_empty_axes)
            return formula(over, wide(over.element)).cast(x.dtype)

        body.__doc__ = doc
        body.__annotations__ = {"x": accepts, "axes": Known(Int)}
        op(name, infer=reduced_shape)(body)
        return formula

    return declare


def _floating(value: Expr) -> Expr:
    """Integers as float32, so that roots and logarithms exist."""
    return value if value.dtype.is_float else value.cast(f32)


@_reduction("ReduceSum", Number, "The sum.")
def _sum(over: Reduction, v: Expr) -> Expr:
    return over.sum(v)


@_reduction("ReduceMean", Number, "The arithmetic mean; integers truncate.")
def _mean(over: Reduction, v: Expr) -> Expr:
    return over.sum(v) / as_expr(over.count, i64).cast(v.dtype)


@_reduction("ReduceProd", Number, "The product.")
def _prod(over: Reduction, v: Expr) -> Expr:
    return over.over("prod", v)


@_reduction("ReduceMax", Number | Bool, "The largest element; NaN if any is NaN.")
def _max(over: Reduction, v: Expr) -> Expr:
    return over.extreme("max", over.element)


@_reduction("ReduceMin", Number | Bool, "The smallest element; NaN if any is NaN.")
def _min(over: Reduction, v: Expr) -> Expr:
    return over.extreme("min", over.element)


@_reduction("ReduceL1", Number, "The sum of absolute values.")
def _l1(over: Reduction, v: Expr) -> Expr:
    return over.sum(absolute(v))


@_reduction("ReduceL2", Number, "The square root of the sum of squares.")
def _l2(over: Reduction, v: Expr) -> Expr:
    return sqrt(_floating(over.sum(v * v)))


@_reduction("ReduceSumSquare", Number, "The sum of squares.")
def _sum_square(over: Reduction, v: Expr) -> Expr:
    return over.sum(v * v)


@_reduction("ReduceLogSum", Number, "The logarithm of the sum.")
def _log_sum(over: Reduction, v: Expr) -> Expr:
    return log(_floating(over.sum(v)))


@_reduction("ReduceLogSumExp", Number, "log(sum(exp(x))), as m + log(sum(exp(x - m))), m = max(x).")
def _log_sum_exp(over: Reduction, v: Expr) -> Expr:
    v = _floating(v)
    inner = fresh_axes(*(k.extent for k in over.indices), name="m")
    largest = reduce("max", substitute(v, dict(zip(over.indices, inner))), inner)
    shift = select(isinf(largest), 0, largest)
    return log(over.sum(exp(v - shift))) + shift


# ---------------------------------------------------------------- positions of extremes


def _arg_shape(x: Operand, *, axis: int, keepdims: int) -> Shape:
    axis = normal_axis(axis, x.rank)
    if isinstance(x.shape[axis], int) and x.shape[axis] == 0:
        raise ModelError(f"axis {axis} of {list(x.shape)} is empty: it has no largest element")
    rest = x.shape[axis + 1 :]
    return (*x.shape[:axis], 1, *rest) if keepdims else (*x.shape[:axis], *rest)


def _position(i: OutIndex, x: Operand, name: str, axis: int, keepdims: int, last: int) -> Expr:
    """The first (or last) position along `axis` whose element is the extreme.

    As in ONNX Runtime a comparison with NaN never replaces the element found so far: NaNs are
    passed over, except that a NaN in front wins.
    """
    axis = normal_axis(axis, x.rank)
    index = tuple(i) if keepdims else (*i[:axis], as_expr(0, i64), *i[axis:])
    (k,) = fresh_axes(x.shape[axis])
    (m,) = fresh_axes(x.shape[axis], name="m")

    def ordered(position: Index) -> Expr:
        value = x[replaced(index, axis, position)]
        worst = Const(x.dtype.min if name == "max" else x.dtype.max, x.dtype)
        return select(isnan(value), worst, value) if x.dtype.is_float else value

    is_extreme = x[replaced(index, axis, k)].eq(reduce(name, ordered(m), (m,)))
    missing = as_expr(-1 if last else x.shape[axis], i64)
    position = reduce("max" if last else "min", select(is_extreme, k, missing), (k,))
    if not x.dtype.is_float:
        return position
    return select(isnan(x[replaced(index, axis, as_expr(0, i64))]), 0, position)


@op("ArgMax", infer=_arg_shape)
def arg_max(
    i: OutIndex, x: Number, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0
) -> Expr:
    """The position of the largest element along `axis`."""
    return _position(i, x, "max", axis, keepdims, select_last_index)


@op("ArgMin", infer=_arg_shape)
def arg_min(
    i: OutIndex, x: Number, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0
) -> Expr:
    """The position of the smallest element along `axis`."""
    return _position(i, x, "min", axis, keepdims, select_last_index)
