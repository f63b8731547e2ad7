"""Contractions in float32 or float64 through tiles in shared memory: matrix products, convolutions.

A block computes BM x BN sums, a thread TM x TN of them in registers. For each slice of BK of the
summed indices the threads fetch both operands into shared memory, neighbours along the direction
that is contiguous, wait for one another, and multiply; the next slice is on its way meanwhile.
Operands are expressions, evaluated while fetching: a convolution's rows are positions of windows
(an implicit matrix product) and what a fused prologue does to them is done once per fetch. The
epilogue is applied to the sums in registers. This is the classical scheme of V. Volkov and J.
Demmel, Benchmarking GPUs to Tune Dense Linear Algebra (2008).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from graphc.backends.cuda.machines import Machine, fastest
from graphc.backends.cuda.strategies.blocks import BlockedContraction, count, sort_depth, wide_sums
from graphc.backends.cuda.strategies.operands import Operand
from graphc.ir.dtypes import i64
from graphc.ir.expr import Const, Expr, call
from graphc.ir.kernel import Barrier, Buffer
from graphc.ir.simplify import simplify
from graphc.passes.lower.computation import Computation, Lowered
from graphc.passes.lower.contraction import Match, match_contraction

MIN_DEPTH = 8  # products to sum
MIN_SIDE = 8  # rows and columns, below which a tile is mostly empty
STAGES = 2  # slices in shared memory
PADDING = 4  # after each row of the first tile, so that its columns lie in different banks


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
    def area(self) -> int:
        return self.rows * self.columns

    def blocks(self, rows: int, columns: int) -> int:
        """Blocks of the grid of so many sums."""
        return -(-rows // self.rows) * -(-columns // self.columns)

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


def lower_shared_tiles(
    computation: Computation, gpu: Machine, tile: Tile | None = None
) -> Lowered | str:
    """The kernel of a contraction, in tiles of this shape or of the one fastest on a GPU; or the
    reason why the computation is not one."""
    match = match_contraction(wide_sums(computation), MIN_DEPTH)
    if isinstance(match, str):
        return match
    rows, columns = count(match.rows), count(match.cols)
    if min(rows, columns) < MIN_SIDE:
        return f"contraction: {rows} rows and {columns} columns do not fill tiles"
    if any(x.count == 0 for x in match.indices):
        return "contraction: no outputs"
    sort_depth(match)
    batch = count(match.outer)
    emitter = SharedTiles(match, tile or fastest(TILES, gpu, batch, rows, columns))
    flops = 2 * batch * rows * columns * emitter.depth_count
    return Lowered(emitter.kernel("tiles"), flops=flops)


class SharedTiles(BlockedContraction):
    """Sums of TM x TN per thread, whose operands are read from shared memory."""

    def __init__(self, match: Match, tile: Tile):
        super().__init__(match, tile.rows, tile.columns, tile.threads)
        self.tile = tile
        self.dtype = match.hole.dtype
        width_a, width_b = tile.rows + PADDING, tile.columns
        self.tile_a = Buffer("tile_a", self.dtype, (STAGES, tile.depth, width_a), "local")
        self.tile_b = Buffer("tile_b", self.dtype, (STAGES, tile.depth, width_b), "local")
        self.shared = [self.tile_a, self.tile_b]

    def sums(self, first_row: Expr, first_column: Expr) -> None:
        """What a thread does: its sums over all slices, each loaded into registers while the one
        before is multiplied; then the epilogue."""
        tile, k = self.tile, self.k
        sums = k.alloc(self.dtype, (tile.thread_rows, tile.thread_columns), "reg", "sums")
        with k.loops(tile.thread_rows, tile.thread_columns, kind="unroll") as (i, j):
            k.store(sums, (i, j), Const(0, self.dtype))
        self.sides = (
            _Side(self, self.a, self.tile_a, tile.rows, first_row),
            _Side(self, self.b, self.tile_b, tile.columns, first_column),
        )
        self._load(Const(0, i64))
        self._put(Const(0, i64))
        k.emit(Barrier())
        slices = -(-self.depth_count // tile.depth)
        with k.loop(slices, name="slice") as slice:
            following = simplify(slice + 1)
            with k.when(following < slices):
                self._load(following)
            self._multiply(sums, simplify(slice % STAGES))
            with k.when(following < slices):
                self._put(simplify(following % STAGES))
            k.emit(Barrier())
        with k.loops(tile.thread_rows, tile.thread_columns, kind="unroll") as (i, j):
            row, column = self._places(i, j)
            self.finish(simplify(first_row + row), simplify(first_column + column), [sums[i, j]])

    def _load(self, slice: Expr) -> None:
        for side in self.sides:
            side.load(simplify(slice * self.tile.depth))

    def _put(self, stage: Expr) -> None:
        for side in self.sides:
            side.put(stage)

    def _places(self, i: Expr, j: Expr) -> tuple[Expr, Expr]:
        """The row and column within the tile of a thread's sum i, j: neighbouring threads have
        neighbouring columns, and a thread has rows next to one another, read as one vector."""
        rows, columns = self._thread_grid()
        together = math.gcd(4, self.tile.thread_rows)
        down = simplify(self.thread // columns)
        row = simplify(i // together * (rows * together) + down * together + i % together)
        return row, simplify(self.thread % columns + j * columns)

    def _thread_grid(self) -> tuple[int, int]:
        tile = self.tile
        return tile.rows // tile.thread_rows, tile.columns // tile.thread_columns

    def _multiply(self, sums: Buffer, stage: Expr) -> None:
        tile, k = self.tile, self.k
        zero = Const(0, i64)
        with k.loop(tile.depth, "unroll", name="d") as d:
            a = k.alloc(self.dtype, (tile.thread_rows,), "reg", "a")
            b = k.alloc(self.dtype, (tile.thread_columns,), "reg", "b")
            with k.loop(tile.thread_rows, "unroll") as i:
                k.store(a, i, self.tile_a[stage, d, self._places(i, zero)[0]])
            with k.loop(tile.thread_columns, "unroll") as j:
                k.store(b, j, self.tile_b[stage, d, self._places(zero, j)[1]])
            with k.loops(tile.thread_rows, tile.thread_columns, kind="unroll") as (i, j):
                k.store(sums, (i, j), call("fma", a[i], b[j], sums[i, j]))


class _Side:
    """How all threads fetch slices of one operand, `width` rows or columns from `first` on."""

    def __init__(self, tiles: SharedTiles, operand: Operand, into: Buffer, width: int, first: Expr):
        self.tiles, self.operand, self.into, self.width = tiles, operand, into, width
        self.first = first
        self.steps = -(-tiles.tile.depth * width // tiles.threads)
        self.held = tiles.k.alloc(into.dtype, (self.steps,), "reg", f"held_{into.name[-1]}")

    def _place(self, at: Expr) -> tuple[Expr, Expr]:
        """The depth and the position of a fetched element: neighbours in memory for neighbours."""
        depth, width = self.tiles.tile.depth, self.width
        along = self.operand.along_depth
        d, s = (at % depth, at // depth) if along else (at // width, at % width)
        return simplify(d), simplify(s)

    def load(self, start: Expr) -> None:
        """A slice into registers; zeros outside of the operand."""
        with self._elements() as (step, at):
            d, s = self._place(at)
            position, deep = simplify(self.first + s), simplify(start + d)
            value = self.operand.element(self.tiles.fixed, position, deep)
            self.tiles.k.store(self.held, step, value)

    def put(self, stage: Expr) -> None:
        """The registers into a stage of shared memory."""
        with self._elements() as (step, at):
            self.tiles.k.store(self.into, (stage, *self._place(at)), self.held[step])

    @contextmanager
    def _elements(self) -> Iterator[tuple[Expr, Expr]]:
        k, threads = self.tiles.k, self.tiles.threads
        elements = self.tiles.tile.depth * self.width
        with k.loop(self.steps, "unroll") as step:
            at = simplify(step * threads + self.tiles.thread)
            if elements % threads:
                with k.when(at < elements):
                    yield step, at
            else:
                yield step, at
