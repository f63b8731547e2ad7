"""Items picked one after the other, each of which drives others out, by one thread.

Those that take part are a heap, from which the best one left is taken until enough are picked, so
nothing is sorted that nobody asks for. It is compared with those of its group that were picked
before, whose traits are told again each time: memory holds a number per item, and no more.
"""

from __future__ import annotations

from collections.abc import Callable

from graphc.ir.dtypes import DType, boolean, i64
from graphc.ir.expr import Const, Expr, isnan
from graphc.ir.imperative.heap import Heap, swap_in
from graphc.ir.kernel import Buffer, KernelBuilder
from graphc.ir.types import largest
from graphc.records import dataclass

Place = tuple[Expr, ...]


@dataclass(frozen=True)
class Picked:
    """Of each group, in turn, at most `limit` of `count` items, those of larger scores first, of
    equal ones those that come first. Items are picked that take part and do not clash with one
    picked before, which the `traits` of both decide, values of types `kinds`: first those of the
    later one. `put` gets the row, numbered through all groups, of an item of a group, `item_at`
    gives the item of a row, and `finish` gets how many rows there are. `order`, if there is one,
    gives a number of type i32 that is larger for better scores, and equal for equal ones."""

    groups: tuple[int, ...]
    count: int
    limit: int
    takes_part: Callable[[Place, Expr], Expr]
    score: Callable[[Place, Expr], Expr]
    kinds: tuple[DType, ...]
    traits: Callable[[Place, Expr], Place]
    clash: Callable[[Place, Place], Expr]
    put: Callable[[Expr, Place, Expr], None]
    item_at: Callable[[Expr], Expr]
    finish: Callable[[Expr], None]
    order: Callable[[Expr], Expr] | None = None

    def precedes(self, a: tuple[Expr, Expr], b: tuple[Expr, Expr]) -> Expr:
        """Whether one item, a score and its number, is better than another one. NaN is worst."""
        ahead = (a[0] > b[0]) | (isnan(b[0]) & ~isnan(a[0]))
        level = ~(b[0] > a[0]) & ~(isnan(a[0]) & ~isnan(b[0]))
        return ahead | (level & (a[1] < b[1]))


@dataclass(frozen=True)
class Running:
    """The items of a group that are in the running: whether there are `some`, and what takes the
    best one out."""

    some: Callable[[], Expr]
    take: Callable[[], Expr]


class Picking:
    """Picks the items of all groups; `selected` counts them."""

    def __init__(self, k: KernelBuilder, what: Picked):
        self.k, self.what = k, what
        self.selected = k.var(i64, 0)

    def run(self) -> None:
        k, what = self.k, self.what
        if largest(what.limit):
            running = self.room()
            with k.loops(*what.groups) as group:
                self._pick(group, running)
        what.finish(self.selected[()])

    def _pick(self, group: Place, running: Callable[[Place], Running]) -> None:
        k, what = self.k, self.what
        start, items = k.let(self.selected[()]), running(group)
        with k.repeat(items.some() & (self.selected[()] - start < what.limit)):
            item = items.take()
            mine = what.traits(group, item)
            with k.when(~self.clashes(group, mine, start)):
                row = k.let(self.selected[()])
                what.put(row, group, item)
                self.remember(row - start, mine)
                k.store(self.selected, (), row + 1)

    def room(self) -> Callable[[Place], Running]:
        """Allocates what holds the items of a group; gives what fills it: a heap."""
        left = self.k.alloc(i64, (largest(self.what.count),))
        return lambda group: self._heap(group, left)

    def _heap(self, group: Place, left: Buffer) -> Running:
        """The items of a group; `left` is where those stand that are in the running."""
        k, number = self.k, self.k.var(i64, self._candidates(group, left))
        heap = Heap(k, self._follows(group, left), swap_in(k, left, lambda slot: (slot,)))
        heap.build(k.let(number[()]))

        def take() -> Expr:
            item, last = k.let(left[Const(0, i64)]), k.let(number[()] - 1)
            k.store(left, 0, left[last])
            k.store(number, (), last)
            heap.sift(0, last)
            return item

        return Running(lambda: number[()] > 0, take)

    def _candidates(self, group: Place, left: Buffer) -> Expr:
        """Fills `left` with the items that take part; returns how many."""
        k, filled = self.k, self.k.var(i64, 0)
        with k.loop(self.what.count) as item, k.when(self.what.takes_part(group, item)):
            k.store(left, filled[()], item)
            k.store(filled, (), filled[()] + 1)
        return k.let(filled[()])

    def _follows(self, group: Place, left: Buffer) -> Callable[[Expr, Expr], Expr]:
        """Whether what is at one slot comes after what is at another: the best is on top."""
        k, what = self.k, self.what

        def follows(p: Expr, q: Expr) -> Expr:
            a, b = k.let(left[p]), k.let(left[q])
            one, two = k.let(what.score(group, a)), k.let(what.score(group, b))
            return what.precedes((two, b), (one, a))

        return follows

    def clashes(self, group: Place, mine: Place, start: Expr) -> Expr:
        """Whether an item clashes with one in a row from `start` on."""
        k, what = self.k, self.what
        alone, other = k.var(boolean, True), k.var(i64, start)
        with k.repeat(alone[()] & (other[()] < self.selected[()])):
            better = k.let(what.item_at(other[()]))
            k.store(alone, (), ~what.clash(mine, what.traits(group, better)))
            k.store(other, (), other[()] + 1)
        return ~alone[()]

    def remember(self, number: Expr, mine: Place) -> None:
        """Takes note of the traits of an item that has this number among those of its group."""
