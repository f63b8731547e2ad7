"""Dot products of bytes in vector registers: sixteen products are one instruction (vmladava).

A tile is a few rows by a few columns of sums in general registers; the bytes of a row serve all its
columns, those of a column all its rows. The sums of a block of columns are kept on the stack, and
finished four at a time.

What a row sums is copied to the stack where bytes lie apart, and at the edges, with the zero point
for padding: one run of bytes, of which few go to waste in a vector.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

from graphc.backends.micro_c.byte_rows import ROWS, dots
from graphc.backends.micro_c.intrinsics import dot16
from graphc.backends.micro_c.strategies.helium.matching import is_copied, is_one_run, unguarded
from graphc.backends.micro_c.strategies.helium.sum_loops import Level
from graphc.backends.micro_c.strategies.helium.sums import Emitter, HeliumOptions, moved
from graphc.backends.micro_c.vectors import BYTES, LANES
from graphc.ir.addresses import flatten_index
from graphc.ir.dtypes import i8, i32, i64, u8
from graphc.ir.expr import Call, Const, Expr, Index, Load, substitute
from graphc.ir.extents import points
from graphc.ir.kernel import Buffer, Store
from graphc.ir.simplify import simplify
from graphc.passes.analysis.computation import index_of
from graphc.passes.analysis.factors import centred_byte
from graphc.passes.analysis.weighted import ProductMatch


class Dots(Emitter):
    """Sixteen products of bytes at a time."""

    def __init__(self, match: ProductMatch, options: HeliumOptions):
        deep = points(match.depth)
        self.long = deep > options.chunks * BYTES
        self.copied = is_copied(match) or self.long and not is_one_run(match)
        super().__init__(match, options)

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

    def _guards(self) -> list[Expr]:
        """None: padding is summed like everything else."""
        return []

    def _columns(self, rows: list[dict], inside: bool) -> None:
        if inside and not self.copied:
            levels, reads = self._levels(rows, True)
        else:
            levels, reads = self._windows(rows, inside)
        size = min(self.options.block, self.columns)
        whole, rest = divmod(self.columns, size)
        kept = [] if self.long else self._kept(levels, reads)
        with self._loop(whole) as block:
            first = simplify(block * size)
            self._block(_Tile(rows, first, size, levels, reads, kept))
        if rest:
            first = Const(whole * size, i64)
            self._block(_Tile(rows, first, rest, levels, reads, kept))

    def _block(self, tile: _Tile) -> None:
        """The sums of a block of columns, kept, and then finished."""
        sums = self.k.alloc(i32, (len(tile.rows) * tile.stride,), "stack")
        if self.long:
            self._long_rows(tile, sums)
        else:
            self._short_rows(tile, sums)
        self._finish_all(tile, sums)

    def _long_rows(self, tile: _Tile, sums: Buffer) -> None:
        """The sums of a block, by the loops of byte_rows.py."""
        weights = self._weight(tile.rows[0], tile.first)
        first, *others = tile.reads
        apart = simplify(others[0].index[0] - first.index[0]) if others else Const(0, i64)
        assert isinstance(apart, Const)
        rows = len(tile.reads)
        parts = [tile.reads] if rows == ROWS else [[read] for read in tile.reads]
        for t, part in enumerate(parts):
            to = sums[Const(t * tile.stride, i64)]
            numbers = int(apart.value), tile.stride, tile.levels[0].count, tile.width
            self.k.emit(dots(to, part[0], weights, len(part), *numbers))

    def _short_rows(self, tile: _Tile, sums: Buffer) -> None:
        """The sums of a block, in registers."""
        together = self._together(tile)
        whole, rest = divmod(tile.width, together)
        if whole:
            with self._loop(whole) as x:
                self._columns_of(tile, sums, simplify(x * together), together)
        if rest:
            self._columns_of(tile, sums, Const(whole * together, i64), rest)

    # ------------------------------------------------------------ copies

    def _windows(self, rows: list[dict], inside: bool) -> tuple[list[Level], list[Load]]:
        """What some rows sum, copied to the stack."""
        count = points(self.match.depth)
        window = self.k.alloc(i8, (len(rows) * count,), "stack")
        for t, at in enumerate(rows):
            levels, (read,) = self._levels([at], inside)
            to = window[Const(t * count, i64)]
            self._copy(levels, read, to, Const(self.centre, i8))
        level = Level(Index("window", count), count, 1, 1)
        return [level], [window[Const(t * count, i64)] for t in range(len(rows))]

    def _copy(self, levels: list[Level], read: Load, to: Load, zero: Const) -> None:
        """Copies what a row sums, with zero points in place of what guards hold back."""
        level, *rest = levels
        if not rest and not level.guards and level.step == 1:
            self._run(level.count, read, to)
            return
        with self._loop(level.count) as x:
            there, here = moved(read, x * level.step), moved(to, x * level.weight)
            guard = level.guard(x)
            with self.k.when(guard) if guard is not None else nullcontext():
                if rest:
                    self._copy(rest, there, here, zero)
                else:
                    self._stored(here, there)
            if guard is not None:
                with self.k.otherwise():
                    self._run(level.weight, zero, here)

    def _run(self, count: int, read: Load | Const, to: Load) -> None:
        """Copies so many neighbours, or as often a number."""
        if count == 1:
            self._stored(to, read)
            return
        whole, rest = divmod(count, BYTES)
        if whole > self.options.chunks:
            with self.k.loop(whole) as x:
                self._sixteen(BYTES, read, to, simplify(x * BYTES))
        else:
            for n in range(whole):
                self._sixteen(BYTES, read, to, Const(n * BYTES, i64))
        if rest:
            self._sixteen(rest, read, to, Const(whole * BYTES, i64))

    def _sixteen(self, count: int, read: Load | Const, to: Load, offset: Expr) -> None:
        with self.k.loop(count, "vector", width=BYTES) as v:
            value = moved(read, offset + v) if isinstance(read, Load) else read
            self._stored(moved(to, offset + v), value)

    def _stored(self, to: Load, value: Expr) -> None:
        self.k.emit(Store(to.source, to.index, _signed(value)))

    # ------------------------------------------------------------ sums

    def _together(self, tile: _Tile) -> int:
        """How many columns to sum at a time; rather fewer than some left over."""
        if len(tile.rows) > 1:
            return self.options.columns
        most = self.options.alone
        even = [n for n in range(most, most // 2, -1) if tile.width % n == 0]
        return even[0] if even else most

    def _kept(self, levels: list[Level], reads: list[Load]) -> list[list[Buffer]]:
        """Short rows are loaded once for all columns, sixteen bytes at a time."""
        count = levels[0].count
        if len(levels) > 1 or -(-count // BYTES) * len(reads) > self.options.kept:
            return []
        return [
            [
                self._bytes(moved(read, Const(n, i64)), min(count - n, BYTES))
                for n in range(0, count, BYTES)
            ]
            for read in reads
        ]

    def _finish_all(self, tile: _Tile, sums: Buffer) -> None:
        """The outputs of a block, four columns of all rows at a time."""
        whole, rest = divmod(tile.width, LANES)

        def four(position: Expr, lanes: int) -> None:
            column = simplify(tile.first + position)
            start = self.starts.at(True, tile.rows[0], column)
            kept = [sums[simplify(position + t * tile.stride)] for t in range(len(tile.rows))]
            totals = [partial(moved, load) for load in kept]
            self._finish_rows(tile.rows, column, lanes, totals, start)

        if whole:
            with self._loop(whole) as x:
                four(simplify(x * LANES), LANES)
        if rest:
            four(Const(whole * LANES, i64), rest)

    def _columns_of(self, tile: _Tile, sums: Buffer, slot: Expr, count: int) -> None:
        """The sums of all rows of a tile and a few columns, in registers."""
        totals = [[self.k.var(i32, Const(0, i32)) for _ in range(count)] for _ in tile.rows]
        weights = [
            self._weight(tile.rows[0], simplify(tile.first + slot + u)) for u in range(count)
        ]
        self._sum(tile, tile.levels, tile.reads, weights, totals)
        for t, row in enumerate(totals):
            for u, total in enumerate(row):
                self.k.store(sums, simplify(slot + (t * tile.stride + u)), total[()])

    def _weight(self, at: dict, column: Expr) -> Load:
        """The first weight of a column."""
        fixed = tuple(at[x] for x in self.fixed)
        where = (*fixed, column, *(Const(0, i64) for _ in self.match.depth))
        return Load("weights", (flatten_index(where, self.weights.shape),), i8)

    def _sum(
        self, tile: _Tile, levels: list[Level], reads: list[Load], weights: list[Load],
        totals: list[list[Buffer]],
    ) -> None:  # fmt: skip
        level, *rest = levels
        if not rest:
            self._row(tile, level.count, reads, weights, totals)
            return
        with self._loop(level.count) as x:
            there = [moved(r, x * level.step) for r in reads]
            inner = [moved(w, x * level.weight) for w in weights]
            self._sum(tile, rest, there, inner, totals)

    def _row(
        self, tile: _Tile, count: int, reads: list[Load], weights: list[Load],
        totals: list[list[Buffer]],
    ) -> None:  # fmt: skip
        """All products along a row of bytes."""
        whole, left = divmod(count, BYTES)
        once = whole <= self.options.chunks
        for n in range(whole if once else 0):
            self._products(tile, Const(n * BYTES, i64), BYTES, reads, weights, totals)
        if not once:
            with self.k.loop(whole) as x:
                self._products(tile, x * BYTES, BYTES, reads, weights, totals)
        if left:
            self._products(tile, Const(whole * BYTES, i64), left, reads, weights, totals)

    def _products(
        self, tile: _Tile, offset: Expr, count: int, reads: list[Load], weights: list[Load],
        totals: list[list[Buffer]],
    ) -> None:  # fmt: skip
        """Up to sixteen products for every sum; each row and column is loaded once."""
        if tile.kept:
            assert isinstance(offset, Const)
            xs = [row[int(offset.value) // BYTES] for row in tile.kept]
        else:
            xs = [self._bytes(moved(read, offset), count) for read in reads]
        for u, weight in enumerate(weights):
            w = self._bytes(moved(weight, offset), count)
            for t, x in enumerate(xs):
                self.k.emit(dot16(totals[t][u][()], x, w, count))

    def _bytes(self, load: Load, count: int) -> Buffer:
        """Sixteen neighbours in a register."""
        register = self.k.alloc(i8, (BYTES,), "reg")
        with self.k.loop(count, "vector", width=BYTES) as v:
            self.k.store(register, v, _signed(moved(load, v)))
        return register


def _signed(byte: Expr) -> Expr:
    """A byte less 128, if it is unsigned."""
    return (byte ^ Const(128, u8)).cast(i8) if byte.dtype is u8 else byte


def dots_shape(match: ProductMatch, options: HeliumOptions) -> tuple[int, int]:
    """Rows and columns of a tile: as many rows as stay in registers for all columns, if rows are
    short."""
    vectors = -(-points(match.depth) // BYTES)
    rows = min(options.kept // vectors, options.rows)
    return rows if rows > 1 else options.rows, options.columns


@dataclass(frozen=True)
class _Tile:
    """Sums of a few rows and of `width` columns, from `first` on: the loops and starts of reading,
    and the bytes of each row that are `kept` in registers, if they fit."""

    rows: list[dict]
    first: Expr
    width: int
    levels: list[Level]
    reads: list[Load]
    kept: list[list[Buffer]]

    @property
    def stride(self) -> int:
        """How far apart the sums of rows are kept."""
        return -(-self.width // LANES) * LANES
