"""Contractions on matrix cores with a producer: warp specialisation, TMA and persistent blocks.

One thread of a warp group of its own, the producer, copies boxes of both operands into stages of
shared memory (cp.async.bulk.tensor). The other warp groups, the consumers, multiply them by wgmma.
Two mbarriers guard each stage: `full`, which counts the bytes that come, and `empty`, at which each
warp of the consumers arrives once the products that read the stage are done:

    producer   for each tile, each slice: awaits empty; expects the bytes; asks for both boxes
    consumers  for each tile, each slice s: await full; begin the products of s; wait for those of
               s - 1; give its stage back

Two blocks of a cluster may compute tiles below one another: each copies half of the columns to both
(multicast), and consumers give stages back to both. This halves what is read of the columns from
the second level of cache, which bounds tiles of 128 x 256.

A block computes one tile after another where there are more tiles than blocks at once: then the
slices of the next tile come while results of this one are stored. This is CUTLASS's cooperative
kernel (NVIDIA, CUTLASS 3, sm90 TMA GMMA warp-specialised cooperative). Consumers take registers
that the producer leaves.

Operands must be tensors of constant extents that boxes can be cut from: no gathered windows, and
nothing to convert.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from graphc.backends.cuda.bulk_instructions import (
    AWAIT,
    BACK,
    BACK_TO_BOTH,
    CLUSTER,
    EXPECT,
    FENCE,
    LEAVE,
    MAKE,
    MEET,
    TAKE,
)
from graphc.backends.cuda.machines import WARP, Machine
from graphc.backends.cuda.strategies.contraction.blocks import FlatContraction
from graphc.backends.cuda.strategies.contraction.costs import Block
from graphc.backends.cuda.strategies.contraction.mma_operands import Kind
from graphc.backends.cuda.strategies.contraction.panels import CHUNK, LINE, Panel, ThreadGroup
from graphc.backends.cuda.strategies.contraction.wgmma import (
    LINE_WORDS,
    STEPS,
    GroupTile,
    WarpGroups,
)
from graphc.backends.cuda.warpgroup_instructions import UNIFORM
from graphc.ir.addresses import is_affine_in
from graphc.ir.dtypes import i32, i64, u64
from graphc.ir.expr import TRUE, Const, Expr, Index, Load, Ref, cast, free_indices, substitute
from graphc.ir.kernel import Barrier, Buffer, Intrin, Let
from graphc.ir.simplify import simplify
from graphc.ir.types import Dim

MOST_BOX = 256  # rows of a box
MOST_RANK = 5
LEFT, TAKEN = 40, 232  # registers of a thread of the producer and of two groups of consumers
GROUP = 4 * WARP


@dataclass(frozen=True)
class ProducerTile(GroupTile):
    """Teams are the warp groups that multiply; one more copies. `most`: blocks at once, of which
    each computes one tile after another. `cluster`: blocks below one another that share the columns
    they read: each copies a part of them to all."""

    most: int = 0
    cluster: int = 1

    @property
    def consumers(self) -> int:
        return self.team * self.teams

    @property
    def threads(self) -> int:
        return self.consumers + self.team

    @property
    def ahead(self) -> int:
        return self.stages - 1

    @property
    def registers(self) -> int:
        """As many as there are for so many threads, where groups trade them."""
        return 168 if self.teams == 2 else super().registers

    def block(self, gpu: Machine, depth: int) -> Block:
        block = super().block(gpu, depth)
        sides = self.rows + self.columns
        read = block.read * (self.rows + self.columns // self.cluster) / sides
        return replace(block, read=read, synchronised=0)


PRODUCER_SIDES = (
    (128, 256, 64, 256), (256, 128, 128, 128), (128, 128, 64, 128), (64, 256, 64, 256),
    (64, 128, 64, 128), (128, 64, 64, 64), (64, 64, 64, 64),
)  # fmt: skip
PRODUCER_TILES = tuple(
    ProducerTile(*sides, LINE_WORDS, stages, cluster=cluster)
    for sides in PRODUCER_SIDES
    for stages in (4, 8)
    for cluster in (1, CLUSTER)
    if sides[1] >= 128 or cluster == 1
)


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
    if load is None or guard is not TRUE or panel.rounds or not panel.in_lines:
        return None
    if len(operand.side) != 1 or len(operand.depth) != 1:
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
    """The kernel of a contraction whose operands come in boxes."""

    tile: ProducerTile

    def __init__(self, flat: FlatContraction, kind: Kind, panels: bool, tile: ProducerTile):
        super().__init__(flat, kind, panels, tile)
        outer = flat.match.outer
        self.boxes = [boxes_of(p, outer) for p in (self.panel_a, self.panel_b)]
        self.full, self.empty = (
            Buffer(name, u64, (tile.stages,), "local") for name in ("full", "empty")
        )
        self.shared += [self.full, self.empty]
        self.resident = 1 if tile.teams == 2 else 0

    @property
    def fits(self) -> bool:
        """Whether boxes can be cut from both operands."""
        return (
            None not in self.boxes
            and all(isinstance(x.extent, int) for x in self.match.outer)
            and all(p.side <= MOST_BOX or p.across for p in (self.panel_a, self.panel_b))
            and -(-self.a.count // self.tile.rows) % self.tile.cluster == 0
        )

    def _swizzled_rows(self, rows: Dim) -> int:
        together = super()._swizzled_rows(rows)
        return together if together % self.tile.cluster == 0 else self.tile.cluster

    # ---------------------------------------------------------------- tiles

    def grid(self, tiles: Dim) -> int:
        assert isinstance(tiles, int)
        return min(tiles, self.tile.most or tiles)

    def block_body(self, block: Index, tiles: Dim) -> None:
        """What a thread does for all tiles of its block."""
        assert isinstance(tiles, int)
        k, consumers = self.k, self.tile.consumers
        with k.when(self.thread.eq(consumers)):
            for stage in range(self.tile.stages):
                at = Const(stage, i64)
                k.emit(Intrin(MAKE, (self.full[at], Const(1, i64))))
                arrivals = consumers // WARP * self.tile.cluster
                k.emit(Intrin(MAKE, (self.empty[at], Const(arrivals, i64))))
            k.emit(Intrin(FENCE, ()))
        k.emit(Barrier())
        self._meet()
        with k.when(self.thread < consumers):
            self._registers(TAKE, TAKEN)
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
            self._registers(LEAVE, LEFT)
            with k.when(self.thread.eq(consumers)), self._tiles(block, tiles) as where:
                self._produce(*where)
        self._meet()  # no block ends while the other may still give it a stage back

    def _meet(self) -> None:
        if self.tile.cluster > 1:
            self.k.emit(Intrin(MEET, ()))

    def _registers(self, name: str, count: int) -> None:
        if self.tile.teams == 2:
            self.k.emit(Intrin(name, (Const(count, i64),)))

    @contextmanager
    def _tiles(self, block: Index, tiles: int) -> Iterator[tuple[Expr, Expr, Expr]]:
        """The tiles of a block: how many came before, and the first row and column of each."""
        grid = self.grid(tiles)
        turns = -(-tiles // grid)
        with self.k.loop(turns, name=self.k.fresh("turn")) as turn:
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
        self._take_sums()
        first = simplify(turn * self.slices)
        self._multiply(first)
        with k.loop(self.slices - 1, name=k.fresh("slice")) as slice:
            number = simplify(first + slice + 1)
            self._multiply(number)
            self._wait(1)
            self._give_back(simplify(number - 1))
        self._wait(0)
        self._give_back(simplify(first + (self.slices - 1)))
        self._take_sums()
        self._finish_all()

    def _multiply(self, number: Expr) -> None:
        """Begins the products of a slice that has come."""
        stage = self.k.let(self._stage(number))
        self.k.emit(Intrin(AWAIT, (self.full[stage], self._parity(number))))
        self._products(stage, STEPS)

    def _give_back(self, number: Expr) -> None:
        name = BACK_TO_BOTH if self.tile.cluster > 1 else BACK
        self.k.emit(Intrin(name, (self.empty[self._stage(number)],)))

    # ---------------------------------------------------------------- producer

    def _produce(self, turn: Expr, row: Expr, column: Expr) -> None:
        k = self.k
        panels = tuple(zip((self.panel_a, self.panel_b), self.boxes, (row, column)))
        size = sum(4 * p.rows * p.chunks * CHUNK for p, _, _ in panels)
        with k.loop(self.slices, "unroll", name=k.fresh("slice"), width=1) as slice:
            number = simplify(turn * self.slices + slice)
            stage = k.let(self._stage(number))
            k.emit(Intrin(AWAIT, (self.empty[stage], simplify(1 - self._parity(number)))))
            k.emit(Intrin(EXPECT, (self.full[stage], Const(size, i64))))
            for panel, boxes, first in panels:
                assert boxes is not None
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
