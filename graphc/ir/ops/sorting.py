"""Operators that sort: TopK and Unique.

Equal items come in the order of their original indices, as in a stable sort.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphc.errors import ModelError
from graphc.ir.collectives import Leaders, Place
from graphc.ir.dtypes import DType, boolean, i64
from graphc.ir.expr import Const, Expr, as_expr, isnan, select
from graphc.ir.heap import Heap, swap_in
from graphc.ir.imperative import numel, store_size
from graphc.ir.kernel import Buffer, KernelBuilder
from graphc.ir.opdef import Any_, Int, Known, Number, imperative
from graphc.ir.simplify import unflatten_index
from graphc.ir.types import TensorType


def better(a: Expr, b: Expr, largest: int) -> Expr:
    """a > b (a < b unless `largest`), where NaN is worse than every number."""
    first = a > b if largest else a < b
    return first | (isnan(b) & ~isnan(a)) if a.dtype.is_float else first


def worst(dtype: DType, largest: int) -> Const:
    """A value that is better than none."""
    number = dtype.min if largest else dtype.max
    return Const(float("nan") if dtype.is_float else number, dtype)


def comes_first(a: Expr, b: Expr) -> Expr:
    """a < b, with NaN after every number."""
    return better(a, b, largest=0)


# ---------------------------------------------------------------- TopK


def _axis(axis: int, rank: int) -> int:
    if not -rank <= axis < rank:
        raise ModelError(f"axis {axis} is out of range for rank {rank}")
    return axis % rank


def _topk_types(x, size, axis):
    axis = _axis(axis, x.rank)
    wanted = int(np.asarray(size).reshape(-1)[0])
    if wanted < 0 or isinstance(x.shape[axis], int) and wanted > x.shape[axis]:
        raise ModelError(f"k is {wanted}, but the axis has {x.shape[axis]} elements")
    shape = (*x.shape[:axis], wanted, *x.shape[axis + 1 :])
    return [x.type.with_shape(shape), TensorType(i64, shape)]


@imperative("TopK", infer=_topk_types, outputs=2)
def top_k(k, x: Number, size: Known(Int), *, axis: int = -1, largest: int = 1, sorted: int = 1):
    """The `size` largest (smallest) elements along an axis, best first, and their indices.

    Equal elements come in the order of their indices, NaN after all numbers. `sorted=0` allows any
    order; it is the same.
    """
    axis = _axis(axis, x.rank)
    wanted = int(np.asarray(size).reshape(-1)[0])
    if wanted == 0:
        return

    def at(line: Place, slot: Expr) -> Place:
        return (*line[:axis], slot, *line[axis:])

    def first(a: Expr, b: Expr) -> Expr:
        return better(a, b, largest)

    lines = (*x.shape[:axis], *x.shape[axis + 1 :])
    k.leaders(
        Leaders(lines, x.shape[axis], wanted, lambda line, j: x[at(line, j)], first,
                worst(x.dtype, largest), k.outputs, at)
    )  # fmt: skip


# ---------------------------------------------------------------- Unique


def _unique_types(x, axis, count):
    if axis is None:
        items = x.size
        first = x.type.with_shape((items,))
    else:
        items = x.shape[_axis(axis, x.rank)]
        first = x.type.with_shape(x.shape)
    listing = TensorType(i64, (items,))
    return [first, listing, listing, listing][:count]


@imperative("Unique", infer=_unique_types, outputs=4, traits=("bounded",))
def unique(k, x: Any_, *, axis: int | None = None, sorted: int = 1):
    """The distinct elements (slices along `axis`) of x, ascending or by first occurrence, with the
    index of the first occurrence, the number each element got, and how often each occurs.

    The indices of the items are sorted by content; equal neighbours form a group.
    """
    items = _Items(k, x, None if axis is None else _axis(axis, x.rank))
    order = k.alloc(i64, (items.count,))
    with k.loop(items.count) as j:
        k.store(order, j, j)

    def precedes(p: Expr, q: Expr) -> Expr:
        a, b = k.let(order[p]), k.let(order[q])
        sign = items.compare(a, b)
        return (sign < 0) | (sign.eq(0) & (a < b))

    Heap(k, precedes, swap_in(k, order, lambda slot: (slot,))).sort(items.count)
    outputs = (*k.outputs, *([None] * (4 - len(k.outputs))))
    groups = k.var(i64, 0)
    if sorted:
        _number_by_order(k, items, order, groups, outputs)
    else:
        _number_by_occurrence(k, items, order, groups, outputs)
    store_size(k, 0, 0 if axis is None else items.axis, groups[()])
    store_size(k, 1, 0, groups[()])
    store_size(k, 3, 0, groups[()])


@dataclass
class _Items:
    """The things Unique tells apart: elements (axis None), or slices along an axis."""

    k: KernelBuilder
    x: Buffer
    axis: int | None

    @property
    def count(self) -> int:
        return numel(self.x.shape if self.axis is None else self.x.shape[self.axis : self.axis + 1])

    @property
    def rest(self) -> tuple[int, ...]:
        """The shape of one item."""
        return () if self.axis is None else _without(self.x.shape, self.axis)

    def element(self, item: Expr, inner: tuple) -> tuple:
        """The index in x of element `inner` of an item."""
        if self.axis is None:
            return unflatten_index(item, self.x.shape)
        return (*inner[: self.axis], item, *inner[self.axis :])

    def compare(self, a: Expr, b: Expr) -> Expr:
        """-1, 0 or 1, as item a comes before, equals or comes after item b, lexicographically."""
        k = self.k
        sign, position = k.var(i64, 0), k.var(i64, 0)
        with k.repeat((position[()] < numel(self.rest)) & sign[()].eq(0)):
            inner = unflatten_index(k.let(position[()]), self.rest)
            left = k.let(self.x[self.element(a, inner)])
            right = k.let(self.x[self.element(b, inner)])
            less, more = comes_first(left, right), comes_first(right, left)
            if self.x.dtype is boolean:
                less, more = ~left & right, left & ~right
            k.store(sign, (), select(less, -1, select(more, 1, as_expr(0, i64))))
            k.store(position, (), position[()] + 1)
        return k.let(sign[()])

    def copy(self, output: Buffer, group: Expr, item: Expr) -> None:
        """Stores an item as number `group` of the output."""
        with self.k.loops(*self.rest) as inner:
            where = (group,) if self.axis is None else self.element(group, inner)
            self.k.store(output, where, self.x[self.element(item, inner)])


def _without(shape: tuple, axis: int) -> tuple:
    return (*shape[:axis], *shape[axis + 1 :])


def _next_item(k: KernelBuilder, items: _Items, order: Buffer, p: Expr) -> tuple[Expr, Expr]:
    """The item at position p of an order, and whether it differs from the one before."""
    item = k.let(order[p])
    new = k.var(boolean, True)
    with k.when(p > 0):
        k.store(new, (), items.compare(k.let(order[p - 1]), item).ne(0))
    return item, new[()]


def _number_by_order(k: KernelBuilder, items: _Items, order: Buffer, groups: Buffer, outputs):
    y, indices, inverse, counts = outputs
    with k.loop(items.count) as p:
        item, new = _next_item(k, items, order, p)
        with k.when(new):
            group = k.let(groups[()])
            items.copy(y, group, item)
            if indices is not None:
                k.store(indices, group, item)
            if counts is not None:
                k.store(counts, group, 0)
            k.store(groups, (), group + 1)
        group = k.let(groups[()] - 1)
        if inverse is not None:
            k.store(inverse, item, group)
        if counts is not None:
            k.store(counts, group, counts[group] + 1)


def _number_by_occurrence(k: KernelBuilder, items: _Items, order: Buffer, groups: Buffer, outputs):
    """First `inverse` holds each item's first equal one; `order` is then free for group numbers."""
    y, indices, inverse, counts = outputs
    if inverse is None:
        inverse = k.alloc(i64, (items.count,))
    first = k.var(i64, 0)
    with k.loop(items.count) as p:
        item, new = _next_item(k, items, order, p)
        with k.when(new):
            k.store(first, (), item)
        k.store(inverse, item, first[()])
    with k.loop(items.count) as item:
        with k.when(inverse[item].eq(item)):
            group = k.let(groups[()])
            items.copy(y, group, item)
            k.store(order, item, group)
            if indices is not None:
                k.store(indices, group, item)
            if counts is not None:
                k.store(counts, group, 0)
            k.store(groups, (), group + 1)
        group = k.let(order[inverse[item]])
        k.store(inverse, item, group)
        if counts is not None:
            k.store(counts, group, counts[group] + 1)


__all__ = ["comes_first", "top_k", "unique"]
