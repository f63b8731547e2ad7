"""Sums of products of bytes in vector registers: sixteen products are one instruction.

A tile is a few rows by a few columns of sums in general registers; the bytes of a row serve all its
columns, those of a column all its rows. The sums of a block of columns are kept on the stack, and
finished four at a time. At the edges the centre is taken off with the sums of the weights inside.
"""

from __future__ import annotations

from contextlib import nullcontext

from graphc.backends.micro_c.intrinsics import dot16, sum16
from graphc.backends.micro_c.strategies.helium_sums import (
    Emitter,
    Level,
    loop_extent,
    moved,
    unguarded,
)
from graphc.backends.micro_c.strategies.tiles import centred_byte
from graphc.backends.micro_c.vectors import BYTES, LANES
from graphc.ir.dtypes import i8, i32, i64, u8
from graphc.ir.expr import Call, Const, Expr, Index, Load, substitute
from graphc.ir.kernel import Buffer
from graphc.ir.simplify import flatten_index, simplify


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
        index = tuple(Index(f"i{d}", extent) for d, extent in enumerate(shape))
        mapping: dict[Expr, Expr] = dict(zip((*self.fixed, self.column, *match.depth), index))
        stored = substitute(match.b.args[0], mapping)
        return self._constant("weights", i8, shape, index, stored)

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
        each = self.options.columns if len(rows) > 1 else self.options.alone
        if not inside:
            each = self.options.edge_columns
        whole, rest = divmod(width, each)
        if whole:
            with self._loop(whole) as x:
                self._tile(rows, inside, first, simplify(x * each), each, sums, stride)
        if rest:
            self._tile(rows, inside, first, Const(whole * each, i64), rest, sums, stride)
        for t, at in enumerate(rows):
            self._finish_row(
                at, inside, first, width, moved(sums[Const(t * stride, i64)], Const(0, i64))
            )

    def _finish_row(self, at: dict, inside: bool, first: Expr, width: int, sums: Load) -> None:
        whole, rest = divmod(width, LANES)

        def four(position: Expr, lanes: int) -> None:
            start = self._start_at(inside, at, simplify(first + position))
            column = simplify(first + position)
            self._finish(at, column, lanes, lambda v: moved(sums, position + v), start)

        if whole:
            with self._loop(whole) as x:
                four(simplify(x * LANES), LANES)
        if rest:
            four(Const(whole * LANES, i64), rest)

    def _tile(self, rows, inside: bool, first: Expr, slot: Expr, each: int, sums, stride) -> None:
        """Sums of a few rows and columns, in registers."""
        levels, starts = self._levels(rows)
        zero = Const(0, i32)
        totals = [[self.k.var(i32, zero) for _ in range(each)] for _ in rows]
        centred = self.centre != 0 and not inside and bool(self.guarded)
        alone = [self.k.var(i32, zero) for _ in range(each)] if centred else []
        fixed = tuple(rows[0][x] for x in self.fixed)
        depth = tuple(Const(0, i64) for _ in self.match.depth)
        weights = [
            Load("weights", (flatten_index((*fixed, simplify(first + slot + u), *depth),
                                           self.weights.shape),), i8)
            for u in range(each)
        ]  # fmt: skip
        self._sum(levels, starts, weights, totals, alone)
        for t, row in enumerate(totals):
            for u, total in enumerate(row):
                value = total[()]
                if centred:
                    value = value - alone[u][()] * Const(self.centre, i32)
                self.k.store(sums, simplify(slot + (t * stride + u)), value)

    def _sum(self, levels: list[Level], reads, weights, totals, alone) -> None:
        level, *rest = levels
        if rest:
            with self.k.loop(level.extent) as x:
                at = x + level.low
                reads = [moved(r, at * level.step) for r in reads]
                weights = [moved(w, at * level.weight) for w in weights]
                self._sum(rest, reads, weights, totals, alone)
            return
        reads = [moved(r, level.low) for r in reads]
        weights = [moved(w, level.low) for w in weights]
        whole, left = simplify(level.extent // BYTES), simplify(level.extent % BYTES)
        if whole != Const(0, i64):
            once = isinstance(whole, Const) and whole.value == 1
            with nullcontext(Const(0, i64)) if once else self.k.loop(loop_extent(whole)) as x:
                self._products(simplify(x * BYTES), BYTES, reads, weights, totals, alone)
        if left != Const(0, i64):
            count = left.value if isinstance(left, Const) else left
            self._products(simplify(whole * BYTES), count, reads, weights, totals, alone)

    def _products(self, offset: Expr, count, reads, weights, totals, alone) -> None:
        """Up to sixteen products for every sum; each row and column is loaded once."""
        xs = [self._bytes(moved(read, offset), count) for read in reads]
        for u, weight in enumerate(weights):
            w = self._bytes(moved(weight, offset), count)
            for t, x in enumerate(xs):
                self.k.emit(dot16(totals[t][u][()], x, w, count))
            if alone:
                self.k.emit(sum16(alone[u][()], w, count))

    def _bytes(self, load: Load, count) -> Buffer:
        """Sixteen neighbours in a register."""
        register = self.k.alloc(i8, (BYTES,), "reg")
        with self.k.loop(count, "vector", width=BYTES) as v:
            element: Expr = moved(load, v)
            if load.dtype is u8:
                element = (element ^ Const(128, u8)).cast(i8)
            self.k.store(register, v, element)
        return register
