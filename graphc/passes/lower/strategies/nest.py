"""Loop nests over the outputs, scalar or vectorised: the strategy that always matches.

With `lanes` 1 a nest is plain loops. Otherwise the innermost dimension of the output is vectorised,
with a shorter vector for the tail. A reduction that depends on this dimension runs once per lane,
over a tile of several outputs, so that loads are shared and latency is hidden. A reduction that
does not (softmax, layer norm) is hoisted to its row: loop-invariant code motion. Costly values that
a row's reduction and its outputs both compute (the exponentials of softmax) are common
subexpressions, kept in a row buffer. reductions.py computes the reductions.
"""

from __future__ import annotations

from graphc.ir.addresses import flatten_loads, unflatten_index
from graphc.ir.dtypes import i64
from graphc.ir.expr import (
    Call,
    Const,
    Expr,
    Index,
    Load,
    Reduce,
    as_expr,
    cost,
    free_indices,
    maximum,
    minimum,
    substitute,
    walk,
)
from graphc.ir.extents import as_dim, divided, most
from graphc.ir.kernel import Buffer, Kernel
from graphc.ir.simplify import simplify
from graphc.ir.types import Dim, elements_of
from graphc.passes.analysis.computation import Computation, flat_buffer, flops
from graphc.passes.analysis.core import reductions_in, rows_of
from graphc.passes.analysis.guards import guard_atoms
from graphc.passes.analysis.spaces import (
    drop_units,
    merge_adjacent,
    merge_reductions,
    shapes_of,
)
from graphc.passes.lower.lowered import Lowered, in_place_together
from graphc.passes.lower.strategies.edges import undecided_edges
from graphc.passes.lower.strategies.reductions import (
    NestOptions,
    Reductions,
    element_bytes,
    ready_reductions,
    strides_small,
)
from graphc.passes.lower.strategies.short_rows import ShortRows, short_rows, start_of
from graphc.passes.lower.strategies.tile_transpose import (
    TransposedLoads,
    joined_loads,
    joined_rows,
    load_tiles,
    split_off,
    transposed_loads,
)
from graphc.passes.lower.transforms.sampling_tables import shared_places
from graphc.passes.lower.transforms.splitting import segments, transposed_constants
from graphc.records import dataclass

ROW_BUFFER_BYTES = 1 << 16  # the largest row kept on the stack
RECOMPUTE_COST = 8  # a value cheaper than this is computed again rather than kept
LONG_EPILOGUE = 10  # cost beyond which what is made of a tile's reductions is not written out


def lower_nest(computation: Computation, options: NestOptions, name: str = "nest") -> Lowered:
    """The kernel of a computation whose outputs share one iteration space."""
    count, inplace = flops(computation), in_place_together(computation)
    prepare: list[Computation] = []
    temporaries: list[Buffer] = []
    if options.vector_bytes:
        computation, places, tables = shared_places(computation)
        computation, prepare, temporaries = transposed_constants(computation)
        prepare, temporaries = [*places, *prepare], [*tables, *temporaries]
    kernel = Nest(computation, options).kernel(name)
    return Lowered(kernel, prepare, temporaries, inplace=inplace, flops=count)


@dataclass
class Point:
    """One element to store: which output, where, and what."""

    output: Buffer
    offset: Expr
    expr: Expr


class Nest(Reductions):
    """Emits the loops of one computation; strategies with other loops override parts of it."""

    within: Index | None = None  # the place in the tile being emitted, where points are left in it

    def kernel(self, name: str) -> Kernel:
        """The kernel over all inputs and outputs of the computation."""
        shapes = shapes_of(self.computation.inputs)
        indices, offset, exprs = self.computation.over_loops()
        exprs = [simplify(flatten_loads(e, shapes)) for e in exprs]
        indices, (offset, *exprs) = drop_units(indices, [offset, *exprs])
        exprs = [merge_reductions(e) for e in exprs]
        outputs = [flat_buffer(o.buffer) for o in self.computation.outputs]
        whole = [(indices, [simplify(e) for e in (offset, *exprs)])]
        for pieces, (where, *parts) in (
            whole if self.options.flat else segments(indices, [offset, *exprs])
        ):
            merged, (where, *parts) = merge_adjacent(pieces, [where, *parts])
            points = [Point(b, where, e) for b, e in zip(outputs, parts)]
            if all(x.extent != 0 for x in indices):
                self.outer_loops(merged, points)
        params = (*map(flat_buffer, self.computation.inputs), *outputs)
        return Kernel(name, params, self.k.body(), self.computation.label)

    # ---------------------------------------------------------------- loops over the outputs

    def flat_loop(self, indices: list[Index], points: list[Point]) -> None:
        """One parallel loop over all elements, the innermost dimension fastest."""
        extents = tuple(x.extent for x in indices)
        with self.k.loop(elements_of(extents), "parallel", name="p") as p:
            points = self._at(points, dict(zip(indices, unflatten_index(p, extents))))
            self.store_points(self.resolved(points, frozenset({p})))

    def outer_loops(self, indices: list[Index], points: list[Point]) -> None:
        """Parallel loop over rows, hoisted reductions, then the loops inside a row."""
        if self.options.flat:
            self.flat_loop(indices, points)
            return
        if not indices:
            self.store_points(self.resolved(points, frozenset()))
            return
        if self.transposed_tiles(indices, points) or self.short_rows(indices, points):
            return
        if self._reduces_along_memory(points, indices[-1]):
            indices = [*indices, Index("one", 1)]
        *rows, last = indices
        hoisted = self._row_depth(rows, last, points)
        if not rows:
            self.one_dimension(last, points, hoisted is not None)
            return
        depth = len(rows) if hoisted is None else hoisted
        tiled = hoisted is None and self._has_lane_reduction(points, last)
        if tiled:
            depth = min(depth, len(rows) - 1)
        outer, inner = rows[:depth], rows[depth:]
        extent = elements_of(x.extent for x in outer)
        with self.k.loop(extent, "parallel", name="p") as p:
            position = unflatten_index(p, tuple(x.extent for x in outer))
            points = self._at(points, dict(zip(outer, position)))
            bound = frozenset({p})
            if hoisted is not None:
                points = self.row_values(points, last, bound)
            self.inner_loops(inner, last, points, bound, tiled)

    def transposed_tiles(self, indices: list[Index], points: list[Point]) -> bool:
        """All loops over the outputs if some loads are taken in tiles; False if none is."""
        sizes = {b.name: b.size for b in self.computation.inputs}
        exprs = [p.expr for p in points]
        transposed = transposed_loads(indices, exprs, self.options, sizes)
        joined = joined_rows(indices, exprs, self.options) if transposed is None else None
        if joined is not None:
            indices, points = joined[0], self._at(points, joined[1])
            exprs = [p.expr for p in points]
            offset = points[0].offset
            transposed = joined_loads(indices, offset, exprs, self.options, sizes)
        if transposed is None:
            return False
        side, last = transposed.side, transposed.along
        (down, below), (right, beside) = split_off(transposed.across, side), split_off(last, side)
        loops = [*(x for x in indices[:-1] if x is not transposed.across), down, right]
        with self.k.loop(elements_of(x.extent for x in loops), "parallel", name="p") as p:
            *rest, top, left = unflatten_index(p, tuple(x.extent for x in loops))
            mapping: dict[Expr, Expr] = dict(zip(loops, rest))
            self._transposed_tile(
                self._at(points, mapping), transposed.at(mapping), top * side, left * side
            )
        if beside is not None:
            moved = self._at(points, {last: beside + right.extent * side})
            self.outer_loops([*indices[:-1], beside], moved)
        if below is not None:
            whole = Index(last.name, as_dim(right.extent * side))
            moved = self._at(points, {transposed.across: below + down.extent * side, last: whole})
            rows = [below if x is transposed.across else x for x in indices[:-1]]
            self.outer_loops([*rows, whole], moved)
        return True

    def _transposed_tile(
        self, points: list[Point], transposed: TransposedLoads, top: Expr, left: Expr
    ) -> None:
        tiles = load_tiles(self.k, transposed, top, left)
        for r in range(transposed.side):
            with self.k.loop(transposed.side, "vector", width=transposed.side) as v:
                mapping: dict[Expr, Expr] = {
                    x: t[v + r * transposed.side] for x, t in tiles.items()
                }
                read = [Point(p.output, p.offset, substitute(p.expr, mapping)) for p in points]
                self.store_points(
                    self._at(read, {transposed.across: top + r, transposed.along: left + v})
                )

    def short_rows(self, indices: list[Index], points: list[Point]) -> bool:
        """All loops over the outputs if their rows are short; False if they are not."""
        sizes = {b.name: b.size for b in self.computation.inputs}
        exprs = [p.expr for p in points]
        rows = short_rows(indices, points[0].offset, exprs, self.options, sizes)
        if rows is None:
            return False
        blocks, left = divided(rows.across.extent, rows.rows)
        loops = [*indices[:-2], Index(rows.across.name, blocks)]
        with self.k.loop(elements_of(x.extent for x in loops), "parallel", name="p") as p:
            *rest, block = unflatten_index(p, tuple(x.extent for x in loops))
            moved = self._at(points, dict(zip(indices, rest)))
            for vector in range(rows.vectors):
                self._vector_of_rows(moved, rows, block, vector)
        if left != 0:
            below = Index(rows.across.name, left)
            moved = self._at(points, {rows.across: below + blocks * rows.rows})
            self.outer_loops([*indices[:-2], below, rows.along], moved)
        return True

    def _vector_of_rows(
        self, points: list[Point], rows: ShortRows, block: Expr, vector: int
    ) -> None:
        with self.k.loop(rows.lanes, "vector", width=rows.lanes) as lane:
            place = rows.at(block, vector, lane)
            starts = [start_of(point.offset, place, lane) for point in points]
            moved = self._at(points, place)
            self.store_points([Point(x.output, s + lane, x.expr) for s, x in zip(starts, moved)])

    def one_dimension(self, last: Index, points: list[Point], hoisted: bool) -> None:
        """A space of one dimension, in parallel blocks if it is long."""
        if hoisted:
            points = self.row_values(points, last, frozenset())
            self.inner_loops([], last, points, frozenset(), False)
            return
        block = self.options.block
        whole, left = divided(last.extent, block)
        if most(whole) > 1:
            with self.k.loop(whole, "parallel", name="p") as p:
                inside = Index(last.name, block)
                moved = self._at(points, {last: p * block + inside})
                self.inner_loops([], inside, moved, frozenset({p}), False)
            if left != 0:
                rest = Index(last.name, left)
                moved = self._at(points, {last: rest + whole * block})
                self.inner_loops([], rest, moved, frozenset(), False)
        else:
            self.inner_loops([], last, points, frozenset(), False)

    def inner_loops(
        self, inner: list[Index], last: Index, points: list[Point], bound: frozenset, tiled: bool
    ) -> None:
        """Serial loops over the rest of a row; the last of them may be tiled."""
        if not inner:
            self.last_dimension(last, [points], bound)
            return
        first, *rest = inner
        tile = self._tile(first.extent) if tiled and not rest else 1
        whole, left = divided(first.extent, tile)
        for start, count in self._peeled(points, first, tile, whole):
            with self.k.loop(count, "unroll" if count == 1 else "serial") as x:
                at = as_expr(start, i64) if count == 1 else x + start
                if rest:
                    inside = self._at(points, {first: at * tile})
                    self.inner_loops(rest, last, inside, bound | {x}, tiled)
                else:
                    self._tile_of(points, first, at * tile, tile, last, bound | {x})
        if isinstance(left, Expr):
            with self.k.loop(left) as x:
                moved = self._at(points, {first: x + whole * tile})
                self.last_dimension(last, [moved], bound | {x})
        elif left:
            self._tile_of(points, first, as_expr(whole * tile, i64), left, last, bound)

    def _tile_of(
        self, points: list[Point], first: Index, start: Expr, size: int, last: Index,
        bound: frozenset,
    ) -> None:  # fmt: skip
        """The points at so many places of an index from `start` on, which share loops."""
        if size > 1 and sum(map(_cost_of_the_rest, points)) > LONG_EPILOGUE:
            self.within = Index("within", size)
            self.last_dimension(last, [self._at(points, {first: start + self.within})], bound)
            self.within = None
            return
        variants = [self._at(points, {first: start + t}) for t in range(size)]
        self.last_dimension(last, variants, bound)

    def _peeled(
        self, points: list[Point], index: Index, tile: int, whole: Dim
    ) -> list[tuple[Dim, Dim]]:
        """Segments (first tile, tiles): the tiles at the edges, where windows need guards on this
        index, apart from those in between, where they do not."""
        if tile == 1 or most(whole) < 3 or not any(_guards_on(p.expr, index) for p in points):
            return [] if whole == 0 else [(0, whole)]
        for edge in (1, 2):
            count = as_dim(whole - 2 * edge)
            if most(count) < 1:
                break
            x = Index("tile", count)
            inside = [self._at(points, {index: (x + edge) * tile + t}) for t in range(tile)]
            if not any(_guards_on(p.expr, x) for variant in inside for p in variant):
                if isinstance(whole, Expr):
                    return _edges(whole, edge)
                ends = [(n, 1) for n in range(edge)]
                return [*ends, (edge, count), *((n + edge + count, 1) for n, _ in ends)]
        return [(0, whole)]

    def last_dimension(self, last: Index, variants: list[list[Point]], bound: frozenset) -> None:
        """The innermost dimension, in vectors with a tail, for a tile of points."""
        lanes = self._lanes([p for points in variants for p in points], last)
        if lanes == 1:
            if last.extent == 1:
                self._element(variants, {last: Const(0, i64)}, bound)
                return
            with self.k.loop(last.extent) as x:
                self._element(variants, {last: x}, bound | {x})
            return
        whole, tail = divided(last.extent, lanes)
        exprs = [p.expr for points in variants for p in points]
        for first, count in undecided_edges(exprs, last, lanes, whole):
            if count == 1:
                self._vector(variants, last, Const(first * lanes, i64), lanes, bound)
                continue
            with self.k.loop(count) as x:
                self._vector(variants, last, (x + first) * lanes, lanes, bound | {x})
        if tail != 0:
            self._vector(variants, last, as_expr(whole * lanes, i64), lanes, bound, tail)

    def _vector(
        self, variants: list[list[Point]], last: Index, start: Expr, lanes: int, bound: frozenset,
        tail: Dim | None = None,
    ) -> None:  # fmt: skip
        """So many lanes from `start` on; the first of them, if there is a tail."""
        count = lanes if tail is None else tail
        if count == 1:
            self._element(variants, {last: start}, bound)
            return
        with self.k.loop(count, "vector", width=count if isinstance(count, int) else lanes) as v:
            self.lane = v
            self._element(variants, {last: start + v}, bound | {v}, per_lane=True)
            self.lane = None

    def _element(
        self, variants: list[list[Point]], mapping: dict, bound: frozenset, per_lane: bool = False
    ) -> None:
        points = [p for points in variants for p in self._at(points, mapping)]
        if self.within is not None:
            self._finish_in_a_loop(points, self.within, bound, per_lane)
            return
        self.store_points(self.resolved(points, bound, per_lane))

    def _finish_in_a_loop(
        self, points: list[Point], within: Index, bound: frozenset, per_lane: bool
    ) -> None:
        """The reductions of a tile together; what a long epilogue (an activation with a polynomial)
        makes of them is written once, in a loop over the tile."""
        size = most(within.extent)
        reduced = reductions_in((p.expr for p in points), nested=False)
        places = [Const(t, i64) for t in range(size)]
        terms = [simplify(r, {within: place}) for r in reduced for place in places]
        values = iter(self.resolve(terms, bound, per_lane))
        mapping: dict[Expr, Expr] = {}
        for r in reduced:
            kept = self.k.alloc(r.dtype, (size,), "stack")
            for place in places:
                self.k.store(kept, (place,), next(values))
            mapping[r] = kept[within]
        moved = [Point(p.output, p.offset, substitute(p.expr, mapping)) for p in points]
        with self.k.loop(size) as x:
            self.store_points(self._at(moved, {within: x}))

    def store_points(self, points: list[Point]) -> None:
        """Stores points in which nothing is left to reduce: those of one element together, once all
        have been computed, as outputs may lie over inputs."""
        together = len({point.output.name for point in points})
        for first in range(0, len(points), together):
            own = points[first : first + together]
            values = [simplify(point.expr) for point in own]
            if together > 1:
                values = [self.k.let(value) for value in values]
            for point, value in zip(own, values):
                self.k.store(point.output, (simplify(point.offset),), value)

    # ---------------------------------------------------------------- choices

    def _at(self, points: list[Point], mapping: dict) -> list[Point]:
        return [
            Point(p.output, simplify(p.offset, mapping),
                   simplify(p.expr, mapping))
            for p in points
        ]  # fmt: skip

    def _row_depth(self, rows: list[Index], last: Index, points: list[Point]) -> int | None:
        """How many outer dims the hoistable reductions need; None if there are none."""
        reduced = rows_of((p.expr for p in points), [*rows, last]).values()
        hoisted = [row for row in reduced if last not in row]
        depths = [max((rows.index(x) + 1 for x in row), default=0) for row in hoisted]
        return max(depths, default=None)

    def _has_lane_reduction(self, points: list[Point], last: Index) -> bool:
        return any(last in row for row in rows_of((p.expr for p in points), [last]).values())

    def _reduces_along_memory(self, points: list[Point], last: Index) -> bool:
        """Whether every reduction for an element runs along memory, where neighbouring elements'
        are apart: each element is a row of its own then."""
        reductions = reductions_in(p.expr for p in points)
        own = [r for r in reductions if last in free_indices(r)]
        return bool(own) and all(
            self.horizontal_lanes([r], r.axes[-1]) > 1 and not strides_small(r.body, last)
            for r in own
        )

    def _tile(self, extent: Dim) -> int:
        best = min(self.options.tile, most(extent))
        if isinstance(extent, Expr):
            return best
        for tile in range(best + 2, best // 2, -1):
            if extent % tile == 0:
                return tile
        return best

    def _lanes(self, points: list[Point], last: Index) -> int:
        if not self.options.vector_bytes or most(last.extent) < 2:
            return 1
        lanes = self.options.lanes(element_bytes([p.expr for p in points]))
        return lanes if most(last.extent) >= min(lanes, 4) else 1

    def resolved(
        self, points: list[Point], bound: frozenset, per_lane: bool = False
    ) -> list[Point]:
        """Emits every reduction that can be computed here; the points then refer to results."""
        exprs = self.resolve([p.expr for p in points], bound, per_lane)
        return [Point(p.output, p.offset, e) for p, e in zip(points, exprs)]

    # ---------------------------------------------------------------- rows kept

    def row_values(self, points: list[Point], last: Index, bound: frozenset) -> list[Point]:
        """Emits the reductions of a row; before each, what it shares with the outputs is kept."""
        while True:
            points = self.keep_rows(points, last, bound)
            exprs = [p.expr for p in points]
            ready = ready_reductions(exprs, bound)
            if not ready:
                return points
            exprs = self.resolve_group(ready, exprs, bound, False)
            points = [Point(p.output, p.offset, e) for p, e in zip(points, exprs)]

    def keep_rows(self, points: list[Point], last: Index, bound: frozenset) -> list[Point]:
        """Stores in a row buffer what a reduction over the row and the outputs both compute."""
        while True:
            shared = self._shared(points, last, bound)
            if shared is None:
                return points
            reduction, value, extent = shared
            axis = reduction.axes[0]
            (resolved,) = self.resolve([substitute(value, {last: axis})], bound, False)
            row = self.k.alloc(value.dtype, (extent,), "stack")
            self._fill(row, resolved, axis, bound)
            mapping = {value: row[last], substitute(value, {last: axis}): row[axis]}
            points = [Point(p.output, p.offset, substitute(p.expr, mapping)) for p in points]

    def _fill(self, row: Buffer, value: Expr, axis: Index, bound: frozenset) -> None:
        point = Point(row, axis, value)
        self.last_dimension(axis, [[point]], bound)

    def _shared(
        self, points: list[Point], last: Index, bound: frozenset
    ) -> tuple[Reduce, Expr, int] | None:
        """A costly value of the outputs that a ready row reduction computes too."""
        nodes = {n for p in points for n in walk(p.expr)}
        for p in points:
            for r in ready_reductions([p.expr], bound):
                if len(r.axes) != 1 or r.axes[0].extent != last.extent:
                    continue
                for inner in reversed(list(walk(r.body))):
                    if not isinstance(inner, Call) or cost(inner) < RECOMPUTE_COST:
                        continue
                    same = substitute(inner, {r.axes[0]: last})
                    if r.axes[0] in free_indices(inner) and same in nodes:
                        if most(last.extent) * inner.dtype.size <= ROW_BUFFER_BYTES:
                            return r, same, most(last.extent)
        return None


def _edges(whole: Expr, edge: int) -> list[tuple[Dim, Dim]]:
    """Segments of so many tiles, of which so many at either end are apart, if there are as many."""
    first = as_dim(minimum(whole, edge))
    last = as_dim(maximum(whole - edge, first))
    return [(0, first), (edge, as_dim(maximum(whole - 2 * edge, 0))), (last, as_dim(whole - last))]


def _guards_on(expr: Expr, index: Index) -> bool:
    """Whether a guard of a reduction depends on `index`."""
    return any(
        index in free_indices(atom)
        for r in reductions_in([expr])
        for atom in guard_atoms(r.op, r.identity, r.body)
    )


def _cost_of_the_rest(point: Point) -> int:
    """What a point costs beside its reductions."""
    done: dict[Expr, Expr] = {
        r: Load("reduced", (as_expr(n, i64),), r.dtype)
        for n, r in enumerate(reductions_in([point.expr], nested=False))
    }
    return cost(substitute(point.expr, done))
