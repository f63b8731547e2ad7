"""Contractions on matrix cores, warp by warp: mma.sync on fragments loaded by ldmatrix.

The fragments of a step are loaded from shared memory (panels.py) into registers while those of the
step before are multiplied: double buffering in registers. Operands that cannot be copied 16 bytes
at a time, such as the three channels of a first convolution, are gathered word by word. The scheme
is that of CUTLASS's multistage kernels (A. Kerr et al., CUTLASS: Fast Linear Algebra in CUDA C++,
2017).
"""

from __future__ import annotations

from dataclasses import dataclass

from graphc.backends.cuda.machines import SHARED_LIMIT, WARP, Machine
from graphc.backends.cuda.strategies.contraction.multistage import SlicedContraction, SlicedTile
from graphc.backends.cuda.strategies.contraction.panels import STEP, Panel
from graphc.ir.dtypes import i64, u32
from graphc.ir.expr import Const, Expr
from graphc.ir.kernel import Buffer, Intrin
from graphc.ir.simplify import simplify


@dataclass(frozen=True)
class WarpTile(SlicedTile):
    """Teams are warps."""

    @property
    def registers(self) -> int:
        """Of a thread: sums, two steps of fragments, and addresses, roughly."""
        sums = self.own_rows * self.own_columns // WARP
        return min(255, sums + (self.own_rows + self.own_columns) // 4 * 2 + 56)

    def fetched(self) -> int:
        return self.teams * (self.own_rows + self.own_columns)

    def rate(self, gpu: Machine) -> int:
        return gpu.core_rate


SIDES = (
    (128, 256, 64, 64), (256, 128, 64, 64), (128, 128, 64, 64), (128, 128, 64, 32),
    (128, 64, 64, 32), (64, 128, 32, 64), (64, 64, 32, 32), (64, 64, 32, 16), (32, 64, 32, 16),
    (64, 32, 32, 16), (32, 32, 16, 16), (16, 32, 16, 16),
)  # fmt: skip
SLICES = ((32, 4), (32, 3), (16, 4), (16, 3), (32, 2), (16, 2))
SHARED_SIDES = ((32, 64, 32, 16), (32, 32, 16, 16), (16, 32, 16, 16))
_SHARED = (
    WarpTile(*sides, 32, stages, k_groups)
    for sides in SHARED_SIDES for stages in (4, 3) for k_groups in (2, 4, 8)
)  # fmt: skip
WARP_TILES = (
    *(WarpTile(*sides, *slices) for sides in SIDES for slices in SLICES),
    *(tile for tile in _SHARED if tile.shared <= SHARED_LIMIT),
)


class Warps(SlicedContraction):
    """Products of fragments in registers. The loop over few slices that are put together of windows
    is written out: where they lie is arithmetic on constants then, not on each thread."""

    def multiply(self) -> None:
        down, across = self.fragments
        self.arrive()
        self.left = self.k.alloc(u32, (2, down, 4), "reg", "a")
        self.right = self.k.alloc(u32, (2, across // 2, 4), "reg", "b")
        self._load(self.stage(Const(0, i64)), 0)
        kind = "unroll" if self.panel_a.is_written else "serial"
        with self.k.loop(self.slices, kind, name="slice") as slice:
            self._slice(slice)

    def _slice(self, slice: Expr) -> None:
        """The products of a slice. Fragments of a step are loaded while those of the step before
        are multiplied, those of the next slice's first step in the last one; the slice that takes
        the place of the previous one is asked for in the first step."""
        k, steps = self.k, self.tile.words // STEP
        stage = k.let(self.stage(slice))
        for step in range(steps):
            if step + 1 < steps:
                self._load(stage, step + 1)
            else:
                with k.when(slice < self.slices - 1):
                    self.arrive()
                    self._load(self.stage(simplify(slice + 1)), 0)
            if step == 0:
                with self.coming(simplify(slice + self.tile.ahead), self.slices) as coming:
                    self.fetch(coming)
                with k.when(slice < self.slices - 1):  # else nothing waits for them
                    k.emit(Intrin("commit_copies", ()))
            self._multiply(step % 2)

    def _load(self, stage: Expr, step: int) -> None:
        """The fragments of a step of a stage into registers."""
        k, (down, across), half = self.k, self.fragments, Const(step % 2, i64)
        with k.loop(down, "unroll") as i:
            words = [self.left[half, i, Const(n, i64)] for n in range(4)]
            self.panel_a.load(self.loaders, words, stage, simplify(self.warp_row + i * 16), step)
        with k.loop(across // 2, "unroll") as j:
            words = [self.right[half, j, Const(n, i64)] for n in range(4)]
            self.panel_b.load(self.loaders, words, stage, simplify(self.own_column + j * 16), step)

    def _round(self, panel: Panel, words: Buffer, half: Expr, fragment: Expr) -> None:
        """What is left to be rounded of a fragment, once its words are there."""
        panel.round(self.loaders, [words[half, fragment, Const(n, i64)] for n in range(4)])

    def _multiply(self, half: int) -> None:
        """The products of a step: two columns of fragments share four registers. Rows are rounded
        as their turn comes: compilers keep rounded words beside the others."""
        k, (down, across), which = self.k, self.fragments, Const(half, i64)
        if self.panel_b.rounds:
            with k.loop(across // 2, "unroll") as j:
                self._round(self.panel_b, self.right, which, j)
        with k.loop(down, "unroll") as i:
            self._round(self.panel_a, self.left, which, i)
            with k.loops(across // 2, 2, kind="unroll") as (j, n):
                column = simplify(j * 2 + n)
                sums = [self.totals[i, column, Const(e, i64)] for e in range(4)]
                left = [self.left[which, i, Const(e, i64)] for e in range(4)]
                right = [self.right[which, j, simplify(n * 2 + e)] for e in range(2)]
                k.emit(Intrin(self.kind.instruction, (*sums, *left, *right)))
