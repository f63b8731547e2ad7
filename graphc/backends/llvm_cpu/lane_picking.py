"""Items picked one after the other, of a processor with vectors.

The traits of picked items are stored, an array for each trait, and an item is compared with a
vector of picked ones at a time. The best item that is left is found in a tournament of two rounds:
items are in blocks, about as many as each block has items, and the best of each block is known. To
take an item out looks at its block and at the best of all blocks, and takes no branch.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from graphc.backends.llvm_cpu.any_lane import CHAINS, any_lane
from graphc.ir.dtypes import boolean, i64
from graphc.ir.expr import Const, Expr, cast, maximum, select
from graphc.ir.imperative.collectives import Collectives
from graphc.ir.imperative.picking import Picked, Picking, Place, Running
from graphc.ir.kernel import Buffer, KernelBuilder
from graphc.ir.types import largest

FEW = 32  # items, for which a heap is as good
LOW = (1 << 32) - 1  # the part of a key that tells items of equal scores apart
NONE = Const(i64.min, i64)  # the key of an item that is not in the running


class LanePicking(Picking):
    """Compares an item with `lanes` others at a time."""

    def __init__(self, k: Collectives, what: Picked, vector_bytes: int):
        super().__init__(k, what)
        size = max((kind.size for kind in what.kinds), default=1)
        self.lanes = max(2, vector_bytes // size)
        self.step, self.words = CHAINS * self.lanes, max(2, vector_bytes // i64.size)
        most = -(-largest(what.limit) // self.step) * self.step
        self.traits = [k.alloc(kind, (most,)) for kind in what.kinds]

    def room(self) -> Callable[[Place], Running]:
        count = self.what.count
        if self.what.order is None or not isinstance(count, int) or count < FEW:
            return super().room()
        return _Tournament(self.k, self.what, self.what.order, count, self.words)

    def remember(self, number: Expr, mine: Place) -> None:
        for buffer, trait in zip(self.traits, mine):
            self.k.store(buffer, number, trait)

    def clashes(self, group: Place, mine: Place, start: Expr) -> Expr:
        k, number = self.k, self.k.let(self.selected[()] - start)
        clashes, first = k.var(boolean, False), k.var(i64, 0)
        with k.repeat(~clashes[()] & (first[()] < number)):
            k.store(clashes, (), self._any_clashes(mine, k.let(first[()]), number))
            k.store(first, (), first[()] + self.step)
        return clashes[()]

    def _any_clashes(self, mine: Place, first: Expr, number: Expr) -> Expr:
        """Whether an item clashes with one of the next `step`, of which `number` are in all."""
        k = self.k

        def clash(lane: Expr) -> Expr:
            at = first + lane
            there = k.let(at < number)
            theirs = tuple(k.let(select(there, buffer[at], 0)) for buffer in self.traits)
            return self.what.clash(mine, theirs) & there

        return any_lane(k, self.lanes, CHAINS, clash)


class _Tournament:
    """Keys of the items of a group, which are larger for better items, and the best of each block.
    A key is the order of a score, and below it the distance from the last number of an item."""

    def __init__(
        self, k: KernelBuilder, what: Picked, order: Callable[[Expr], Expr], count: int, lanes: int
    ):
        self.k, self.what, self.order, self.count, self.lanes = k, what, order, count, lanes
        self.block = max(lanes, 1 << round(math.log2(count) / 2))
        self.blocks = -(-count // self.block)
        self.keys = k.alloc(i64, (self.blocks * self.block,))
        self.tops = k.alloc(i64, (-(-self.blocks // lanes) * lanes,))

    def __call__(self, group: Place) -> Running:
        k = self.k
        self._fill(group)
        best = k.var(i64, self._best(self.tops, Const(0, i64)))

        def take() -> Expr:
            item = k.let(LOW - (best[()] & LOW))
            k.store(self.keys, item, NONE)
            self._find_top(k.let(item // self.block))
            k.store(best, (), self._best(self.tops, Const(0, i64)))
            return item

        return Running(lambda: best[()] > NONE, take)

    def _fill(self, group: Place) -> None:
        k, rest = self.k, self.count % self.lanes
        with k.loop(self.count // self.lanes) as part:
            self._note(group, part * self.lanes, self.lanes)
        if rest:
            self._note(group, Const(self.count - rest, i64), rest)
        with k.loop(self.keys.shape[0] - self.count) as j:
            k.store(self.keys, j + self.count, NONE)
        with k.loop(self.tops.shape[0] - self.blocks) as j:
            k.store(self.tops, j + self.blocks, NONE)
        with k.loop(self.blocks) as block:
            self._find_top(block)

    def _note(self, group: Place, start: Expr, lanes: int) -> None:
        """Stores the keys of a vector of items."""
        k = self.k
        with k.loop(lanes, "vector", width=lanes) as lane:
            item = start + lane
            order = cast(self.order(k.let(self.what.score(group, item))), i64)
            key = order * (LOW + 1) + (LOW - item)
            k.store(self.keys, item, select(self.what.takes_part(group, item), key, NONE))

    def _find_top(self, block: Expr) -> None:
        k = self.k
        k.store(self.tops, block, self._best(self.keys, k.let(block * self.block), self.block))

    def _best(self, keys: Buffer, start: Expr, count: int = 0) -> Expr:
        """The largest of so many keys, or of all."""
        k, lanes = self.k, self.lanes
        best = k.alloc(i64, (lanes,), "reg")
        with k.loop(lanes, "vector", width=lanes) as lane:
            k.store(best, lane, keys[start + lane])
        with k.loop((count or keys.shape[0]) // lanes - 1) as part:
            first = k.let(start + (part + 1) * lanes)
            with k.loop(lanes, "vector", width=lanes) as lane:
                k.store(best, lane, maximum(best[lane], keys[first + lane]))
        while lanes > 1:
            lanes //= 2
            with k.loop(lanes, "vector", width=lanes) as lane:
                k.store(best, lane, maximum(best[lane], best[lane + lanes]))
        return k.let(best[Const(0, i64)])
