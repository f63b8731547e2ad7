"""Contractions in float32 or float64 through tiles in shared memory: matrix products, convolutions.

A block computes BM x BN sums, a thread TM x TN of them in registers. For each slice of BK of the
summed indices the threads fetch both operands into shared memory, neighbours along the direction
that is contiguous, wait for one another, and multiply. Operands are expressions, evaluated while
fetching: a convolution's rows are positions of windows (an implicit matrix product) and what a
fused prologue does to them is done once per fetch. The epilogue is applied to the sums in
registers. This is the classical scheme of V. Volkov and J. Demmel, Benchmarking GPUs to Tune Dense
Linear Algebra (2008).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from graphc.ir.dtypes import i64
from graphc.ir.expr import (
    Const,
    Expr,
    Index,
    Load,
    Reduce,
    call,
    free_indices,
    loads,
    select,
    substitute,
    walk,
)
from graphc.ir.kernel import Alloc, Barrier, Buffer, For, Kernel, KernelBuilder
from graphc.ir.simplify import is_affine_in, simplify, unflatten_index
from graphc.passes.lower.computation import Computation, Lowered, flat_buffer
from graphc.passes.lower.contraction import Match, match_contraction
from graphc.passes.lower.spaces import flatten_loads, merge_adjacent

MIN_DEPTH = 8  # products to sum
MIN_SIDE = 8  # rows and columns, below which a tile is mostly empty
MULTIPROCESSORS = 108  # that a grid should fill


@dataclass(frozen=True)
class Tile:
    """Sums per block and per thread, and the depth of a slice. `speed` is the share of the peak
    that a full grid of such blocks reaches, roughly."""

    rows: int
    columns: int
    depth: int
    thread_rows: int
    thread_columns: int
    speed: float

    @property
    def threads(self) -> int:
        return (self.rows // self.thread_rows) * (self.columns // self.thread_columns)


TILES = (
    Tile(128, 128, 8, 8, 8, 0.9),
    Tile(128, 64, 8, 8, 4, 0.8),
    Tile(64, 64, 16, 4, 4, 0.65),
    Tile(32, 64, 16, 4, 4, 0.5),
    Tile(32, 32, 16, 2, 2, 0.35),
    Tile(16, 32, 32, 2, 2, 0.25),
)


def choose_tile(batch: int, rows: int, columns: int) -> Tile:
    """The tile whose grid takes the least time: rounds of blocks over the multiprocessors."""

    def time(tile: Tile) -> float:
        blocks = batch * -(-rows // tile.rows) * -(-columns // tile.columns)
        rounds = -(-blocks // MULTIPROCESSORS)
        return rounds * tile.rows * tile.columns / tile.speed

    return min(TILES, key=time)


def lower_shared_tiles(computation: Computation, tile: Tile | None = None) -> Lowered | str:
    """The kernel of a contraction, or the reason why the computation is not one."""
    match = match_contraction(computation, MIN_DEPTH)
    if isinstance(match, str):
        return match
    rows, columns = (math.prod(x.count for x in side) for side in (match.rows, match.cols))
    if min(rows, columns) < MIN_SIDE:
        return f"contraction: {rows} rows and {columns} columns do not fill tiles"
    if any(x.count == 0 for x in match.indices):
        return "contraction: no outputs"
    batch = math.prod(x.count for x in match.outer)
    emitter = _Emitter(match, tile or choose_tile(batch, rows, columns))
    return Lowered(emitter.kernel(), flops=2 * batch * rows * columns * emitter.depth_count)


class _Emitter:
    """Emits the kernel of a matched contraction."""

    def __init__(self, match: Match, tile: Tile):
        self.match, self.tile = match, tile
        self.k = KernelBuilder()
        self.dtype = match.hole.dtype
        self._flatten()
        self.row_count = math.prod(x.count for x in self.rows)
        self.column_count = math.prod(x.count for x in self.columns)
        self.depth_count = math.prod(x.count for x in self.depth)
        self.thread = Index("thread", tile.threads)
        self.tile_a = Buffer("tile_a", self.dtype, (tile.depth, tile.rows), "local")
        self.tile_b = Buffer("tile_b", self.dtype, (tile.depth, tile.columns), "local")

    def _flatten(self) -> None:
        """Flat operands, epilogues and offset, over as few rows, columns and depths as possible."""
        match = self.match
        flat = [flatten_loads(e, match.shapes) for e in (match.a, match.b, *match.exprs)]
        hole = next(n for e in flat[2:] for n in walk(e) if isinstance(n, Reduce))
        self.marker = Load("sum", (Const(0, i64),), hole.dtype)
        a, b, *exprs = (simplify(substitute(e, {hole: self.marker})) for e in flat)
        depth = sorted(match.depth, key=lambda k: -_stride(a, k))
        self.depth, (a, b) = merge_adjacent(depth, [a, b])
        self.rows, (offset, a, *exprs) = merge_adjacent(match.rows, [match.offset, a, *exprs])
        self.columns, (offset, b, *exprs) = merge_adjacent(match.cols, [offset, b, *exprs])
        self.offset, self.a, self.b, self.exprs = offset, a, b, exprs

    def kernel(self) -> Kernel:
        """The kernel over the inputs that are used and the outputs."""
        tile = self.tile
        outer = self.match.outer
        row_tiles, column_tiles = (
            -(-self.row_count // tile.rows),
            -(-self.column_count // tile.columns),
        )
        extents = (*(x.count for x in outer), row_tiles, column_tiles)
        with self.k.loop(math.prod(extents), "block", name="block") as block:
            *front, row_tile, column_tile = unflatten_index(block, extents)
            self.fixed: dict[Expr, Expr] = dict(zip(outer, front))
            with self.k.block() as body:
                self._sums(row_tile * tile.rows, column_tile * tile.columns)
            for buffer in (self.tile_a, self.tile_b):
                self.k.emit(Alloc(buffer, "shared"))
            self.k.emit(For(self.thread, tuple(body), "thread"))
        computation = self.match.computation
        used = {x.source for e in (self.a, self.b, *self.exprs) for x in loads(e)}
        inputs = [b for b in computation.inputs if b.name in used]
        params = [flat_buffer(b) for b in (*inputs, *(o.buffer for o in computation.outputs))]
        return Kernel("tiles", tuple(params), self.k.body(), computation.label)

    def _sums(self, first_row: Expr, first_column: Expr) -> None:
        """What a thread does: its sums over all slices, then the epilogue."""
        tile, k = self.tile, self.k
        sums = k.alloc(self.dtype, (tile.thread_rows, tile.thread_columns), "reg", "sums")
        with k.loops(tile.thread_rows, tile.thread_columns, kind="unroll") as (i, j):
            k.store(sums, (i, j), Const(0, self.dtype))
        with k.loop(-(-self.depth_count // tile.depth), name="slice") as slice:
            start = slice * tile.depth
            a = (self.a, self.rows, first_row, self.row_count)
            b = (self.b, self.columns, first_column, self.column_count)
            self._fetch(self.tile_a, *a, start)
            self._fetch(self.tile_b, *b, start)
            k.emit(Barrier())
            self._multiply(sums)
            k.emit(Barrier())
        self._finish(sums, first_row, first_column)

    # ---------------------------------------------------------------- operands

    def _fetch(
        self, into: Buffer, operand: Expr, side: list[Index], first: Expr, count: int, start: Expr
    ) -> None:
        """A slice of an operand, [depth, side], by all threads; zeros outside."""
        depth, width = into.shape
        elements = depth * width
        steps = -(-elements // self.tile.threads)
        with self.k.loop(steps, "unroll") as step:
            at = simplify(step * self.tile.threads + self.thread)
            along_depth = bool(self.depth) and _stride(operand, self.depth[-1]) == 1
            d, s = (at % depth, at // depth) if along_depth else (at // width, at % width)
            value = self._element(operand, side, simplify(first + s), count, simplify(start + d))
            if elements % self.tile.threads:
                with self.k.when(at < elements):
                    self.k.store(into, (simplify(d), simplify(s)), value)
            else:
                self.k.store(into, (simplify(d), simplify(s)), value)

    def _element(
        self, operand: Expr, side: list[Index], position: Expr, count: int, deep: Expr
    ) -> Expr:
        """An element of an operand at a row or column and a depth, zero where there is none."""
        mapping = dict(self.fixed)
        mapping.update(zip(side, unflatten_index(position, tuple(x.count for x in side))))
        mapping.update(zip(self.depth, unflatten_index(deep, tuple(x.count for x in self.depth))))
        value = simplify(substitute(operand, mapping))
        inside = simplify(call("and", position < count, deep < self.depth_count))
        return simplify(select(inside, value, Const(0, value.dtype)))

    # ---------------------------------------------------------------- sums

    def _places(self, i: Expr, j: Expr) -> tuple[Expr, Expr]:
        """The row and column within the tile of a thread's sum i, j: neighbouring threads have
        neighbouring columns."""
        rows, columns = self._thread_grid()
        row = simplify(self.thread // columns + i * rows)
        return row, simplify(self.thread % columns + j * columns)

    def _thread_grid(self) -> tuple[int, int]:
        tile = self.tile
        return tile.rows // tile.thread_rows, tile.columns // tile.thread_columns

    def _multiply(self, sums: Buffer) -> None:
        tile, k = self.tile, self.k
        zero = Const(0, i64)
        with k.loop(tile.depth, "unroll", name="d") as d:
            a = k.alloc(self.dtype, (tile.thread_rows,), "reg", "a")
            b = k.alloc(self.dtype, (tile.thread_columns,), "reg", "b")
            with k.loop(tile.thread_rows, "unroll") as i:
                k.store(a, i, self.tile_a[d, self._places(i, zero)[0]])
            with k.loop(tile.thread_columns, "unroll") as j:
                k.store(b, j, self.tile_b[d, self._places(zero, j)[1]])
            with k.loops(tile.thread_rows, tile.thread_columns, kind="unroll") as (i, j):
                k.store(sums, (i, j), call("fma", a[i], b[j], sums[i, j]))

    def _finish(self, sums: Buffer, first_row: Expr, first_column: Expr) -> None:
        tile, k = self.tile, self.k
        with k.loops(tile.thread_rows, tile.thread_columns, kind="unroll") as (i, j):
            row, column = self._places(i, j)
            row, column = simplify(first_row + row), simplify(first_column + column)
            inside = simplify(call("and", row < self.row_count, column < self.column_count))
            if isinstance(inside, Const):
                self._store(row, column, sums[i, j])
            else:
                with k.when(inside):
                    self._store(row, column, sums[i, j])

    def _store(self, row: Expr, column: Expr, cell: Expr) -> None:
        mapping = dict(self.fixed)
        for side, position in ((self.rows, row), (self.columns, column)):
            mapping.update(zip(side, unflatten_index(position, tuple(x.count for x in side))))
        total = self.k.let(cell)
        for output, expr in zip(self.match.computation.outputs, self.exprs):
            value = simplify(substitute(expr, {**mapping, self.marker: total}))
            offset = simplify(substitute(self.offset, mapping))
            self.k.store(flat_buffer(output.buffer), (offset,), value)


def _stride(expr: Expr, index: Index) -> int:
    """By how many elements the first load that moves with `index` moves; large if it is unknown."""
    for load in loads(expr):
        if index in free_indices(load):
            stride = is_affine_in(load.index[0], index)
            return abs(stride) if isinstance(stride, int) else 1 << 40
    return 0
