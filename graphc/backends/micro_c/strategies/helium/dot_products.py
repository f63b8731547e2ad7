"""Dot products of bytes in vector registers: sixteen products are one instruction (vmladava).

A tile is a few rows by a few columns of sums in general registers; the bytes of a row serve all its
columns, those of a column all its rows. The sums of a block of columns are kept on the stack, and
finished four at a time. At the edges the zero-point correction uses the sums of the weights inside.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphc.backends.micro_c.intrinsics import dot16, sum16
from graphc.backends.micro_c.strategies.helium.matching import unguarded
from graphc.backends.micro_c.strategies.helium.sum_loops import Level
from graphc.backends.micro_c.strategies.helium.sums import Emitter, moved
from graphc.backends.micro_c.vectors import BYTES, LANES
from graphc.ir.addresses import flatten_index
from graphc.ir.dtypes import i8, i32, i64, u8
from graphc.ir.expr import Call, Const, Expr, Load, substitute
from graphc.ir.kernel import Buffer
from graphc.ir.simplify import simplify
from graphc.passes.analysis.computation import index_of
from graphc.passes.analysis.factors import centred_byte


class Dots(Emitter):
    """Sixteen products of bytes at a time."""

    def _tile_rows(self) -> int:
        return self.options.rows

    def _centre(self) -> int:
        """Unsigned bytes are made signed on the way: less 128."""
        quad = centred_byte(unguarded(self.match))
        assert quad is not None
        return quad[1] - 128 if quad[0].dtype is u8 else quad[1]

    def _pack(self) -> Buffer:
        """Column by column, the summed indices in order."""
        match = self.match
        assert isinstance(match.b, Call)
        shape = (
            *(x.count for x in self.fixed), self.columns, *(k.count for k in match.depth),
        )  # fmt: skip
        index = index_of(shape)
        mapping: dict[Expr, Expr] = dict(zip((*self.fixed, self.column, *match.depth), index))
        stored = substitute(match.b.args[0], mapping)
        return self._constant("weights", index, stored)

    def _columns(self, rows: list[dict], inside: bool) -> None:
        size = min(self.options.block, self.columns)
        whole, rest = divmod(self.columns, size)
        with self._loop(whole) as block:
            self._block(rows, inside, simplify(block * size), size)
        if rest:
            self._block(rows, inside, Const(whole * size, i64), rest)

    def _block(self, rows: list[dict], inside: bool, first: Expr, width: int) -> None:
        """The sums of a block of columns, kept, and then finished."""
        stride = -(-width // LANES) * LANES
        sums = self.k.alloc(i32, (len(rows) * stride,), "stack")
        levels, reads = self._levels(rows, inside)
        kept = self._kept(levels, reads)
        centred = self.centre != 0 and not inside and not self.starts.classes
        tile = _Tile(rows, inside, centred, first, sums, stride, levels, reads, kept)
        together = self._together(tile, width)
        whole, rest = divmod(width, together)
        if whole:
            with self._loop(whole) as x:
                self._columns_of(tile, simplify(x * together), together)
        if rest:
            self._columns_of(tile, Const(whole * together, i64), rest)
        for t, at in enumerate(rows):
            self._finish_row(tile, at, width, sums[Const(t * stride, i64)])

    def _together(self, tile: _Tile, width: int) -> int:
        """How many columns to sum at a time; rather fewer than some left over."""
        if len(tile.rows) > 1:
            return self.options.columns
        if not tile.inside:
            return self.options.centred_columns if tile.centred else self.options.edge_columns
        most = self.options.alone
        even = [n for n in range(most, most // 2, -1) if width % n == 0]
        return even[0] if even else most

    def _kept(self, levels: list[Level], reads: list[Load]) -> list[Buffer]:
        """Rows of up to sixteen bytes are loaded once for all columns."""
        if len(levels) > 1 or levels[0].guards or levels[0].count > BYTES:
            return []
        return [self._bytes(read, levels[0].count) for read in reads]

    def _finish_row(self, tile: _Tile, at: dict, width: int, sums: Load) -> None:
        whole, rest = divmod(width, LANES)

        def four(position: Expr, lanes: int) -> None:
            column = simplify(tile.first + position)
            start = self.starts.at(tile.inside, at, column)
            self._finish(at, column, lanes, lambda v: moved(sums, position + v), start)

        if whole:
            with self._loop(whole) as x:
                four(simplify(x * LANES), LANES)
        if rest:
            four(Const(whole * LANES, i64), rest)

    def _columns_of(self, tile: _Tile, slot: Expr, each: int) -> None:
        """The sums of all rows of a tile and a few columns, in registers."""
        zero = Const(0, i32)
        totals = [[self.k.var(i32, zero) for _ in range(each)] for _ in tile.rows]
        alone = [self.k.var(i32, zero) for _ in range(each)] if tile.centred else []
        weights = [self._weight(tile.rows[0], simplify(tile.first + slot + u)) for u in range(each)]
        self._sum(tile, tile.levels, tile.reads, weights, totals, alone)
        for t, row in enumerate(totals):
            for u, total in enumerate(row):
                value: Expr = total[()]
                if tile.centred:
                    value = value - alone[u][()] * Const(self.centre, i32)
                self.k.store(tile.sums, simplify(slot + (t * tile.stride + u)), value)

    def _weight(self, at: dict, column: Expr) -> Load:
        """The first weight of a column."""
        fixed = tuple(at[x] for x in self.fixed)
        where = (*fixed, column, *(Const(0, i64) for _ in self.match.depth))
        return Load("weights", (flatten_index(where, self.weights.shape),), i8)

    def _sum(
        self, tile: _Tile, levels: list[Level], reads: list[Load], weights: list[Load],
        totals: list[list[Buffer]], alone: list[Buffer],
    ) -> None:  # fmt: skip
        level, *rest = levels
        if not rest and not level.guards:
            self._row(tile, level.count, reads, weights, totals, alone)
            return
        with self._positions(level) as x:
            there = [moved(r, x * level.step) for r in reads]
            inner = [moved(w, x * level.weight) for w in weights]
            if rest:
                self._sum(tile, rest, there, inner, totals, alone)
            else:
                self._row(tile, 1, there, inner, totals, alone)

    def _row(
        self, tile: _Tile, count: int, reads: list[Load], weights: list[Load],
        totals: list[list[Buffer]], alone: list[Buffer],
    ) -> None:  # fmt: skip
        """All products along a row of bytes."""
        whole, left = divmod(count, BYTES)
        once = whole <= self.options.chunks
        for n in range(whole if once else 0):
            self._products(tile, Const(n * BYTES, i64), BYTES, reads, weights, totals, alone)
        if not once:
            with self.k.loop(whole) as x:
                self._products(tile, x * BYTES, BYTES, reads, weights, totals, alone)
        if left:
            offset = Const(whole * BYTES, i64)
            self._products(tile, offset, left, reads, weights, totals, alone)

    def _products(
        self, tile: _Tile, offset: Expr, count: int, reads: list[Load], weights: list[Load],
        totals: list[list[Buffer]], alone: list[Buffer],
    ) -> None:  # fmt: skip
        """Up to sixteen products for every sum; each row and column is loaded once."""
        xs = tile.kept or [self._bytes(moved(read, offset), count) for read in reads]
        for u, weight in enumerate(weights):
            w = self._bytes(moved(weight, offset), count)
            for t, x in enumerate(xs):
                self.k.emit(dot16(totals[t][u][()], x, w, count))
            if alone:
                self.k.emit(sum16(alone[u][()], w, count))

    def _bytes(self, load: Load, count: int) -> Buffer:
        """Sixteen neighbours in a register."""
        register = self.k.alloc(i8, (BYTES,), "reg")
        with self.k.loop(count, "vector", width=BYTES) as v:
            element: Expr = moved(load, v)
            if load.dtype is u8:
                element = (element ^ Const(128, u8)).cast(i8)
            self.k.store(register, v, element)
        return register


@dataclass(frozen=True)
class _Tile:
    """Sums of a block of columns, from `first` on, being taken for a few rows, all taps `inside`
    or not, and the centre taken off on the way if `centred`: kept in `sums`, rows `stride` apart;
    the loops and starts of reading, or the bytes already `kept` in registers."""

    rows: list[dict]
    inside: bool
    centred: bool
    first: Expr
    sums: Buffer
    stride: int
    levels: list[Level]
    reads: list[Load]
    kept: list[Buffer]
