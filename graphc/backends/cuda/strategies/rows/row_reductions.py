"""Row reductions: softmax, normalisations and plain reductions, several threads to a row.

The reductions of a computation that depend on some output indices only span its rows; the other
indices run inside a row. A long row belongs to a block, a shorter one to a warp or to a part of
one. Its threads go over the reduced elements in vectors of 16 bytes, combine partial results by
warp shuffles, and across warps through shared memory. Then they go over the outputs of the row,
with all reductions known. What a row reads stays in registers throughout (row_sweeps.py), unless
the row is very long. So a softmax or layer norm is one kernel that reads its input from memory
once.

Where rows are neighbours in memory and their elements are not (a softmax over channels, a vector
times a matrix), a thread takes a vector of neighbouring rows. Threads that share these rows lie in
other parts of the warp and of the block, so that the accesses of a warp are coalesced. They combine
their results in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from graphc.backends.cuda.machines import WARP
from graphc.backends.cuda.strategies.rows.online_reductions import (
    Normalizer,
    OnePass,
    find_one_pass,
    rescaled,
)
from graphc.backends.cuda.strategies.rows.row_plans import (
    BLOCK,
    Rows,
    by_groups,
    plan_rows,
)
from graphc.backends.cuda.strategies.rows.row_sweeps import (
    ZERO,
    Columns,
    Ends,
    Make,
    Sweep,
    Sweeper,
    over,
    placed,
    steps_over,
)
from graphc.backends.cuda.strategies.vectors import each_neighbour, store_points
from graphc.ir.addresses import unflatten_index
from graphc.ir.dtypes import DType, f32, i64
from graphc.ir.expr import (
    TRUE,
    Const,
    Expr,
    Index,
    Reduce,
    Ref,
    cast,
    free_indices,
    loads,
    minimum,
    substitute,
)
from graphc.ir.extents import ceil_divided, common_factor, divided, most
from graphc.ir.kernel import Barrier, Buffer, Intrin, Kernel, Let
from graphc.ir.simplify import simplify
from graphc.ir.types import Dim, elements_of
from graphc.passes.analysis.computation import Computation, flops
from graphc.passes.analysis.core import outermost
from graphc.passes.lower.lowered import Lowered, in_place
from graphc.passes.lower.strategies.nest import Nest, NestOptions, Point
from graphc.passes.lower.strategies.reductions import combined

ELEMENT = Index("element", 1)  # bound where one thread computes what belongs to an element of a row


def lower_rows(computation: Computation, name: str = "rows") -> Lowered | str:
    """The kernel of row reductions, or the reason why the computation has none."""
    if not computation.has_one_space:
        return "rows: outputs must have one shape, found different ones"
    nest = RowNest(by_groups(computation), NestOptions(flat=True))
    kernel = nest.kernel(name)
    if nest.problem:
        return f"rows: {nest.problem}"
    return Lowered(kernel, inplace=in_place(computation), flops=flops(computation))


def plan_of(computation: Computation) -> Rows | str:
    """How threads would share the rows of a computation, or why it has none."""
    nest = _Planning(computation, NestOptions(flat=True))
    nest.kernel("rows")
    return nest.plan


class _Planning(Nest):
    """Finds the plan of a kernel without making it."""

    plan: Rows | str = "a kernel must have stores, found none"

    def outer_loops(self, indices: list[Index], points: list[Point]) -> None:
        self.plan = plan_rows(indices, points)


@dataclass
class RowNest(Nest):
    """Loops over rows in place of loops over elements. `problem` says why there is no kernel."""

    problem: str = ""
    shared: list[Buffer] = field(default_factory=list)
    plan: Rows | None = None
    row: Expr = ZERO
    words: dict[int, Ref] = field(default_factory=dict)  # the first one in a row, by its length
    row_bound: frozenset = frozenset()
    lane_of_row: Expr = Const(0, i64)
    column: Expr = Const(0, i64)  # of the columns of a block
    stores_if: Expr = TRUE
    unresolved: list[Expr] = field(default_factory=list)

    def __post_init__(self) -> None:
        inputs = frozenset(b.name for b in self.computation.inputs)
        self.sweeper = Sweeper(self.k, inputs)

    def kernel(self, name: str) -> Kernel:
        kernel = super().kernel(name)
        self.problem = self.problem or (
            "" if kernel.body else "a kernel must have stores, found none"
        )
        return kernel

    def outer_loops(self, indices: list[Index], points: list[Point]) -> None:
        plan = plan_rows(indices, points)
        if isinstance(plan, str):
            self.problem = plan
            return
        self.plan = plan
        if plan.are_columns:
            self._columns(points)
        elif plan.threads == 1:
            with self.k.loop(plan.count, "parallel", name="row") as row:
                self._row(points, row, frozenset({row}))
        elif plan.threads <= WARP:
            self._warps(points, plan.count)
        else:
            thread = Index("thread", plan.threads)
            with self._grid(plan.count, thread) as block:
                self.lane_of_row = thread
                self._row(points, block, frozenset({block, thread}))

    def _warps(self, points: list[Point], count: Dim) -> None:
        """A warp to a row, or to several, and several warps to a block."""
        assert self.plan is not None
        thread, lanes = Index("thread", BLOCK), self.plan.threads
        together = BLOCK // lanes
        with self._grid(ceil_divided(count, together), thread) as block:
            self.lane_of_row = simplify(thread % lanes)
            row = self._inside(block * together + thread // lanes, count)
            self._row(points, row, frozenset({block, thread}))

    def _inside(self, row: Expr, count: Dim) -> Expr:
        """The row of a thread of a block with several; threads without one do as the last row's,
        but store nothing."""
        row = simplify(row)
        self.stores_if = simplify(row < count)
        return row if isinstance(self.stores_if, Const) else simplify(minimum(row, count - 1))

    def _columns(self, points: list[Point]) -> None:
        """A block to neighbouring rows, whose elements lie one below the other."""
        assert self.plan is not None
        together, vector = self.plan.together, self.plan.vector
        count = divided(self.plan.count, vector)[0]
        thread = Index("thread", together * self.plan.threads)
        with self._grid(ceil_divided(count, together), thread) as block:
            self.lane_of_row = simplify(thread // together)
            self.column = simplify(thread % together)
            n = self._over(()).neighbour
            row = self._inside(block * together + self.column, count) * vector + n
            self._row(points, simplify(row), frozenset({block, thread}) | free_indices(n))

    @contextmanager
    def _grid(self, blocks: Dim, thread: Index) -> Iterator[Index]:
        """A block loop around a thread loop; shared arrays that turn up are declared between."""
        with (
            self.k.loop(blocks, "block", name="block") as block,
            self.k.threads(thread, self.shared),
        ):
            yield block

    def _row(self, points: list[Point], row: Expr, bound: frozenset) -> None:
        """The reductions of a row, then its elements."""
        assert self.plan is not None
        extents = tuple(x.extent for x in self.plan.rows)
        points = self._at(points, dict(zip(self.plan.rows, unflatten_index(row, extents))))
        self.row, self.row_bound = row, bound
        points = self.resolved(points, bound)
        inner = self.plan.inner
        whole = self._over(inner, alone=bool(outermost([p.expr for p in points])))
        make = placed([p.expr for p in points], inner)
        places = placed([p.offset for p in points], inner)
        for sweep in self._in_words(whole, make, places):
            with self.sweeper.elements(sweep, make, lambda at: []) as (at, exprs, more):
                own = bound | more | {ELEMENT}
                moved = [Point(p.output, o, e) for p, o, e in zip(points, places(at), exprs)]
                with self.k.where(self.stores_if):
                    store_points(self.k, self.resolved(moved, own), sweep.neighbour)

    def _over(self, indices: Sequence[Index], alone: bool = False) -> Sweep:
        """How the threads of a row go over its elements; `alone`: one at a time."""
        assert self.plan is not None
        extent = elements_of(x.extent for x in indices)
        if self.plan.are_columns:
            steps = steps_over(extent, self.plan.threads, self.plan.vector)
            return Columns(extent, self.plan.threads, self.plan.vector, self.lane_of_row, steps)
        vector = 1 if alone else common_factor(extent, self.plan.vector)
        return over(extent, self.plan.threads, vector, self.lane_of_row)

    def _in_words(self, sweep: Sweep, make: Make, places: Make = lambda at: []) -> list[Sweep]:
        """The sweep; or the words of a long row and its ends, if it has no whole number of words,
        and all that is read and stored (at `places`) lies as the row does."""
        assert self.plan is not None
        word, length = self.plan.vector, sweep.extent
        is_long = not isinstance(sweep, Columns) and self.plan.threads > WARP and not sweep.is_held
        if not is_long or sweep.vector == word or not isinstance(length, int):
            return [sweep]
        at = Index("at", length)
        read = [x for e in make(at) for x in loads(e) if at in free_indices(x)]
        apart = (simplify(x - (self.row * length + at))
                 for x in (*places(at), *(x.index[0] for x in read)))  # fmt: skip
        if not all(isinstance(x, Const) and x.value % word == 0 for x in apart):
            return [sweep]
        if length not in self.words:
            last = most(self.plan.count) * length // word + 1
            self.words[length] = Ref(self.k.fresh("word"), i64, 0, last)
            first = simplify((self.row * length + (word - 1)) // word)
            self.k.emit(Let(self.words[length], first))
        start = simplify(self.words[length] * word - self.row * length)
        threads, steps = sweep.threads, -(-length // (sweep.threads * word))
        words = Sweep(length, threads, word, sweep.lane, steps, start)
        return [words, Ends(length, threads, 1, sweep.lane, 1, start, word)]

    # ---------------------------------------------------------------- reductions

    def resolve_group(
        self, ready: list[Reduce], exprs: list[Expr], bound: frozenset, per_lane: bool
    ) -> list[Expr]:
        if bound != self.row_bound:
            return super().resolve_group(ready, exprs, bound, per_lane)
        self.unresolved = exprs
        pair = find_one_pass(ready[0], exprs)
        if pair is None or not self._is_long(ready[0]):
            return super().resolve_group(ready, exprs, bound, per_lane)
        if isinstance(pair, Normalizer):
            results = self._normalizer(pair)
        else:
            results = self._moments(pair)
        known: dict[Expr, Expr] = dict(zip((pair.first, pair.second), results))
        return [substitute(e, known) for e in exprs]

    def _is_long(self, reduction: Reduce) -> bool:
        """Whether every pass over what is reduced reads it again, several steps at a time."""
        assert self.plan is not None
        is_shared = self.plan.are_columns or self.plan.threads > 1
        sweep = self._over(reduction.axes)
        return is_shared and not sweep.is_held and most(sweep.steps) > sweep.unrolled

    def _normalizer(self, normalizer: Normalizer) -> list[Expr]:
        """A largest element and the sum of exponentials below it, in one pass."""
        largest, total = normalizer.first, normalizer.second
        sweep = self._over(largest.axes)
        place = self._place(sweep)
        most, totals = self._total(largest, sweep), self._total(total, sweep)
        mark = Ref(self.k.fresh("most"), largest.dtype)
        make = placed([largest.term, normalizer.term(mark)], largest.axes)
        for part in self._in_words(sweep, make):
            with self.sweeper.chunks(part, make) as (chunk, elements):
                bound = self.row_bound | part.loops | {chunk}
                new = self._copy(most, sweep)
                with elements() as (value, _), each_neighbour(self.k, part.neighbour):
                    (value,) = self.resolve([value], bound, False)
                    self.k.store(new, place, combined(largest, new[place], simplify(value)))
                self._rescale(sweep, totals, most, new)
                with elements() as (_, term), each_neighbour(self.k, part.neighbour):
                    self.k.emit(Let(mark, cast(most[place], mark.dtype)))
                    (term,) = self.resolve([term], bound, False)
                    self.k.store(totals, place, combined(total, totals[place], simplify(term)))
        whole = self._across(largest, self._copy(most, sweep), sweep)
        self._rescale(sweep, totals, most, whole)
        totals = self._across(total, totals, sweep)
        return self._results(normalizer, whole, totals, sweep)

    def _moments(self, moments: OnePass) -> list[Expr]:
        """A sum, and the sum of squares about the mean, in one pass: both about the mean of what
        a thread reads first."""
        first, second, sweep = moments.first, moments.second, self._over(moments.first.axes)
        place, together = self._place(sweep), sweep.unrolled * sweep.per_step
        centre, total, squares = (self._total(first, sweep) for _ in range(3))
        with self.sweeper.chunks(sweep, placed([first.term], first.axes)) as (chunk, elements):
            bound = self.row_bound | sweep.loops | {chunk}
            with self.k.when(chunk.eq(0)), elements() as x, each_neighbour(self.k, sweep.neighbour):
                (value,) = self.resolve(x, bound, False)
                self.k.store(centre, place, centre[place] + simplify(value) * (1 / together))
            with elements() as x, each_neighbour(self.k, sweep.neighbour):
                (value,) = self.resolve(x, bound, False)
                apart = self.k.let(simplify(value) - centre[place])
                self.k.store(total, place, total[place] + apart)
                self.k.store(squares, place, squares[place] + apart * apart)
        count = cast(sweep.steps_of_lane * sweep.per_step, f32)
        whole = self._copy(total, sweep)
        with each_neighbour(self.k, sweep.neighbour if place else ZERO):
            self.k.store(whole, place, whole[place] + centre[place] * count)
        whole = self._across(first, whole, sweep)
        with each_neighbour(self.k, sweep.neighbour if place else ZERO):
            apart = self.k.let(centre[place] - moments.shifted_by(whole[place], moments.elements))
            more = apart * (total[place] * 2 + apart * count)
            self.k.store(squares, place, squares[place] + more)
        return self._results(moments, whole, self._across(second, squares, sweep), sweep)

    def _results(
        self, one_pass: OnePass, first: Buffer, second: Buffer, sweep: Sweep
    ) -> list[Expr]:
        """Two reductions of rows, by names where a thread has one row."""
        place = self._place(sweep)
        finished = one_pass.finished(first[place], second[place])
        results = [cast(first[place], one_pass.first.dtype), cast(finished, one_pass.second.dtype)]
        return results if place else [self.k.let(x) for x in results]

    def _copy(self, source: Buffer, sweep: Sweep) -> Buffer:
        """The results of rows in variables of their own."""
        place = self._place(sweep)
        if not place:
            return self.k.var(source.dtype, source[place])
        copy = self.k.alloc(source.dtype, source.shape, "reg", self.k.fresh("v"))
        with each_neighbour(self.k, sweep.neighbour):
            self.k.store(copy, place, source[place])
        return copy

    def _rescale(self, sweep: Sweep, totals: Buffer, most: Buffer, new: Buffer) -> None:
        """Sums below largest elements in terms of new ones, which take their place."""
        place = self._place(sweep)
        with each_neighbour(self.k, sweep.neighbour if place else ZERO):
            self.k.store(totals, place, rescaled(totals[place], most[place], new[place]))
            self.k.store(most, place, new[place])

    def _later(self, sweep: Sweep, at: Expr) -> list[Expr]:
        """What passes to come compute of an element, as far as can be told."""
        assert self.plan is not None
        results: list[Expr] = []
        if elements_of(x.extent for x in self.plan.inner) == sweep.extent:
            results += placed(self.unresolved, self.plan.inner)(at)
        return results

    def reduction(self, group: list[Reduce], bound: frozenset, per_lane: bool) -> list[Expr]:
        """Reductions of a row are shared by its threads; others belong to one thread."""
        axes = group[0].axes
        alone = self.plan is None or not (self.plan.are_columns or self.plan.threads > 1)
        if alone or bound != self.row_bound or any(a.extent == 0 for a in axes):
            return super().reduction(group, bound, per_lane)
        sweep = self._over(axes)
        place = self._place(sweep)
        totals = [self._total(r, sweep) for r in group]
        make = placed([r.term for r in group], axes)
        for part in self._in_words(sweep, make):
            later = partial(self._later, part)
            with (
                self.sweeper.elements(part, make, later) as (_, exprs, more),
                each_neighbour(self.k, part.neighbour),
            ):
                for r, total, term in zip(
                    group, totals, self.resolve(exprs, bound | more | {ELEMENT}, False)
                ):
                    self.k.store(total, place, combined(r, total[place], simplify(term)))
        wholes = [self._across(r, total, sweep) for r, total in zip(group, totals)]
        results = [cast(x[place], r.dtype) for r, x in zip(group, wholes)]
        return results if place else [self.k.let(x) for x in results]

    def _place(self, sweep: Sweep) -> tuple[Expr, ...]:
        """Where the result of a row is among those that a thread has."""
        return (sweep.neighbour,) if isinstance(sweep, Columns) and sweep.vector > 1 else ()

    def _total(self, reduction: Reduce, sweep: Sweep) -> Buffer:
        """A variable for the result of a row, or one for each of a thread's."""
        place, dtype = self._place(sweep), reduction.dtype.compute
        if not place:
            return self.k.var(dtype, cast(reduction.identity, dtype))
        total = self.k.alloc(dtype, (sweep.vector,), "reg", self.k.fresh("v"))
        with each_neighbour(self.k, sweep.neighbour):
            self.k.store(total, place, cast(reduction.identity, dtype))
        return total

    def _across(self, reduction: Reduce, total: Buffer, sweep: Sweep) -> Buffer:
        """The partial results of all threads of a row combined; every thread has the result."""
        assert self.plan is not None
        if self.plan.threads == 1:
            return total
        if isinstance(sweep, Columns):
            return self._across_columns(reduction, total, sweep)
        instruction = f"warp_{reduction.op}"
        lanes, warps = min(self.plan.threads, WARP), self.plan.threads // WARP
        self.k.emit(Intrin(instruction, (total[()], Const(lanes, i64))))
        if warps <= 1:
            return total
        partials = self._shared_array((warps,), total.dtype)
        lane, warp = self.lane_of_row % WARP, self.lane_of_row // WARP
        with self.k.when(lane.eq(0)):
            self.k.store(partials, simplify(warp), total[()])
        self.k.emit(Barrier())
        whole = self.k.var(total.dtype, partials[simplify(lane % warps)])
        self.k.emit(Intrin(instruction, (whole[()], Const(warps, i64))))
        return whole

    def _shared_array(self, shape: tuple[int, ...], dtype: DType) -> Buffer:
        self.shared.append(Buffer(self.k.fresh("partial"), dtype, shape, "local"))
        return self.shared[-1]

    def _across_columns(self, reduction: Reduce, total: Buffer, sweep: Sweep) -> Buffer:
        """The same where the threads of a row are apart by those of its neighbours."""
        assert self.plan is not None
        together, place = self.plan.together, self._place(sweep)
        lanes = max(1, WARP // together)
        parts = sweep.threads // lanes
        partials = self._shared_array((parts, sweep.vector, together), total.dtype)
        with each_neighbour(self.k, sweep.neighbour):
            mine = self.k.var(total.dtype, total[place])
            if lanes > 1:
                width, apart = Const(lanes, i64), Const(together, i64)
                self.k.emit(Intrin(f"warp_{reduction.op}", (mine[()], width, apart)))
            part = simplify(self.lane_of_row // lanes)
            with self.k.when(simplify((self.lane_of_row % lanes).eq(0))):
                self.k.store(partials, (part, sweep.neighbour, self.column), mine[()])
        self.k.emit(Barrier())
        whole = self._total(reduction, sweep)
        with each_neighbour(self.k, sweep.neighbour), self.k.loop(parts, "unroll") as part:
            value = partials[part, sweep.neighbour, self.column]
            self.k.store(whole, place, combined(reduction, whole[place], value))
        return whole
