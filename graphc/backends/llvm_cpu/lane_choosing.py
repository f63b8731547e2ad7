"""A few items of many, chosen before they are sorted, by one thread that has vectors.

How many items of a line have at least some order is counted in vectors. Halving the range of orders
finds one that about as many have as are wanted, in fewer steps than an order has bits. Only those
items are put aside, and sorted.
"""

from __future__ import annotations

from collections.abc import Callable

from graphc.backends.llvm_cpu.any_lane import any_lane
from graphc.backends.llvm_cpu.lane_sorting import (
    Array,
    Items,
    Shape,
    array_room,
    give,
    in_order,
    sorts,
)
from graphc.ir.dtypes import i32, i64
from graphc.ir.expr import Const, Expr, cast, select
from graphc.ir.imperative.collectives import Collectives, Leaders, Place

FEW = 24  # items, for which a heap is as good
MANY = 100  # items for each that is wanted, of which hardly any gets into a heap
SPARE = 4  # one item more than wanted, for so many, may be put aside


def chooses(k: Collectives, what: Leaders) -> bool:
    """Whether few of many items are wanted, whose orders can be compared."""
    few = what.wanted >= FEW and what.wanted * 2 < what.count < what.wanted * MANY
    return few and what.order is not None and sorts(k, what)


def chosen_leaders(k: Collectives, what: Leaders, vector_bytes: int) -> None:
    """Stores the leaders of each line."""
    lanes = vector_bytes // i32.size
    most = what.wanted + what.wanted // SPARE
    shape = Shape.of(most + lanes)
    order_room = array_room(k, what, i32, what.count)
    rooms = [Items.room(k, what, shape) for _ in range(2)]
    with k.loops(*what.lines, kind="parallel") as line:
        choosing = _Choosing(k, what, lanes, most, line, order_room(line))
        one, two = (room(line) for room in rooms)
        give(k, what, line, in_order(k, what, shape, one, two, choosing.put_aside(one)))


class _Choosing:
    """The items of a line, of which no more than `most` are to be put aside."""

    def __init__(
        self, k: Collectives, what: Leaders, lanes: int, most: int, line: Place, orders: Array
    ):
        self.k, self.what, self.lanes, self.most, self.line = k, what, lanes, most, line
        self.orders = orders

    def put_aside(self, items: Items) -> Expr:
        """Stores items, the leaders among them, in the order of their positions; how many."""
        k, what = self.k, self.what
        self._note_orders()
        least = self._least_order()
        low = k.let(cast(least, i32))
        above = self._count(lambda order: order > low)
        ties, number = k.var(i64, k.let(self.most - above)), k.var(i64, 0)

        def offer(j: Expr) -> None:
            order = k.let(self.orders[j])
            tied = k.let(order.eq(low) & (ties[()] > 0))
            place = k.let(number[()])
            items.put(k, place, k.let(what.item(self.line, j)), cast(j, i32))
            stays = tied | (order > low)
            k.store(number, (), place + cast(stays, i64))
            k.store(ties, (), ties[()] - cast(tied, i64))

        with k.loop(what.count // self.lanes) as part:
            start = k.let(part * self.lanes)
            any_left = any_lane(k, self.lanes, 1, lambda v: k.let(self.orders[start + v]) >= low)
            with k.when(any_left), k.loop(self.lanes, "unroll") as j:
                offer(k.let(start + j))
        with k.loop(what.count % self.lanes) as j:
            offer(k.let(j + (what.count - what.count % self.lanes)))
        return k.let(number[()])

    def _note_orders(self) -> None:
        k, what = self.k, self.what
        whole = what.count // self.lanes * self.lanes
        with k.loop(whole // self.lanes) as part:
            self._note_vector(part * self.lanes, self.lanes)
        if whole < what.count:
            self._note_vector(Const(whole, i64), what.count - whole)

    def _note_vector(self, start: Expr, lanes: int) -> None:
        k, what = self.k, self.what
        assert what.order is not None
        with k.loop(lanes, "vector", width=lanes) as lane:
            item = k.let(what.item(self.line, start + lane))
            self.orders.put(k, start + lane, what.order(item))

    def _least_order(self) -> Expr:
        """The least of those put aside: at least as many as are wanted are of it or above."""
        k = self.k
        low, high = k.var(i64, i32.min), k.var(i64, i32.max + 1)
        with k.repeat(low[()] + 1 < high[()]):
            middle = k.let((low[()] + high[()]) // 2)
            word = k.let(cast(middle, i32))
            number = self._count(lambda order: order >= word)
            with k.when(number >= self.what.wanted):
                k.store(low, (), middle)
                k.store(high, (), select(number <= self.most, middle + 1, high[()]))
            with k.otherwise():
                k.store(high, (), middle)
        return k.let(low[()])

    def _count(self, holds: Callable[[Expr], Expr]) -> Expr:
        """For how many orders something holds."""
        k, count, lanes = self.k, self.what.count, self.lanes
        sums = k.alloc(i32, (lanes,), "reg")
        with k.loop(lanes, "vector", width=lanes) as lane:
            k.store(sums, lane, 0)
        with k.loop(count // lanes) as part, k.loop(lanes, "vector", width=lanes) as lane:
            order = k.let(self.orders[part * lanes + lane])
            k.store(sums, lane, sums[lane] + cast(holds(order), i32))
        total = k.var(i64, 0)
        with k.loop(lanes, "unroll") as j:
            k.store(total, (), total[()] + cast(sums[j], i64))
        with k.loop(count % lanes) as j:
            order = k.let(self.orders[j + count // lanes * lanes])
            k.store(total, (), total[()] + cast(holds(order), i64))
        return k.let(total[()])
