"""Operators that sort: TopK and Unique.

Equal items come in the order of their original indices, as in a stable sort.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from graphc.errors import ModelError
from graphc.ir.addresses import unflatten_index
from graphc.ir.dtypes import DType, boolean, f32, i32, i64
from graphc.ir.expr import Const, Expr, as_expr, bitcast, cast, isnan, maximum, minimum, select
from graphc.ir.extents import least
from graphc.ir.imperative.collectives import Collectives, Kept, Leaders, Place, Running
from graphc.ir.imperative.lowering import store_size
from graphc.ir.kernel import Buffer, elements_of
from graphc.ir.opdef import Any_, Int, Known, Number, Operand, imperative
from graphc.ir.ops.helpers import normal_axis
from graphc.ir.types import Dim, Shape, TensorType, largest
from graphc.records import dataclass


def better(a: Expr, b: Expr, largest: int) -> Expr:
    """a > b (a < b unless `largest`), where NaN is greater than every number."""
    first = a > b if largest else a < b
    if not a.dtype.is_float:
        return first
    greater, other = (a, b) if largest else (b, a)
    return first | (isnan(greater) & ~isnan(other))


def worst(dtype: DType, largest: int) -> Const:
    """A value that is better than none."""
    if largest:
        return Const(dtype.min, dtype)
    return Const(float("nan") if dtype.is_float else dtype.max, dtype)


def order_of(dtype: DType, largest: int) -> Callable[[Expr], Expr] | None:
    """What gives values numbers of type i32, larger ones to better values and equal ones to equal
    values; None if there are not enough numbers."""
    if dtype.is_float and dtype.bits <= 32:
        return partial(_float_order, largest=largest)
    if dtype.is_integer and dtype.min >= i32.min and dtype.max <= i32.max:
        return lambda a: cast(a, i32) if largest else ~cast(a, i32)
    return None


def _float_order(a: Expr, largest: int) -> Expr:
    """The bits of a float are in its order but for the sign: those of negative ones are inverted.
    Zeros are equal, and NaN is greater than every number."""
    wide = cast(a, f32)
    bits = bitcast(select(wide.eq(0), Const(0, f32), wide), i32)
    order = bits ^ ((bits >> 31) & i32.max)
    order = select(isnan(wide), Const(i32.max, i32), order)
    return order if largest else ~order


def comes_first(a: Expr, b: Expr) -> Expr:
    """a < b, with NaN after every number."""
    return better(a, b, largest=0)


# ---------------------------------------------------------------- TopK


def _topk_types(x: Operand, size: np.ndarray, axis: int) -> list[TensorType]:
    axis = normal_axis(axis, x.rank)
    wanted = int(np.asarray(size).reshape(-1)[0])
    if wanted < 0 or isinstance(x.shape[axis], int) and wanted > x.shape[axis]:
        raise ModelError(f"k is {wanted}, but the axis has {x.shape[axis]} elements")
    shape = (*x.shape[:axis], wanted, *x.shape[axis + 1 :])
    return [x.type.with_shape(shape), TensorType(i64, shape)]


@imperative("TopK", infer=_topk_types, outputs=2)
def top_k(
    k: Collectives, x: Number, size: Known(Int), *, axis: int = -1, largest: int = 1,
    sorted: int = 1,
) -> None:  # fmt: skip
    """The `size` largest (smallest) elements along an axis, best first, and their indices.

    Equal elements come in the order of their indices, and NaN is greater than all numbers, as for
    ONNX Runtime and PyTorch. `sorted=0` allows any order; it is the same.
    """
    axis = normal_axis(axis, x.rank)
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
                worst(x.dtype, largest), k.outputs, at, order=order_of(x.dtype, largest))
    )  # fmt: skip


# ---------------------------------------------------------------- Unique


def _unique_types(x: Operand, axis: int | None, count: int) -> list[TensorType]:
    if axis is None:
        items = x.size
        first = x.type.with_shape((items,))
    else:
        items = x.shape[normal_axis(axis, x.rank)]
        first = x.type.with_shape(x.shape)
    listing = TensorType(i64, (items,))
    return [first, listing, listing, listing][:count]


@imperative("Unique", infer=_unique_types, outputs=4, traits=("bounded",))
def unique(k: Collectives, x: Any_, *, axis: int | None = None, sorted: int = 1) -> None:
    """The distinct elements (slices along `axis`) of x, ascending or by first occurrence, with the
    index of the first occurrence, the number each element got, and how often each occurs.

    Items are sorted by content, and equal neighbours form a group. A running count of where groups
    start numbers them; by first occurrence, it is one of the items that are the first of theirs.
    """
    items = _Items(k, x, None if axis is None else normal_axis(axis, x.rank))

    def finish(number: Expr) -> None:
        store_size(k, 0, 0 if axis is None else items.axis, number)
        store_size(k, 1, 0, number)
        store_size(k, 3, 0, number)

    if items.count == 0:
        finish(as_expr(0, i64))
        return
    outputs = (*k.outputs, *([None] * (4 - len(k.outputs))))
    groups = _Groups.of(k, items)
    (groups.by_order if sorted else groups.by_occurrence)(outputs, finish)


@dataclass
class _Items:
    """The things Unique tells apart: elements (axis None), or slices along an axis."""

    k: Collectives
    x: Buffer
    axis: int | None

    @property
    def count(self) -> Dim:
        return self.x.size if self.axis is None else self.x.shape[self.axis]

    @property
    def most(self) -> int:
        """The largest count."""
        return largest(self.count)

    @property
    def rest(self) -> Shape:
        """The shape of one item."""
        return () if self.axis is None else _without(self.x.shape, self.axis)

    def element(self, item: Expr, inner: tuple) -> tuple:
        """The index in x of element `inner` of an item."""
        if self.axis is None:
            return unflatten_index(item, self.x.shape)
        return (*inner[: self.axis], item, *inner[self.axis :])

    def sorted(self) -> tuple[Buffer, Buffer]:
        """What items are told apart by, elements or the numbers of slices, in order; and the
        numbers of these items."""
        dtype = self.x.dtype if self.axis is None else i64
        keys = self.k.alloc(dtype, (self.most,), "scratch", "keys")
        order = self.k.alloc(i64, (self.most,), "scratch", "order")
        self.k.leaders(Leaders(
            (), self.count, self.count, lambda _, j: self.key(j), self.precedes, self.last(),
            (keys, order), lambda _, slot: (slot,), ties=self.axis is None,
        ))  # fmt: skip
        return keys, order

    def last(self) -> Const:
        """A key that comes before none."""
        if self.axis is not None:
            return Const(self.most, i64)
        if self.x.dtype.kind == "string":
            return Const("", self.x.dtype)  # no other thread asks for it
        return Const(True) if self.x.dtype is boolean else worst(self.x.dtype, 0)

    def key(self, item: Expr) -> Expr:
        return self.x[unflatten_index(item, self.x.shape)] if self.axis is None else item

    def precedes(self, a: Expr, b: Expr) -> Expr:
        """Whether one key comes before another one; equal slices in the order of their numbers,
        which are those of slices up to `count`."""
        if self.axis is None:
            return _element_precedes(a, b)
        sign = self.compare(a, b)
        return (sign < 0) | (sign.eq(0) & (a < b))

    def differ(self, a: Expr, b: Expr) -> Expr:
        """Whether keys, one after the other in order, are of different items."""
        return _element_precedes(a, b) if self.axis is None else self.compare(a, b).ne(0)

    def compare(self, a: Expr, b: Expr) -> Expr:
        """-1, 0 or 1, as slice a comes before, equals or comes after slice b, lexicographically; 0
        if one is no slice."""
        k = self.k
        sign, position = k.var(i64, 0), k.var(i64, 0)
        size = select((a < self.count) & (b < self.count), elements_of(self.rest), as_expr(0, i64))
        with k.repeat((position[()] < k.let(size)) & sign[()].eq(0)):
            inner = unflatten_index(k.let(position[()]), self.rest)
            left = k.let(self.x[self.element(a, inner)])
            right = k.let(self.x[self.element(b, inner)])
            more = select(_element_precedes(right, left), 1, as_expr(0, i64))
            k.store(sign, (), select(_element_precedes(left, right), -1, more))
            k.store(position, (), position[()] + 1)
        return k.let(sign[()])

    def copy(self, output: Buffer, group: Expr, item: Expr) -> None:
        """Stores an item as number `group` of the output."""
        with self.k.loops(*self.rest) as inner:
            where = (group,) if self.axis is None else self.element(group, inner)
            self.k.store(output, where, self.x[self.element(item, inner)])


def _element_precedes(a: Expr, b: Expr) -> Expr:
    return ~a & b if a.dtype is boolean else comes_first(a, b)


def _without(shape: tuple, axis: int) -> tuple:
    return (*shape[:axis], *shape[axis + 1 :])


@dataclass
class _Groups:
    """Equal items next to one another, in `order`: the `number` that each place's group has among
    groups, the place where each group `starts`, and how many groups there are."""

    k: Collectives
    items: _Items
    order: Buffer
    number: Buffer
    starts: Buffer
    total: Buffer

    @staticmethod
    def of(k: Collectives, items: _Items) -> _Groups:
        count = items.count
        keys, order = items.sorted()
        number, starts = (k.alloc(i64, (items.most,), "scratch", n) for n in ("number", "starts"))
        total = k.alloc(i64, (1,), "scratch", "total")

        def begins(_: Place, p: Expr) -> Expr:
            before = k.let(keys[maximum(p - 1, 0)])
            return cast(p.eq(0) | items.differ(before, k.let(keys[p])), i64)

        def put(_: Place, p: Expr, groups: Expr) -> None:
            k.store(number, p, groups - 1)
            with k.when(p.eq(count - 1)):
                k.store(total, 0, groups)

        k.running(Running((), count, i64, "sum", False, begins, put))
        with k.loop(count, "parallel") as p:
            starting = p.eq(0) | number[maximum(p - 1, 0)].ne(number[p])
            with k.when(starting):
                k.store(starts, number[p], p)
        return _Groups(k, items, order, number, starts, total)

    def size(self, group: Expr) -> Expr:
        """How many items a group has."""
        count = self.items.count
        following = self.starts[minimum(group + 1, count - 1)]
        return select(group + 1 < self.total[0], following, count) - self.starts[group]

    def by_order(self, outputs: tuple, finish: Callable[[Expr], None]) -> None:
        """Groups keep their numbers."""
        k, inverse = self.k, outputs[2]
        with k.loop(self.items.count, "parallel") as p:
            if inverse is not None:
                k.store(inverse, self.order[p], self.number[p])
            with k.when(p < self.total[0]):
                self.put(outputs, p, p)
            with k.when(p.eq(0)):
                finish(self.total[0])
        if not least(self.items.count):
            with k.loop(1, "parallel"), k.when(as_expr(self.items.count, i64).eq(0)):
                finish(as_expr(0, i64))

    def by_occurrence(self, outputs: tuple, finish: Callable[[Expr], None]) -> None:
        """Groups are numbered as their first items follow one another; `place` is that of an item,
        `renumbered` the new number of a group."""
        k, count, most = self.k, self.items.count, self.items.most
        place, renumbered = (k.alloc(i64, (most,), "scratch", n) for n in ("place", "renumbered"))
        with k.loop(count, "parallel") as p:
            k.store(place, self.order[p], p)

        def is_first(where: Place) -> Expr:
            p = place[where]
            return self.starts[self.number[p]].eq(p)

        def put(where: Place, number: Expr, _: Place) -> None:
            group = k.let(self.number[place[where]])
            k.store(renumbered, group, number)
            self.put(outputs, number, group)

        k.kept(Kept((count,), (), is_first, put, finish))
        if outputs[2] is not None:
            with k.loop(count, "parallel") as item:
                k.store(outputs[2], item, renumbered[self.number[place[item]]])

    def put(self, outputs: tuple, number: Expr, group: Expr) -> None:
        """Stores what is listed of a group, under some number."""
        y, indices, _, counts = outputs
        first = self.k.let(self.order[self.starts[group]])
        self.items.copy(y, number, first)
        if indices is not None:
            self.k.store(indices, number, first)
        if counts is not None:
            self.k.store(counts, number, self.size(group))


__all__ = ["comes_first", "top_k", "unique"]
