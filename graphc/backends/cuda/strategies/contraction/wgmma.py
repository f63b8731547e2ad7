"""Contractions on matrix cores, by warp groups of four warps: wgmma on panels in shared memory.

Matrix cores read both operands from shared memory, in swizzled lines of 128 bytes, so no fragments
pass through registers. A warp group computes 64 rows by up to 256 columns at once. wgmma is
asynchronous: products of a slice go on while those of the next begin. Who brings slices, and when
their stages may be filled again, is in producer.py.

Operands that must be rounded to TF32 pass through registers, half a slice at a time: one half is
loaded and rounded while the products of the other half go on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from graphc.backends.cuda.bulk_instructions import CLUSTER
from graphc.backends.cuda.machines import WARP, Machine
from graphc.backends.cuda.strategies.contraction.costs import Block
from graphc.backends.cuda.strategies.contraction.multistage import SlicedContraction, SlicedTile
from graphc.backends.cuda.strategies.contraction.panels import STEP
from graphc.ir.dtypes import i64
from graphc.ir.expr import Const, Expr, Load
from graphc.ir.kernel import Buffer, Intrin
from graphc.ir.simplify import simplify

LINE_WORDS = 32  # of the depth in a slice: what products read lies in lines of 128 bytes
STEPS = range(LINE_WORDS // STEP)
COPYING = 32  # clocks in which a thread of the producer copies a chunk, about: two an instruction


@dataclass(frozen=True)
class GroupTile(SlicedTile):
    """Teams are the warp groups that multiply; one more copies. `held`: rows of a slice go through
    registers; `gathered`: positions of a slice that threads copy, where no boxes can be cut.

    `most`: blocks at once, of which each computes one tile after another (0: each computes one).
    `cluster`: blocks below one another that share the columns they read: each copies a part of them
    to all. `parts`: of the depth of a tile, each summed by a block of a cluster (split-K)."""

    held: bool = False
    gathered: int = 0
    most: int = 0
    cluster: int = 1
    parts: int = 1

    team = 4 * WARP
    pitch = 64

    @property
    def split(self) -> int:
        return self.parts

    @property
    def consumers(self) -> int:
        return self.team * self.teams

    @property
    def threads(self) -> int:
        return self.consumers + self.team

    @property
    def registers(self) -> int:
        """Of a thread: as many as there are for so many threads, where groups trade them; else
        sums, rows that are held, and addresses, roughly."""
        if self.teams == 2:
            return 168
        held = self.own_rows * self.words // self.team if self.held else 0
        return self.own_rows * self.own_columns // self.team + held + 40

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        return super().shared + (4 * self.rows * self.columns if self.split > 1 else 0)

    def fetched(self) -> int:
        return self.teams * self.own_rows // self.pitch * (self.pitch + self.own_columns)

    def rate(self, gpu: Machine) -> int:
        return gpu.group_rate

    def block(self, gpu: Machine, depth: int) -> Block:
        """What a block needs for its part of sums of so many words."""
        block = super().block(gpu, -(-depth // self.split))
        sides = self.rows + self.columns
        read = block.read * (self.rows + self.columns // self.cluster) / sides
        chunks = self.gathered * self.words // 4
        given = 4 * self.rows * self.columns * (self.split - 1) // self.split
        return replace(
            block, read=read, synchronised=0, copied=chunks * COPYING // self.team, given=given,
            copying=self.team,
        )  # fmt: skip


SIDES = (
    (128, 256, 64, 256), (256, 128, 128, 128), (128, 128, 64, 128), (64, 256, 64, 256),
    (64, 128, 64, 128), (128, 64, 64, 64), (64, 64, 64, 64), (64, 32, 64, 32),
)  # fmt: skip
SPLITS = (
    ((128, 128, 64, 128), (3,), (2, 4)), ((64, 128, 64, 128), (4,), (2, 4, 8)),
    ((64, 64, 64, 64), (4, 8), (2, 4, 8)), ((64, 32, 64, 32), (4, 8), (2, 4, 8)),
)  # fmt: skip
"""Tiles whose depth blocks of a cluster share, with stages that leave room for the sums, and how
many blocks (the PTX machine runs clusters of 64 warps)."""
GROUP_TILES = (
    *(
        GroupTile(*sides, LINE_WORDS, stages, cluster=cluster)
        for sides in SIDES
        for stages in (4, 8)
        for cluster in (1, CLUSTER)
        if sides[1] >= 128 or cluster == 1
    ),
    *(
        GroupTile(*sides, LINE_WORDS, stages, parts=parts)
        for sides, all_stages, all_parts in SPLITS
        for stages in all_stages
        for parts in all_parts
    ),
)


class WarpGroups(SlicedContraction):
    """Products of panels where they are; `rows`: those of a slice in registers, to be rounded."""

    rows: Buffer

    def _take_sums(self) -> None:
        """A compiler may not move what is done to sums across this."""
        sums = self.totals.size
        self.k.emit(Intrin(f"take_sums_{sums}", (self.totals[0, 0, 0],)))

    def _begin(self) -> None:
        """Products may take the registers that were written so far. Those that add to the same sums
        come in order: no more is needed between them (PTX ISA, wgmma.fence)."""
        self.k.emit(Intrin("begin_products", ()))

    def _products_of_rounded(self, stage: Expr) -> None:
        """The products of a slice whose first operand is rounded in registers."""
        first, second = STEPS[: len(STEPS) // 2], STEPS[len(STEPS) // 2 :]
        self._hold(stage, first)
        self._begin()
        self._products(stage, first)
        self._commit()
        self._wait(1)
        self._hold(stage, second)
        self._begin()
        self._products(stage, second)
        self._commit()

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
        """Begins products of a batch."""
        for step in steps:
            for part in range(self.fragments[0]):
                self._product(stage, step, part)

    def _commit(self) -> None:
        """Ends a batch of products."""
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
