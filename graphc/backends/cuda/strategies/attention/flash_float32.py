"""Flash attention in float32: scores, softmax and values for a tile of rows, over tiles of keys.

A block of 16 x 16 threads holds its rows of the first operand in shared memory and goes over the
keys once. For each tile of keys it computes products in registers (register tiling), stores the
weights to shared memory (see online_softmax.py), and multiplies them by the tile's values, which
take the place of the keys.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from graphc.backends.cuda.machines import STATIC_SHARED, Machine, fastest
from graphc.backends.cuda.strategies.attention.online_softmax import AttentionBlocks, padded
from graphc.backends.cuda.strategies.contraction.operands import Operand, strided
from graphc.ir.dtypes import f32
from graphc.ir.expr import Expr, Index, call, cast
from graphc.ir.extents import most, points
from graphc.ir.kernel import Barrier, Buffer
from graphc.ir.simplify import simplify
from graphc.passes.analysis.attention import Attention, match_attention
from graphc.passes.analysis.computation import Computation
from graphc.passes.analysis.spaces import count
from graphc.passes.lower.lowered import Lowered

SIDE = 16  # threads along rows, and along keys or columns
SHARED_FLOATS = STATIC_SHARED // 4
CHUNK = 8  # products between which the loop over them is not unrolled


@dataclass(frozen=True)
class Tile:
    """Rows of a block and keys at a time; `speed` is the rate of such tiles, roughly."""

    rows: int
    keys: int
    speed: float


TILES = (Tile(64, 32, 1.0), Tile(32, 32, 0.8), Tile(16, 32, 0.5), Tile(16, 16, 0.35))


def lower_flash_float32(
    computation: Computation, gpu: Machine, tile: Tile | None = None
) -> Lowered | str:
    """The kernel of an attention, or the reason why the computation is none."""
    match = match_attention(computation)
    if isinstance(match, str):
        return match
    depth, columns = count(match.depth), count(match.columns)
    widest = gpu.attention_features
    if max(depth, columns) > widest:
        return (
            f"attention: flash attention in float32 takes at most {widest} products and columns, "
            f"found {depth} and {columns}"
        )
    batch, rows = points(match.outer), points(match.rows)
    fitting = [t for t in TILES if shared_floats(t, depth, columns) <= SHARED_FLOATS]
    if not fitting:
        least = 4 * min(shared_floats(t, depth, columns) for t in TILES)
        return (
            f"attention: {depth} products and {columns} columns need {least} bytes of shared "
            f"memory; a kernel may declare {STATIC_SHARED}"
        )
    chosen = tile or fastest(fitting, gpu, batch, rows)
    kernel = _Emitter(match, chosen).kernel("attention")
    work = batch * rows * most(match.key.extent)
    return Lowered(kernel, flops=2 * work * (depth + columns))


def shared_floats(tile: Tile, depth: int, columns: int) -> int:
    """Elements of shared memory a block takes."""
    deep, wide = padded(depth, CHUNK), padded(columns, SIDE)
    operand = max(deep * (tile.keys + 1), tile.keys * wide)
    return deep * (tile.rows + 1) + operand + tile.rows * (tile.keys + 1)


class _Emitter(AttentionBlocks):
    """Emits the kernel of a matched attention in float32."""

    def __init__(self, match: Attention, tile: Tile):
        super().__init__(match, tile.rows, tile.keys, SIDE * SIDE, SIDE)
        self.tile = tile
        self.q, self.b, self.v = (
            replace(x, expr=cast(x.expr, f32)) for x in (self.q, self.b, self.v)
        )
        self.down, self.across = simplify(self.thread // SIDE), simplify(self.thread % SIDE)
        self.deep, self.wide = padded(count(match.depth), CHUNK), padded(count(match.columns), SIDE)
        self.row_part, self.key_part = tile.rows // SIDE, tile.keys // SIDE
        self.column_part = self.wide // SIDE
        operand = max(self.deep * (tile.keys + 1), tile.keys * self.wide)
        self.queries = Buffer("queries", f32, (self.deep, tile.rows + 1), "local")
        self.keys = Buffer("keys", f32, (operand,), "local")
        self.weights = Buffer("weights", f32, (tile.rows, tile.keys + 1), "local")
        self.shared = [self.queries, self.keys, self.weights]

    def row(self, i: Expr) -> Expr:
        return simplify(self.down + i * SIDE)

    def key(self, j: Expr) -> Expr:
        return simplify(self.across + j * SIDE)

    def column(self, c: Expr) -> Expr:
        return self.key(c)

    def keep(self, scores: Buffer, i: Expr, j: Expr, weight: Expr) -> None:
        self.k.store(self.weights, (self.row(i), self.key(j)), weight)

    def body(self) -> None:
        """Over all keys, then the results."""
        k = self.k
        self.start()
        self._fetch(self.q, self.queries, self.tile.rows, self.first_row, self.deep)
        with self.each_tile() as at:
            first = simplify(at * self.tile.keys)
            k.emit(Barrier())
            view = Buffer("keys", f32, (self.deep, self.tile.keys + 1), "local")
            self._fetch(self.b, view, self.tile.keys, first, self.deep)
            k.emit(Barrier())
            self.soften(self._products_of_keys(), first)
            k.emit(Barrier())
            self._fetch_values(first)
            k.emit(Barrier())
            self._add_values()
        self.finish()

    # ---------------------------------------------------------------- operands

    def _fetch(self, operand: Operand, into: Buffer, side: int, first: Expr, deep: int) -> None:
        """[depth, side] of an operand whose depth is contiguous, zeros outside."""
        with strided(self.k, side * deep, self.threads, self.thread) as at:
            d, s = simplify(at % deep), simplify(at // deep)
            value = operand.element(self.fixed, simplify(first + s), d)
            self._put(into, (d, s), value)

    def _fetch_values(self, first: Expr) -> None:
        """[keys, columns] of the values, zeros outside."""
        into = Buffer("keys", f32, (self.tile.keys, self.wide), "local")
        with strided(self.k, self.tile.keys * self.wide, self.threads, self.thread) as at:
            t, c = simplify(at // self.wide), simplify(at % self.wide)
            value = self.v.element(self.fixed, c, simplify(first + t))
            self._put(into, (t, c), value)

    def _put(self, view: Buffer, index: tuple[Expr, ...], value: Expr) -> None:
        """Stores into a buffer, or into one seen with another shape."""
        if view.name == self.keys.name:
            index = (simplify(index[0] * view.shape[1] + index[1]),)
            view = self.keys
        self.k.store(view, index, value)

    # ---------------------------------------------------------------- products

    def _products(
        self,
        sums: Buffer,
        count: int,
        left: Callable[[Index, Expr], Expr],
        right: Callable[[Expr, Index], Expr],
    ) -> None:
        """sums[i, j] += left(i, n) * right(n, j) for n below count, a multiple of CHUNK."""
        k = self.k
        rows, columns = sums.shape
        with k.loop(count // CHUNK) as chunk, k.loop(CHUNK, "unroll") as step:
            n = simplify(chunk * CHUNK + step)
            a = k.alloc(f32, (rows,), "reg")
            b = k.alloc(f32, (columns,), "reg")
            with k.loop(rows, "unroll") as i:
                k.store(a, i, left(i, n))
            with k.loop(columns, "unroll") as j:
                k.store(b, j, right(n, j))
            with k.loops(rows, columns, kind="unroll") as (i, j):
                k.store(sums, (i, j), call("fma", a[i], b[j], sums[i, j]))

    def _products_of_keys(self) -> Buffer:
        """The products of this thread's rows and keys."""
        scores, stride = self.no_products(), self.tile.keys + 1
        self._products(
            scores, self.deep,
            lambda i, d: self.queries[d, self.row(i)],
            lambda d, j: self.keys[simplify(d * stride + self.key(j))],
        )  # fmt: skip
        return scores

    def _add_values(self) -> None:
        self._products(
            self.sums, self.tile.keys,
            lambda i, t: self.weights[self.row(i), t],
            lambda t, c: self.keys[simplify(t * self.wide + self.column(c))],
        )  # fmt: skip
