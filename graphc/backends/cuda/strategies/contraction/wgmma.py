"""Contractions on matrix cores, by warp groups of four warps: wgmma on panels in shared memory.

Matrix cores read both operands from shared memory, in swizzled lines of 128 bytes, so no fragments
pass through registers. A warp group computes 64 rows by up to 256 columns at once. wgmma is
asynchronous: products of a slice go on while those of the next begin. A stage may be filled again
once every warp group has waited for the products that read it and a barrier has followed:

    slice s     arrives; barrier; its products begin; the copy of slice s + stages - 2 begins, in
                place of slice s - 2; the products of slice s - 1 are waited for

This is CUTLASS's mainloop for sm_90 with cp.async and without TMA (NVIDIA, CUTLASS 3, multistage
GMMA mainloop). It gathers anything that copies can gather: windows of a convolution (implicit GEMM,
im2col without a matrix in memory) as well as rows of a matrix.

Operands that must be rounded to TF32 pass through registers, half a slice at a time: one half is
loaded and rounded while the products of the other half go on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from graphc.backends.cuda.machines import WARP, Machine
from graphc.backends.cuda.strategies.contraction.multistage import SlicedContraction, SlicedTile
from graphc.backends.cuda.strategies.contraction.panels import STEP
from graphc.ir.dtypes import i64, u32
from graphc.ir.expr import Const, Expr, Load, Ref
from graphc.ir.kernel import Intrin, Let
from graphc.ir.simplify import simplify

LINE_WORDS = 32  # of the depth in a slice: what products read lies in lines of 128 bytes
STEPS = range(LINE_WORDS // STEP)


@dataclass(frozen=True)
class GroupTile(SlicedTile):
    """Teams are warp groups; `held`: their rows of a slice go through registers."""

    held: bool = False

    team = 4 * WARP
    pitch = 64

    @property
    def ahead(self) -> int:
        return self.stages - 2

    @property
    def registers(self) -> int:
        """Of a thread: sums, rows that are held, and addresses, roughly."""
        held = self.own_rows * self.words // self.team if self.held else 0
        return self.own_rows * self.own_columns // self.team + held + 40

    def fetched(self) -> int:
        return self.teams * self.own_rows // self.pitch * (self.pitch + self.own_columns)

    def rate(self, gpu: Machine) -> int:
        return gpu.group_rate


GROUP_SIDES = (
    (192, 256, 64, 256), (128, 256, 64, 256), (256, 128, 128, 128), (192, 128, 64, 128),
    (128, 128, 64, 128), (128, 64, 64, 64), (64, 256, 64, 128), (64, 128, 64, 64),
    (64, 128, 64, 128), (64, 64, 64, 64),
)  # fmt: skip
GROUP_TILES = tuple(
    GroupTile(*sides, LINE_WORDS, stages) for sides in GROUP_SIDES for stages in (4, 3, 5, 6)
)


class WarpGroups(SlicedContraction):
    """Products of panels where they are."""

    before_barrier = ("share_copies",)

    def multiply(self) -> None:
        """A loop over slices that others are asked for behind, and one over the last. ptxas keeps
        products in flight from one iteration to the next only where none of them branches."""
        if self.panel_a.rounds:
            self.rows = self.k.alloc(u32, (len(STEPS), self.fragments[0], 4), "reg", "rows")
        self._take_sums()  # they are 0 before products are begun: a register must not change then
        first = max(self.slices - self.tile.ahead, 0)
        if first:
            with self.k.loop(first, name="slice") as slice:
                self._slice(slice, True)
        with self.k.loop(self.slices - first, name="slice") as last:
            self._slice(simplify(last + first), False)
        self._wait(0)
        self._take_sums()

    def _take_sums(self) -> None:
        sums = math.prod(self.fragments) * 4
        self.k.emit(Intrin(f"take_sums_{sums}", (self.totals[0, 0, 0],)))

    def _slice(self, slice: Expr, is_followed: bool) -> None:
        k = self.k
        self.arrive()
        stage = k.let(self.stage(slice))
        if self.panel_a.rounds:
            self._products_of_rounded(stage)
        else:
            self._products(stage, STEPS)
        if is_followed:
            coming = Ref("coming", i64, 0, self.slices - 1)
            k.emit(Let(coming, simplify(slice + self.tile.ahead)))
            self.fetch(coming)
        k.emit(Intrin("commit_copies", ()))
        self._wait(1)

    def _products_of_rounded(self, stage: Expr) -> None:
        """The products of a slice whose first operand is rounded in registers."""
        first, second = STEPS[: len(STEPS) // 2], STEPS[len(STEPS) // 2 :]
        self._hold(stage, first)
        self._products(stage, first)
        self._wait(1)
        self._hold(stage, second)
        self._products(stage, second)

    def _hold(self, stage: Expr, steps: Sequence[int]) -> None:
        """The rows of some steps in registers, rounded; these products are no longer under way."""
        for step in steps:
            for part in range(self.fragments[0]):
                row = simplify(self.warp_row + part * self.tile.pitch)
                self.panel_a.load(self.loaders, self._held(step, part), stage, row, step)
        for step in steps:
            for part in range(self.fragments[0]):
                self.panel_a.round(self.loaders, self._held(step, part))

    def _held(self, step: int, part: int) -> list[Load]:
        return [self.rows[Const(step, i64), Const(part, i64), Const(n, i64)] for n in range(4)]

    def _products(self, stage: Expr, steps: Sequence[int]) -> None:
        """Begins a batch of products."""
        self.k.emit(Intrin("begin_products", ()))
        for step in steps:
            for part in range(self.fragments[0]):
                self._product(stage, step, part)
        self.k.emit(Intrin("commit_products", ()))

    def _product(self, stage: Expr, step: int, part: int) -> None:
        """The products of a step, for 64 rows of the warp group's."""
        name, columns = f"wg{self.kind.instruction}", self.tile.own_columns
        sums = self.totals[part, 0, 0]
        if self.panel_a.rounds:
            right = self.panel_b.start(stage, self.own_column, step)
            held = self._held(step, part)
            self.k.emit(Intrin(f"{name}_held_n{columns}", (sums, *held, right)))
            return
        row = simplify(self.own_row + part * self.tile.pitch)
        panels = self.panel_a, self.panel_b
        numbers = (*(p.far for p in panels), *(p.further(step) for p in panels))
        left = self.panel_a.start(stage, row, 0)
        right = self.panel_b.start(stage, self.own_column, 0)
        far = (Const(n, i64) for n in numbers)
        self.k.emit(Intrin(f"{name}_n{columns}", (sums, left, right, *far)))

    def _wait(self, batches: int) -> None:
        self.k.emit(Intrin("wait_products", (Const(batches, i64),)))
