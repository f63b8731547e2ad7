"""What imperative operators do with many elements at once, each in terms of the others.

An operator says what is wanted: values that run along lines, the elements for which a condition
holds, the first elements in some order, updates of places that elements name, items that do not
clash, matrices that are eliminated. `Collectives` builds it for one thread, element after element;
this is what it means. Targets of many threads build the same results in ways of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from graphc.ir.dtypes import DType, i64
from graphc.ir.expr import REDUCTIONS, Const, Expr, call, identity_of
from graphc.ir.imperative.elimination import determinant
from graphc.ir.imperative.heap import Heap, swap_in
from graphc.ir.imperative.picking import Picked, Picking, Place
from graphc.ir.imperative.sampling import Sampled, sample_each
from graphc.ir.kernel import Buffer, KernelBuilder
from graphc.ir.types import largest
from graphc.records import dataclass

SMALL_MATRIX = 1 << 12  # bytes that a thread has on its stack


def _element_of(matrix: Place, row: Expr, column: Expr) -> Place:
    return (*matrix, row, column)


@dataclass(frozen=True)
class Running:
    """Reductions of type `dtype` ("sum" or "prod") of what precedes each position of lines of some
    `length`, of which `lines` gives the extents. `element` is that of a line and a position; `put`
    gets the value up to there, without that element if `exclusive`."""

    lines: tuple[int, ...]
    length: int
    dtype: DType
    reduction: str
    exclusive: bool
    element: Callable[[Place, Expr], Expr]
    put: Callable[[Place, Expr, Expr], None]

    @property
    def start(self) -> Const:
        return identity_of(self.reduction, self.dtype)

    def combined(self, before: Expr, after: Expr) -> Expr:
        return call(REDUCTIONS[self.reduction], before, after)


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


@dataclass(frozen=True)
class Leaders:
    """The `wanted` first of `count` items of each line, in order: better values before worse ones,
    equal ones, if there may be `ties`, in the order of their positions. No value is worse than
    `worst`. `outputs` are buffers for the values and, if there are two, for their positions;
    `at` says where in them a line has its number so and so. `order`, if there is one, gives a
    number of type i32 that is larger for better values and equal for equal ones."""

    lines: tuple[int, ...]
    count: int
    wanted: int
    item: Callable[[Place, Expr], Expr]
    better: Callable[[Expr, Expr], Expr]
    worst: Const
    outputs: tuple[Buffer, ...]
    at: Callable[[Place, Expr], Place]
    ties: bool = True
    order: Callable[[Expr], Expr] | None = None

    def precedes(self, a: tuple[Expr, Expr], b: tuple[Expr, Expr]) -> Expr:
        """Whether one item, a value and its position, comes before another one."""
        if not self.ties:
            return self.better(a[0], b[0])
        tied = ~self.better(b[0], a[0]) & (a[1] < b[1])
        return self.better(a[0], b[0]) | tied


@dataclass(frozen=True)
class Scattered:
    """Updates of a target, one for each position of `extents`, in row-major order. `place` says
    which of the target's leading dims one changes, and whether it changes any; all `rest` of that
    place are `combined` with the update's values (the old first), or become these. Updates that
    differ in a dim that is `apart` change different places."""

    target: Buffer
    extents: tuple[int, ...]
    rest: tuple[int, ...]
    place: Callable[[Place], tuple[Place, Expr]]
    value: Callable[[Place, Place], Expr]
    combined: Callable[[Expr, Expr], Expr] | None = None
    apart: tuple[int, ...] = ()

    def update(self, k: KernelBuilder, at: Place, where: Place, inner: Place) -> None:
        value, target = self.value(where, inner), (*at, *inner)
        if self.combined is not None:
            value = self.combined(self.target[target], value)
        k.store(self.target, target, value)


@dataclass(frozen=True)
class Eliminated:
    """Square matrices of `size` rows, one for each index of `lines`, whose `element` of a row and a
    column has type `dtype`. `put` gets the determinant of each, by Gaussian elimination."""

    lines: tuple[int, ...]
    size: int
    dtype: DType
    element: Callable[[Place, Expr, Expr], Expr]
    put: Callable[[Place, Expr], None]


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

    def eliminated(self, what: Eliminated) -> None:
        """A copy of each matrix, on the stack if it is small."""
        size, most = what.size, largest(what.size)
        stays = most**2 * what.dtype.size <= SMALL_MATRIX
        if not stays:
            matrices = self.alloc(what.dtype, (*map(largest, what.lines), most, most), "scratch")
        with self.loops(*what.lines, kind="parallel") as line:
            matrix = self.alloc(what.dtype, (most, most)) if stays else matrices
            at = partial(_element_of, () if stays else line)
            with self.loops(size, size) as (row, column):
                self.store(matrix, at(row, column), what.element(line, row, column))
            what.put(line, determinant(self, matrix, at, size))

    def kept(self, what: Kept) -> None:
        """Position after position."""
        kept = self.var(i64, 0)
        with self.loops(*what.extents) as where, self.when(what.holds(where)):
            self.keep(what, where, kept)
        what.finish(kept[()])

    def keep(self, what: Kept, where: Place, kept: Buffer) -> None:
        """Takes a position that is kept, and counts it."""
        place = self.let(kept[()])
        with self.loops(*what.rest, kind="parallel") as inner:
            what.put(where, place, inner)
        self.store(kept, (), place + 1)

    def leaders(self, what: Leaders) -> None:
        """The outputs are heaps: they hold the best seen so far, the worst of them at slot 0."""
        values = what.outputs[0]
        with self.loops(*what.lines, kind="parallel") as line:
            at = partial(what.at, line)
            named = len(what.outputs) > 1
            indices = what.outputs[1] if named else self.alloc(i64, (what.wanted,))
            index_at = at if named else lambda slot: (slot,)

            def precedes(p: Expr, q: Expr) -> Expr:
                a, b = ((values[at(x)], indices[index_at(x)]) for x in (p, q))
                return what.precedes(a, b)

            swap_value, swap_index = swap_in(self, values, at), swap_in(self, indices, index_at)
            heap = Heap(self, precedes, lambda a, b: (swap_value(a, b), swap_index(a, b))[1])
            with self.loop(what.wanted) as j:
                self.store(values, at(j), what.item(line, j))
                self.store(indices, index_at(j), j)
            heap.build(what.wanted)

            def offer(j: Expr) -> None:
                item = self.let(what.item(line, j))
                with self.when(what.better(item, self.let(values[at(Const(0, i64))]))):
                    self.store(values, at(Const(0, i64)), item)
                    self.store(indices, index_at(Const(0, i64)), j)
                    heap.sift(0, what.wanted)

            self.offered(what, line, lambda: values[at(Const(0, i64))], offer)
            heap.unwind(what.wanted)

    def offered(
        self,
        what: Leaders,
        line: Place,
        last: Callable[[], Expr],
        offer: Callable[[Expr], None],
    ) -> None:
        """Offers all items of a line but the first `wanted`, none of which is among the best so far
        unless it is better than the `last` of these."""
        with self.loop(what.count - what.wanted) as j:
            offer(self.let(j + what.wanted))

    def scattered(self, what: Scattered) -> None:
        """Update after update."""
        with self.loops(*what.extents) as where:
            at, inside = what.place(where)
            with self.when(inside), self.loops(*what.rest, kind="parallel") as inner:
                what.update(self, at, where, inner)

    def picked(self, what: Picked) -> None:
        """Item after item."""
        Picking(self, what).run()

    def sampled(self, what: Sampled) -> None:
        """Each element of the result by itself."""
        sample_each(self, what)
