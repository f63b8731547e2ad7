"""Builds kernels of operators for a processor with vectors.

Picking keeps the traits of what was picked, an array for each, and compares an item with a vector
of those at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphc.ir.collectives import Collectives
from graphc.ir.dtypes import boolean, i64
from graphc.ir.expr import Const, Expr, select
from graphc.ir.picking import Picked, Picking, Place

CHAINS = 4  # vectors of items that are looked at before it is asked whether one clashes


@dataclass
class LaneBuilder(Collectives):
    """Collectives in vectors of so many bytes."""

    vector_bytes: int = 16

    def picked(self, what: Picked) -> None:
        size = max((kind.size for kind in what.kinds), default=1)
        LanePicking(self, what, max(2, self.vector_bytes // size)).run()


class LanePicking(Picking):
    """Compares an item with `lanes` others at a time."""

    def __init__(self, k: Collectives, what: Picked, lanes: int):
        super().__init__(k, what)
        self.lanes, self.step = lanes, CHAINS * lanes
        most = -(-what.limit // self.step) * self.step
        self.traits = [k.alloc(kind, (most,)) for kind in what.kinds]

    def remember(self, number: Expr, mine: Place) -> None:
        for buffer, trait in zip(self.traits, mine):
            self.k.store(buffer, number, trait)

    def clashes(self, group: Place, mine: Place, start: Expr) -> Expr:
        k, number = self.k, self.k.let(self.selected[()] - start)
        found, first = k.var(boolean, False), k.var(i64, 0)
        with k.repeat(~found[()] & (first[()] < number)):
            k.store(found, (), self._any_clashes(mine, k.let(first[()]), number))
            k.store(first, (), first[()] + self.step)
        return found[()]

    def _any_clashes(self, mine: Place, first: Expr, number: Expr) -> Expr:
        """Whether an item clashes with one of the next `step`, of which `number` are in all."""
        k, lanes = self.k, self.lanes
        some = k.alloc(boolean, (lanes,), "reg")
        for chain in range(CHAINS):
            with k.loop(lanes, "vector", width=lanes) as lane:
                at = first + (lane + chain * lanes)
                there = k.let(at < number)
                theirs = tuple(k.let(select(there, buffer[at], 0)) for buffer in self.traits)
                clash = k.let(self.what.clash(mine, theirs) & there)
                k.store(some, lane, some[lane] | clash if chain else clash)
        while lanes > 1:
            lanes //= 2
            with k.loop(lanes, "vector", width=lanes) as lane:
                k.store(some, lane, some[lane] | some[lane + lanes])
        return k.let(some[Const(0, i64)])
