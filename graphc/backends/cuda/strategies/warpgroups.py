"""Contractions on matrix cores, four warps at a time: wgmma on panels in shared memory.

Matrix cores read both operands where they were copied to, in lines of 128 bytes, so that no
fragments pass through registers; a warp group computes 64 rows by up to 256 columns at once.
Products of a slice go on while those of the next begin, and the stage they read may be filled again
once every warp group has waited for them and a barrier has followed:

    slice s     is there; barrier; its products begin; slice s + stages - 2 is asked for, in place
                of slice s - 2; the products of slice s - 1 are waited for

This is how CUTLASS copies without TMA on sm_90 (NVIDIA, CUTLASS 3, multistage GMMA mainloop), and
keeps every gather that copies can do: a convolution's windows as well as a matrix.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from graphc.backends.cuda.machines import WARP, Machine
from graphc.backends.cuda.strategies.panels import STEP
from graphc.backends.cuda.strategies.sliced import SlicedContraction, SlicedTile
from graphc.ir.dtypes import i64
from graphc.ir.expr import Const, Expr, Ref
from graphc.ir.kernel import Intrin, Let
from graphc.ir.simplify import simplify

LINE_WORDS = 32  # of the depth in a slice: what products read lies in lines of 128 bytes


@dataclass(frozen=True)
class GroupTile(SlicedTile):
    """Teams are warp groups."""

    team = 4 * WARP
    pitch = 64

    @property
    def ahead(self) -> int:
        return self.stages - 2

    @property
    def registers(self) -> int:
        """Of a thread: sums and addresses, roughly."""
        return self.own_rows * self.own_columns // self.team + 40

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
        first = max(self.slices - self.tile.ahead, 0)
        if first:
            with self.k.loop(first, name="slice") as slice:
                self._slice(slice, True)
        with self.k.loop(self.slices - first, name="slice") as last:
            self._slice(simplify(last + first), False)
        self._wait(0)
        sums = math.prod(self.fragments) * 4
        self.k.emit(Intrin(f"take_sums_{sums}", (self.totals[0, 0, 0],)))

    def _slice(self, slice: Expr, is_followed: bool) -> None:
        k = self.k
        self.arrive()
        stage = k.let(self.stage(slice))
        k.emit(Intrin("begin_products", ()))
        for step in range(LINE_WORDS // STEP):
            for part in range(self.fragments[0]):
                self._product(stage, step, part)
        k.emit(Intrin("commit_products", ()))
        if is_followed:
            coming = Ref("coming", i64, 0, self.slices - 1)
            k.emit(Let(coming, simplify(slice + self.tile.ahead)))
            self.fetch(coming)
        k.emit(Intrin("commit_copies", ()))
        self._wait(1)

    def _product(self, stage: Expr, step: int, part: int) -> None:
        """The products of a step, for 64 rows of the warp group's."""
        name = f"wg{self.kind.instruction}_n{self.tile.own_columns}"
        row = simplify(self.own_row + part * self.tile.pitch)
        self.k.emit(Intrin(name, (
            self.totals[part, 0, 0],
            self.panel_a.start(stage, row, step),
            self.panel_b.start(stage, self.own_column, step),
            Const(self.panel_a.far, i64), Const(self.panel_b.far, i64),
        )))  # fmt: skip

    def _wait(self, batches: int) -> None:
        self.k.emit(Intrin("wait_products", (Const(batches, i64),)))
