"""Gradients of Compress and Unique, whose results have sizes that data decides.

Each result is as large as it can get, and what follows reads the part that is there
(ir/ops/counts.py). Each slice of the operand knows its place in the result, so its gradient is read
from there, and nothing is scattered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from graphc.autodiff.without import refusal
from graphc.ir.addresses import flatten_index
from graphc.ir.build import Builder
from graphc.ir.dtypes import i64
from graphc.ir.expr import Expr, Index, Load, as_expr, maximum, minimum, select
from graphc.ir.graph import Op, Value
from graphc.ir.infer import infer_op
from graphc.ir.ops.counts import CORNER, DOMAIN, is_count, is_counted
from graphc.ir.ops.generic import generic_op
from graphc.ir.types import Dim

UNIQUE_OUTPUTS = 4
Place = Callable[[Expr], tuple[Expr, Expr]]


def compressed(b: Builder, op: Op, cotangents: Sequence[Value | None]) -> list[Value | None]:
    """What was kept gets what its place gets: the conditions that hold up to it number the
    places."""
    condition = op.operand(1)
    known = condition.tensor.dims[0]
    numbers = b.CumSum(b.Cast(condition, to=i64.onnx), np.array(0))

    def place(item: Expr) -> tuple[Expr, Expr]:
        at = [_clamped(item, known)]
        holds = Load("condition", at, condition.tensor.dtype)
        return (item < known) & holds, Load("number", at, i64) - 1

    return [_taken(b, op, cotangents, place, {"condition": condition, "number": numbers}), None]


def distinct(b: Builder, op: Op, cotangents: Sequence[Value | None]) -> list[Value | None]:
    """The first of equal items gets what the one that stands for them gets."""
    if cotangents[0] is None:
        return [None]
    op = _with_all_results(op)
    values, firsts, numbers, _ = op.outputs
    size = next((user.attrs["size"] for user in values.users if is_count(user)), None)
    if size is not None:
        firsts, numbers = _part(b, firsts, [size]), _part(b, numbers, numbers.tensor.dims)

    def place(item: Expr) -> tuple[Expr, Expr]:
        number = Load("number", [item], i64)
        first = Load("first", [_clamped(number, firsts.tensor.dims[0])], i64)
        return first.eq(item), number

    return [_taken(b, op, cotangents, place, {"first": firsts, "number": numbers})]


def _part(b: Builder, value: Value, dims: Sequence[Dim]) -> Value:
    """The part that is there of what a bounded op gives."""
    return b.op(CORNER, value, domain=DOMAIN, dims=tuple(dims))


def _clamped(index: Expr, extent: Dim) -> Expr:
    """The nearest index in range; 0 where there is nothing, as there is room for one element."""
    return maximum(minimum(index, as_expr(extent, i64) - 1), 0)


def _with_all_results(op: Op) -> Op:
    """A Unique that also tells where items are from, in place of one that may not."""
    if len(op.outputs) == UNIQUE_OUTPUTS:
        return op
    assert op.region is not None
    whole = Op(op.defn, op.inputs, op.attrs, UNIQUE_OUTPUTS, (), op.loc)
    infer_op(whole)
    op.region.insert_before(op, whole)
    for old, new in zip(op.outputs, whole.outputs):
        old.replace_uses(new)
    return whole


def _taken(
    b: Builder,
    op: Op,
    cotangents: Sequence[Value | None],
    place: Place,
    sources: Mapping[str, Value],
) -> Value | None:
    """The gradient of the operand: that of the first result at the place of each item, if it is
    there. Items are slices along the op's axis, or elements."""
    g, x = cotangents[0], op.operand(0).tensor
    if g is None or 0 in g.tensor.dims:
        return None
    if not is_counted(op):
        raise refusal(op)
    space = [Index(f"i{d}", extent) for d, extent in enumerate(x.dims)]
    axis = op.attrs.get("axis")
    if axis is None:
        item, before, after = flatten_index(tuple(space), x.dims), [], []
    else:
        axis %= x.rank
        item, before, after = space[axis], space[:axis], space[axis + 1 :]
    is_there, number = place(item)
    along = _clamped(number, g.tensor.dims[len(before)])
    body = select(is_there, Load("g", [*before, along, *after], g.tensor.dtype), 0)
    return generic_op(b, space, body, {**sources, "g": g}.__getitem__)
