"""Attention in one kernel: scores, softmax and values for a tile of rows, over tiles of keys.

A block of 16 x 16 threads holds its rows of the first operand in shared memory and goes over the
keys once. For each tile of keys it computes scores in registers, brings the running maximum, total
and sums of every row up to date, leaves the exponentials in shared memory, and multiplies them by
the tile's values, which take the place of the keys. The 16 threads of a row exchange maxima and
totals by shuffles. Memory is linear in the number of keys. See passes/lower/attention.py.

Where one tile holds all keys, maxima and totals are final at once, and weights are rounded as the
graph says; otherwise types narrower than float32 are not rounded to between scores and results.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from graphc.backends.cuda.machines import Machine, fastest
from graphc.backends.cuda.strategies.operands import Operand, strided
from graphc.ir.dtypes import f32, i64
from graphc.ir.expr import Const, Expr, call, cast, select, substitute
from graphc.ir.kernel import Alloc, Barrier, Buffer, For, Index, Intrin, Kernel, KernelBuilder
from graphc.ir.simplify import simplify, unflatten_index
from graphc.passes.lower.attention import (
    LARGEST,
    PRODUCT,
    RESULT,
    SUM,
    TOTAL,
    Attention,
    extent,
    inputs_used,
    match_attention,
)
from graphc.passes.lower.computation import Computation, Lowered, flat_buffer
from graphc.passes.lower.spaces import merge_adjacent

SIDE = 16  # threads along rows, and along keys or columns
WIDEST = 256  # depth and columns
SHARED_FLOATS = (48 << 10) // 4
CHUNK = 8  # products between which the loop over them is not unrolled
NOTHING = Const(-math.inf, f32)


@dataclass(frozen=True)
class Tile:
    """Rows of a block and keys at a time; `speed` is the rate of such tiles, roughly."""

    rows: int
    keys: int
    speed: float

    @property
    def area(self) -> int:
        return self.rows

    def blocks(self, rows: int, columns: int) -> int:
        """Blocks of the grid of so many rows."""
        return -(-rows // self.rows)


TILES = (Tile(64, 32, 1.0), Tile(32, 32, 0.8), Tile(16, 32, 0.5), Tile(16, 16, 0.35))


def lower_attention(
    computation: Computation, gpu: Machine, tile: Tile | None = None
) -> Lowered | str:
    """The kernel of an attention, or the reason why the computation is none."""
    match = match_attention(computation)
    if isinstance(match, str):
        return match
    depth, columns = extent(match.depth), extent(match.columns)
    if max(depth, columns) > WIDEST:
        return f"attention: {depth} products and {columns} columns; kernels take {WIDEST}"
    batch, rows = extent(match.outer), extent(match.rows)
    fitting = [t for t in TILES if shared_floats(t, depth, columns) <= SHARED_FLOATS]
    chosen = tile or fastest(fitting, gpu, batch, rows, columns)
    kernel = _Emitter(match, chosen).kernel()
    work = batch * rows * match.key.count
    return Lowered(kernel, flops=2 * work * (depth + columns))


def shared_floats(tile: Tile, depth: int, columns: int) -> int:
    """Elements of shared memory a block takes."""
    deep, wide = _padded(depth, CHUNK), _padded(columns, SIDE)
    operand = max(deep * (tile.keys + 1), tile.keys * wide)
    return deep * (tile.rows + 1) + operand + tile.rows * (tile.keys + 1)


def _padded(count: int, unit: int) -> int:
    return -(-count // unit) * unit


class _Emitter:
    """Emits the kernel of a matched attention."""

    def __init__(self, match: Attention, tile: Tile):
        self.match, self.tile, self.k = match, tile, KernelBuilder()
        self._flatten()
        self.threads = SIDE * SIDE
        self.thread = Index("thread", self.threads)
        self.down, self.across = simplify(self.thread // SIDE), simplify(self.thread % SIDE)
        self.is_whole = self.b.count <= tile.keys
        self.deep, self.wide = _padded(self.q.depth_count, CHUNK), _padded(self.v.count, SIDE)
        self.row_part, self.key_part = tile.rows // SIDE, tile.keys // SIDE
        self.column_part = self.wide // SIDE
        operand = max(self.deep * (tile.keys + 1), tile.keys * self.wide)
        self.queries = Buffer("queries", f32, (self.deep, tile.rows + 1), "local")
        self.keys = Buffer("keys", f32, (operand,), "local")
        self.weights = Buffer("weights", f32, (tile.rows, tile.keys + 1), "local")

    def _flatten(self) -> None:
        """Merges indices that address memory as if they were one."""
        m = self.match
        soft = m.softmax
        dependent = [m.offset, m.a, m.score, soft.result, soft.exponential, soft.weight, *m.exprs]
        rows, merged = merge_adjacent(m.rows, dependent)
        offset, a, self.score, self.result, self.exponential, self.weight, *exprs = merged
        depth, (a, b) = merge_adjacent(m.depth, [a, m.b])
        columns, (offset, value, *exprs) = merge_adjacent(m.columns, [offset, m.value, *exprs])
        self.offset, self.exprs = offset, exprs
        self.q = Operand(cast(a, f32), rows, depth)
        self.b = Operand(cast(b, f32), [m.key], depth)
        self.v = Operand(cast(value, f32), columns, [m.key])

    def kernel(self) -> Kernel:
        """The kernel over the inputs that are used and the outputs."""
        tile, outer = self.tile, self.match.outer
        extents = (*(x.count for x in outer), -(-self.q.count // tile.rows))
        with self.k.loop(math.prod(extents), "block", name="block") as block:
            *front, at = unflatten_index(block, extents)
            self.fixed: dict[Expr, Expr] = dict(zip(outer, front))
            self.first_row = simplify(at * tile.rows)
            with self.k.block() as body:
                self._rows()
            for buffer in (self.queries, self.keys, self.weights):
                self.k.emit(Alloc(buffer, "shared"))
            self.k.emit(For(self.thread, tuple(body), "thread"))
        read = [self.q.expr, self.b.expr, self.v.expr, self.score, self.result, *self.exprs]
        read += [self.exponential, self.weight] if self.is_whole else []
        outputs = [o.buffer for o in self.match.computation.outputs]
        params = [flat_buffer(b) for b in (*inputs_used(self.match, read), *outputs)]
        label = self.match.computation.label
        return Kernel("attention", tuple(params), self.k.body(), label)

    def _rows(self) -> None:
        """What a thread does: over all keys, then the results."""
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
        self._fetch(self.q, self.queries, self.tile.rows, self.first_row, self.deep)
        with k.loop(-(-self.b.count // self.tile.keys), name="tile") as at:
            first = simplify(at * self.tile.keys)
            k.emit(Barrier())
            view = Buffer("keys", f32, (self.deep, self.tile.keys + 1), "local")
            self._fetch(self.b, view, self.tile.keys, first, self.deep)
            k.emit(Barrier())
            if self.is_whole:
                self._weigh(self._scores(first))
            else:
                self._soften(self._scores(first))
            k.emit(Barrier())
            self._fetch_values(first)
            k.emit(Barrier())
            self._add_values()
        self._finish()

    # ---------------------------------------------------------------- operands

    def _fetch(self, operand: Operand, into: Buffer, side: int, first: Expr, deep: int) -> None:
        """[depth, side] of an operand whose depth is contiguous, zeros outside."""
        with strided(self.k, side * deep, self.threads, self.thread) as at:
            d, s = simplify(at % deep), simplify(at // deep)
            value = operand.element(self.fixed, simplify(first + s), d)
            self._put(into, (d, s), value)

    def _fetch_values(self, first: Expr) -> None:
        """[keys, columns] of the values, zeros outside."""
        into = Buffer("keys", f32, (self.tile.keys, self.wide), "local")
        with strided(self.k, self.tile.keys * self.wide, self.threads, self.thread) as at:
            t, c = simplify(at // self.wide), simplify(at % self.wide)
            value = self.v.element(self.fixed, c, simplify(first + t))
            self._put(into, (t, c), value)

    def _put(self, view: Buffer, index: tuple[Expr, ...], value: Expr) -> None:
        """Stores into a buffer, or into one seen with another shape."""
        if view.name == self.keys.name:
            index = (simplify(index[0] * view.shape[1] + index[1]),)
            view = self.keys
        self.k.store(view, index, value)

    # ---------------------------------------------------------------- a tile of keys

    def _row(self, i: Expr) -> Expr:
        return simplify(self.down + i * SIDE)

    def _column(self, j: Expr) -> Expr:
        return simplify(self.across + j * SIDE)

    def _products(self, sums: Buffer, count: int, left, right) -> None:
        """sums[i, j] += left(i, n) * right(n, j) for n below count, a multiple of CHUNK."""
        k = self.k
        rows, columns = sums.shape
        with k.loop(count // CHUNK) as chunk, k.loop(CHUNK, "unroll") as step:
            n = simplify(chunk * CHUNK + step)
            a = k.alloc(f32, (rows,), "reg")
            b = k.alloc(f32, (columns,), "reg")
            with k.loop(rows, "unroll") as i:
                k.store(a, i, left(i, n))
            with k.loop(columns, "unroll") as j:
                k.store(b, j, right(n, j))
            with k.loops(rows, columns, kind="unroll") as (i, j):
                k.store(sums, (i, j), call("fma", a[i], b[j], sums[i, j]))

    def _scores(self, first: Expr) -> Buffer:
        """The scores of this thread; -inf where there is no row or no key."""
        k = self.k
        scores = k.alloc(f32, (self.row_part, self.key_part), "reg", "scores")
        with k.loops(self.row_part, self.key_part, kind="unroll") as (i, j):
            k.store(scores, (i, j), Const(0, f32))
        stride = self.tile.keys + 1
        self._products(
            scores, self.deep,
            lambda i, d: self.queries[d, self._row(i)],
            lambda d, j: self.keys[simplify(d * stride + self._column(j))],
        )  # fmt: skip
        with k.loops(self.row_part, self.key_part, kind="unroll") as (i, j):
            product = k.let(scores[i, j])
            row, key = simplify(self.first_row + self._row(i)), simplify(first + self._column(j))
            mapping = {**self.fixed, **self.q.place(row), self.match.key: key, PRODUCT: product}
            score = simplify(substitute(self.score, mapping))
            inside = simplify(call("and", row < self.q.count, key < self.b.count))
            k.store(scores, (i, j), simplify(select(inside, score, NOTHING)))
        return scores

    def _most(self, scores: Buffer, i: Expr) -> Buffer:
        """The largest score of a row in this tile."""
        k = self.k
        most = k.var(f32, scores[i, Const(0, i64)])
        for j in range(1, self.key_part):
            k.store(most, (), call("max", most[()], scores[i, Const(j, i64)]))
        k.emit(Intrin("warp_max", (most[()], Const(SIDE, i64))))
        return most

    def _weigh(self, scores: Buffer) -> None:
        """The weights of all keys into shared memory."""
        k, soft = self.k, self.match.softmax
        with k.loop(self.row_part, "unroll") as i:
            row = simplify(self.first_row + self._row(i))
            places = {**self.fixed, **self.q.place(row)}
            largest = k.let(self._most(scores, i)[()])
            total = k.var(f32, Const(0, f32))
            with k.loop(self.key_part, "unroll") as j:
                facts = {LARGEST: largest, soft.marker: cast(scores[i, j], soft.marker.dtype)}
                value = cast(substitute(self.exponential, {**places, **facts}), f32)
                inside = simplify(self._column(j) < self.b.count)
                exponential = k.let(simplify(select(inside, value, Const(0, f32))))
                k.store(total, (), total[()] + exponential)
                k.store(scores, (i, j), exponential)
            k.emit(Intrin("warp_sum", (total[()], Const(SIDE, i64))))
            with k.loop(self.key_part, "unroll") as j:
                exponent = cast(scores[i, j], soft.exponent.dtype)
                facts = {LARGEST: largest, TOTAL: total[()], soft.exponent: exponent}
                value = cast(substitute(self.weight, {**places, **facts}), f32)
                inside = simplify(call("and", row < self.q.count, self._column(j) < self.b.count))
                weight = simplify(select(inside, value, Const(0, f32)))
                k.store(self.weights, (self._row(i), self._column(j)), weight)

    def _soften(self, scores: Buffer) -> None:
        """Running maxima and totals; exponentials into shared memory; sums to the new scale."""
        k = self.k
        with k.loop(self.row_part, "unroll") as i:
            most = self._most(scores, i)
            largest = k.let(call("max", self.largest[i], most[()]))
            base = k.let(select(largest.eq(NOTHING), Const(0, f32), largest))
            scale = k.let(call("exp", self.largest[i] - base))
            total = k.var(f32, self.total[i] * scale)
            with k.loop(self.key_part, "unroll") as j:
                weight = k.let(call("exp", scores[i, j] - base))
                k.store(total, (), total[()] + weight)
                k.store(self.weights, (self._row(i), self._column(j)), weight)
            k.store(self.total, i, total[()])
            with k.loop(self.column_part, "unroll") as c:
                k.store(self.sums, (i, c), self.sums[i, c] * scale)
            k.store(self.largest, i, largest)

    def _add_values(self) -> None:
        self._products(
            self.sums, self.tile.keys,
            lambda i, t: self.weights[self._row(i), t],
            lambda t, c: self.keys[simplify(t * self.wide + self._column(c))],
        )  # fmt: skip

    # ---------------------------------------------------------------- results

    def _finish(self) -> None:
        k = self.k
        with k.loop(self.row_part, "unroll") as i:
            facts = {} if self.is_whole else self._totals(i)
            row = simplify(self.first_row + self._row(i))
            with k.loop(self.column_part, "unroll") as c:
                column = self._column(c)
                inside = simplify(call("and", row < self.q.count, column < self.v.count))
                with k.when(inside):
                    self._store(row, column, {**facts, SUM: self.sums[i, c]})

    def _totals(self, i: Expr) -> dict[Expr, Expr]:
        """The maximum and total of a row over all keys."""
        total = self.k.var(f32, self.total[i])
        self.k.emit(Intrin("warp_sum", (total[()], Const(SIDE, i64))))
        return {TOTAL: total[()], LARGEST: self.largest[i]}

    def _store(self, row: Expr, column: Expr, facts: dict[Expr, Expr]) -> None:
        places = {**self.fixed, **self.q.place(row), **self.v.place(column)}
        finished = SUM if self.is_whole else self.result
        result = self.k.let(simplify(substitute(finished, {**places, **facts})))
        offset = simplify(substitute(self.offset, places))
        for output, expr in zip(self.match.computation.outputs, self.exprs):
            value = simplify(substitute(expr, {**places, RESULT: result}))
            self.k.store(flat_buffer(output.buffer), (offset,), value)
