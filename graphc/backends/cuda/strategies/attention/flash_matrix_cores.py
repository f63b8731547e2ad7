"""Flash attention on matrix cores: a warp owns rows, and keeps scores, weights and sums in
registers.

A warp's rows of the first operand stay in registers as fragments, or in shared memory where they
are too long for that. Tiles of keys and values are prefetched into shared memory (cp.async) while
the tile before is multiplied: double buffering. The fragments in which products leave the matrix
cores are, but for their type, those in which weights enter again, so that only maxima and totals
cross lanes. Four lanes share a row. For TF32 the keys within a fragment are permuted alike in both
factors. The scheme is that of FlashAttention-2 (T. Dao, 2023).

If scores are products times a positive number c, maxima are taken of the products, and

    exp(c x - c m) = 2 ** (x c' - m c')      c' = c log2(e)

is one fused multiply-add and one power of two.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from graphc.backends.cuda.machines import WARP, Machine
from graphc.backends.cuda.strategies.attention.online_softmax import (
    NOTHING,
    AttentionBlocks,
    padded,
)
from graphc.backends.cuda.strategies.contraction.mma_operands import Kind
from graphc.backends.cuda.strategies.contraction.panels import STEP, Panel, ThreadGroup
from graphc.ir.dtypes import f32, i64, u32
from graphc.ir.expr import (
    FALSE,
    TRUE,
    Call,
    Const,
    Expr,
    Load,
    Ref,
    bitcast,
    call,
    select,
    substitute,
)
from graphc.ir.extents import most
from graphc.ir.kernel import Barrier, Buffer, Intrin, Let
from graphc.ir.simplify import simplify
from graphc.passes.analysis.attention import LARGEST, PRODUCT, Attention
from graphc.passes.analysis.spaces import count

LOG2_E = math.log2(math.e)
QUAD = 4  # lanes that share a row
SIDE = 16  # rows of a fragment, and what keys and columns are multiples of
REGISTERS = 150  # of a thread, for fragments
HALF_ULP = 1 << 12  # half of the last bit that TF32 keeps


@dataclass(frozen=True)
class CoreTile:
    """`warps` of a block, each of so many fragments of 16 rows; `keys` at a time; `speed`: the rate
    of such tiles, roughly."""

    warps: int
    fragments: int
    keys: int
    speed: float

    @property
    def rows(self) -> int:
        return SIDE * self.fragments * self.warps


CORE_TILES = (
    CoreTile(4, 2, 64, 1.0),
    CoreTile(4, 2, 32, 0.9),
    CoreTile(8, 1, 64, 0.85),
    CoreTile(4, 1, 64, 0.7),
    CoreTile(4, 1, 32, 0.6),
    CoreTile(4, 1, 16, 0.5),
    CoreTile(2, 1, 64, 0.4),
    CoreTile(2, 1, 32, 0.35),
    CoreTile(2, 1, 16, 0.3),
    CoreTile(1, 1, 32, 0.2),
    CoreTile(1, 1, 16, 0.15),
)


class FlashMatrixCores(AttentionBlocks):
    """Emits the kernel of an attention with factors of a kind."""

    def __init__(self, match: Attention, kind: Kind, tile: CoreTile):
        super().__init__(match, tile.rows, 0, WARP * tile.warps, QUAD)
        self.take(tile.keys, whole=match.softmax.weight.dtype is not f32 or kind.dtype is f32)
        self.kind, self.tile = kind, tile
        unit = STEP * kind.per_word
        words = padded(count(match.depth), unit) // kind.per_word
        self.depth_steps, self.key_steps = words // STEP, tile.keys // unit
        wide, key_words = padded(count(match.columns), SIDE), tile.keys // kind.per_word
        self.row_part = 2 * tile.fragments
        self.key_part, self.column_part = tile.keys // QUAD, wide // QUAD
        self.together = 2
        stages = self.tiles_at_once = min(most(self.tiles), 2)
        self.queries = Panel("queries", self.q, kind, (1, tile.rows, words), left=True)
        self.keys = Panel("keys", self.b, kind, (stages, tile.keys, words))
        self.values = Panel(
            "values", self.v, kind, (stages, wide, key_words), paired=kind.per_word == 1
        )
        self.shared = [p.buffer for p in (self.queries, self.keys, self.values)]
        self.cells = self.row_part * (self.key_part + self.column_part)
        lane = simplify(self.thread % WARP)
        self.group, self.quad = simplify(lane // QUAD), simplify(lane % QUAD)
        self.warp_row = simplify(self.thread // WARP * (SIDE * tile.fragments))
        self.scale, self.guard = (None, None) if self.is_whole else _scaled(self.score)
        self.is_masked = True  # whether some rows of a tile may not see all of its keys

    def fits(self, gpu: Machine) -> bool:
        """Whether registers and shared memory suffice."""
        size = sum(4 * b.size for b in self.shared)
        return self.cells <= REGISTERS and size <= gpu.block_shared

    def row(self, i: Expr) -> Expr:
        return simplify(self.warp_row + i * 8 + self.group)

    def key(self, j: Expr) -> Expr:
        return simplify(j // 2 * 8 + self.quad * 2 + j % 2)

    def column(self, c: Expr) -> Expr:
        return self.key(c)

    def keep(self, scores: Buffer, i: Expr, j: Expr, weight: Expr) -> None:
        self.k.store(scores, (i, j), weight)

    def exponential_of(self, score: Expr, base: Expr) -> Expr:
        """By the instruction that approximates powers of two: weights are narrow anyway."""
        k, power = self.k, self.k.alloc(f32, (), "reg", self.k.fresh("power"))
        if self.scale is None:
            exponent = k.let((score - base) * LOG2_E)
        else:
            scale = Const(self.scale * LOG2_E, f32)
            exponent = k.let(call("fma", score, scale, -(base * scale)))
        k.emit(Intrin("power_of_two", (power[()], exponent)))
        return power[()]

    def body(self) -> None:
        """Over all keys, a tile of which is on its way, then the results."""
        k = self.k
        self.start()
        none = Const(0, i64)
        self.loaders = ThreadGroup(k, self.thread, self.threads, self.fixed)
        self.queries.fetch(self.loaders, self.first_row, none, none)
        self._fetch(none)
        k.emit(Intrin("commit_copies", ()))
        queries = self._kept_queries()
        self.take_tiles(queries)
        self.finish()

    def take_tiles(self, queries: Buffer | None) -> None:
        """Does all tiles of keys that rows of the block see."""
        with self.each_tile() as at:
            self.take_tile(at, queries)

    def take_tile(self, at: Expr, queries: Buffer | None) -> None:
        """Adds what a tile of keys adds, while the next one is on its way."""
        stage: Expr = Const(0, i64)
        self._await()
        if self.tiles_at_once > 1:
            self._fetch_ahead(simplify(at + 1))
            stage = self.k.let(simplify(at % 2))
        scores = self._products_of_keys(queries, stage)
        self.soften(scores, simplify(at * self.tile_keys))
        self._add_values(scores, stage)

    # ---------------------------------------------------------------- scores

    def _score(self, scores: Buffer, first: Expr) -> None:
        if self.scale is None:
            super()._score(scores, first)
            return
        assert self.guard is not None
        if not self.is_masked:
            return
        with self.k.loops(self.row_part, self.key_part, kind="unroll") as (i, j):
            row, key = simplify(self.first_row + self.row(i)), simplify(first + self.key(j))
            mapping = {**self.fixed, **self.q.place(row), self.match.key: key}
            inside = simplify(call("and", row < self.q.count, key < self.b.count))
            score = select(substitute(self.guard, mapping), scores[i, j], NOTHING)
            self.k.store(scores, (i, j), simplify(select(inside, score, NOTHING)))

    def _totals(self, i: Expr) -> dict[Expr, Expr]:
        facts = super()._totals(i)
        return facts if self.scale is None else {**facts, LARGEST: facts[LARGEST] * self.scale}

    # ---------------------------------------------------------------- operands

    def _fetch(self, tile: Expr) -> None:
        """Keys and values of a tile into the stage that is its turn."""
        stage, none = simplify(tile % self.tiles_at_once), Const(0, i64)
        self.keys.fetch(self.loaders, simplify(tile * self.tile_keys), none, stage)
        self.values.fetch(self.loaders, none, tile, stage)

    def _fetch_ahead(self, tile: Expr) -> None:
        """A tile that comes next, if one does."""
        k, follows = self.k, self.is_seen(tile)
        if follows is FALSE:
            return
        with k.when(follows):
            self._fetch(self.named(tile))
        k.emit(Intrin("commit_copies", ()))

    def named(self, tile: Expr) -> Expr:
        """The number of a tile that there is: so it is known which of its keys there are."""
        if isinstance(tile, Const):
            return tile
        name = Ref(self.k.fresh("tile"), i64, 0, most(self.tiles) - 1)
        self.k.emit(Let(name, tile))
        return name

    def _await(self) -> None:
        """What was copied is there for all threads, and what was read may be overwritten."""
        self.k.emit(Intrin("wait_copies", (Const(0, i64),)))
        self.k.emit(Barrier())

    def _kept_queries(self) -> Buffer | None:
        """This warp's rows of the first operand in registers, if there are enough."""
        k, count = self.k, self.tile.fragments
        if 4 * self.depth_steps * count + self.cells > REGISTERS:
            return None
        self._await()
        kept = k.alloc(u32, (self.depth_steps, count, 4), "reg", "rows")
        with k.loop(self.depth_steps, "unroll") as step:
            self._load_queries(kept, step, step)
        return kept

    def _load_queries(self, into: Buffer, at: Expr, step: Expr) -> None:
        """The fragments of this warp's rows at a step of the depth into `into` at `at`."""
        for i in range(self.tile.fragments):
            first = simplify(self.warp_row + i * SIDE)
            self.queries.load(self.loaders, _words(into, at, i), Const(0, i64), first, step)
            self.queries.round(self.loaders, _words(into, at, i))

    # ---------------------------------------------------------------- products

    def _multiply(
        self, sums: Buffer, a: list[list[Load]], panel: Panel, stage: Expr, step: Expr
    ) -> None:
        """sums += a b at a step of the depth, where `a` has 4 words for each fragment of rows."""
        k = self.k
        with k.loop(panel.side // SIDE, "unroll") as pair:
            words = k.alloc(u32, (4,), "reg")
            b = [words[Const(n, i64)] for n in range(4)]
            panel.load(self.loaders, b, stage, simplify(pair * SIDE), step)
            panel.round(self.loaders, b)
            for i, left in enumerate(a):
                for half in range(2):
                    cells = [
                        sums[Const(2 * i + n // 2, i64), simplify(pair * 4 + 2 * half + n % 2)]
                        for n in range(4)
                    ]
                    right = b[2 * half : 2 * half + 2]
                    k.emit(Intrin(self.kind.instruction, (*cells, *left, *right)))

    def _products_of_keys(self, kept: Buffer | None, stage: Expr) -> Buffer:
        """The products of this thread's rows and keys."""
        k, count = self.k, self.tile.fragments
        scores = self.no_products()
        with k.loop(self.depth_steps, "unroll") as step:
            if kept is None:
                rows = k.alloc(u32, (1, count, 4), "reg")
                at: Expr = Const(0, i64)
                self._load_queries(rows, at, step)
            else:
                rows, at = kept, step
            a = [_words(rows, at, i) for i in range(count)]
            self._multiply(scores, a, self.keys, stage, step)
        return scores

    def _add_values(self, weights: Buffer, stage: Expr) -> None:
        """Adds the weights times the values of a tile to the sums."""
        k, count = self.k, self.tile.fragments
        with k.loop(self.key_steps, "unroll") as step:
            words = k.alloc(u32, (1, count, 4), "reg")
            with k.loops(count, 4, kind="unroll") as (i, n):
                self._pack(words, i, n, weights, step)
            a = [_words(words, Const(0, i64), i) for i in range(count)]
            self._multiply(self.sums, a, self.values, stage, step)

    def _pack(self, words: Buffer, i: Expr, n: Expr, weights: Buffer, step: Expr) -> None:
        """Word `n` of a fragment of weights: cells that the lane has."""
        row, none = simplify(i * 2 + n % 2), Const(0, i64)
        if self.kind.per_word == 1:
            weight = weights[row, simplify(step * 2 + n // 2)]
            self.k.store(words, (none, i, n), bitcast(weight, u32) + HALF_ULP)
        else:
            first = simplify(step * 4 + n // 2 * 2)
            pair = weights[row, first], weights[row, simplify(first + 1)]
            name = self.kind.instruction.replace("mma", "pack")
            self.k.emit(Intrin(name, (words[none, i, n], *pair)))


def _words(buffer: Buffer, at: Expr, i: int) -> list[Load]:
    """The words of fragment `i` of a step."""
    return [buffer[at, Const(i, i64), Const(n, i64)] for n in range(4)]


def _scaled(score: Expr) -> tuple[float | None, Expr | None]:
    """c and a guard, if a score is a product times c > 0, and -inf where the guard does not hold;
    else (None, None)."""
    guard: Expr = TRUE
    if isinstance(score, Call) and score.op.name == "select":
        guard, inner, other = score.args
        if not (isinstance(other, Const) and other.value == -math.inf):
            return None, None
        score = inner
    if score is PRODUCT:
        return 1.0, guard
    if isinstance(score, Call) and score.op.name == "mul" and score.args[0] is PRODUCT:
        factor = score.args[1]
        if isinstance(factor, Const) and 0 < factor.value < math.inf:
            return float(factor.value), guard
    return None, None
