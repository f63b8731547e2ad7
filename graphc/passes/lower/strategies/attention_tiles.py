"""Attention in tiles: scores of a few rows at a time, which stay in the first level of cache.

A block of keys is copied in panels for the products with all rows of a chunk, and so are its values
unless they are read as they lie. For each tile of rows, scores go to the stack, become exponentials
there, and are multiplied by the values. The two products are register tiles (register_tiles.py). If
there are several blocks of keys, every row keeps its maximum, its total and its sums, which are
scaled when the maximum grows (online softmax: M. Milakov and N. Gimelshein, 2018). Keys that no row
of a tile may see are left out. Nothing is stored per row and key; see analysis/attention.py for
what is an attention.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce

from graphc.ir.addresses import unflatten_index
from graphc.ir.dtypes import f32, i64
from graphc.ir.expr import (
    Const,
    Expr,
    ExprLike,
    Index,
    Reduce,
    as_expr,
    call,
    cast,
    free_indices,
    maximum,
    minimum,
    select,
    walk,
)
from graphc.ir.extents import as_dim, ceil_divided, divided, most, points
from graphc.ir.kernel import Buffer, Kernel
from graphc.ir.simplify import simplify
from graphc.ir.types import Dim, elements_of
from graphc.passes.analysis.attention import LARGEST, Attention, match_attention, merged
from graphc.passes.analysis.computation import Computation, buffers_read, flat_buffer
from graphc.passes.analysis.spaces import count
from graphc.passes.lower.lowered import Lowered
from graphc.passes.lower.scheduled import Scheduled
from graphc.passes.lower.strategies.along_depth import multiply_along
from graphc.passes.lower.strategies.attention_plan import attention_plan, attention_schedules
from graphc.passes.lower.strategies.attention_products import FIRST, AttentionProducts, Block
from graphc.passes.lower.strategies.reductions import NestOptions, Reductions
from graphc.passes.lower.strategies.tile_emitter import TileEmitter
from graphc.passes.lower.strategies.tile_plan import RegisterTileOptions
from graphc.passes.schedule.steps import Schedule
from graphc.records import dataclass

NOTHING, ZERO = Const(-math.inf, f32), Const(0, f32)


@dataclass(frozen=True)
class AttentionTiles(Scheduled[Attention]):
    """Attention in tiles, on a machine of these sizes; its schedules are in attention_plan.py."""

    options: RegisterTileOptions
    name = "attention"
    takes = "an attention"

    def match(self, computation: Computation) -> Attention | str:
        match = match_attention(computation)
        return match if isinstance(match, str) else merged(match)

    def proposals(self, match: Attention) -> Iterator[Schedule]:
        return attention_schedules(self.name, match, self.options)

    def emitted(self, match: Attention, schedule: Schedule) -> Lowered:
        plan = attention_plan(match, schedule, self.options)
        keys, features = most(match.key.extent), count(match.depth) + count(match.columns)
        flops = 2 * points(match.outer) * points(match.rows) * keys * features
        return Lowered(_Attention(match, plan, self.options).kernel(self.name), flops=flops)


@dataclass(frozen=True)
class _Seen:
    """Keys of a block, from the `low` one on up to an `end`, and their number."""

    low: Expr
    end: Dim
    keys: Dim

    @property
    def count(self) -> Expr:
        return as_expr(self.keys, i64)


class _Attention(AttentionProducts):
    """Emits the kernel of an attention with merged indices."""

    # ---------------------------------------------------------------- the kernel

    def kernel(self, name: str) -> Kernel:
        """The kernel over the inputs that are used and the outputs."""
        k, m = self.k, self.match
        extents = (*(x.extent for x in m.outer), ceil_divided(self.plan.tiles, self.plan.chunk))
        with k.loop(elements_of(extents), "parallel", name="p") as p:
            *front, group = unflatten_index(p, extents)
            self.fixed: dict[Expr, Expr] = {
                x: k.let(simplify(place)) for x, place in zip(m.outer, front)
            }
            self._chunk(k.let(simplify(group * self.plan.chunk)))
        soft = m.softmax
        used = buffers_read(
            m.computation.inputs, [m.a, m.b, m.value, m.score, soft.result, *m.exprs]
        )
        params = [*used, *(o.buffer for o in m.computation.outputs)]
        return Kernel(name, tuple(map(flat_buffer, params)), k.body(), m.computation.label)

    def _chunk(self, start: Expr) -> None:
        """The tiles of rows from the one of this number on, with all keys."""
        k, rows = self.k, self.plan.tile_rows
        self.queries = k.alloc(f32, (rows * self.depth,))
        self.scores = k.alloc(f32, (rows * self.plan.pitch,))
        kept = 1 if self.plan.is_whole else self.plan.chunk
        self.total = k.alloc(f32, (kept * rows,))
        self.largest = k.alloc(f32, (kept * rows,)) if self._keeps_largest() else self.total
        self.bases = k.alloc(f32, (rows,))
        width = self.plan.value_vectors * self.lanes
        self.value_panels = -(-self.columns // width)
        self.of_panel = rows * width
        if self.plan.is_whole:
            self._block(FIRST, self.match.key.extent, start)
            return
        self._start_sums()
        block = self._blocks(start)
        for top, size, at in self._each_tile(start):
            self._finish(block.values, top, size, at)

    def _keeps_largest(self) -> bool:
        """Whether maxima of rows are read later: by the next block of keys, or by results."""
        return not self.plan.is_whole or LARGEST in walk(self.match.softmax.result)

    def _start_sums(self) -> None:
        """What rows keep from a block of keys to the next."""
        k, plan = self.k, self.plan
        self.scales = k.alloc(f32, (plan.tile_rows,))
        self.sums = k.alloc(f32, (plan.chunk * self.value_panels * self.of_panel,))
        with k.loop(plan.chunk * plan.tile_rows) as row:
            k.store(self.largest, row, NOTHING)
            k.store(self.total, row, ZERO)
        with k.loop(self.sums.size // self.lanes) as n, self._vector(self.lanes) as v:
            k.store(self.sums, simplify(n * self.lanes + v), ZERO)

    def _blocks(self, start: Expr) -> Block:
        """All blocks of keys, one after another. Where the keys are known at run time only, any may
        be the last, which is shorter."""
        k, keys, size = self.k, self.match.key.extent, self.plan.block
        if isinstance(keys, Expr):
            with k.loop(self.plan.blocks) as number:
                first = simplify(number * size)
                return self._block(first, as_dim(minimum(keys - first, size)), start)
        with k.loop(keys // size) as number:
            block = self._block(simplify(number * size), size, start)
        if keys % size:
            block = self._block(as_expr(keys // size * size, i64), keys % size, start)
        return block

    @contextmanager
    def _vector(self, lanes: Dim) -> Iterator[Expr]:
        """A vector loop over so many lanes."""
        if self.lanes == 1:
            yield FIRST
            return
        width = lanes if isinstance(lanes, int) else self.lanes
        with self.k.loop(lanes, "vector", width=width) as v:
            yield v

    def _each_tile(self, start: Expr) -> Iterator[tuple[Expr, int, Expr]]:
        """Loops over the tiles of a chunk: the first row, their number, and where what is kept of
        its rows starts."""
        k, before = self.k, as_expr(0, i64)
        for rows in self.plan.segments:
            low = as_dim(maximum(start - before, 0))
            end = as_dim(minimum(maximum(start + self.plan.chunk - before, 0), rows.count))
            if self.plan.chunk >= most(self.plan.tiles):
                low, end = 0, rows.count
            with k.loop(as_dim(maximum(as_expr(end, i64) - low, 0))) as n:
                tile = k.let(simplify(low + n))
                top = k.let(simplify(tile * rows.size + rows.first))
                at = FIRST if self.plan.is_whole else k.let(simplify(tile + before - start))
                yield top, rows.size, at
            before = simplify(before + rows.count)

    # ---------------------------------------------------------------- a block of keys

    def _block(self, first: Expr, keys: Dim, start: Expr) -> Block:
        """All tiles of the chunk with a block of keys."""
        first = self.k.let(first)
        block = Block(first, keys, self.scores_of(first, keys), self.values_of(first, keys))
        self.pack(block)
        for top, size, at in self._each_tile(start):
            self._tile(block, top, size, at)
        return block

    # ---------------------------------------------------------------- a tile of rows

    def _tile(self, block: Block, top: Expr, size: int, at: Expr) -> None:
        """A tile of rows with a block of keys."""
        k = self.k
        fixed = {**self.fixed, self.top: top, self.number: at}
        seen = self._seen(block, top, size)
        with k.where(simplify(seen.count > 0)):
            self._read_queries(fixed, size)
            self._score(block, fixed, size, seen)
            self._soften(fixed, size, seen)
            self._add_values(block, fixed, size, seen)

    def _seen(self, block: Block, top: Expr, size: int) -> _Seen:
        """The keys of a block that rows of a tile see, from the first of a panel on."""
        k, keys, width = self.k, as_expr(block.keys, i64), block.scores.plan.panel
        rows = [{**self.fixed, **self.at_row(top + t)} for t in range(size)]
        # One key, whose score is -inf, will do for rows that see none
        least = 1 if self.plan.is_whole else 0
        low: Expr = FIRST
        end = keys
        if self.last is not None:
            last = _extreme(maximum, [cast(simplify(self.last, row), i64) for row in rows])
            end = maximum(minimum(k.let(simplify(last)) + 1 - block.first, keys), least)
        if self.first is not None:
            first = _extreme(minimum, [cast(simplify(self.first, row), i64) for row in rows])
            before = minimum(k.let(simplify(first)) - block.first, end - least)
            low = k.let(simplify(maximum(before, 0) // width * width))
        number = minimum(end - low, keys)  # which bounds it, whatever is known of the others
        return _Seen(low, as_dim(end), as_dim(number))

    def _read_queries(self, fixed: dict, size: int) -> None:
        """Copies the rows of a tile, side by side."""
        k, deep = self.k, self.match.depth
        whole, left = divided(self.depth, self.lanes)
        a = cast(self.match.a, f32)
        with k.loop(size) as t:
            row = self.at_row(fixed[self.top] + t)
            for first, number, width in ((0, whole, self.lanes), (whole * self.lanes, 1, left)):
                if not width or not number:
                    continue
                with k.loop(number) as n, self._vector(width) as v:
                    step = simplify(n * self.lanes + v + first)
                    place = unflatten_index(step, tuple(x.extent for x in deep))
                    value = simplify(a, {**fixed, **row, **dict(zip(deep, place))})
                    k.store(self.queries, simplify(t * self.depth + step), value)

    def _score(self, block: Block, fixed: dict, size: int, seen: _Seen) -> None:
        """The scores of a tile."""
        k, e = self.k, block.scores
        skipped = simplify(seen.low // e.plan.panel)
        needed = as_expr(ceil_divided(seen.end, e.plan.panel), i64)
        for panels in e.panels():
            start = maximum(skipped - panels.first, 0)
            end = minimum(needed - panels.first, panels.count)
            with k.loop(as_dim(maximum(end - start, 0))) as n:
                panel = simplify(n + start + panels.first)
                if self.plan.few:
                    multiply_along(e, self.row, fixed, size, panel, panels)
                else:
                    e.tile(fixed, self.row, FIRST, size, panel, panels)

    def _soften(self, fixed: dict, size: int, seen: _Seen) -> None:
        """Scores become exponentials, and maxima and totals of rows are brought up to date. Maxima
        of all rows come first, so that no row waits for its own."""
        k = self.k
        number = simplify(fixed[self.number] * self.plan.tile_rows)
        with k.loop(size) as t:
            start = simplify(t * self.plan.pitch + seen.low)
            largest = self._largest(start, seen.keys)
            if not self.plan.is_whole:
                kept = simplify(number + t)
                largest = k.let(call("max", self.largest[kept], largest))
                k.store(self.scales, t, call("exp", self.largest[kept] - _base(largest)))
                k.store(self.largest, kept, largest)
            elif self._keeps_largest():
                k.store(self.largest, simplify(number + t), largest)
            k.store(self.bases, t, _base(largest))
        with k.loop(size) as t:
            start = k.let(simplify(t * self.plan.pitch + seen.low))
            total = self._exponentials(start, seen.keys, k.let(self.bases[t]))
            kept = simplify(number + t)
            if not self.plan.is_whole:
                total = call("fma", self.total[kept], self.scales[t], total)
            k.store(self.total, kept, total)

    def _exponentials(self, start: Expr, keys: Dim, base: Expr) -> Expr:
        """Scores of a row become exponentials; their sum."""
        k, sums = self.k, self.k.alloc(f32, (self.lanes,), "reg")
        with self._vector(self.lanes) as v:
            k.store(sums, v, ZERO)
        for at, width in self._row_vectors(keys):
            with self._vector(width) as v:
                cell = simplify(start + at + v)
                weight = k.let(call("exp", self.scores[cell] - base))
                k.store(self.scores, cell, weight)
                k.store(sums, v, sums[v] + weight)
        at = Index("at", keys)
        total = Reduce("sum", self.scores[simplify(start + at)], (at,))
        return self._reductions().fold_lanes(total, sums, 1, self.lanes)

    def _row_vectors(self, number: Dim) -> Iterator[tuple[Expr, Dim]]:
        """Loops over the vectors of a row: where each starts and how many lanes it has."""
        whole, left = divided(number, self.lanes)
        with self.k.loop(whole) as n:
            yield simplify(n * self.lanes), self.lanes
        if left != 0:
            yield simplify(as_expr(whole, i64) * self.lanes), left

    def _largest(self, start: Expr, number: Dim) -> Expr:
        """The largest of so many scores."""
        at = Index("at", number)
        reduction = Reduce("max", self.scores[simplify(start + at)], (at,))
        return self._reductions().reduction([reduction], free_indices(reduction), False)[0]

    def _reductions(self) -> Reductions:
        options = NestOptions(vector_bytes=self.options.vector_bytes if self.lanes > 1 else 0)
        return Reductions(self.match.computation, options, self.k)

    # ---------------------------------------------------------------- values

    def _add_values(self, block: Block, fixed: dict, size: int, seen: _Seen) -> None:
        """Weights times values: results, or what is added to the sums that rows keep."""
        k, e = self.k, block.values
        for panels in e.panels():
            pieces = e.pieces(panels.size)
            e.is_open = panels.open
            with k.loop(panels.count) as n:
                panel = k.let(simplify(n + panels.first))
                sums = e.zeros(f32, size, pieces)
                with e.steps(seen.keys, True) as x:
                    here = {self.key: simplify(seen.low + x)}
                    e.sum_over(sums, fixed, self.row, FIRST, size, panel, pieces, [], here)
                if self.plan.is_whole:
                    e.finish_tile(sums, fixed, self.row, FIRST, size, panel, pieces)
                else:
                    self._keep(e, sums, self._start(fixed, panel), size, pieces)

    def _start(self, fixed: dict, panel: Expr) -> Expr:
        """Where the kept sums of a tile in a panel start."""
        tile = fixed[self.number]
        return self.k.let(simplify((tile * self.value_panels + panel) * self.of_panel))

    def _keep(
        self, e: TileEmitter, sums: Buffer, start: Expr, size: int, pieces: list[tuple[int, int]]
    ) -> None:
        """Adds the sums of a block to those that rows keep."""
        k = self.k
        for t in range(size):
            scale = k.let(self.scales[t])
            for j, number in pieces:
                with e.lanes(number) as v:
                    cell = simplify(v + (t * e.plan.panel + j))
                    there = simplify(start + cell)
                    k.store(self.sums, there, call("fma", self.sums[there], scale, sums[cell]))

    def _finish(self, e: TileEmitter, top: Expr, size: int, at: Expr) -> None:
        """Results of a tile, of all keys."""
        k = self.k
        fixed = {**self.fixed, self.top: top, self.number: at}
        for panels in e.panels():
            e.is_open = panels.open
            with k.loop(panels.count) as n, k.loop(size) as t:
                panel = k.let(simplify(n + panels.first))
                start = simplify(self._start(fixed, panel) + t * e.plan.panel)
                e.finish_row(self.sums, {**fixed, self.row: t}, panel, start, e.pieces(panels.size))


def _base(largest: Expr) -> Expr:
    """What is taken off scores: their largest, unless it is that of no keys."""
    return select(largest.eq(NOTHING), ZERO, largest)


def _extreme(choose: Callable[[ExprLike, ExprLike], Expr], values: list[Expr]) -> Expr:
    """The least or the largest of several numbers."""
    return reduce(choose, dict.fromkeys(values))
