"""Multistage pipelines: contractions on matrix cores that copy while they multiply.

A block computes rows x columns sums. Each of its teams (a warp, or a warp group of four) keeps a
part of them in registers. Slices of both operands along the depth are copied into shared memory
(panels.py) by asynchronous copies (cp.async). There are several stages of shared memory, so that
later slices are prefetched while an earlier one is multiplied: double buffering with two stages,
software pipelining with more. All warps copy and all warps multiply; there is no warp
specialisation. Subclasses multiply by mma.sync (warp_mma.py) or wgmma (wgmma.py).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from graphc.backends.cuda.machines import WARP, Machine
from graphc.backends.cuda.strategies.contraction.blocks import BlockedContraction, FlatContraction
from graphc.backends.cuda.strategies.contraction.costs import Block, exchanged
from graphc.backends.cuda.strategies.contraction.mma_operands import Kind, padded_depth
from graphc.backends.cuda.strategies.contraction.operand_packing import whole_depth
from graphc.backends.cuda.strategies.contraction.panels import (
    CHUNK,
    PADDING,
    Panel,
    ThreadGroup,
)
from graphc.ir.addresses import is_affine_in, unflatten_index
from graphc.ir.dtypes import i64
from graphc.ir.expr import Const, Expr
from graphc.ir.extents import divided
from graphc.ir.kernel import Barrier, Intrin
from graphc.ir.simplify import simplify

READ = 8  # pairs of sums of a lane, what is added to which is read at once
WRITTEN = 8  # slices, of a loop that may be written out


@dataclass(frozen=True)
class SlicedTile(ABC):
    """Sums per block and per team, words of the depth in a slice, stages of shared memory, and
    groups that split the depth; `padded` panels have longer rows (panels.py)."""

    rows: int
    columns: int
    own_rows: int
    own_columns: int
    words: int
    stages: int
    k_groups: int = 1
    padded: int = 0

    team = WARP  # threads
    pitch = 16  # rows from one fragment of a warp to the next

    @property
    def teams(self) -> int:
        return (self.rows // self.own_rows) * (self.columns // self.own_columns)

    @property
    def threads(self) -> int:
        return self.team * self.teams * self.k_groups

    @property
    def ahead(self) -> int:
        """Prefetch distance: slices asked for before the one that is multiplied."""
        return self.stages - 1

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        sides = self.rows + self.columns + self.padded * PADDING * CHUNK
        slices = 4 * self.stages * self.words * sides
        return slices * self.k_groups + exchanged(self)

    @property
    def split(self) -> int:
        """Blocks that sum parts of the depth of one tile."""
        return 1

    @property
    @abstractmethod
    def registers(self) -> int:
        """Of a thread, roughly."""

    @abstractmethod
    def fetched(self) -> int:
        """Words that matrix cores fetch from shared memory for one word of the depth."""

    @abstractmethod
    def rate(self, gpu: Machine) -> int:
        """Products of words in a clock."""

    def block(self, gpu: Machine, depth: int) -> Block:
        """What a block needs for sums of so many words."""
        slices = -(-depth // (self.words * self.k_groups))
        deep, sides = slices * self.words * self.k_groups, self.rows + self.columns
        return Block(
            self.threads, self.shared, self.registers,
            multiply=self.rows * self.columns * deep / self.rate(gpu),
            moved=4 * deep * (self.fetched() + sides) + 2 * exchanged(self),
            read=4 * deep * sides, slices=slices, ahead=self.ahead,
        )  # fmt: skip


class SlicedContraction(BlockedContraction):
    """Sums in fragments of 16 x 8, whose operands are words in shared memory."""

    def __init__(self, flat: FlatContraction, kind: Kind, panels: bool, tile: SlicedTile):
        super().__init__(flat, tile.rows, tile.columns, tile.threads, tile.k_groups)
        self.kind, self.tile = kind, tile
        if panels:
            self.b = whole_depth(self.b, padded_depth(self.b, kind))
        stages, words = tile.stages * tile.k_groups, tile.words
        self.panel_a = Panel("tile_a", self.a, kind, (stages, tile.rows, words), left=True)
        self.panel_b = Panel("tile_b", self.b, kind, (stages, tile.columns, words))
        self.shared = [self.panel_a.buffer, self.panel_b.buffer]
        self.slices = -(-self.depth_count // (words * kind.per_word * tile.k_groups))  # of a share
        self.panel_a.is_written = (
            self.panel_a.is_gathered_across
            and tile.rows % self.k_groups.members == 0
            and self.slices <= WRITTEN
        )
        self.fragments = (tile.own_rows // tile.pitch, tile.own_columns // 8)
        if tile.k_groups > 1:
            self.exchanged = self.k_groups.sums(kind.sum, (*self.fragments, 4))
            self.shared.append(self.exchanged)
        self.place_teams(self.k_groups.member)

    def place_teams(self, member: Expr, team: Expr | None = None) -> None:
        """The sums of a thread that is so placed among those that multiply, of such a team."""
        tile = self.tile
        team = simplify(member // tile.team) if team is None else team
        across = tile.columns // tile.own_columns
        self.own_row = simplify(team // across * tile.own_rows)
        self.own_column = simplify(team % across * tile.own_columns)
        self.warp_row = simplify(self.own_row + member % tile.team // WARP * 16)

    @property
    def padded(self) -> int:
        """Panels whose rows are padded, whatever the tile."""
        return self.panel_a.padded + self.panel_b.padded

    @property
    def in_lines(self) -> bool:
        """Whether products of warp groups can read both operands as they are copied, or the first
        through registers."""
        return self.panel_a.in_lines and self.panel_b.in_lines and not self.panel_b.rounds

    def multiply(self) -> None:
        """The products of all slices, the first of which are asked for."""
        raise NotImplementedError

    def sums(self, first_row: Expr, first_column: Expr) -> None:
        """What a thread does: copies slices ahead, multiplies, and finishes its sums."""
        k, tile, (down, across) = self.k, self.tile, self.fragments
        self.loaders = ThreadGroup(k, self.k_groups.member, self.k_groups.members, self.fixed)
        self.starts = (first_row, first_column)
        self.totals = k.alloc(self.kind.sum, (down, across, 4), "reg", "sums")
        with k.loops(down, across, 4, kind="unroll") as (i, j, e):
            k.store(self.totals, (i, j, e), Const(0, self.kind.sum))
        for stage in range(tile.ahead):
            if stage < self.slices:
                self.fetch(Const(stage, i64))
            k.emit(Intrin("commit_copies", ()))
        self.multiply()
        self._finish_all()

    def arrive(self) -> None:
        """Waits until the oldest slice on its way is there, for all threads."""
        self.k.emit(Intrin("wait_copies", (Const(self.tile.ahead - 1, i64),)))
        self.k.emit(Barrier())

    def stage(self, slice: Expr) -> Expr:
        """Where a slice of a thread's share lies."""
        return self.k_groups.stage(slice, self.tile.stages)

    def fetch(self, slice: Expr) -> None:
        """A slice of the share, of both operands, into its stage."""
        number = self.k_groups.number(slice, self.slices)
        for panel, first in zip((self.panel_a, self.panel_b), self.starts):
            panel.fetch(self.loaders, first, number, self.stage(slice))

    def _finish_all(self) -> None:
        """A lane has two sums next to one another in every eighth row of its fragments; four where
        that fills sectors of memory, once lanes have traded those of two fragments."""
        if self.tile.k_groups > 1:
            self._finish_part()
            return
        (down, across), wide = self.fragments, 2 if self._stores_little() else 1
        if wide == 2:  # all before the first is stored: compilers move no loads across shuffles
            with self.k.loops(down, across // 2, 4, kind="unroll") as (i, j, e):
                pair = (self.totals[i, simplify(j * 2 + other), e] for other in range(2))
                self.k.emit(Intrin("trade", tuple(pair)))
        at_once = math.gcd(across // wide, READ // wide)
        with self.k.loops(down, 2, across // wide // at_once, kind="unroll") as (i, half, batch):
            runs = []
            for n in range(at_once):
                j = simplify(batch * at_once + n)
                runs.append((j, [
                    self.totals[i, simplify(j * wide + other), simplify(half * 2 + e)]
                    for other in range(wide) for e in range(2)
                ]))  # fmt: skip
            self._finish(i, half, runs)

    def _finish_part(self) -> None:
        """A part of the sums of all groups at a thread's place."""
        self.k_groups.exchange(self.k, self.totals, self.exchanged)
        extents = (*self.fragments, 2)
        with self.k_groups.parts(self.k, math.prod(extents)) as part:
            i, j, half = unflatten_index(part, extents)
            places = [(i, j, simplify(half * 2 + n)) for n in range(2)]
            cells = [self.k_groups.total(self.k, self.exchanged, place) for place in places]
            self._finish(i, half, [(j, cells)])

    def _finish(self, i: Expr, half: Expr, runs: Sequence[tuple[Expr, Sequence[Expr]]]) -> None:
        """Sums of rows of fragments, or of two each, that a lane has next to one another."""
        lane, wide = self.loaders.lane, len(runs[0][1]) // 2
        group, odd, even = simplify(lane // 4), simplify(lane % wide), simplify(lane % 4 // wide)
        first_row, first_column = self.starts
        row = simplify(first_row + self.warp_row + i * self.tile.pitch + half * 8 + group)
        start = first_column + self.own_column + odd * 8 + even * (2 * wide)
        self.finish(row, [(simplify(start + j * (wide * 8)), cells) for j, cells in runs])

    def _stores_little(self) -> bool:
        """Whether two sums next to one another are less than a quarter of a sector, of which four
        lanes would fill only a part."""
        size = min(o.buffer.dtype.size for o in self.match.computation.outputs)
        neighbours = is_affine_in(self.offset, self.b.side[-1]) == 1 if self.b.side else False
        return size < 4 and neighbours and divided(self.b.count, 4)[1] == 0
