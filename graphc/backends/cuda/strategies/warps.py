"""Contractions on matrix cores, warp by warp: mma.sync on fragments of panels in shared memory.

A block of warps computes BM x BN sums, a warp its part of them as 16 x 8 fragments in registers.
Slices of both operands along the depth are copied into one of several stages of shared memory
(panels.py) while earlier ones are multiplied; and the fragments of a step are loaded into registers
while those of the step before are. What cannot be copied 16 bytes at a time (a first convolution's
three channels, say) is put together word by word. The scheme is that of CUTLASS's multistage
kernels (A. Kerr et al., CUTLASS: Fast Linear Algebra in CUDA C++, 2017).
"""

from __future__ import annotations

from dataclasses import dataclass

from graphc.backends.cuda.machines import Machine
from graphc.backends.cuda.strategies.blocks import BlockedContraction
from graphc.backends.cuda.strategies.costs import Block
from graphc.backends.cuda.strategies.laid_out import whole_depth
from graphc.backends.cuda.strategies.panels import STEP, WARP, Crew, Panel
from graphc.backends.cuda.strategies.words import Kind, padded_depth
from graphc.ir.dtypes import i64, u32
from graphc.ir.expr import Const, Expr
from graphc.ir.kernel import Barrier, Intrin
from graphc.ir.simplify import simplify
from graphc.passes.lower.contraction import Match


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


class MatrixCores(BlockedContraction):
    """Sums in fragments of 16 x 8, whose operands are words in shared memory."""

    def __init__(self, match: Match, kind: Kind, panels: bool, tile: CoreTile):
        super().__init__(match, tile.rows, tile.columns, tile.threads)
        self.kind, self.tile = kind, tile
        if panels:
            self.b = whole_depth(self.b, padded_depth(self.b, kind))
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
