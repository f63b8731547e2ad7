"""Contractions on matrix cores with a producer: warp specialisation, mbarriers, persistent blocks.

A warp group of its own, the producer, brings slices of both operands into stages of shared memory.
Where boxes can be cut from an operand, one thread has TMA copy them (cp.async.bulk.tensor); what
must be gathered (windows of a convolution: implicit GEMM, im2col without a matrix in memory; rows
that are read under a guard), all threads of the producer copy, 16 bytes at a time (cp.async). The
other warp groups, the consumers, multiply slices by wgmma. Two mbarriers guard each stage: `full`,
which counts bytes of boxes and threads whose copies have come, and `empty`, at which each warp of
the consumers arrives once the products that read the stage are done:

    producer   for each tile, each slice: awaits empty; expects the bytes and asks for boxes; copies
    consumers  for each tile, each slice s: await full; begin the products of s; wait for those of
               s - 1; give its stage back

Where there are stages for all slices, nothing is given back.

What threads copied, products read through another proxy: consumers fence it once it is there.

Two blocks of a cluster may compute tiles below one another: each copies half of the columns to both
(multicast), and consumers give stages back to both. This halves what is read of the columns from
the second level of cache, which bounds tiles of 128 x 256.

Where there are few tiles, the blocks of a cluster sum parts of the depth of one tile (split-K).
Each finishes a part of it, for which it reads the sums of all in their shared memory.

A block computes one tile after another where there are more tiles than blocks at once: then the
slices of the next tile come while results of this one are stored. This is CUTLASS's cooperative
kernel (NVIDIA, CUTLASS 3, sm90 TMA GMMA warp-specialised cooperative). Consumers take registers
that the producer leaves.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from graphc.backends.cuda.bulk_instructions import (
    ARRIVE,
    AWAIT,
    BACK,
    BACK_TO_BOTH,
    EXPECT,
    FENCE,
    FROM_BLOCK,
    LEAVE,
    MAKE,
    MEET,
    MEET_WARP,
    TAKE,
)
from graphc.backends.cuda.machines import WARP
from graphc.backends.cuda.strategies.contraction.blocks import FlatContraction
from graphc.backends.cuda.strategies.contraction.mma_operands import Kind
from graphc.backends.cuda.strategies.contraction.panels import CHUNK, LINE, Panel, ThreadGroup
from graphc.backends.cuda.strategies.contraction.wgmma import STEPS, GroupTile, WarpGroups
from graphc.backends.cuda.warpgroup_instructions import SHARE, UNIFORM
from graphc.ir.addresses import is_affine_in, unflatten_index
from graphc.ir.dtypes import f32, i32, i64, u32, u64
from graphc.ir.expr import (
    TRUE,
    Const,
    Expr,
    Index,
    Load,
    Ref,
    cast,
    free_indices,
    substitute,
)
from graphc.ir.kernel import Barrier, Buffer, Intrin, Let
from graphc.ir.simplify import simplify
from graphc.ir.types import Dim

MOST_BOX = 256  # rows of a box
MOST_RANK = 5
UNROLLED = 8  # slices of the loop of consumers that are written out
# Registers of a thread of the producer and of two groups of consumers, where it asks for boxes
# alone, and where it copies.
BY_BOXES, BY_COPIES = (40, 232), (88, 208)


@dataclass(frozen=True)
class Boxes:
    """How boxes of a panel lie in memory: the tensor's first element, and its dimensions, innermost
    first: indices, extents, and strides in elements of all but the first."""

    source: Load
    indices: tuple[Expr, ...]
    dims: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def rank(self) -> int:
        return len(self.dims)


def boxes_of(panel: Panel, outer: list[Index]) -> Boxes | None:
    """Boxes of an operand: its elements must be a tensor of constant extents over the depth, the
    side and indices of the batch, at strides of 16 bytes and more; None if they are not."""
    words, operand = panel.words, panel.words.operand
    load, guard = words._load()
    if load is None or guard is not TRUE or not panel.in_lines:
        return None
    if len(operand.side) != 1 or len(operand.depth) != 1:
        return None
    if panel.side > MOST_BOX and not panel.across:
        return None
    along = (
        [operand.side[0], operand.depth[0]] if panel.across else [operand.depth[0], operand.side[0]]
    )
    (place,) = load.index
    used = free_indices(place)
    indices = [*along, *(x for x in outer if x in used)]
    if not used <= {*indices} or len(indices) > MOST_RANK:
        return None
    if not all(isinstance(x.extent, int) for x in indices):
        return None
    strides = [is_affine_in(place, x) or 0 for x in indices]
    if strides[0] != 1 or any(s <= 0 or s % words.chunk for s in strides[1:]):
        return None
    start = simplify(substitute(place, {x: Const(0, i64) for x in indices}))
    if not isinstance(start, Const) or start.value % words.chunk:
        return None
    source = Load(load.source, (start,), load.dtype)
    return Boxes(source, tuple(indices), tuple(x.count for x in indices), tuple(strides[1:]))


class Producer(WarpGroups):
    """The kernel of a contraction whose slices a producer brings."""

    tile: GroupTile

    def __init__(self, flat: FlatContraction, kind: Kind, panels: bool, tile: GroupTile):
        super().__init__(flat, kind, panels, tile)
        outer = flat.match.outer
        panes = (self.panel_a, self.panel_b)
        self.boxes = [boxes_of(p, outer) for p in panes]
        self.gathered = [p for p, boxes in zip(panes, self.boxes) if boxes is None]
        self.full, self.empty = (
            Buffer(name, u64, (tile.stages,), "local") for name in ("full", "empty")
        )
        self.shared += [self.full, self.empty]
        self.slices = -(-self.slices // tile.split)
        if tile.split > 1:
            sums = (math.prod(self.fragments) * 2, tile.consumers, 2)
            self.partial = Buffer("partial_sums", self.kind.sum, sums, "local")
            self.shared.append(self.partial)
        self.resident = 1 if tile.teams == 2 else 0

    @property
    def together(self) -> int:
        """Blocks of a cluster."""
        return self.tile.cluster * self.tile.split

    @property
    def is_constant(self) -> bool:
        """Whether rows, columns and batch are."""
        sides = (self.a.count, self.b.count, *(x.extent for x in self.match.outer))
        return all(isinstance(x, int) for x in sides)

    @property
    def fits(self) -> bool:
        """Whether products can read both operands as they come, and the tile's blocks suit. Blocks
        share boxes of columns; of open sizes each block computes one tile."""
        tile = self.tile
        if not self.in_lines:
            return False
        if tile.cluster > 1 and (self.boxes[1] is None or not self.is_constant):
            return False
        if tile.split > 1 and not (self.kind.sum is f32 and self.is_constant):
            return False
        return tile.cluster == 1 or -(-self.a.count // tile.rows) % tile.cluster == 0

    def described(self, most: int) -> GroupTile:
        """The tile with what the cost model asks of it; `most` blocks run at once."""
        persistent = self.tile.split == 1 and self.is_constant
        return replace(
            self.tile, held=self.panel_a.rounds, gathered=sum(p.side for p in self.gathered),
            most=most if persistent else 0,
        )  # fmt: skip

    def _swizzled_rows(self, rows: Dim) -> int:
        together = super()._swizzled_rows(rows)
        return together if together % self.tile.cluster == 0 else self.tile.cluster

    # ---------------------------------------------------------------- tiles

    def grid(self, tiles: Dim) -> Dim:
        if self.tile.split > 1:
            return tiles * self.tile.split
        return min(tiles, self.tile.most or tiles) if isinstance(tiles, int) else tiles

    def _turns(self, tiles: Dim) -> int:
        """Tiles that a block computes, at most."""
        grid = self.grid(tiles)
        if self.tile.split > 1 or not (isinstance(tiles, int) and isinstance(grid, int)):
            return 1
        return -(-tiles // grid)

    def block_body(self, block: Index, tiles: Dim) -> None:
        """What a thread does for all tiles of its block."""
        k, consumers = self.k, self.tile.consumers
        self.part = simplify(block % self.tile.split)
        self.turns = self._turns(tiles)
        self.refills = self.turns * self.slices > self.tile.stages
        with k.when(self.thread.eq(consumers)):
            self._make_barriers()
        if self.tile.cluster > 1:  # before copies and arrivals come from the other one
            self._meet()
        else:
            k.emit(Barrier())
        with k.when(self.thread < consumers):
            self._registers(TAKE)
            consumer = Ref("consumer", i64, 0, consumers - 1)
            k.emit(Let(consumer, self.thread))
            shared = k.alloc(i32, (), "reg", "warp_group")
            k.emit(Intrin(UNIFORM, (shared[()], simplify(consumer // self.tile.team))))
            team = Ref("team", i64, 0, self.tile.teams - 1)
            k.emit(Let(team, cast(shared[()], i64)))
            self.place_teams(consumer, team)
            self.loaders = ThreadGroup(k, consumer, consumers, {})
            with self._tiles(block, tiles) as (turn, row, column):
                self._consume(turn, row, column)
        with k.otherwise():
            self._registers(LEAVE)
            own = Ref("own", i64, 0, self.tile.team - 1)
            k.emit(Let(own, simplify(self.thread - consumers)))
            self.loaders = ThreadGroup(k, own, self.tile.team, {})
            alone = own.eq(0) if not self.gathered else TRUE
            with k.where(alone), self._tiles(block, tiles) as where:
                self._produce(*where)
            if self.tile.split > 1:
                self._meet()
        if self.together > 1:
            self._meet()  # no block ends while others may still use its shared memory

    def _make_barriers(self) -> None:
        """A stage is full once boxes are asked for and have come, and all copies of threads; where
        these store what is not there, each warp arrives besides."""
        k, tile = self.k, self.tile
        arrivals = 1 if len(self.gathered) < 2 else 0
        arrivals += tile.team if self.gathered else 0
        arrivals += tile.team // WARP if self._stores else 0
        for stage in range(tile.stages):
            at = Const(stage, i64)
            k.emit(Intrin(MAKE, (self.full[at], Const(arrivals, i64))))
            given = tile.consumers // WARP * tile.cluster
            if self.refills:
                k.emit(Intrin(MAKE, (self.empty[at], Const(given, i64))))
        k.emit(Intrin(FENCE, ()))

    @property
    def _stores(self) -> bool:
        """Whether elements that are not there are stored, as they are not zeros."""
        return any(p.words.padding for p in self.gathered)

    def _meet(self) -> None:
        self.k.emit(Intrin(MEET, (Const(self.together, i64),)))

    def _registers(self, name: str) -> None:
        if self.tile.teams == 2:
            left, taken = BY_COPIES if self.gathered else BY_BOXES
            self.k.emit(Intrin(name, (Const(left if name == LEAVE else taken, i64),)))

    @contextmanager
    def _tiles(self, block: Index, tiles: Dim) -> Iterator[tuple[Expr, Expr, Expr]]:
        """The tiles of a block: how many came before, and the first row and column of each."""
        grid = self.grid(tiles)
        if self.turns == 1:
            yield (Const(0, i64), *self.start_of(simplify(block // self.tile.split)))
            return
        assert isinstance(grid, int) and isinstance(tiles, int)
        with self.k.loop(self.turns, name=self.k.fresh("turn")) as turn:
            tile = simplify(turn * grid + block)
            with self.k.where(tile < tiles if tiles % grid else TRUE):
                known = Ref(self.k.fresh("tile"), i64, 0, tiles - 1)
                self.k.emit(Let(known, tile))
                yield (turn, *self.start_of(known))

    # ---------------------------------------------------------------- consumers

    def _stage(self, slice: Expr) -> Expr:
        return simplify(slice % self.tile.stages)

    def _parity(self, slice: Expr) -> Expr:
        return simplify(slice // self.tile.stages % 2)

    def _consume(self, turn: Expr, row: Expr, column: Expr) -> None:
        k, (down, across) = self.k, self.fragments
        self.starts = (row, column)
        self.loaders = replace(self.loaders, fixed=self.fixed)
        self.totals = k.alloc(self.kind.sum, (down, across, 4), "reg", "sums")
        with k.loops(down, across, 4, kind="unroll") as (i, j, e):
            k.store(self.totals, (i, j, e), Const(0, self.kind.sum))
        if self.panel_a.rounds:
            self.rows = k.alloc(u32, (len(STEPS), down, 4), "reg", "rows")
        self._take_sums()  # they are 0 before products are begun: a register must not change then
        first = simplify(turn * self.slices)
        if self.panel_a.rounds:
            self._multiply_rounded(first)
        else:
            self._multiply_all(first)
        self._wait(0)
        if self.refills and self.turns > 1:  # else nothing takes its place
            if self.panel_a.rounds:
                self.k.emit(Intrin(MEET_WARP, ()))
            self._give_back(simplify(first + (self.slices - 1)))
        self._take_sums()
        if self.tile.split > 1:
            self._finish_share()
        else:
            self._finish_all()

    def _multiply_all(self, first: Expr) -> None:
        """Begins the products of all slices, those of one while others go on."""
        self._multiply(first)
        written = UNROLLED if self.refills and self.slices - 1 > UNROLLED else 1
        with self.k.loop(self.slices - 1, "unroll", name=self.k.fresh("slice"), width=written) as n:
            number = simplify(first + n + 1)
            self._multiply(number)
            if self.refills:
                self._wait(1)
                self._give_back(simplify(number - 1))
        if not self.refills:
            self._commit()

    def _multiply(self, number: Expr) -> None:
        """Begins the products of a slice that has come. Where nothing is given back, those of all
        slices are one batch. Each slice has a fence: the sums of products need none after the first
        (PTX ISA, wgmma.fence), but ptxas serialises products in some loops without."""
        stage = self._await(number)
        if self.gathered:
            self.k.emit(Intrin(SHARE, ()))
        self._begin()
        self._products(stage, STEPS)
        if self.refills:
            self._commit()

    def _multiply_rounded(self, first: Expr) -> None:
        """The same where rows pass through registers, which products hold until they are done."""
        with self.k.loop(self.slices, "unroll", name=self.k.fresh("slice"), width=1) as n:
            number = simplify(first + n)
            stage = self._await(number)
            if self.panel_b in self.gathered:
                self.k.emit(Intrin(SHARE, ()))
            self._products_of_rounded(stage)
            self._wait(1)
            if self.refills and self.slices > 1:
                with self.k.when(n > 0):
                    self.k.emit(Intrin(MEET_WARP, ()))  # one lane tells of what all have read
                    self._give_back(simplify(number - 1))

    def _await(self, number: Expr) -> Expr:
        """Waits for a slice; its stage."""
        stage = self.k.let(self._stage(number))
        self.k.emit(Intrin(AWAIT, (self.full[stage], self._parity(number))))
        return stage

    def _give_back(self, number: Expr) -> None:
        name = BACK_TO_BOTH if self.tile.cluster > 1 else BACK
        self.k.emit(Intrin(name, (self.empty[self._stage(number)],)))

    def _finish_share(self) -> None:
        """A part of the tile: the sums of all blocks of the cluster, added in their order."""
        k, split, member = self.k, self.tile.split, self.loaders.thread
        extents = (*self.fragments, 2)
        with k.loops(*extents, kind="unroll") as (i, j, half):
            at = simplify((i * self.fragments[1] + j) * 2 + half)
            cells = [self.totals[i, j, simplify(half * 2 + e)] for e in range(2)]
            k.emit(Intrin("store_vector", (self.partial[at, member, Const(0, i64)], *cells)))
        self._meet()
        own = math.prod(extents) // split
        totals = k.alloc(f32, (own, 2), "reg", "totals")
        parts = k.alloc(f32, (own, split, 2), "reg", "parts")
        with k.loops(own, split, kind="unroll") as (n, block):
            place = self.partial[simplify(self.part * own + n), member, Const(0, i64)]
            k.emit(Intrin(FROM_BLOCK, (place, block, *(parts[n, block, e] for e in range(2)))))
        with k.loops(own, 2, kind="unroll") as (n, e):
            total: Expr = parts[n, Const(0, i64), e]
            for other in range(1, split):
                total = total + parts[n, Const(other, i64), e]
            k.store(totals, (n, e), total)
        with k.loop(own, kind="unroll") as n:
            i, j, half = unflatten_index(simplify(self.part * own + n), extents)
            self._finish(i, half, [(j, [totals[n, Const(e, i64)] for e in range(2)])])

    # ---------------------------------------------------------------- producer

    def _produce(self, turn: Expr, row: Expr, column: Expr) -> None:
        k = self.k
        self.loaders = replace(self.loaders, fixed=self.fixed)
        panels = tuple(zip((self.panel_a, self.panel_b), self.boxes, (row, column)))
        with k.loop(self.slices, "unroll", name=k.fresh("slice"), width=1) as n:
            number = simplify(turn * self.slices + n)
            stage = k.let(self._stage(number))
            if self.refills:
                empty = simplify(1 - self._parity(number))
                k.emit(Intrin(AWAIT, (self.empty[stage], empty)))
            slice = simplify(self.part * self.slices + n)
            if len(self.gathered) < 2:
                with k.where(TRUE if not self.gathered else self.loaders.thread.eq(0)):
                    self._ask(panels, slice, stage)
            for panel, boxes, first in panels:
                if boxes is None:
                    panel.fetch(self.loaders, first, slice, stage)
            if self._stores:
                k.emit(Intrin(MEET_WARP, ()))
                k.emit(Intrin(BACK, (self.full[stage],)))
            if self.gathered:
                k.emit(Intrin(ARRIVE, (self.full[stage],)))

    def _ask(
        self, panels: tuple[tuple[Panel, Boxes | None, Expr], ...], slice: Expr, stage: Expr
    ) -> None:
        """Asks for all boxes of a slice."""
        cut = [(panel, boxes, first) for panel, boxes, first in panels if boxes is not None]
        size = sum(4 * p.rows * p.chunks * CHUNK for p, _, _ in cut)
        self.k.emit(Intrin(EXPECT, (self.full[stage], Const(size, i64))))
        for panel, boxes, first in cut:
            deep = simplify(slice * (panel.depth_words * self.kind.per_word))
            self._copy(panel, boxes, first, deep, stage)

    def _copy(self, panel: Panel, boxes: Boxes, first: Expr, deep: Expr, stage: Expr) -> None:
        """A slice of the positions from `first` on: one box for each line across, or each line of
        the depth. A cluster shares boxes of the columns: whole ones across, else parts of them."""
        line, shares = LINE * CHUNK * self.kind.per_word, self.tile.cluster > 1
        shares = shares and panel is self.panel_b
        lines, blocks = panel.chunks // LINE, self.tile.cluster if shares else 1
        rows = panel.rows if panel.across else panel.rows // blocks
        for n in range(lines * (1 if panel.across else blocks)):
            part, piece = (n, 0) if panel.across else divmod(n, blocks)
            block = n * blocks // lines if panel.across else piece
            along, down = simplify(first + part * line), deep
            if not panel.across:
                along, down = simplify(deep + part * line), simplify(first + piece * rows)
            fixed = [self.fixed[x] for x in boxes.indices[2:]]
            box = (line, rows, *[1] * len(fixed))
            numbers = [*boxes.dims, *boxes.strides, *box, *([block] if shares else [])]
            row = Const(part * panel.rows + piece * rows, i64)
            to = panel.buffer[stage, row, Const(0, i64)]
            args = (to, self.full[stage], boxes.source, along, down, *fixed)
            name = "share_box" if shares else "copy_box"
            constants = (Const(number, i64) for number in numbers)
            self.k.emit(Intrin(f"{name}_{boxes.rank}", (*args, *constants)))
