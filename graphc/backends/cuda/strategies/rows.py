"""Row reductions: softmax, normalisations and plain reductions, several threads to a row.

The reductions of a computation that depend on some output indices only span its rows; the other
indices run inside a row. A row belongs to a block if it is long, else to a warp, or to a part of
one: its threads go over the reduced elements in vectors of 16 bytes, combine their partial results
by shuffles, across warps through shared memory, and then go over the outputs of the row, with all
reductions known. What a row reads stays in registers for all of this (sweeps.py), unless it is very
long. So a softmax or layer norm is one kernel that reads its input from memory once.

Where the rows are neighbours in memory and their elements are not (a softmax over channels), a
thread takes a row of its own, which coalesces the accesses of a warp; or, if nothing but the result
of a row is stored (the mean of an image, a vector times a matrix), the threads of a block share 32
neighbouring rows, or 8 where there are few, and combine their results in shared memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from graphc.backends.cuda.strategies.sweeps import AHEAD, HELD, Sweep, Sweeper, over, placed
from graphc.backends.cuda.strategies.vectors import BYTES, each_neighbour, store_points
from graphc.ir.dtypes import boolean, i64
from graphc.ir.expr import (
    Const,
    Expr,
    Index,
    Load,
    Reduce,
    cast,
    free_indices,
    loads,
    minimum,
    walk,
)
from graphc.ir.kernel import Alloc, Barrier, Buffer, For, Intrin, Kernel
from graphc.ir.simplify import is_affine_in, simplify, unflatten_index
from graphc.passes.lower.computation import Computation, Lowered
from graphc.passes.lower.nest import Nest, NestOptions, Point, combined, in_place, work

WARP = 32
BLOCK = 128  # threads of a block whose rows belong to warps or parts of them
SHORT_ROW = 1024  # elements that a warp reduces by itself
MOST = 1024  # threads of a row
MIN_LANES = 2  # threads of a row
SHARE = 16  # elements of a row that a thread has, or more if they are narrow
FULL = 1 << 17  # threads that fill a GPU: with fewer in all, a row gets more of them
SECTOR = 8  # rows next to one another whose float32s memory gives at once
FEW_ROWS = 2048  # up to which so few rows of columns share a block
MANY_ROWS = 1 << 15  # of columns, from which a thread for each is enough
MAX_THREADS = 512  # of a block of columns
COLUMN_SHARE = 4  # elements that each of them has at least
MIN_ELEMENTS = 32  # reduced or stored per row, below which threads of their own do as well


@dataclass(frozen=True)
class _Rows:
    """The plan: output indices of rows and inside rows, and threads per row (1: each its own), that
    take up to `vector` neighbours at once. `together`: rows next to one another to which as many
    neighbouring threads belong, if not one.
    """

    rows: list[Index]
    inner: list[Index]
    threads: int
    together: int = 1
    vector: int = 1


def lower_rows(computation: Computation) -> Lowered | str:
    """The kernel of row reductions, or the reason why the computation has none."""
    if any(o.extents != computation.outputs[0].extents for o in computation.outputs):
        return "rows: outputs have different shapes"
    nest = RowNest(computation, NestOptions(flat=True))
    kernel = nest.kernel("rows")
    if nest.problem:
        return f"rows: {nest.problem}"
    return Lowered(kernel, inplace=in_place(computation), flops=work(computation))


def _plan(indices: list[Index], points: list[Point]) -> _Rows | str:
    reductions = _outermost([p.expr for p in points])
    if not reductions:
        return "no reductions"
    used = [free_indices(r) & set(indices) for r in reductions]
    spanned = frozenset().union(*(u for u in used if len(u) < len(indices)))
    if not spanned and all(len(u) == len(indices) for u in used):
        spanned = frozenset(indices)
    elif len(spanned) == len(indices):
        return "the reductions have no rows in common"
    rows = [x for x in indices if x in spanned]
    inner = [x for x in indices if x not in spanned]
    own = [r for r, u in zip(reductions, used) if u <= spanned]
    depth = max((math.prod(a.count for a in r.axes) for r in own), default=0)
    width = math.prod(x.count for x in inner)
    if depth == 0 or any(x.count == 0 for x in indices):
        return "nothing to reduce"
    along_rows = all(_contiguous(r) for r in own) and (not inner or inner[-1] is indices[-1])
    if not along_rows:
        if inner:
            return _Rows(rows, inner, 1)
        count = math.prod(x.count for x in rows)
        if not rows or not all(_coalesced(r, rows[-1]) for r in own):
            return "reduced elements are not neighbours"
        if depth < MIN_ELEMENTS or count > MANY_ROWS:
            return f"{count} rows of {depth} elements have threads enough"
        together = WARP if count > FEW_ROWS else SECTOR
        return _Rows(rows, inner, _sharing(depth, together), together)
    if max(depth, width) < MIN_ELEMENTS:
        return f"only {depth} elements to reduce"
    vector = _vector(points, {*(r.axes[-1] for r in own), *inner[-1:]})
    count = math.prod(x.count for x in rows)
    return _Rows(rows, inner, _threads(max(depth, width), vector, count), vector=vector)


def _outermost(exprs: list[Expr]) -> list[Reduce]:
    """Reductions, and those inside them that do not depend on their axes."""
    found = {n for e in exprs for n in walk(e) if isinstance(n, Reduce)}
    axes = {a for r in found for a in r.axes}
    return [r for r in found if not free_indices(r) & axes]


def _coalesced(reduction: Reduce, row: Index) -> bool:
    """Whether rows next to one another have elements that are, or the same."""
    return all(
        is_affine_in(position, row) in (0, 1)
        for node in walk(reduction.body)
        if isinstance(node, Load)
        for position in node.index
    )


def _sharing(elements: int, together: int) -> int:
    """Threads that share a row of columns: as many as have a few elements each."""
    threads = 1
    while threads * together < MAX_THREADS and threads * COLUMN_SHARE * 2 <= elements:
        threads *= 2
    return threads


def _contiguous(reduction: Reduce) -> bool:
    """Whether neighbouring values of the last axis are neighbours, or the same, in memory."""
    axis = reduction.axes[-1]
    return all(
        is_affine_in(position, axis) in (0, 1)
        for node in walk(reduction.body)
        if isinstance(node, Load)
        for position in node.index
    )


def _vector(points: list[Point], along: set[Index]) -> int:
    """How many neighbours along a row take 16 bytes of the widest type that is read or written."""
    sizes = [x.dtype.size for p in points for x in loads(p.expr) if free_indices(x) & along]
    sizes += [p.output.dtype.size for p in points if free_indices(p.offset) & along]
    return max(1, BYTES // max(sizes, default=BYTES))


def _threads(elements: int, vector: int, rows: int) -> int:
    """The threads of a row: as many as have a few vectors each, more where rows are few."""
    share = max(SHARE, min(AHEAD * vector, HELD))
    threads, most = (MIN_LANES, WARP) if elements <= SHORT_ROW else (2 * WARP, MOST // 2)
    while threads < most and threads * share < elements:
        threads *= 2
    if threads < elements // HELD <= MOST:
        threads = MOST
    while threads < most and threads * vector < elements and threads * rows < FULL:
        threads *= 2
    return threads


@dataclass
class RowNest(Nest):
    """Loops over rows in place of loops over elements. `problem` says why there is no kernel."""

    problem: str = ""
    shared: list[Buffer] = field(default_factory=list)
    plan: _Rows | None = None
    row_bound: frozenset = frozenset()
    lane_of_row: Expr = Const(0, i64)
    stores_if: Expr = Const(True, boolean)
    unresolved: list[Expr] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sweeper = Sweeper(self.k)

    def kernel(self, name: str) -> Kernel:
        kernel = super().kernel(name)
        self.problem = self.problem or ("" if kernel.body else "nothing to compute")
        return kernel

    def outer_loops(self, indices: list[Index], points: list[Point]) -> None:
        plan = _plan(indices, points)
        if isinstance(plan, str):
            self.problem = plan
            return
        self.plan = plan
        count = math.prod(x.count for x in plan.rows)
        if plan.threads == 1:
            with self.k.loop(count, "parallel", name="row") as row:
                self._row(points, row, frozenset({row}))
        elif plan.together > 1:
            self._columns(points, count)
        elif plan.threads <= WARP:
            self._warps(points, count)
        else:
            thread = Index("thread", plan.threads)
            with self._grid(count, thread) as block:
                self.lane_of_row = thread
                self._row(points, block, frozenset({block, thread}))

    def _warps(self, points: list[Point], count: int) -> None:
        """A warp to a row, or to several, and several warps to a block."""
        assert self.plan is not None
        thread, lanes = Index("thread", BLOCK), self.plan.threads
        together = BLOCK // lanes
        with self._grid(-(-count // together), thread) as block:
            self.lane_of_row = simplify(thread % lanes)
            self._row_of_several(points, block * together + thread // lanes, count, {block, thread})

    def _row_of_several(self, points: list[Point], row: Expr, count: int, bound: set) -> None:
        """The row of a thread of a block with several; threads without one do as the last row's,
        but store nothing."""
        row = simplify(row)
        self.stores_if = simplify(row < count)
        if not isinstance(self.stores_if, Const):
            row = simplify(minimum(row, count - 1))
        self._row(points, row, frozenset(bound))

    def _columns(self, points: list[Point], count: int) -> None:
        """A block to neighbouring rows, whose elements lie one below the other."""
        assert self.plan is not None
        together = self.plan.together
        thread = Index("thread", together * self.plan.threads)
        with self._grid(-(-count // together), thread) as block:
            self.lane_of_row = simplify(thread // together)
            row = block * together + thread % together
            self._row_of_several(points, row, count, {block, thread})

    @contextmanager
    def _grid(self, blocks: int, thread: Index) -> Iterator[Index]:
        """A block loop around a thread loop; shared arrays that turn up are declared between."""
        with self.k.loop(blocks, "block", name="block") as block:
            with self.k.block() as body:
                yield block
            for buffer in self.shared:
                self.k.emit(Alloc(buffer, "shared"))
            self.k.emit(For(thread, tuple(body), "thread"))

    def _row(self, points: list[Point], row: Expr, bound: frozenset) -> None:
        """The reductions of a row, then its elements."""
        assert self.plan is not None
        extents = tuple(x.count for x in self.plan.rows)
        points = self._at(points, dict(zip(self.plan.rows, unflatten_index(row, extents))))
        self.row_bound = bound
        points = self.resolved(points, bound)
        inner = self.plan.inner
        sweep = self._over(inner, alone=bool(_outermost([p.expr for p in points])))
        make = placed([p.expr for p in points], inner)
        with self.sweeper.elements(sweep, make, lambda at: []) as (at, exprs, more):
            place = placed([p.offset for p in points], inner)(at)
            moved = [Point(p.output, o, e) for p, o, e in zip(points, place, exprs)]
            if isinstance(self.stores_if, Const):
                store_points(self.k, self.resolved(moved, bound | more), sweep.neighbour)
            else:
                with self.k.when(self.stores_if):
                    store_points(self.k, self.resolved(moved, bound | more), sweep.neighbour)

    def _over(self, indices: Sequence[Index], alone: bool = False) -> Sweep:
        """How the threads of a row go over its elements; `alone`: one at a time."""
        assert self.plan is not None
        extent = math.prod(x.count for x in indices)
        vector = 1 if alone else math.gcd(extent, self.plan.vector)
        return over(extent, self.plan.threads, vector, self.lane_of_row)

    # ---------------------------------------------------------------- reductions

    def resolve_group(self, ready: list[Reduce], exprs, bound: frozenset, per_lane) -> list[Expr]:
        if bound == self.row_bound:
            self.unresolved = exprs
        return super().resolve_group(ready, exprs, bound, per_lane)

    def _later(self, sweep: Sweep, at: Expr) -> list[Expr]:
        """What passes to come compute of an element, as far as can be told."""
        assert self.plan is not None
        found: list[Expr] = []
        if math.prod(x.count for x in self.plan.inner) == sweep.extent:
            found += placed(self.unresolved, self.plan.inner)(at)
        return found

    def reduction(self, group: list[Reduce], bound: frozenset, per_lane: bool) -> list[Expr]:
        """Reductions of a row are shared by its threads; others belong to one thread."""
        axes = group[0].axes
        alone = self.plan is None or self.plan.threads == 1 or bound != self.row_bound
        if alone or any(a.extent == 0 for a in axes):
            return super().reduction(group, bound, per_lane)
        totals = [self.k.var(r.dtype.compute, cast(r.identity, r.dtype.compute)) for r in group]
        sweep = self._over(axes)
        make = placed([r.term for r in group], axes)
        later = partial(self._later, sweep)
        with (
            self.sweeper.elements(sweep, make, later) as (_, exprs, more),
            each_neighbour(self.k, sweep.neighbour),
        ):
            for r, total, term in zip(group, totals, self.resolve(exprs, bound | more, False)):
                self.k.store(total, (), combined(r, total[()], simplify(term)))
        totals = [self._across(r, total) for r, total in zip(group, totals)]
        return [self.k.let(cast(t[()], r.dtype)) for r, t in zip(group, totals)]

    def _across(self, reduction: Reduce, total: Buffer) -> Buffer:
        """The partial results of all threads of a row combined; every thread has the result."""
        assert self.plan is not None
        if self.plan.together > 1:
            return self._across_threads(reduction, total)
        instruction = f"warp_{reduction.op}"
        lanes, warps = min(self.plan.threads, WARP), self.plan.threads // WARP
        self.k.emit(Intrin(instruction, (total[()], Const(lanes, i64))))
        if warps <= 1:
            return total
        partials = Buffer(self.k.fresh("partial"), total.dtype, (warps,), "local")
        self.shared.append(partials)
        lane, warp = self.lane_of_row % WARP, self.lane_of_row // WARP
        with self.k.when(lane.eq(0)):
            self.k.store(partials, simplify(warp), total[()])
        self.k.emit(Barrier())
        whole = self.k.var(total.dtype, partials[simplify(lane % warps)])
        self.k.emit(Intrin(instruction, (whole[()], Const(warps, i64))))
        return whole

    def _across_threads(self, reduction: Reduce, total: Buffer) -> Buffer:
        """The same where several rows belong to neighbouring threads."""
        assert self.plan is not None
        threads, together = self.plan.threads, self.plan.together
        if threads == 1:
            return total
        partials = Buffer(self.k.fresh("partial"), total.dtype, (threads, together), "local")
        self.shared.append(partials)
        column = simplify(Index("thread", together * threads) % together)
        self.k.store(partials, (self.lane_of_row, column), total[()])
        self.k.emit(Barrier())
        whole = self.k.var(total.dtype, cast(reduction.identity, total.dtype))
        with self.k.loop(threads, "unroll") as other:
            self.k.store(whole, (), combined(reduction, whole[()], partials[other, column]))
        return whole
