"""Contractions on matrix cores: mma.sync on fragments of panels filled by asynchronous copies.

A block of warps computes BM x BN sums, a warp its part of them as 16 x 8 fragments in registers.
Slices of both operands along the depth are copied into one of several stages of shared memory
(panels.py) while earlier ones are multiplied; and the fragments of a step are loaded into registers
while those of the step before are. What cannot be copied 16 bytes at a time (a first convolution's
three channels, say) is put together word by word. A constant second operand is laid out for copies
at compile time. The scheme is that of CUTLASS's multistage kernels (A. Kerr et al., CUTLASS: Fast
Linear Algebra in CUDA C++, 2017).
"""

from __future__ import annotations

from dataclasses import dataclass

from graphc.backends.cuda.machines import Machine
from graphc.backends.cuda.strategies.blocks import BlockedContraction, count, sort_depth, wide_sums
from graphc.backends.cuda.strategies.costs import Block, Choose, Problem, ranked, take_first
from graphc.backends.cuda.strategies.operands import Operand
from graphc.backends.cuda.strategies.panels import STEP, WARP, Crew, Panel
from graphc.backends.cuda.strategies.words import KINDS, Kind, Words, narrow, padded_depth
from graphc.backends.cuda.strategies.zero_points import take_zero_points
from graphc.ir.dtypes import f32, i32, i64, u32
from graphc.ir.expr import Const, Expr, Index, Load, free_indices, loads, select, substitute
from graphc.ir.kernel import Barrier, Buffer, Intrin, Kernel
from graphc.ir.simplify import simplify, unflatten_index
from graphc.passes.lower.computation import Computation, Lowered
from graphc.passes.lower.contraction import Match, match_contraction
from graphc.passes.lower.spaces import flatten_loads

MIN_DEPTH = 16  # products to sum
MIN_ROWS, MIN_COLUMNS = 8, 8  # below which a fragment is mostly empty
INSTRUCTION = 16 * 8 * STEP  # products of words


@dataclass(frozen=True)
class CoreTile:
    """Sums per block and per warp, words of the depth in a slice, and slices in shared memory."""

    rows: int
    columns: int
    warp_rows: int
    warp_columns: int
    words: int
    stages: int

    @property
    def area(self) -> int:
        return self.rows * self.columns

    @property
    def threads(self) -> int:
        return WARP * (self.rows // self.warp_rows) * (self.columns // self.warp_columns)

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        return 4 * self.stages * self.words * (self.rows + self.columns)

    @property
    def registers(self) -> int:
        """Of a thread: sums, two steps of fragments, and addresses, roughly."""
        sums = self.warp_rows * self.warp_columns // WARP
        return min(255, sums + (self.warp_rows + self.warp_columns) // 4 * 2 + 56)

    def block(self, gpu: Machine, depth: int) -> Block:
        """What a block needs for sums of so many words."""
        slices = -(-depth // self.words)
        deep, sides = slices * self.words, self.rows + self.columns
        fragments = self.threads // WARP * (self.warp_rows + self.warp_columns)
        return Block(
            self.threads, self.shared, self.registers,
            multiply=self.rows * self.columns * deep / gpu.core_rate,
            moved=4 * deep * (fragments + sides), read=4 * deep * sides, slices=slices,
            ahead=self.stages - 1,
        )  # fmt: skip


SIDES = (
    (128, 256, 64, 64), (256, 128, 64, 64), (128, 128, 64, 64), (128, 128, 64, 32),
    (128, 64, 64, 32), (64, 128, 32, 64), (64, 64, 32, 32), (64, 64, 32, 16), (32, 64, 32, 16),
    (64, 32, 32, 16), (32, 32, 16, 16), (16, 32, 16, 16),
)  # fmt: skip
SLICES = ((32, 4), (32, 3), (16, 4), (16, 3), (32, 2), (16, 2))
CORE_TILES = tuple(CoreTile(*sides, *slices) for sides in SIDES for slices in SLICES)


def lower_matrix_cores(
    computation: Computation,
    gpu: Machine,
    tile: CoreTile | None = None,
    choose: Choose = take_first,
) -> Lowered | str:
    """The kernel of a contraction that a GPU's matrix cores can do, with a tile or the one chosen
    of those that fit; or the reason why there is none."""
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
    words = -(-count(match.depth) // kind.per_word)
    problem = Problem(batch, rows, columns, words)

    def kernel(tile: CoreTile) -> Kernel:
        return MatrixCores(match, kind, panels, tile).kernel("cores")

    chosen = tile or choose(ranked(CORE_TILES, gpu, problem), kernel)
    flops = 2 * batch * rows * columns * count(match.depth)
    return Lowered(kernel(chosen), match.prepare, match.temporaries, flops=flops)


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
        self.panel_a = Panel(
            "tile_a", self.a, kind, (tile.stages, tile.rows, tile.words), left=True
        )
        self.panel_b = Panel("tile_b", self.b, kind, (tile.stages, tile.columns, tile.words))
        self.shared = [self.panel_a.buffer, self.panel_b.buffer]
        warp = simplify(self.thread // WARP)
        self.fragments = (tile.warp_rows // 16, tile.warp_columns // 8)
        across = tile.columns // tile.warp_columns
        self.warp_row = simplify(warp // across * tile.warp_rows)
        self.warp_column = simplify(warp % across * tile.warp_columns)

    def sums(self, first_row: Expr, first_column: Expr) -> None:
        """What a thread does: copies slices ahead, multiplies, and finishes its sums."""
        k, tile, (down, across) = self.k, self.tile, self.fragments
        self.crew = Crew(k, self.thread, self.threads, self.fixed)
        self.starts = (first_row, first_column)
        self.slices = -(-self.depth_count // (tile.words * self.kind.per_word))
        self.totals = k.alloc(self.kind.sum, (down, across, 4), "reg", "sums")
        with k.loops(down, across, 4, kind="unroll") as (i, j, e):
            k.store(self.totals, (i, j, e), Const(0, self.kind.sum))
        for stage in range(tile.stages - 1):
            if stage < self.slices:
                self._fetch(Const(stage, i64), Const(stage, i64))
            k.emit(Intrin("commit_copies", ()))
        self._arrive()
        self.left = k.alloc(u32, (2, down, 4), "reg", "a")
        self.right = k.alloc(u32, (2, across // 2, 4), "reg", "b")
        self._load(Const(0, i64), 0)
        with k.loop(self.slices, name="slice") as slice:
            self._slice(slice)
        self._finish_all()

    def _finish_all(self) -> None:
        """A lane has two sums next to one another in every eighth row of its fragments."""
        (down, across), lane = self.fragments, self.crew.lane
        first_row, first_column = self.starts
        group, quad = simplify(lane // 4), simplify(lane % 4)
        with self.k.loops(down, across, 2, kind="unroll") as (i, j, half):
            row = simplify(first_row + self.warp_row + i * 16 + half * 8 + group)
            column = simplify(first_column + self.warp_column + j * 8 + quad * 2)
            cells = [self.totals[i, j, simplify(half * 2 + n)] for n in range(2)]
            self.finish(row, column, cells)

    # ---------------------------------------------------------------- slices

    def _fetch(self, slice: Expr, stage: Expr) -> None:
        """A slice of both operands into a stage."""
        for panel, first in zip((self.panel_a, self.panel_b), self.starts):
            panel.fetch(self.crew, first, slice, stage)

    def _arrive(self) -> None:
        """Waits until the oldest slice on its way is there, for all threads."""
        self.k.emit(Intrin("wait_copies", (Const(self.tile.stages - 2, i64),)))
        self.k.emit(Barrier())

    def _slice(self, slice: Expr) -> None:
        """The products of a slice. Fragments of a step are loaded while those of the step before
        are multiplied, those of the next slice's first step in the last one; the slice that takes
        the place of the previous one is asked for in the first step."""
        k, stages, steps = self.k, self.tile.stages, self.tile.words // STEP
        stage = k.let(simplify(slice % stages))
        for step in range(steps):
            if step + 1 < steps:
                self._load(stage, step + 1)
            else:
                with k.when(slice < self.slices - 1):
                    self._arrive()
                    self._load(simplify((slice + 1) % stages), 0)
            if step == 0:
                with self.coming(simplify(slice + (stages - 1)), self.slices) as coming:
                    self._fetch(coming, simplify(coming % stages))
                k.emit(Intrin("commit_copies", ()))
            self._multiply(step % 2)

    def _load(self, stage: Expr, step: int) -> None:
        """The fragments of a step of a stage into registers."""
        k, (down, across), half = self.k, self.fragments, Const(step % 2, i64)
        with k.loop(down, "unroll") as i:
            words = [self.left[half, i, Const(n, i64)] for n in range(4)]
            self.panel_a.load(self.crew, words, stage, simplify(self.warp_row + i * 16), step)
        with k.loop(across // 2, "unroll") as j:
            words = [self.right[half, j, Const(n, i64)] for n in range(4)]
            self.panel_b.load(self.crew, words, stage, simplify(self.warp_column + j * 16), step)

    def _multiply(self, half: int) -> None:
        """The products of a step: two columns of fragments share four registers."""
        k, (down, across), which = self.k, self.fragments, Const(half, i64)
        with k.loops(down, across // 2, 2, kind="unroll") as (i, j, n):
            column = simplify(j * 2 + n)
            sums = [self.totals[i, column, Const(e, i64)] for e in range(4)]
            left = [self.left[which, i, Const(e, i64)] for e in range(4)]
            right = [self.right[which, j, simplify(n * 2 + e)] for e in range(2)]
            k.emit(Intrin(self.kind.instruction, (*sums, *left, *right)))
