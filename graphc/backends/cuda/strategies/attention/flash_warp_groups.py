"""Flash attention by warp groups: wgmma on queries, keys and values in shared memory.

A warp group owns 64 rows. Scores leave the first product in registers, in the order in which
weights enter the second one, which takes them from there. Between the products of one group the
other one computes exponentials. Tiles of keys and values are prefetched (cp.async) as in
flash_matrix_cores.py. The scheme is that of FlashAttention-3 (J. Shah et al., 2024), without its
producer warps.

Where a mask hides keys beyond a row's last one (causal), a loop over the tiles of which all rows
see all keys has no mask, and another one follows for those at the diagonal and at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphc.backends.cuda.machines import WARP, Machine
from graphc.backends.cuda.strategies.attention.flash_matrix_cores import (
    CoreTile,
    FlashMatrixCores,
)
from graphc.backends.cuda.strategies.contraction.mma_operands import Kind
from graphc.backends.cuda.warpgroup_instructions import COLUMNS, HELD, UNIFORM
from graphc.ir.dtypes import f32, i32, i64, u32
from graphc.ir.expr import (
    TRUE,
    Call,
    Const,
    Expr,
    Ref,
    as_expr,
    call,
    cast,
)
from graphc.ir.extents import as_dim, divided, most
from graphc.ir.kernel import Barrier, Buffer, Intrin, Let
from graphc.ir.simplify import simplify
from graphc.ir.types import Dim
from graphc.passes.analysis.attention import Attention
from graphc.passes.analysis.spaces import count

TEAM = 4 * WARP
TEAM_ROWS = 64
LAST = (1 << 31) - 1  # of the numbers of keys


@dataclass(frozen=True)
class GroupCoreTile(CoreTile):
    """Warps by fours, each of one fragment of 16 rows."""


GROUP_CORE_TILES = (
    GroupCoreTile(8, 1, 128, 1.6),
    GroupCoreTile(8, 1, 64, 1.45),
    GroupCoreTile(4, 1, 128, 1.1),
    GroupCoreTile(4, 1, 64, 1.0),
)


class FlashWarpGroups(FlashMatrixCores):
    """Emits the kernel of an attention whose products are of warp groups."""

    def __init__(self, match: Attention, kind: Kind, tile: CoreTile):
        super().__init__(match, kind, tile)
        self.wide = 4 * self.column_part

    def fits(self, gpu: Machine) -> bool:
        """Whether there are instructions for it, and registers and shared memory suffice."""
        panels = (self.queries, self.keys, self.values)
        exact = self.wide == count(self.match.columns)
        return (
            super().fits(gpu) and gpu.group_rate > 0 and f"w{self._held()}" in HELD
            and self.wide in COLUMNS and exact and self.tile.keys in COLUMNS
            and all(p.in_lines and not p.rounds for p in panels)
        )  # fmt: skip

    def _held(self) -> str:
        return f"g{self.kind.instruction}_held_n{self.wide}"

    # ---------------------------------------------------------------- products

    def _await(self) -> None:
        self.k.emit(Intrin("wait_copies", (Const(0, i64),)))
        self.k.emit(Intrin("share_copies", ()))
        self.k.emit(Barrier())

    def _kept_queries(self) -> Buffer | None:
        """None: products read them where they are. Tells compilers which group this is."""
        self.team = self._uniform(self.thread // TEAM, "team", self.threads // TEAM - 1)
        return None

    def _run(self, sums: Buffer, products: Sequence[Intrin]) -> None:
        """Does products that add to sums, of which there are so many."""
        k = self.k
        taken = Intrin(f"take_sums_{sums.size}", (sums[Const(0, i64)],))
        k.emit(taken)
        k.emit(Intrin("begin_products", ()))
        for product in products:
            k.emit(product)
        k.emit(Intrin("commit_products", ()))
        k.emit(Intrin("wait_products", (Const(0, i64),)))
        k.emit(taken)

    def _products_of_keys(self, kept: Buffer | None, stage: Expr) -> Buffer:
        k, zero = self.k, Const(0, i64)
        products = k.alloc(f32, (2 * self.key_part,), "reg", "products")
        with k.loop(products.size, "unroll") as n:
            k.store(products, n, Const(0, f32))
        row = simplify(self.team * TEAM_ROWS)
        panels = (self.queries, self.keys)
        name = f"wg{self.kind.instruction}_n{self.tile.keys}"
        far = [Const(p.far, i64) for p in panels]
        self._run(products, [
            Intrin(name, (products[zero], self.queries.start(zero, row, 0),
                          self.keys.start(stage, zero, 0), *far,
                          *(Const(p.further(step), i64) for p in panels)))
            for step in range(self.depth_steps)
        ])  # fmt: skip
        scores = k.alloc(f32, (self.row_part, self.key_part), "reg", "scores")
        with k.loops(self.row_part, self.key_part, kind="unroll") as (i, j):
            k.store(scores, (i, j), products[_cell(i, j)])
        return scores

    def _add_values(self, weights: Buffer, stage: Expr) -> None:
        k, zero = self.k, Const(0, i64)
        words = k.alloc(u32, (self.key_steps, 1, 4), "reg", "words")
        for step in range(self.key_steps):
            one = k.alloc(u32, (1, 1, 4), "reg")
            for n in range(4):
                self._pack(one, zero, Const(n, i64), weights, Const(step, i64))
                k.store(words, (step, 0, n), one[zero, zero, Const(n, i64)])
        sums = k.alloc(f32, (2 * self.column_part,), "reg")
        with k.loops(self.row_part, self.column_part, kind="unroll") as (i, c):
            k.store(sums, _cell(i, c), self.sums[i, c])
        far = Const(self.values.far, i64)
        self._run(sums, [
            Intrin(f"w{self._held()}", (
                sums[zero], *(words[Const(step, i64), zero, Const(n, i64)] for n in range(4)),
                self.values.start(stage, zero, 0), far, Const(self.values.further(step), i64),
            ))
            for step in range(self.key_steps)
        ])  # fmt: skip
        with k.loops(self.row_part, self.column_part, kind="unroll") as (i, c):
            k.store(self.sums, (i, c), sums[_cell(i, c)])

    # ---------------------------------------------------------------- scores

    def take_tiles(self, queries: Buffer | None) -> None:
        """First the tiles of which all rows see all keys, without a mask, then the others."""
        k = self.k
        self.find_last()
        self.end: Dim = self.tiles
        if self.seen is not None:
            last = cast(self.seen, i64)
            self.end = self._same_in_all(call("min", last // self.tile_keys + 1, self.tiles))
        whole = self._whole_tiles()
        rest = as_dim(as_expr(self.end) - whole)
        if whole != 0:
            self.is_masked = False
            with k.loop(whole) as at:
                self.take_tile(at, queries)
        if rest != 0:
            self.is_masked = True
            with k.loop(rest) as n:
                self.take_tile(self.named(simplify(whole + n)), queries)

    def _whole_tiles(self) -> Dim:
        """How many tiles, from the first on, all rows see all keys of."""
        whole = divided(self.b.count, self.tile_keys)[0]
        if self.scale is None or self.guard is TRUE:
            return 0 if self.scale is None else whole
        if self.seen is None or not self._is_bound(self.guard):
            return 0
        least = cast(self.last_of_rows("min", LAST), i64)
        seen = call("max", (least + 1) // self.tile_keys, 0)
        return self._same_in_all(call("min", seen, whole))

    def is_seen(self, tile: Expr) -> Expr:
        return simplify(tile < self.end)

    def _same_in_all(self, number: Expr) -> Ref:
        """A number of tiles that all threads have, which compilers do not see."""
        return self._uniform(number, self.k.fresh("tiles"), most(self.tiles))

    def _uniform(self, value: Expr, name: str, largest: int) -> Ref:
        k = self.k
        shared = k.alloc(i32, (), "reg", f"{name}_of_warp")
        k.emit(Intrin(UNIFORM, (shared[()], simplify(value))))
        number = Ref(name, i64, 0, largest)
        k.emit(Let(number, cast(shared[()], i64)))
        return number

    def _is_bound(self, guard: Expr | None) -> bool:
        """Whether a guard says no more than that keys are not beyond a row's last one."""
        return (
            isinstance(guard, Call) and guard.op.name == "le" and guard.args[0] is self.match.key
            and guard.args[1] is self.last
        )  # fmt: skip


def _cell(i: Expr, j: Expr) -> Expr:
    """Where the sum at a thread's `i`-th row and `j`-th column lies among those of wgmma."""
    return simplify(j // 2 * 4 + i * 2 + j % 2)
