"""Builds kernels of operators for grids of threads.

What one launch hands on to the next lies in scratch memory. Results do not depend on the order of
threads: nothing is added up by atomic operations.
"""

from __future__ import annotations

import math

from graphc.backends.cuda.operators import elimination, picking, scans, scatter, sorting
from graphc.backends.cuda.operators.grids import scratch
from graphc.ir.addresses import flatten_index, unflatten_index
from graphc.ir.dtypes import i32, i64
from graphc.ir.expr import Const, Expr, cast
from graphc.ir.imperative.collectives import (
    Collectives,
    Eliminated,
    Kept,
    Leaders,
    Picked,
    Place,
    Running,
    Scattered,
)


class GridBuilder(Collectives):
    """Collectives by many threads each; those of little work stay with one."""

    def running(self, what: Running) -> None:
        if scans.is_worth_it(what):
            scans.running(self, what)
        else:
            super().running(what)

    def leaders(self, what: Leaders) -> None:
        if sorting.is_worth_it(what):
            sorting.leaders(self, what)
        else:
            super().leaders(what)

    def scattered(self, what: Scattered) -> None:
        if scatter.is_worth_it(what):
            scatter.scattered(self, what)
        else:
            super().scattered(what)

    def eliminated(self, what: Eliminated) -> None:
        if elimination.is_worth_it(what):
            elimination.eliminated(self, what)
        else:
            super().eliminated(what)

    def picked(self, what: Picked) -> None:
        picking.picked(self, what)

    def kept(self, what: Kept) -> None:
        """Positions are numbered by a running sum; what goes with them is then moved by a thread
        for each element."""
        count = math.prod(what.extents)
        if count < scans.LEAST and not what.rest:
            super().kept(what)
            return
        counter = i32 if count <= i32.max else i64
        places = scratch(self, counter, (count,)) if what.rest else None

        def flag(j: Expr) -> Expr:
            holds = what.holds(unflatten_index(j, what.extents))
            return cast(holds, counter)

        def put(_: Place, j: Expr, before: Expr) -> None:
            before = self.let(before)
            where = unflatten_index(j, what.extents)
            if places is not None:
                self.store(places, j, before)
            else:
                with self.when(what.holds(where)):
                    what.put(where, self.let(cast(before, i64)), ())
            with self.when(j.eq(count - 1)):
                what.finish(cast(before + flag(j), i64))

        if count == 0:
            what.finish(Const(0, i64))
            return
        self.running(Running((), count, counter, "sum", True, lambda _, j: flag(j), put))
        if places is not None:
            with self.loops(*what.extents, *what.rest, kind="parallel") as index:
                where, inner = index[: len(what.extents)], index[len(what.extents) :]
                number = places[flatten_index(where, what.extents)]
                with self.when(what.holds(where)):
                    what.put(where, self.let(cast(number, i64)), inner)
