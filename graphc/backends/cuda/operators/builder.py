"""Builds kernels of operators for grids of threads.

What one launch hands on to the next lies in scratch memory. Results do not depend on the order of
threads: nothing is added up by atomic operations.

Running values along an open length, and what is kept of open extents, are computed as for the
largest, by threads of which those beyond the end do nothing. What else has open extents is left to
one thread, or one for each line.
"""

from __future__ import annotations

import math
from dataclasses import replace

from graphc.backends.cuda.operators import elimination, picking, scans, scatter, sorting
from graphc.backends.cuda.operators.grids import scratch
from graphc.ir.addresses import flatten_index, unflatten_index
from graphc.ir.dtypes import i32, i64
from graphc.ir.expr import Const, Expr, as_expr, cast, select
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
from graphc.ir.simplify import bounds
from graphc.ir.types import Dim, largest


class GridBuilder(Collectives):
    """Collectives by many threads each; those of little work stay with one."""

    def running(self, what: Running) -> None:
        if not _are_static(*what.lines):
            super().running(what)
            return
        if not _are_static(what.length):
            what = self._at_most(what)
        if scans.is_worth_it(what):
            scans.running(self, what)
        else:
            super().running(what)

    def _at_most(self, what: Running) -> Running:
        """The same as for the longest line: beyond the end of one nothing is added or put."""
        length = as_expr(what.length, i64)

        def element(line: Place, j: Expr) -> Expr:
            return select(j < length, what.element(line, j), what.start)

        def put(line: Place, j: Expr, value: Expr) -> None:
            with self.when(j < length):
                what.put(line, j, value)

        return replace(what, length=largest(what.length), element=element, put=put)

    def leaders(self, what: Leaders) -> None:
        if _are_static(*what.lines, what.count, what.wanted) and sorting.is_worth_it(what):
            sorting.leaders(self, what)
        else:
            super().leaders(what)

    def scattered(self, what: Scattered) -> None:
        if _are_static(*what.target.shape, *what.extents, *what.rest) and scatter.is_worth_it(what):
            scatter.scattered(self, what)
        else:
            super().scattered(what)

    def eliminated(self, what: Eliminated) -> None:
        if _are_static(*what.lines, what.size) and elimination.is_worth_it(what):
            elimination.eliminated(self, what)
        else:
            super().eliminated(what)

    def picked(self, what: Picked) -> None:
        if _are_static(*what.groups, what.count, what.limit):
            picking.picked(self, what)
        else:
            super().picked(what)

    def kept(self, what: Kept) -> None:
        """Positions are numbered by a running sum; what goes with them is then moved by a thread
        for each element."""
        count, is_open = math.prod(what.extents), not _are_static(*what.extents, *what.rest)
        may_vanish = any(bounds(as_expr(x, i64))[0] < 1 for x in what.extents[1:])  # no divisor
        if (is_open and may_vanish) or (largest(count) < scans.LEAST and not what.rest):
            super().kept(what)
            return
        counter = i32 if largest(count) <= i32.max else i64
        places = scratch(self, counter, (largest(count),)) if what.rest else None

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

        if is_open or count == 0:
            what.finish(Const(0, i64))  # which stays where there is nothing
        if largest(count) == 0:
            return
        self.running(Running((), count, counter, "sum", True, lambda _, j: flag(j), put))
        if places is not None:
            with self.loops(*what.extents, *what.rest, kind="parallel") as index:
                where, inner = index[: len(what.extents)], index[len(what.extents) :]
                number = places[flatten_index(where, what.extents)]
                with self.when(what.holds(where)):
                    what.put(where, self.let(cast(number, i64)), inner)


def _are_static(*extents: Dim) -> bool:
    """Whether extents are numbers."""
    return all(isinstance(extent, int) for extent in extents)
