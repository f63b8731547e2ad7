"""Gradients written by hand: of operators without a body, and where that is better than what is
derived. Each takes a Builder, the op and the gradients of its results (None: zero), and gives those
of its operands (None: zero, or not a number).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from graphc.autodiff.contributions import contributions
from graphc.autodiff.counted import compressed, distinct
from graphc.autodiff.region_pooling import aligned, pooled
from graphc.autodiff.values import filled, zeros_like
from graphc.errors import UnsupportedError
from graphc.ir.build import Builder
from graphc.ir.dtypes import f32, i32
from graphc.ir.expr import Const, Index, Load, Reduce, cast, select
from graphc.ir.extents import least
from graphc.ir.graph import Op, Value
from graphc.ir.ops.generic import generic_op
from graphc.ir.ops.scatter import unpooled_shape

Rule = Callable[[Builder, Op, Sequence[Value | None]], list[Value | None]]
RULES: dict[tuple[str, str], Rule] = {}


def rule(*names: str, domain: str = "") -> Callable[[Rule], Rule]:
    """Declares the gradient of operators."""

    def declare(function: Rule) -> Rule:
        RULES.update({(domain, name): function for name in names})
        return function

    return declare


def _only(cotangents: Sequence[Value | None]) -> Value:
    """The gradient of the first result."""
    value = cotangents[0]
    assert value is not None
    return value


rule("RoiAlign")(aligned)
rule("MaxRoiPool")(pooled)
rule("Compress")(compressed)
rule("Unique")(distinct)


@rule("StopGradient", domain="graphc")
def _stopped(b: Builder, op: Op, cotangents: Sequence[Value | None]) -> list[Value | None]:
    return [None]


@rule("Overlay", domain="graphc")
def _overlaid(b: Builder, op: Op, cotangents: Sequence[Value | None]) -> list[Value | None]:
    """Positions are constants, each there once: both gradients are read off that of the result."""
    g, x = _only(cotangents), op.operand(0)
    axis, positions = op.attrs.get("axis", 0) % x.tensor.rank, np.array(op.attrs["positions"])
    is_kept = np.ones(x.tensor.static_shape[axis], bool)
    is_kept[positions] = False
    mask = np.expand_dims(is_kept, tuple(d for d in range(x.tensor.rank) if d != axis))
    zero = b.constant(0, g.tensor.dtype)
    return [b.Where(mask, g, zero), b.Gather(g, positions, axis=axis)]


@rule("Relu")
def _relu(b: Builder, op: Op, cotangents: Sequence[Value | None]) -> list[Value | None]:
    """Zero at 0, as PyTorch has it; it reads the result, which is kept anyway."""
    g = _only(cotangents)
    zero = b.constant(0, g.tensor.dtype)
    return [b.Where(b.Greater(op.output, zero), g, zero)]


@rule("FakeQuantize", domain="graphc")
def _straight_through(b: Builder, op: Op, cotangents: Sequence[Value | None]) -> list[Value | None]:
    """The gradient itself where the quantised value is not at a limit of its type."""
    return [within_limits(b, op, _only(cotangents)), None, None]


def within_limits(b: Builder, op: Op, g: Value) -> Value:
    """What is given where a quantised value is not at a limit of its type, else 0. It is read off
    the result, which takes as few bytes as are quantised."""
    type = op.output.tensor
    space = [Index(f"i{d}", n) for d, n in enumerate(type.dims)]
    scale, zero = (Load(n, (), op.operand(int(n)).tensor.dtype) for n in ("1", "2"))
    low, high = (
        cast(Const(int(limit), i32) - cast(zero, i32), f32) * cast(scale, f32)
        for limit in (zero.dtype.min, zero.dtype.max)
    )
    y = Load("y", space, type.dtype)
    body = select(
        (y > cast(low, y.dtype)) & (y < cast(high, y.dtype)), Load("g", space, type.dtype), 0
    )
    sources = {"1": op.operand(1), "2": op.operand(2), "y": op.output, "g": g}
    return generic_op(b, space, body, sources.__getitem__)


@rule("Sigmoid")
def _sigmoid(b: Builder, op: Op, cotangents: Sequence[Value | None]) -> list[Value | None]:
    """g * y * (1 - y): what is derived is 0 * inf where exp(-x) overflows."""
    y = op.output
    return [b.Mul(_only(cotangents), b.Mul(y, b.Sub(b.constant(1, y.tensor.dtype), y)))]


@rule("Softmax")
def _softmax(b: Builder, op: Op, cotangents: Sequence[Value | None]) -> list[Value | None]:
    """y * (g - sum(g * y)): nothing of the maximum is left, which what is derived computes."""
    g, y = _only(cotangents), op.output
    axis = np.array([op.attrs.get("axis", -1)])
    return [b.Mul(y, b.Sub(g, b.ReduceSum(b.Mul(g, y), axis, keepdims=1)))]


@rule("LogSoftmax")
def _log_softmax(b: Builder, op: Op, cotangents: Sequence[Value | None]) -> list[Value | None]:
    """g - exp(y) * sum(g)."""
    g, y = _only(cotangents), op.output
    axis = np.array([op.attrs.get("axis", -1)])
    return [b.Sub(g, b.Mul(b.Exp(y), b.ReduceSum(g, axis, keepdims=1)))]


@rule("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def _reshaped(b: Builder, op: Op, cotangents: Sequence[Value | None]) -> list[Value | None]:
    """A view, as the operator is."""
    dims = op.operand(0).tensor.dims
    zero_dims = {"allowzero": 1} if any(least(dim) == 0 for dim in dims) else {}
    return [b.Reshape(_only(cotangents), b.dims(dims), **zero_dims)]


@rule("CumSum")
def _cumulated(b: Builder, op: Op, cotangents: Sequence[Value | None]) -> list[Value | None]:
    """The sum from the other end."""
    attrs = {**op.attrs, "reverse": 1 - op.attrs.get("reverse", 0)}
    return [b.CumSum(_only(cotangents), op.operand(1), **attrs), None]


@rule("CumProd")
def _multiplied(b: Builder, op: Op, cotangents: Sequence[Value | None]) -> list[Value | None]:
    """As of the products that it is: exact where factors are zero."""
    same = as_products(b, op)
    parts = contributions(b, same, cotangents, [0])
    same.output.replace_uses(op.output)
    (slope,) = parts[0]
    return [slope, None]


def as_products(b: Builder, op: Op) -> Op:
    """A CumProd as an op with a scalar body, a product for each element."""
    x, where = op.operand(0), op.operand(1).constant
    if where is None:
        raise UnsupportedError(f"{op.where()}: the axis of CumProd must be constant")
    dims = x.tensor.static_shape
    axis = int(where.reshape(-1)[0]) % len(dims)
    space = [Index(f"i{d}", extent) for d, extent in enumerate(dims)]
    other = Index("k", dims[axis])
    first, last = (other, space[axis])[:: -1 if op.attrs.get("reverse", 0) else 1]
    counts = first < last if op.attrs.get("exclusive", 0) else first <= last
    element = Load("0", [*space[:axis], other, *space[axis + 1 :]], x.tensor.dtype)
    body = Reduce("prod", select(counts, element, 1), (other,))
    made = generic_op(b, space, body, lambda _: x).producer
    assert made is not None
    return made


@rule("TopK")
def _largest(b: Builder, op: Op, cotangents: Sequence[Value | None]) -> list[Value | None]:
    """Each value's gradient goes where the value is from."""
    zeros = zeros_like(b, op.operand(0))
    axis = op.attrs.get("axis", -1)
    return [b.ScatterElements(zeros, op.outputs[1], _only(cotangents), axis=axis), None]


@rule("ScatterND", "ScatterElements")
def _scattered(b: Builder, op: Op, cotangents: Sequence[Value | None]) -> list[Value | None]:
    """Updates get the gradient where they are stored; data, where nothing replaced it. Of several
    updates of one element all get it, though the last one wins."""
    g, indices = _only(cotangents), op.operand(1)
    reduction = op.attrs.get("reduction", "none")
    picked = gathered(b, op, g)
    if reduction == "add":
        return [g, None, picked]
    if reduction == "none":
        zeros = zeros_like(b, op.operand(2))
        return [b.op(op.name, g, indices, zeros, **scatter_axis(op)), None, picked]
    of_data, of_updates = scatter_slopes(b, op)
    return [b.Mul(g, of_data), None, b.Mul(picked, of_updates)]


def scatter_axis(op: Op) -> dict[str, Any]:
    """The attributes of a scatter, but for the reduction."""
    return {"axis": op.attrs.get("axis", 0)} if op.name == "ScatterElements" else {}


def gathered(b: Builder, op: Op, value: Value) -> Value:
    """What lies where a scatter stores its updates."""
    axis: dict[str, Any] = scatter_axis(op)
    return b.op("GatherElements" if axis else "GatherND", value, op.operand(1), **axis)


def scatter_slopes(b: Builder, op: Op) -> tuple[Value, Value]:
    """What the result of a scatter that multiplies or takes extremes changes by, at its place, with
    each element of the data and of the updates."""
    return (_of_factors if op.attrs["reduction"] == "mul" else _of_extremes)(b, op)


def _of_extremes(b: Builder, op: Op) -> tuple[Value, Value]:
    """Equal parts to all that are equal to the extreme, data and updates alike, as in PyTorch."""
    data, indices, updates = op.operand(0), op.operand(1), op.operand(2)
    dtype = data.tensor.dtype

    def reached(operand: Value, result: Value) -> Value:
        one, zero = b.constant(1, dtype), b.constant(0, dtype)
        return b.Where(b.Equal(operand, result), one, zero)

    of_data, of_updates = reached(data, op.output), reached(updates, gathered(b, op, op.output))
    count = b.op(op.name, of_data, indices, of_updates, reduction="add", **scatter_axis(op))
    return b.Div(of_data, count), b.Div(of_updates, gathered(b, op, count))


def _of_factors(b: Builder, op: Op) -> tuple[Value, Value]:
    """The product of all other factors of the element, from that of those that are not zero."""
    data, indices, updates = op.operand(0), op.operand(1), op.operand(2)
    dtype, axis = data.tensor.dtype, scatter_axis(op)
    one, zero = b.constant(1, dtype), b.constant(0, dtype)
    ones = filled(b, data.tensor, 1)
    is_zero = b.Equal(updates, zero)
    nonzero = b.Where(is_zero, one, updates)
    zeros = b.op(
        op.name, zeros_like(b, data), indices, b.Where(is_zero, one, zero), reduction="add", **axis
    )
    product = b.op(op.name, ones, indices, nonzero, reduction="mul", **axis)
    whole = b.Where(b.Equal(zeros, zero), product, zero)
    count, others = gathered(b, op, zeros), b.Div(gathered(b, op, product), nonzero)
    alone = b.Equal(b.Sub(count, b.Where(is_zero, one, zero)), zero)
    return whole, b.Mul(gathered(b, op, data), b.Where(alone, others, zero))


@rule("MaxUnpool")
def _unpooled(b: Builder, op: Op, cotangents: Sequence[Value | None]) -> list[Value | None]:
    """What is at the places where the values are put, which count through what was pooled."""
    flat = np.array([-1])
    x, places = op.operand(0), b.Reshape(op.operand(1), flat)
    attrs = (op.attrs.get(name, ()) for name in ("kernel_shape", "strides", "pads"))
    inner = np.array(unpooled_shape(x.tensor, *attrs))  # a larger result holds it in a corner
    g = b.Slice(_only(cotangents), np.zeros_like(inner), inner)
    picked = b.GatherElements(b.Reshape(g, flat), places, axis=0)
    rest: list[Value | None] = [None] * (len(op.inputs) - 1)
    return [b.Reshape(picked, b.dims(x.tensor.dims)), *rest]


@rule("Det")
def _determinant(b: Builder, op: Op, cotangents: Sequence[Value | None]) -> list[Value | None]:
    """det(x) times the transposed inverse; infinite or NaN where x is singular."""
    scale = b.Unsqueeze(b.Mul(_only(cotangents), op.output), np.array([-2, -1]))
    return [b.Mul(scale, inverse_transposed(b, op.operand(0)))]


def inverse_transposed(b: Builder, x: Value) -> Value:
    """The transposed inverse of square matrices."""
    rank = x.tensor.rank
    inverse = b.op("Inverse", x, domain="com.microsoft")
    return b.Transpose(inverse, perm=(*range(rank - 2), rank - 1, rank - 2))
