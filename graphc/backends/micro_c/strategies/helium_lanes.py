"""Sums of products in vector registers whose lanes are four columns.

A tile is a few rows by a few vectors of sums. An element of the other factor serves all lanes, or,
in depthwise convolutions, has lanes as well: then neighbouring rows share what they load.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass

from graphc.backends.micro_c.strategies.helium_sums import (
    Emitter,
    HeliumOptions,
    Level,
    loop_extent,
    moved,
)
from graphc.backends.micro_c.strategies.tiles import ProductMatch
from graphc.backends.micro_c.vectors import LANES
from graphc.ir.dtypes import i32, i64
from graphc.ir.expr import Call, Const, Expr, Index, Load, call, free_indices, substitute
from graphc.ir.kernel import Buffer
from graphc.ir.simplify import flatten_index, simplify


class Lanes(Emitter):
    """Four columns at a time."""

    def __init__(self, match: ProductMatch, options: HeliumOptions):
        column = match.column
        assert column is not None
        self.depthwise = column in free_indices(match.a)
        vectors = 1 if self.depthwise else options.lane_vectors
        if match.row is None:
            vectors = options.lane_alone
        self.vectors = min(vectors, -(-column.count // LANES))
        super().__init__(match, options)
        self.vector_finish = self._is_vector()

    def _tile_rows(self) -> int:
        return self.options.lane_rows

    def _pack(self) -> Buffer:
        """Panels of as many columns as are summed at a time, the summed indices in order."""
        match, width = self.match, self.vectors * LANES
        panels = -(-self.columns // width)
        deep = tuple(k.count for k in match.depth)
        shape = (*(x.count for x in self.fixed), panels, *deep, width)
        index = tuple(Index(f"i{d}", extent) for d, extent in enumerate(shape))
        first = len(self.fixed)
        mapping: dict[Expr, Expr] = dict(zip(self.fixed, index))
        mapping.update(zip(match.depth, index[first + 1 :]))
        mapping[self.column] = self._column_at(index[first] * width + index[-1])
        b = match.b
        stored = b.args[0] if isinstance(b, Call) and b.op.name == "cast" else b
        return self._constant("weights", stored.dtype, shape, index, substitute(stored, mapping))

    def _columns(self, rows: list[dict], inside: bool) -> None:
        width = self.vectors * LANES
        whole, rest = divmod(self.columns, width)
        if whole:
            with self._loop(whole) as panel:
                self._panel(rows, inside, panel, width)
        if rest:
            self._panel(rows, inside, Const(whole, i64), rest)

    def _panel(self, rows: list[dict], inside: bool, panel: Expr, width: int) -> None:
        """The sums of a tile of rows and a panel of columns, and what is made of them."""
        first = simplify(panel * (self.vectors * LANES))
        pieces = [(j, min(LANES, width - j)) for j in range(0, width, LANES)]
        totals = [[self._started(at, inside, first, j) for j, _ in pieces] for at in rows]
        levels, reads = self._levels([{**at, self.column: first} for at in rows])
        zeros = tuple(Const(0, i64) for _ in self.match.depth)
        fixed = tuple(rows[0][x] for x in self.fixed)
        start = flatten_index((*fixed, panel, *zeros, Const(0, i64)), self.weights.shape)
        weights = Load("weights", (start,), self.weights.dtype)
        products = math.prod(level.count for level in levels)
        tile = _Tile(
            totals, [n for _, n in pieces], inside, inside and products <= self.options.whole
        )
        self._sum(tile, levels, reads, weights, {})
        for at, row in zip(rows, totals):
            for total, (j, lanes) in zip(row, pieces):
                if not self.vector_finish:
                    total = self._spilled(total)
                column = simplify(first + j)
                self._finish(at, column, lanes, lambda v, total=total: total[v], None)

    def _started(self, at: dict, inside: bool, first: Expr, j: int) -> Buffer:
        dtype = self.match.hole.dtype
        total = self.k.alloc(dtype, (LANES,), "reg")
        start = self._start_at(inside, at, simplify(first + j))
        with self.k.loop(LANES, "vector", width=LANES) as v:
            self.k.store(total, v, Const(0, dtype) if start is None else moved(start, v))
        return total

    def _spilled(self, total: Buffer) -> Buffer:
        """The lanes of a register in memory, for a finish that is no vector's."""
        kept = self.k.alloc(total.dtype, (LANES,), "stack")
        with self.k.loop(LANES, "vector", width=LANES) as v:
            self.k.store(kept, v, total[v])
        return kept

    # ------------------------------------------------------------ sums

    def _sum(self, tile: _Tile, levels: list[Level], reads, weights: Load, named: dict) -> None:
        """All products from a level on; `named` are elements that are in registers already."""
        if not levels:
            self._products(tile, reads, weights, named)
            return
        level, *rest = levels
        width = self.vectors * LANES

        def step(at: Expr) -> None:
            at = simplify(at + level.low)
            there = [moved(r, at * level.step) for r in reads]
            inner = moved(weights, at * (level.weight * width))
            self._sum(tile, rest, there, inner, named if tile.unrolled and not rest else {})

        extent = loop_extent(level.extent)
        if isinstance(extent, Expr):
            with self.k.loop(extent) as x:
                step(x)
            return
        unroll = extent if tile.unrolled else 1 if rest else self.options.unroll
        whole, left = divmod(extent, unroll)
        with self._loop(whole) if whole else nullcontext(Const(0, i64)) as x:
            for n in range(unroll if whole else 0):
                step(simplify(x * unroll + n))
        for n in range(left):
            step(Const(whole * unroll + n, i64))

    def _products(self, tile: _Tile, reads, weights: Load, named: dict) -> None:
        """One product for every sum; what is loaded is used for a row or column of them."""
        for j, lanes in enumerate(tile.lanes):
            w = self._register(moved(weights, Const(j * LANES, i64)), 0, LANES)
            there = j * LANES if self.depthwise else 0
            for read, row in zip(reads, tile.totals):
                x = self._other(tile, moved(read, Const(there, i64)), lanes, named)
                with self.k.loop(LANES, "vector", width=LANES) as v:
                    self._add(row[j], v, x[v] if isinstance(x, Buffer) else x, w[v])

    def _add(self, total: Buffer, v: Index, x: Expr, w: Expr) -> None:
        if total.dtype is i32:
            self.k.store(total, v, total[v] + x * w)
        else:
            self.k.store(total, v, call("fma", x, w, total[v]))

    def _other(self, tile: _Tile, load: Load, lanes: int, named: dict) -> Buffer | Expr:
        """The elements, or the one for all lanes, that the weights are multiplied with."""
        centre = 0 if tile.inside else self.centre
        if load not in named:
            if self.depthwise:
                named[load] = self._register(load, centre, lanes)
            else:
                named[load] = self.k.let(self._value(load, centre))
        return named[load]

    def _value(self, load: Load, centre: int) -> Expr:
        dtype = self.match.hole.dtype
        value = load if load.dtype is dtype else load.cast(dtype)
        return value - Const(centre, dtype) if centre else value

    def _register(self, load: Load, centre: int, lanes: int) -> Buffer:
        """Four neighbours (or fewer) in a register."""
        dtype = self.match.hole.dtype
        register = self.k.alloc(dtype, (LANES,), "reg")
        with self.k.loop(lanes, "vector", width=LANES) as v:
            self.k.store(register, v, self._value(moved(load, v), centre))
        return register


@dataclass(frozen=True)
class _Tile:
    """Sums being taken: `totals` by row and vector, the `lanes` in use of each vector, whether all
    taps are `inside`, and whether their loops are unrolled."""

    totals: list[list[Buffer]]
    lanes: list[int]
    inside: bool
    unrolled: bool
