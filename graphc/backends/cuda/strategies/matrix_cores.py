"""Contractions on matrix cores: mma.sync on words in shared memory, filled by asynchronous copies.

A block of warps computes BM x BN sums, a warp its part of them as 16 x 8 fragments in registers.
Slices of both operands, rows of words along the depth, are copied into one of several stages while
an earlier one is multiplied; rows are padded so that the 8 x 4 words of a fragment lie in different
banks. What cannot be copied 16 bytes at a time (a first convolution's three channels, say) is put
together word by word. A constant second operand is laid out for copies at compile time. The scheme
is that of CUTLASS's multistage kernels (A. Kerr et al., CUTLASS: Fast Linear Algebra in CUDA C++,
2017).
"""

from __future__ import annotations

from dataclasses import dataclass

from graphc.backends.cuda.machines import Machine, fastest
from graphc.backends.cuda.strategies.blocks import BlockedContraction, count, sort_depth, wide_sums
from graphc.backends.cuda.strategies.operands import Operand, strided
from graphc.backends.cuda.strategies.words import CHUNK, KINDS, Kind, Words, narrow, padded_depth
from graphc.backends.cuda.strategies.zero_points import take_zero_points
from graphc.ir.dtypes import f32, i32, i64, u32
from graphc.ir.expr import Const, Expr, Index, Load, free_indices, loads, select, substitute
from graphc.ir.kernel import Barrier, Buffer, Intrin
from graphc.ir.simplify import simplify, unflatten_index
from graphc.passes.lower.computation import Computation, Lowered
from graphc.passes.lower.contraction import Match, match_contraction
from graphc.passes.lower.spaces import flatten_loads

WARP = 32
MIN_DEPTH = 16  # products to sum
MIN_ROWS, MIN_COLUMNS = 8, 8  # below which a fragment is mostly empty
SLICE = 16  # words of a slice
PADDING = 4  # words after each row
STEP = 8  # words that one instruction multiplies
SHARED_BYTES = 48 << 10


@dataclass(frozen=True)
class CoreTile:
    """Sums per block, and how many warps share them. `speed`: as of tiles.Tile."""

    rows: int
    columns: int
    warp_rows: int
    warp_columns: int
    speed: float

    @property
    def area(self) -> int:
        return self.rows * self.columns

    def blocks(self, rows: int, columns: int) -> int:
        """Blocks of the grid of so many sums."""
        return -(-rows // self.rows) * -(-columns // self.columns)

    @property
    def threads(self) -> int:
        return WARP * self.warp_rows * self.warp_columns

    @property
    def stages(self) -> int:
        """Slices in shared memory at a time."""
        words = (self.rows + self.columns) * (SLICE + PADDING)
        return min(4, SHARED_BYTES // (4 * words))


CORE_TILES = (
    CoreTile(128, 128, 2, 2, 1.0),
    CoreTile(128, 64, 2, 2, 0.8),
    CoreTile(64, 128, 2, 2, 0.8),
    CoreTile(64, 64, 2, 2, 0.6),
    CoreTile(32, 64, 1, 2, 0.4),
    CoreTile(64, 32, 2, 1, 0.4),
    CoreTile(32, 32, 2, 1, 0.3),
    CoreTile(16, 32, 1, 2, 0.2),
)


def lower_matrix_cores(
    computation: Computation, gpu: Machine, tile: CoreTile | None = None
) -> Lowered | str:
    """The kernel of a contraction that a GPU's matrix cores can do, or the reason why there is
    none."""
    match = match_contraction(wide_sums(computation), MIN_DEPTH, (f32, i32))
    if isinstance(match, str):
        return match
    kind = kind_of(match)
    if kind is None:
        return f"contraction: factors of {match.hole.dtype} are no narrower values"
    if kind.instruction not in gpu.products:
        return f"contraction: {gpu.arch} has no {kind.instruction}"
    rows, columns = count(match.rows), count(match.cols)
    if rows < MIN_ROWS or columns < MIN_COLUMNS or any(x.count == 0 for x in match.indices):
        return f"contraction: {rows} rows and {columns} columns do not fill fragments"
    sort_depth(match)
    panels = _lay_out_constant(match, kind)
    batch = count(match.outer)
    tile = tile or fastest(CORE_TILES, gpu, batch, rows, columns)
    emitter = MatrixCores(match, kind, panels, tile)
    flops = 2 * batch * rows * columns * emitter.depth_count
    return Lowered(emitter.kernel("cores"), match.prepare, match.temporaries, flops=flops)


def kind_of(match: Match) -> Kind | None:
    """The types of the factors, which become bare of conversions; None if there is none."""
    if match.hole.dtype is i32 and not take_zero_points(match):
        return None
    for kind in KINDS:
        if kind.sum is match.hole.dtype:
            a = narrow(match.a, kind.dtype, kind.sum)
            b = narrow(match.b, kind.second or kind.dtype, kind.sum)
            if a is not None and b is not None:
                match.a, match.b = a, b
                return kind
    return None


def _lay_out_constant(match: Match, kind: Kind) -> bool:
    """A constant second operand as [outer, columns, depth], the depth in whole chunks; whether that
    was needed."""
    flat = flatten_loads(match.b, match.shapes)
    sources = {x.source for x in loads(flat)}
    operand = Operand(flat, match.cols, match.depth)
    if not sources <= match.computation.constants or Words(operand, kind).copies():
        return False
    used = free_indices(match.b)
    outer = [x for x in match.outer if x in used]
    deep = tuple(x.count for x in match.depth)
    padded = padded_depth(operand, kind)
    shape = (*(x.count for x in outer), operand.count, padded)
    index = tuple(Index(f"i{n}", extent) for n, extent in enumerate(shape))
    *front, column, at = index
    mapping: dict[Expr, Expr] = dict(zip(outer, front))
    mapping.update(operand.place(column))
    mapping.update(zip(match.depth, unflatten_index(at, deep)))
    contents = simplify(substitute(match.b, mapping))
    if padded > operand.depth_count:
        contents = select(at < operand.depth_count, contents, Const(0, contents.dtype))
    buffer = Buffer("panels", match.b.dtype, shape)
    match.add(buffer, index, simplify(contents), f"panels of {match.computation.label}")
    place = (*outer, _flattened(match.cols), _flattened(match.depth))
    match.b = buffer[place]
    return True


def _whole_depth(panels: Operand, padded: int) -> Operand:
    """Panels over one index of their whole depth, in which chunks are contiguous."""
    (load,) = loads(panels.expr)
    deep = Index("deep", padded)
    start: dict[Expr, Expr] = {k: Const(0, i64) for k in panels.depth}
    place = simplify(substitute(load.index[0], start) + deep)
    return Operand(Load(load.source, (place,), load.dtype), panels.side, [deep])


def _flattened(indices: list[Index]) -> Expr:
    position: Expr = Const(0, i64)
    for index in indices:
        position = position * index.count + index
    return simplify(position)


class MatrixCores(BlockedContraction):
    """Sums in fragments of 16 x 8, whose operands are words in shared memory."""

    def __init__(self, match: Match, kind: Kind, panels: bool, tile: CoreTile):
        super().__init__(match, tile.rows, tile.columns, tile.threads)
        self.kind, self.tile = kind, tile
        if panels:
            self.b = _whole_depth(self.b, padded_depth(self.b, kind))
        stride = SLICE + PADDING
        self.tile_a = Buffer("tile_a", u32, (tile.stages, tile.rows, stride), "local")
        self.tile_b = Buffer("tile_b", u32, (tile.stages, tile.columns, stride), "local")
        self.shared = [self.tile_a, self.tile_b]
        lane, warp = simplify(self.thread % WARP), simplify(self.thread // WARP)
        self.group, self.quad = simplify(lane // 4), simplify(lane % 4)
        self.fragments = (
            tile.rows // tile.warp_rows // 16,
            tile.columns // tile.warp_columns // 8,
        )
        down, across = simplify(warp // tile.warp_columns), simplify(warp % tile.warp_columns)
        self.first_row = simplify(down * (16 * self.fragments[0]))
        self.first_column = simplify(across * (8 * self.fragments[1]))

    def sums(self, first_row: Expr, first_column: Expr) -> None:
        """What a thread does: copies slices ahead, multiplies, and finishes its sums."""
        k, tile, (down, across) = self.k, self.tile, self.fragments
        slices = -(-self.depth_count // (SLICE * self.kind.per_word))
        ahead = tile.stages - 1
        self.a_words, self.b_words = (Words(x, self.kind) for x in (self.a, self.b))
        totals = k.alloc(self.kind.sum, (down, across, 4), "reg", "sums")
        with k.loops(down, across, 4, kind="unroll") as (i, j, e):
            k.store(totals, (i, j, e), Const(0, self.kind.sum))
        for stage in range(ahead):
            if stage < slices:
                self._fetch(first_row, first_column, Const(stage, i64), Const(stage, i64))
            k.emit(Intrin("commit_copies", ()))
        with k.loop(slices, name="slice") as slice:
            k.emit(Intrin("wait_copies", (Const(ahead - 1, i64),)))
            k.emit(Barrier())
            coming = simplify(slice + ahead)
            with k.when(coming < slices):
                self._fetch(first_row, first_column, coming, simplify(coming % tile.stages))
            k.emit(Intrin("commit_copies", ()))
            self._multiply(totals, k.let(simplify(slice % tile.stages)))
        with k.loops(down, across, 4, kind="unroll") as (i, j, e):
            row = simplify(first_row + self.first_row + i * 16 + self.group + e // 2 * 8)
            column = simplify(first_column + self.first_column + j * 8 + self.quad * 2 + e % 2)
            self.finish(row, column, totals[i, j, e])

    # ---------------------------------------------------------------- operands

    def _fetch(self, first_row: Expr, first_column: Expr, slice: Expr, stage: Expr) -> None:
        """A slice of both operands into a stage."""
        self._fetch_operand(self.tile_a, self.a_words, first_row, slice, stage)
        self._fetch_operand(self.tile_b, self.b_words, first_column, slice, stage)

    def _fetch_operand(
        self, into: Buffer, words: Words, first: Expr, slice: Expr, stage: Expr
    ) -> None:
        k, side = self.k, into.shape[1]
        size = CHUNK if words.copies() else 1
        per_row = SLICE // size
        with strided(k, side * per_row, self.threads, self.thread) as at:
            row, word = simplify(at // per_row), simplify(at % per_row * size)
            deep = simplify((slice * SLICE + word) * self.kind.per_word)
            position = simplify(first + row)
            if size == CHUNK:
                source, valid = words.copy(self.fixed, position, deep)
                other = Const(words.padding, u32)
                k.emit(Intrin("copy16", (into[stage, row, word], source, valid, other)))
            else:
                k.store(into, (stage, row, word), words.word(self.fixed, position, deep))

    # ---------------------------------------------------------------- sums

    def _multiply(self, totals: Buffer, stage: Expr) -> None:
        """The products of a slice."""
        k, (down, across) = self.k, self.fragments
        with k.loop(SLICE // STEP, "unroll") as step:
            word = simplify(step * STEP + self.quad)
            a = k.alloc(u32, (down, 4), "reg", k.fresh("a"))
            b = k.alloc(u32, (across, 2), "reg", k.fresh("b"))
            with k.loops(down, 4, kind="unroll") as (i, n):
                row = simplify(self.first_row + i * 16 + self.group + n % 2 * 8)
                k.store(a, (i, n), self.tile_a[stage, row, simplify(word + n // 2 * 4)])
            with k.loops(across, 2, kind="unroll") as (j, n):
                column = simplify(self.first_column + j * 8 + self.group)
                k.store(b, (j, n), self.tile_b[stage, column, simplify(word + n * 4)])
            with k.loops(down, across, kind="unroll") as (i, j):
                sums = [totals[i, j, Const(e, i64)] for e in range(4)]
                left = [a[i, Const(n, i64)] for n in range(4)]
                right = [b[j, Const(n, i64)] for n in range(2)]
                k.emit(Intrin(self.kind.instruction, (*sums, *left, *right)))
