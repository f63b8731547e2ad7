"""What kernels of flash attention have in common: a block of rows, and an online softmax over tiles
of keys.

A thread holds cells of several rows: `scores` of the current tile of keys, and `sums` of weights
times values. `lanes` neighbouring threads share their rows, and exchange maxima and totals by warp
shuffles. Each tile of keys updates the running maximum, total and sums of every row (online
softmax). Memory is linear in the number of keys. See passes/analysis/attention.py.

Causal attention: where scores beyond some key are -inf by position alone, a block skips the tiles
that none of its rows sees, and does not read their values.

Where one tile holds all keys, maxima and totals are final at once, and scores and weights are
rounded as the graph says. Otherwise types narrower than float32 are not rounded to between products
and results.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from graphc.backends.cuda.machines import WARP
from graphc.backends.cuda.strategies.contraction.operands import Operand
from graphc.backends.cuda.strategies.vectors import compute_points
from graphc.ir.addresses import unflatten_index
from graphc.ir.dtypes import bf16, f16, f32, i32, i64
from graphc.ir.expr import Call, Const, Expr, as_expr, call, cast, select, substitute
from graphc.ir.extents import ceil_divided, common_factor
from graphc.ir.kernel import Buffer, Index, Intrin, Kernel, KernelBuilder
from graphc.ir.simplify import simplify
from graphc.ir.types import elements_of
from graphc.passes.analysis.attention import (
    LARGEST,
    PRODUCT,
    RESULT,
    SUM,
    TOTAL,
    Attention,
    last_key,
    merged,
)
from graphc.passes.analysis.computation import buffers_read, flat_buffer
from graphc.passes.lower.strategies.nest import Point

NOTHING = Const(-math.inf, f32)


def unrounded(expr: Expr) -> Expr:
    """A function of floats of at most 32 bits computed in float32 throughout."""
    if expr.dtype not in (f32, f16, bf16):
        return cast(expr, f32) if expr.dtype.is_float else expr
    if isinstance(expr, Const):
        return Const(expr.value, f32)
    if isinstance(expr, Call) and expr.op.name != "bitcast":
        if expr.op.name == "cast":
            return cast(unrounded(expr.args[0]), f32)
        return call(expr.op.name, *map(unrounded, expr.args))
    return cast(expr, f32)


def padded(count: int, unit: int) -> int:
    """The count rounded up to whole units."""
    return -(-count // unit) * unit


class AttentionBlocks:
    """Emits the kernel of a matched attention: `rows` and `keys` of a block, of which a thread has
    cells at `row_part` rows, `key_part` keys and `column_part` columns."""

    def __init__(self, match: Attention, rows: int, keys: int, threads: int, lanes: int):
        self.match, self.k = match, KernelBuilder()
        self.tile_rows = rows
        self.threads, self.lanes = threads, lanes
        self.thread = Index("thread", threads)
        m = merged(match)
        self.offset, self.exprs, self.rounded_score = m.offset, m.exprs, m.score
        self.result, self.weight = m.softmax.result, m.softmax.weight
        self.exponential = m.softmax.exponential
        self.q, self.b = Operand(m.a, m.rows, m.depth), Operand(m.b, [m.key], m.depth)
        self.v = Operand(m.value, m.columns, [m.key])
        self.shared: list[Buffer] = []
        self.row_part = self.key_part = self.column_part = 0
        self.together = 1  # of its columns that are neighbours
        self.parts = 1  # of the keys, each of which has a block
        if keys:
            self.take(keys)

    def take(self, keys: int, whole: bool = True) -> None:
        """Sets how many keys are taken at a time, and so whether that may be all of them."""
        self.tile_keys = keys
        self.tiles = self.tiles_of_part = ceil_divided(self.b.count, keys)
        self.is_whole = whole and self.tiles == 1
        self.score = self.rounded_score if self.is_whole else unrounded(self.rounded_score)
        self.last = last_key(replace(self.match, rows=self.q.side, score=self.score))

    # ---------------------------------------------------------------- where cells are

    def row(self, i: Expr) -> Expr:
        """The row of the block at the thread's `i`-th."""
        raise NotImplementedError

    def key(self, j: Expr) -> Expr:
        """The key of the tile at the thread's `j`-th."""
        raise NotImplementedError

    def column(self, c: Expr) -> Expr:
        """The column at the thread's `c`-th."""
        raise NotImplementedError

    def body(self) -> None:
        """What a thread does."""
        raise NotImplementedError

    def keep(self, scores: Buffer, i: Expr, j: Expr, weight: Expr) -> None:
        """Leaves a weight where the products with values find it."""
        raise NotImplementedError

    def exponential_of(self, score: Expr, base: Expr) -> Expr:
        """exp(score - base), where weights need not be rounded as the graph says."""
        return call("exp", score - base)

    # ---------------------------------------------------------------- the kernel

    def kernel(self, name: str) -> Kernel:
        """The kernel over the inputs that are used and the outputs."""
        outer = self.match.outer
        tiles = ceil_divided(self.q.count, self.tile_rows)
        extents = (*(x.extent for x in outer), tiles, self.parts)
        with self.k.loop(elements_of(extents), "block", name="block") as block:
            *front, at, self.part = unflatten_index(block, extents)
            self.block_number = simplify(block // self.parts)
            self.fixed: dict[Expr, Expr] = dict(zip(outer, front))
            self.first_row = simplify(at * self.tile_rows)
            with self.k.threads(self.thread, self.shared):
                self.body()
        read = [self.q.expr, self.b.expr, self.v.expr, self.score, *self.finishing()]
        read += [self.exponential, self.weight] if self.is_whole else []
        inputs = buffers_read(self.match.computation.inputs, read)
        params = tuple(map(flat_buffer, (*inputs, *self.results())))
        return Kernel(name, params, self.k.body(), self.match.computation.label)

    def results(self) -> list[Buffer]:
        """What the kernel stores into."""
        return [o.buffer for o in self.match.computation.outputs]

    def finishing(self) -> list[Expr]:
        """The expressions of what it stores."""
        return [self.result, *self.exprs]

    def start(self) -> None:
        """Sums of no keys."""
        k, rows = self.k, self.row_part
        if not self.is_whole:
            self.largest = k.alloc(f32, (rows,), "reg", "largest")
            self.total = k.alloc(f32, (rows,), "reg", "total")
        self.sums = k.alloc(f32, (rows, self.column_part), "reg", "sums")
        with k.loop(rows, "unroll") as i:
            if not self.is_whole:
                k.store(self.largest, i, NOTHING)
                k.store(self.total, i, Const(0, f32))
            with k.loop(self.column_part, "unroll") as c:
                k.store(self.sums, (i, c), Const(0, f32))

    # ---------------------------------------------------------------- a tile of keys

    def find_last(self) -> None:
        """The last key that any row of the block sees, if scores tell; the same in all threads."""
        self.seen: Expr | None = None
        if self.last is not None and self.tiles != 1:
            self.seen = self.last_of_rows("max", -1)

    def last_of_rows(self, extreme: str, start: int) -> Expr:
        """The largest ("max") or the least ("min") of the last keys that rows of the block see."""
        assert self.last is not None
        k, key = self.k, self.k.var(i32, Const(start, i32))
        with k.loop(-(-self.tile_rows // WARP)) as step:
            at = self.first_row + step * WARP + self.thread % WARP
            row = call("min", at, as_expr(self.q.count - 1, i64))
            last = substitute(self.last, {**self.fixed, **self.q.place(simplify(row))})
            k.store(key, (), call(extreme, key[()], cast(simplify(last), i32)))
        k.emit(Intrin(f"warp_{extreme}", (key[()], Const(WARP, i64))))
        return key[()]

    def is_seen(self, tile: Expr) -> Expr:
        """Whether there is such a tile of keys and some row of the block sees it."""
        exists = simplify(tile < self.tiles)
        if self.seen is None:
            return exists
        return call("and", exists, cast(simplify(tile * self.tile_keys), i32) <= self.seen)

    @contextmanager
    def each_tile(self) -> Iterator[Expr]:
        """A loop over the tiles of keys of the part that the block sees; yields their numbers."""
        self.find_last()
        with self.k.loop(self.tiles_of_part, name="tile") as at:
            tile = simplify(self.part * self.tiles_of_part + at)
            with self.k.where(self.is_seen(tile)):
                yield tile

    def no_products(self) -> Buffer:
        """Scores before anything is multiplied."""
        k = self.k
        scores = k.alloc(f32, (self.row_part, self.key_part), "reg", "scores")
        with k.loops(self.row_part, self.key_part, kind="unroll") as (i, j):
            k.store(scores, (i, j), Const(0, f32))
        return scores

    def soften(self, scores: Buffer, first: Expr) -> None:
        """Keeps the weights of the tile of keys that starts at `first`, given their products."""
        self._score(scores, first)
        if self.is_whole:
            self._weigh(scores)
        else:
            self._update(scores)

    def _score(self, scores: Buffer, first: Expr) -> None:
        """Products become scores; -inf where there is no row or no key."""
        k = self.k
        with k.loops(self.row_part, self.key_part, kind="unroll") as (i, j):
            product = k.let(scores[i, j])
            row, key = simplify(self.first_row + self.row(i)), simplify(first + self.key(j))
            mapping = {**self.fixed, **self.q.place(row), self.match.key: key, PRODUCT: product}
            score = simplify(self.score, mapping)
            inside = simplify(call("and", row < self.q.count, key < self.b.count))
            k.store(scores, (i, j), simplify(select(inside, score, NOTHING)))

    def _most(self, scores: Buffer, i: Expr) -> Buffer:
        """The largest score of a row in this tile."""
        k = self.k
        most = k.var(f32, scores[i, Const(0, i64)])
        for j in range(1, self.key_part):
            k.store(most, (), call("max", most[()], scores[i, Const(j, i64)]))
        if self.lanes > 1:
            k.emit(Intrin("warp_max", (most[()], Const(self.lanes, i64))))
        return most

    def _weigh(self, scores: Buffer) -> None:
        """The weights of all keys, rounded as the graph rounds them."""
        k, soft = self.k, self.match.softmax
        with k.loop(self.row_part, "unroll") as i:
            row = simplify(self.first_row + self.row(i))
            places = {**self.fixed, **self.q.place(row)}
            largest = k.let(self._most(scores, i)[()])
            total = k.var(f32, Const(0, f32))
            with k.loop(self.key_part, "unroll") as j:
                facts = {LARGEST: largest, soft.marker: cast(scores[i, j], soft.marker.dtype)}
                value = cast(substitute(self.exponential, {**places, **facts}), f32)
                inside = simplify(self.key(j) < self.b.count)
                exponential = k.let(simplify(select(inside, value, Const(0, f32))))
                k.store(total, (), total[()] + exponential)
                k.store(scores, (i, j), exponential)
            k.emit(Intrin("warp_sum", (total[()], Const(self.lanes, i64))))
            with k.loop(self.key_part, "unroll") as j:
                exponent = cast(scores[i, j], soft.exponent.dtype)
                facts = {LARGEST: largest, TOTAL: total[()], soft.exponent: exponent}
                value = cast(substitute(self.weight, {**places, **facts}), f32)
                inside = simplify(call("and", row < self.q.count, self.key(j) < self.b.count))
                self.keep(scores, i, j, simplify(select(inside, value, Const(0, f32))))

    def _update(self, scores: Buffer) -> None:
        """Running maxima and totals; exponentials as weights; sums to the new scale."""
        k = self.k
        with k.loop(self.row_part, "unroll") as i:
            most = self._most(scores, i)
            largest = k.let(call("max", self.largest[i], most[()]))
            base = k.let(select(largest.eq(NOTHING), Const(0, f32), largest))
            scale = k.let(self.exponential_of(self.largest[i], base))
            total = k.var(f32, self.total[i] * scale)
            with k.loop(self.key_part, "unroll") as j:
                weight = k.let(self.exponential_of(scores[i, j], base))
                k.store(total, (), total[()] + weight)
                self.keep(scores, i, j, weight)
            k.store(self.total, i, total[()])
            with k.loop(self.column_part, "unroll") as c:
                k.store(self.sums, (i, c), self.sums[i, c] * scale)
            k.store(self.largest, i, largest)

    # ---------------------------------------------------------------- results

    def finish(self) -> None:
        """Stores the results of all keys."""
        k = self.k
        with k.loop(self.row_part, "unroll") as i:
            facts = {} if self.is_whole else self._totals(i)
            row = simplify(self.first_row + self.row(i))
            together = common_factor(self.v.count, self.together)
            with k.loop(self.column_part // together, "unroll") as chunk:
                first = self.column(simplify(chunk * together))
                inside = simplify(call("and", row < self.q.count, first < self.v.count))
                n = Index(k.fresh("n"), together) if together > 1 else Const(0, i64)
                sum = self.sums[i, simplify(chunk * together + n)]
                with k.when(inside):
                    self._store(row, simplify(first + n), {**facts, SUM: sum}, n)

    def _totals(self, i: Expr) -> dict[Expr, Expr]:
        """The maximum and total of a row over all keys."""
        total = self.k.var(f32, self.total[i])
        self.k.emit(Intrin("warp_sum", (total[()], Const(self.lanes, i64))))
        return {TOTAL: total[()], LARGEST: self.largest[i]}

    def _store(self, row: Expr, column: Expr, facts: dict[Expr, Expr], n: Expr) -> None:
        """Results of a row at this column, for all values of `n`, on which it may depend."""
        places = {**self.fixed, **self.q.place(row), **self.v.place(column)}
        finished = SUM if self.is_whole else self.result
        result = simplify(finished, {**places, **facts})
        offset = simplify(self.offset, places)
        points = [
            Point(flat_buffer(o.buffer), offset, substitute(expr, {**places, RESULT: result}))
            for o, expr in zip(self.match.computation.outputs, self.exprs)
        ]
        compute_points(self.k, points, n)
