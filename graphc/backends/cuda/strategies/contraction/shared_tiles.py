"""Contractions in float32 or float64 without matrix cores: tiles in shared memory and registers.

Register tiling: a block computes BM x BN sums, a thread TM x TN of them in registers. For each
slice of BK of the summed indices, the threads fetch both operands into registers, by 16-byte
vectors where memory allows, store them to shared memory, wait at a barrier, and multiply. The next
slice is prefetched into registers meanwhile (double buffering). Operands are expressions that are
evaluated while they are fetched, so a convolution is an implicit GEMM: its rows are positions of
windows, and im2col writes no matrix to memory. A fused prologue runs once per fetched element. The
epilogue is applied to the sums in registers. This is the classical scheme of V. Volkov and J.
Demmel, Benchmarking GPUs to Tune Dense Linear Algebra (2008).

Bank conflicts are avoided by the layout. The lanes of a warp form a grid of 4 x 8. A lane has
neighbouring rows, and neighbouring columns, which it reads as one vector. Lanes n and n ^ 1 have
the same rows, lanes n and n ^ 2 the same columns, so that half of the warp is served at once
(simulator/profile.py has the rules), not a quarter. A tile keeps a row of positions for each summed
index. An operand that runs along the depth is transposed on its way into shared memory and
swizzled: position s of index d lies at s ^ f(d), where f puts the chunks of a row, which
neighbouring lanes store, into different banks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from graphc.backends.cuda.machines import VECTOR_BYTES, WARP, Machine
from graphc.backends.cuda.strategies.contraction.blocks import (
    BlockedContraction,
    FlatContraction,
    constant_depth,
    flattened,
    sort_depth,
)
from graphc.backends.cuda.strategies.contraction.costs import (
    SCHEDULERS,
    SHARED_RATE,
    Block,
    Problem,
    exchanged,
    ranked,
)
from graphc.backends.cuda.strategies.contraction.mma_operands import Kind, Words, padded_depth
from graphc.backends.cuda.strategies.contraction.operand_packing import (
    lay_out_constant,
    whole_depth,
)
from graphc.backends.cuda.strategies.contraction.operands import Operand
from graphc.ir.addresses import unflatten_index
from graphc.ir.dtypes import f32, i64
from graphc.ir.expr import TRUE, Const, Expr, call
from graphc.ir.extents import points
from graphc.ir.kernel import Barrier, Buffer, Intrin, Kernel
from graphc.ir.simplify import simplify
from graphc.passes.analysis.computation import Computation
from graphc.passes.analysis.contraction import match_contraction, wide_sums
from graphc.passes.lower.lowered import Lowered
from graphc.passes.schedule.choosing import Choose, take_first

MIN_DEPTH = 8  # products to sum
MIN_SIDE = 8  # rows and columns, below which a tile is mostly empty
STAGES = 2  # slices in shared memory
LANE_ROWS, LANE_COLUMNS = 4, 8
BANKS = 32
FLOATS_AT_ONCE = VECTOR_BYTES // 4
LARGE_BLOCK = 256  # threads, of which two blocks have 128 registers each
UNHIDDEN = 0.5  # of the time that operands take on their way, beside products
OTHERS = 56  # registers of a thread beside sums and operands
OVERHEAD = 44  # instructions of a thread per slice that neither multiply nor load operands
FLOATS = Kind("fma", f32, f32)
PADDING = 4  # after rows of what is put there element by element, along the depth
RUN = BANKS // PADDING  # such elements along the depth that a warp puts there at once


@dataclass(frozen=True)
class Tile:
    """Sums per block and per thread, the depth of a slice, and groups that share the slices."""

    rows: int
    columns: int
    depth: int
    thread_rows: int
    thread_columns: int
    k_groups: int = 1

    @property
    def split(self) -> int:
        return 1

    @property
    def threads(self) -> int:
        own = self.thread_rows * self.thread_columns
        return self.rows * self.columns // own * self.k_groups

    def block(self, gpu: Machine, depth: int) -> Block:
        """What a block needs for sums of so many products of float32."""
        slices = -(-depth // (self.depth * self.k_groups))
        deep, sides = slices * self.depth, self.rows + self.columns
        own, read = self.thread_rows * self.thread_columns, self.thread_rows + self.thread_columns
        issued = self.threads // WARP * deep * (own + read / 4 + OVERHEAD / self.depth)
        moved = 4 * deep * (self.threads * read / 2 + self.k_groups * sides)
        read_bytes = 4 * deep * self.k_groups * sides
        products = self.rows * self.columns * deep * self.k_groups
        multiply = max(products / gpu.float_rate, issued / SCHEDULERS)
        shared = 4 * STAGES * self.depth * (max(self.rows, BANKS) + self.columns) * self.k_groups
        return Block(
            self.threads, shared + exchanged(self), registers=min(128, own + 3 * read + OTHERS),
            multiply=multiply + UNHIDDEN * (moved / SHARED_RATE + read_bytes / gpu.cache_rate),
            moved=moved + 2 * exchanged(self), read=read_bytes, slices=slices, ahead=1,
        )  # fmt: skip


TILES = (
    Tile(128, 128, 8, 8, 8),
    Tile(128, 64, 16, 8, 4),
    Tile(64, 128, 16, 4, 8),
    Tile(64, 64, 16, 4, 4),
    Tile(32, 64, 16, 4, 4),
    Tile(32, 32, 32, 4, 2),
    Tile(16, 32, 32, 2, 2),
    *(Tile(*sides, 16, 4, 4, k_groups) for sides in ((16, 32), (32, 32)) for k_groups in (4, 8)),
    Tile(16, 32, 8, 4, 4, 16),
)


def lower_shared_tiles(
    computation: Computation, gpu: Machine, tile: Tile | None = None, choose: Choose = take_first
) -> Lowered | str:
    """The kernel of a contraction, in tiles of this shape or of the one chosen of those that
    fit on a GPU; or the reason why the computation is not one."""
    match = match_contraction(wide_sums(computation), MIN_DEPTH)
    if isinstance(match, str):
        return match
    depth = constant_depth(match)
    if isinstance(depth, str):
        return depth
    rows, columns = points(match.rows), points(match.cols)
    if min(rows, columns) < MIN_SIDE:
        return f"contraction: tiles need {MIN_SIDE} rows and columns, found {rows} and {columns}"
    if any(x.extent == 0 for x in match.indices):
        return "contraction: it must have output elements, found none"
    sort_depth(match)
    batch = points(match.outer)
    problem = Problem(batch, rows, columns, depth)

    panels = match.b.dtype is f32 and lay_out_constant(match, FLOATS, across=True)
    flat = flattened(match)

    def kernel(tile: Tile) -> Kernel:
        return SharedTiles(flat, panels, tile).kernel("tiles")

    # those of several groups need most of the shared memory: twice as much in float64
    tiles = [t for t in TILES if t.k_groups == 1 or match.hole.dtype is f32]
    chosen = tile or choose(
        computation.text, ranked(tiles, gpu, problem), lambda tile: [kernel(tile)]
    )
    flops = 2 * batch * rows * columns * depth
    return Lowered(kernel(chosen), match.prepare, match.temporaries, flops=flops)


class SharedTiles(BlockedContraction):
    """Sums of TM x TN per thread, whose operands are read from shared memory."""

    def __init__(self, flat: FlatContraction, panels: bool, tile: Tile):
        super().__init__(flat, tile.rows, tile.columns, tile.threads, tile.k_groups)
        self.tile = tile
        self.slices = -(-self.depth_count // (tile.depth * tile.k_groups))  # of a share
        if panels:
            self.b = whole_depth(self.b, padded_depth(self.b, FLOATS))
        self.dtype = flat.marker.dtype
        self.sides = (
            _Side(self, "a", self.a, tile.rows, tile.thread_rows),
            _Side(self, "b", self.b, tile.columns, tile.thread_columns),
        )
        self.shared = [side.into for side in self.sides]
        if tile.k_groups > 1:
            self.exchanged = self.k_groups.sums(self.dtype, (tile.thread_rows, tile.thread_columns))
            self.shared.append(self.exchanged)
        self.resident = 2 if self.dtype is f32 and tile.threads <= LARGE_BLOCK else 0

    def sums(self, first_row: Expr, first_column: Expr) -> None:
        """What a thread does: its sums over all slices, then the epilogue."""
        tile, k = self.tile, self.k
        sums = k.alloc(self.dtype, (tile.thread_rows, tile.thread_columns), "reg", "sums")
        with k.loops(tile.thread_rows, tile.thread_columns, kind="unroll") as (i, j):
            k.store(sums, (i, j), Const(0, self.dtype))
        for side, first in zip(self.sides, (first_row, first_column)):
            side.begin(first)
        self._load(Const(0, i64))
        self._put(Const(0, i64))
        k.emit(Barrier())
        if self.slices == 1:
            self._multiply(sums, self._stage(Const(0, i64)))
        else:
            self._multiply_slices(sums)
        self._finish_all(sums, first_row, first_column)

    def _multiply_slices(self, sums: Buffer) -> None:
        """The products of all slices, each loaded into registers while the one before is
        multiplied."""
        k = self.k
        with k.loop(self.slices, name="slice") as slice:
            following = simplify(slice + 1)
            with self.coming(following, self.slices) as coming:
                self._load(coming)
            self._multiply(sums, self._stage(slice))
            with k.when(following < self.slices):
                self._put(following)
            k.emit(Barrier())

    def _finish_all(self, sums: Buffer, first_row: Expr, first_column: Expr) -> None:
        """All of a thread's sums, or a part of the sums of all groups at its place."""
        k, rows, chunks = self.k, self.tile.thread_rows, self.sides[1].chunks
        if self.tile.k_groups == 1:
            with k.loop(rows, "unroll") as row:
                runs = [[sums[place] for place in self._run(row, chunk)] for chunk in range(chunks)]
                self._finish(row, list(enumerate(runs)), (first_row, first_column))
            return
        self.k_groups.exchange(k, sums, self.exchanged)
        with self.k_groups.parts(k, rows * chunks) as part:
            i, chunk = unflatten_index(part, (rows, chunks))
            cells = [self.k_groups.total(k, self.exchanged, place) for place in self._run(i, chunk)]
            self._finish(i, [(chunk, cells)], (first_row, first_column))

    def _run(self, i: Expr, chunk: Expr | int) -> list[tuple[Expr, Expr]]:
        """Which of a thread's sums are neighbours in a row."""
        together = self.sides[1].together
        return [(i, simplify(chunk * together + Const(n, i64))) for n in range(together)]

    def _finish(
        self, i: Expr, runs: Sequence[tuple[Expr | int, Sequence[Expr]]], first: tuple[Expr, Expr]
    ) -> None:
        across = self.sides[1]
        row = simplify(first[0] + self.sides[0].position(i))
        starts = (simplify(chunk * across.together + Const(0, i64)) for chunk, _ in runs)
        columns = [simplify(first[1] + across.position(start)) for start in starts]
        self.finish(row, [(column, cells) for column, (_, cells) in zip(columns, runs)])

    def _stage(self, slice: Expr) -> Expr:
        """Where a slice of a thread's share lies."""
        return self.k_groups.stage(slice, STAGES)

    def _load(self, slice: Expr) -> None:
        number = self.k_groups.number(slice, self.slices)
        for side in self.sides:
            side.load(simplify(number * self.tile.depth))

    def _put(self, slice: Expr) -> None:
        for side in self.sides:
            side.put(self._stage(slice))

    def _multiply(self, sums: Buffer, stage: Expr) -> None:
        """The products of a slice. Its loop is written out, as what is read depends on it."""
        tile, k = self.tile, self.k
        for d in range(tile.depth):
            a, b = (side.fragment(stage, d) for side in self.sides)
            with k.loops(tile.thread_rows, tile.thread_columns, kind="unroll") as (i, j):
                k.store(sums, (i, j), call("fma", a[i], b[j], sums[i, j]))


class _Side:
    """One operand: how all threads fetch slices of `width` rows or columns, and how each reads
    `own` of them."""

    def __init__(self, tiles: SharedTiles, name: str, operand: Operand, width: int, own: int):
        self.tiles, self.name, self.operand, self.width, self.own = tiles, name, operand, width, own
        self.depth = tiles.tile.depth
        self.words = Words(operand, FLOATS)
        is_float = tiles.dtype is f32 and operand.expr.dtype is f32
        self.along_depth = operand.along_depth
        along = operand.depth if self.along_depth else operand.side
        self.is_vector = is_float and self.words.contiguous(along)
        if not self.is_vector and operand.is_near_across:
            self.along_depth = False  # lanes keep their positions, and so most of their addresses
        self.together = math.gcd(own, VECTOR_BYTES // tiles.dtype.size)
        row, stages = width, STAGES * tiles.tile.k_groups
        if self.along_depth:
            row = max(width, BANKS) if self.is_vector else width + PADDING
        self.into = Buffer(f"tile_{name}", tiles.dtype, (stages, self.depth, row), "local")

    @property
    def chunks(self) -> int:
        """Vectors of a thread's own rows or columns."""
        return self.own // self.together

    def position(self, n: Expr) -> Expr:
        """Where in the tile a thread's own row or column n is: those of a lane lie together."""
        columns = self.tiles.tile.columns // self._own_columns()
        member = self.tiles.k_groups.member
        lane, warp = member % WARP, member // WARP
        warps_across = columns // LANE_COLUMNS
        if self.name == "a":
            at = warp // warps_across * LANE_ROWS + lane // 16 * 2 + lane // 2 % 2
        else:
            at = warp % warps_across * LANE_COLUMNS + lane // 4 % 4 * 2 + lane % 2
        t = self.together
        return simplify(n // t * self._apart + at * t + n % t)

    @property
    def _apart(self) -> int:
        """How far apart a lane's vectors are in a tile."""
        return self.width // self.own * self.together

    def _own_columns(self) -> int:
        return self.tiles.tile.thread_columns

    # ---------------------------------------------------------------- fetching

    def begin(self, first: Expr) -> None:
        """Rows or columns start at `first`; what is fetched is held in registers."""
        self.first = first
        self.size = FLOATS_AT_ONCE if self.is_vector else 1
        self.fetches = self.depth * self.width // self.size
        steps = -(-self.fetches // self.tiles.k_groups.members)
        self.held = self.tiles.k.alloc(
            self.tiles.dtype, (steps, self.size), "reg", f"held_{self.name}"
        )

    def _place(self, at: Expr) -> tuple[Expr, Expr]:
        """The depth and the position of what is fetched: neighbours in memory for neighbours."""
        size, width = self.size, self.width
        if self.along_depth and size == 1:  # runs of eight, whose rows lie in other banks
            run = at // RUN
            return simplify(run // width * RUN + at % RUN), simplify(run % width)
        extent = (self.depth if self.along_depth else width) // size
        along, other = simplify(at % extent * size), simplify(at // extent)
        return (along, other) if self.along_depth else (other, along)

    def load(self, start: Expr) -> None:
        """A slice into registers; zeros outside of the operand."""
        k, fixed = self.tiles.k, self.tiles.fixed
        with self._fetches() as (step, at):
            d, s = self._place(at)
            position, deep = simplify(self.first + s), simplify(start + d)
            if self.is_vector:
                self._load_vector(step, position, deep)
            else:
                value = self.operand.element(fixed, position, deep)
                k.store(self.held, (step, Const(0, i64)), value)

    def _load_vector(self, step: Expr, position: Expr, deep: Expr) -> None:
        k = self.tiles.k
        source, valid = self.words.copy(self.tiles.fixed, position, deep)
        load = Intrin("load_vector", (source, *self._cells(step)))
        if isinstance(valid, Const) and valid.value:
            k.emit(load)
            return
        with k.when(valid):
            k.emit(load)
        with k.otherwise(), k.loop(self.size, "unroll") as n:
            k.store(self.held, (step, n), Const(0, f32))

    def _cells(self, step: Expr) -> list[Expr]:
        return [self.held[step, Const(n, i64)] for n in range(self.size)]

    def put(self, stage: Expr) -> None:
        """The registers into a stage of shared memory."""
        k = self.tiles.k
        with self._fetches() as (step, at):
            d, s = self._place(at)
            if self.is_vector and not self.along_depth:
                k.emit(Intrin("store_vector", (self.into[stage, d, s], *self._cells(step))))
            else:
                for n, cell in enumerate(self._cells(step)):
                    k.store(self.into, (stage, simplify(d + n), self._moved(s, d // 4)), cell)

    def _moved(self, position: Expr, chunk: Expr) -> Expr:
        """Where a position lies in the row of an index of this chunk of four."""
        if not (self.is_vector and self.along_depth) or chunk is Const(0, i64):
            return position
        step = BANKS // (self.depth // 4)
        return call("bxor", position, simplify(chunk * step % BANKS))

    @contextmanager
    def _fetches(self) -> Iterator[tuple[Expr, Expr]]:
        k, threads = self.tiles.k, self.tiles.k_groups.members
        with k.loop(self.held.shape[0], "unroll") as step:
            at = simplify(step * threads + self.tiles.k_groups.member)
            with k.where(at < self.fetches if self.fetches % threads else TRUE):
                yield step, at

    # ---------------------------------------------------------------- multiplying

    def fragment(self, stage: Expr, d: int) -> Buffer:
        """A thread's own rows or columns of the summed index d, in registers."""
        k, t = self.tiles.k, self.together
        own = k.alloc(self.tiles.dtype, (self.own,), "reg", k.fresh(self.name))
        with k.loop(self.chunks, "unroll") as chunk:
            start = simplify(chunk * t)
            if self._apart % BANKS == 0:  # what is moved is the same for all: one address
                first = self._moved(self.position(Const(0, i64)), Const(d // 4, i64))
                at = simplify(first + chunk * self._apart)
            else:
                at = self._moved(self.position(start), Const(d // 4, i64))
            cells = [own[simplify(start + n)] for n in range(t)]
            k.emit(Intrin("load_vector", (self.into[stage, Const(d, i64), at], *cells)))
        return own
