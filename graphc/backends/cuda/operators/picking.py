"""Greedy picking on GPUs (as in non-maximum suppression): a block to a group of items.

Every thread has some of the items. In each step all threads look for the best item left, which is
picked, and drop those of their items that clash with it. So nothing is sorted, and a group takes as

many passes over its items as are picked. The picked items of all groups then follow one another.
"""

from __future__ import annotations

import math

from graphc.backends.cuda.machines import WARP
from graphc.backends.cuda.operators.grids import ZERO, Grid, grid, known, scratch
from graphc.ir.addresses import unflatten_index
from graphc.ir.dtypes import boolean, i64
from graphc.ir.expr import Const, Expr, maximum
from graphc.ir.imperative.collectives import Collectives, Kept, Picked, Place
from graphc.ir.kernel import Barrier, Buffer

THREADS = 1024  # of a block, at most


def picked(k: Collectives, what: Picked) -> None:
    """A block for each group; then what all groups have picked, one group after another."""
    groups = math.prod(what.groups)
    if groups * what.count * what.limit == 0:
        what.finish(ZERO)
        return
    items, numbers = scratch(k, i64, (groups, what.limit)), scratch(k, i64, (groups,))
    left = scratch(k, boolean, (groups, what.count))
    threads = min(THREADS, max(WARP, 1 << (what.count - 1).bit_length()))
    with grid(k, groups, threads) as g:
        _Group(k, g, what, left).pick(items, numbers)
    k.kept(Kept(
        (groups, what.limit), (), lambda where: where[1] < numbers[where[0]],
        lambda where, row, _: what.put(
            row, unflatten_index(where[0], what.groups), k.let(items[where])
        ),
        what.finish,
    ))  # fmt: skip


class _Group:
    """What a block does for its group; `left` says which items are in the running."""

    def __init__(self, k: Collectives, g: Grid, what: Picked, left: Buffer):
        self.k, self.g, self.what, self.left = k, g, what, left
        self.group: Place = unflatten_index(g.block, what.groups)
        self.scores = g.shared(what.score(self.group, ZERO).dtype, g.threads)
        self.items = g.shared(i64, g.threads)
        self.none = Const(what.count, i64)

    def pick(self, items: Buffer, numbers: Buffer) -> None:
        k, what = self.k, self.what
        with self.g.shares(what.count) as item:
            k.store(self.left, (self.g.block, item), what.takes_part(self.group, item))
        chosen, number = k.var(i64, -1), k.var(i64, 0)
        with k.repeat((number[()] < what.limit) & (chosen[()] < what.count)):
            self._best_left(chosen[()])
            k.store(chosen, (), self._best_of_all())
            with k.when(chosen[()] < what.count):
                with k.when(self.g.thread.eq(0)):
                    k.store(items, (self.g.block, number[()]), chosen[()])
                k.store(number, (), number[()] + 1)
        with k.when(self.g.thread.eq(0)):
            k.store(numbers, self.g.block, number[()])

    def _best_left(self, chosen: Expr) -> None:
        """Drops a thread's items that clash with the one chosen last; shares the best of the rest.
        It is `none` if there is no such item."""
        k, what = self.k, self.what
        best, score = k.var(i64, self.none), k.var(self.scores.dtype, Const(0, self.scores.dtype))
        last = known(k, maximum(chosen, 0), what.count)
        theirs = what.traits(self.group, last)
        with self.g.shares(what.count) as item:
            place = (self.g.block, item)
            with k.when(self.left[place]):
                with k.when(chosen >= 0):
                    clashes = what.clash(what.traits(self.group, item), theirs)
                    clashes = item.eq(last) | clashes
                    k.store(self.left, place, ~clashes)
                with k.when(self.left[place]):
                    mine = k.let(what.score(self.group, item))
                    with k.when(self._precedes((mine, item), (score[()], best[()]))):
                        k.store(best, (), item)
                        k.store(score, (), mine)
        k.store(self.scores, self.g.thread, score[()])
        k.store(self.items, self.g.thread, best[()])
        k.emit(Barrier())

    def _precedes(self, a: tuple[Expr, Expr], b: tuple[Expr, Expr]) -> Expr:
        """Whether an item, a score and a number, is better than another one, which may be none."""
        return a[1].ne(self.none) & (b[1].eq(self.none) | self.what.precedes(a, b))

    def _best_of_all(self) -> Expr:
        """The best of what the threads have shared."""
        k = self.k

        def meet(own: Expr, other: Expr) -> None:
            mine, theirs = ((self.scores[at], self.items[at]) for at in (own, other))
            with k.when(self._precedes(theirs, mine)):
                k.store(self.scores, own, theirs[0])
                k.store(self.items, own, theirs[1])

        self.g.tournament(meet)
        best = k.let(self.items[ZERO])
        k.emit(Barrier())
        return best
