"""Dot products of bytes in vector registers: sixteen products are one instruction (vmladava).

A tile is a few rows by all columns of a block, summed by the loops of byte_rows.py; the sums are
kept on the stack, and finished four at a time. What a row sums is copied to the stack where bytes
lie apart, and at the edges, with the zero point for padding: one run of bytes, of which few go to
waste in a vector.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from graphc.backends.micro_c.byte_rows import KEPT, dots, stride_of
from graphc.backends.micro_c.strategies.helium.matching import is_one_run, unguarded
from graphc.backends.micro_c.strategies.helium.sums import Emitter, HeliumOptions
from graphc.backends.micro_c.vectors import BYTES, LANES
from graphc.ir.addresses import element_after, flatten_index
from graphc.ir.dtypes import i8, i32, i64, u8
from graphc.ir.expr import Call, Const, Expr, Load, substitute
from graphc.ir.extents import points
from graphc.ir.kernel import Buffer
from graphc.ir.simplify import simplify
from graphc.passes.analysis.computation import index_of
from graphc.passes.analysis.factors import centred_byte
from graphc.passes.analysis.weighted import ProductMatch


class Dots(Emitter):
    """Sixteen products of bytes at a time."""

    def __init__(self, match: ProductMatch, options: HeliumOptions):
        self.deep = points(match.depth)
        super().__init__(match, options)
        self.copied = not is_one_run(self.element, self.match.depth)

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
            _, reads = self._levels(rows, True)
        else:
            reads = self._windows(rows, inside)
        size = min(self.options.block, self.columns)
        whole, rest = divmod(self.columns, size)
        with self._loop(whole) as block:
            self._block(_Tile(rows, simplify(block * size), size, reads))
        if rest:
            self._block(_Tile(rows, Const(whole * size, i64), rest, reads))

    def _windows(self, rows: list[dict], inside: bool) -> list[Load]:
        """What some rows sum, copied to the stack."""
        window = self.k.alloc(i8, (len(rows) * self.deep,), "stack")
        starts = [window[Const(t * self.deep, i64)] for t in range(len(rows))]
        for at, to in zip(rows, starts):
            levels, (read,) = self._levels([at], inside)
            self.copies.nested(levels, read, to, Const(self.centre, i8))
        return starts

    def _block(self, tile: _Tile) -> None:
        """The sums of a block of columns, kept, and then finished."""
        rows, (first, *others) = len(tile.rows), tile.reads
        sums = self.k.alloc(i32, (rows * stride_of(tile.width),), "stack")
        apart = simplify(others[0].index[0] - first.index[0]) if others else Const(0, i64)
        assert isinstance(apart, Const)
        zero, weights = sums[Const(0, i64)], self._weight(tile.rows[0], tile.first)
        self.k.emit(dots(zero, first, weights, rows, int(apart.value), self.deep, tile.width))
        self._finish_all(tile, sums)

    def _weight(self, at: dict, column: Expr) -> Load:
        """The first weight of a column."""
        fixed = tuple(at[x] for x in self.fixed)
        where = (*fixed, column, *(Const(0, i64) for _ in self.match.depth))
        return Load("weights", (flatten_index(where, self.weights.shape),), i8)

    def _finish_all(self, tile: _Tile, sums: Buffer) -> None:
        """The outputs of a block, four columns of all rows at a time."""
        whole, rest = divmod(tile.width, LANES)
        stride = stride_of(tile.width)

        def four(position: Expr, lanes: int) -> None:
            column = simplify(tile.first + position)
            start = self.starts.at(True, tile.rows[0], column)
            kept = [sums[simplify(position + t * stride)] for t in range(len(tile.rows))]
            totals = [partial(element_after, load) for load in kept]
            self._finish_rows(tile.rows, column, lanes, totals, start)

        if whole:
            with self._loop(whole) as x:
                four(simplify(x * LANES), LANES)
        if rest and whole and self.reads_constants:
            four(Const(tile.width - LANES, i64), LANES)
        elif rest:
            four(Const(whole * LANES, i64), rest)


def rows_of_dots(match: ProductMatch, options: HeliumOptions) -> int:
    """The rows of a tile: as many as stay in registers for all columns, if rows are short."""
    vectors = -(-points(match.depth) // BYTES)
    rows = min(KEPT // vectors, options.rows)
    return rows if rows > 1 else options.rows


@dataclass(frozen=True)
class _Tile:
    """Sums of a few rows and of `width` columns, from `first` on, and where each row is read."""

    rows: list[dict]
    first: Expr
    width: int
    reads: list[Load]
