"""What imperative operators do with many elements at once, each in terms of the others.

An operator says what is wanted: values that run along lines, the elements for which a condition
holds. `Collectives` builds it for one thread, element after element; this is what it means.
Targets of many threads build the same results in ways of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from graphc.ir.dtypes import DType, i64
from graphc.ir.expr import Const, Expr, call
from graphc.ir.kernel import KernelBuilder

Place = tuple[Expr, ...]


@dataclass(frozen=True)
class Running:
    """Sums (`operation` "add") or products ("mul") of type `dtype` along lines of some `length`,
    of which `lines` gives the extents. `element` of a line and a position is added there; `put`
    gets the value up to there, without that element if `exclusive`."""

    lines: tuple[int, ...]
    length: int
    dtype: DType
    operation: str
    exclusive: bool
    element: Callable[[Place, Expr], Expr]
    put: Callable[[Place, Expr, Expr], None]

    @property
    def start(self) -> Const:
        return Const(0 if self.operation == "add" else 1, self.dtype)

    def combined(self, before: Expr, after: Expr) -> Expr:
        return call(self.operation, before, after)


@dataclass(frozen=True)
class Kept:
    """The positions, of `extents`, where `holds` is true, in row-major order. `put` gets such a
    position, its number among them, and an index of `rest`: what else goes with it. `finish` gets
    how many there are."""

    extents: tuple[int, ...]
    rest: tuple[int, ...]
    holds: Callable[[Place], Expr]
    put: Callable[[Place, Expr, Place], None]
    finish: Callable[[Expr], None]


class Collectives(KernelBuilder):
    """Builds kernels of operators for one thread, or one for each line."""

    def running(self, what: Running) -> None:
        """A variable for each line, from its first position to its last."""
        with self.loops(*what.lines, kind="parallel") as line:
            value = self.var(what.dtype, what.start)
            with self.loop(what.length) as j:
                if what.exclusive:
                    what.put(line, j, value[()])
                self.store(value, (), what.combined(value[()], what.element(line, j)))
                if not what.exclusive:
                    what.put(line, j, value[()])

    def kept(self, what: Kept) -> None:
        """Counts positions one after the other."""
        found = self.var(i64, 0)
        with self.loops(*what.extents) as where, self.when(what.holds(where)):
            place = self.let(found[()])
            with self.loops(*what.rest) as inner:
                what.put(where, place, inner)
            self.store(found, (), place + 1)
        what.finish(found[()])
