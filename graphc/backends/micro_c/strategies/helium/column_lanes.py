"""Sums of products in vector registers whose lanes are four columns.

A tile is a few rows by a few vectors of sums. An element of the other factor is broadcast to all
lanes. In depthwise convolutions it has lanes as well: then neighbouring rows share what they load.
At the edges, sums of few products are kept in memory, tap by tap for all columns.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

from graphc.backends.micro_c.strategies.helium.initial_sums import last_column
from graphc.backends.micro_c.strategies.helium.sum_loops import Level
from graphc.backends.micro_c.strategies.helium.sums import Emitter, HeliumOptions
from graphc.backends.micro_c.vectors import LANES
from graphc.ir.addresses import element_after, flatten_index
from graphc.ir.dtypes import i32, i64
from graphc.ir.expr import Const, Expr, Index, Load, call, free_indices, substitute
from graphc.ir.kernel import Buffer
from graphc.ir.simplify import simplify
from graphc.passes.analysis.computation import index_of
from graphc.passes.analysis.factors import converted
from graphc.passes.analysis.weighted import ProductMatch


class Lanes(Emitter):
    """Four columns at a time."""

    def __init__(self, match: ProductMatch, options: HeliumOptions):
        self.depthwise = match.column_alone
        self.vectors = options.lane_vectors
        super().__init__(match, options)

    def _tile_rows(self) -> int:
        return self.options.lane_rows

    def _pack(self) -> Buffer:
        """Panels of as many columns as are summed at a time, the summed indices in order."""
        match, width = self.match, self.vectors * LANES
        panels = -(-self.columns // width)
        deep = tuple(k.count for k in match.depth)
        shape = (*(x.count for x in self.fixed), panels, *deep, width)
        index = index_of(shape)
        first = len(self.fixed)
        mapping: dict[Expr, Expr] = dict(zip(self.fixed, index))
        mapping.update(zip(match.depth, index[first + 1 :]))
        mapping[self.column] = last_column(self.column, self._first(index[first]) + index[-1])
        b = match.b
        stored = converted(b)
        return self._constant("weights", index, substitute(stored, mapping))

    def _columns(self, rows: list[dict], inside: bool) -> None:
        if not inside and self._is_shallow():
            self._edge(rows[0])
            return
        width = self.vectors * LANES
        if self.overlapping:
            with self._loop(-(-self.columns // width)) as number:
                self._panel(rows, inside, number, width)
            return
        for panel, width in self._panels(0, self.columns):
            with panel as number:
                self._panel(rows, inside, number, width)

    @property
    def overlapping(self) -> bool:
        """Whether the last panel begins early, so that it is as wide as all: the columns that it
        shares with another are computed twice."""
        whole = self.columns >= self.vectors * LANES
        return whole and self.lines is not None and self.reads_constants

    def _first(self, panel: Expr) -> Expr:
        """The first column of a panel."""
        width = self.vectors * LANES
        first = panel * width
        if self.overlapping and self.columns % width:
            first = call("min", first, Const(self.columns - width, i64))
        return simplify(first)

    def _is_shallow(self) -> bool:
        """Whether there are few products for a tap, which may be inside or not."""
        atoms = self.match.guards
        free = [k for k in self.match.depth if not any(k in free_indices(a) for a in atoms)]
        return math.prod(k.count for k in free) < self.options.deep

    def _panels(
        self, first: int, columns: int
    ) -> Iterator[tuple[AbstractContextManager[Expr], int]]:
        """Panels of a range of columns as loops over their number, and their widths."""
        width = self.vectors * LANES
        whole, rest = divmod(columns, width)
        if whole:
            yield self._numbers(first // width, whole), width
        if rest:
            yield self._numbers(first // width + whole, 1), rest

    @contextmanager
    def _numbers(self, first: int, count: int) -> Iterator[Expr]:
        with self._loop(count) as x:
            yield simplify(x + first)

    def _panel(self, rows: list[dict], inside: bool, panel: Expr, width: int) -> None:
        """The sums of a tile of rows and a panel of columns, and what is made of them."""
        first, pieces = self._first(panel), _pieces(width)
        totals = [[self._started(at, inside, first, j) for j, _ in pieces] for at in rows]
        levels, reads = self._levels([{**at, self.column: first} for at in rows], inside)
        unrolled = inside and math.prod(level.count for level in levels) <= self.options.whole
        centre = 0 if inside or self.starts.classes else self.centre
        tile = _Tile(totals, [n for _, n in pieces], centre, unrolled)
        self._sum(tile, levels, reads, self._weights_of(rows[0], panel), {})
        for at, row in zip(rows, totals):
            for total, (j, lanes) in zip(row, pieces):
                column = simplify(first + j)
                self._finish(at, column, lanes, total.__getitem__, None)

    def _weights_of(self, at: dict, panel: Expr) -> Load:
        """The first weight of a panel."""
        zeros = tuple(Const(0, i64) for _ in self.match.depth)
        fixed = tuple(at[x] for x in self.fixed)
        start = flatten_index((*fixed, panel, *zeros, Const(0, i64)), self.weights.shape)
        return Load("weights", (start,), self.weights.dtype)

    def _started(self, at: dict, inside: bool, first: Expr, j: int) -> Buffer:
        dtype = self.match.hole.dtype
        total = self.k.alloc(dtype, (LANES,), "reg")
        start = self.starts.at(inside, at, simplify(first + j))
        with self.k.loop(LANES, "vector", width=LANES) as v:
            self.k.store(total, v, Const(0, dtype) if start is None else element_after(start, v))
        return total

    # ------------------------------------------------------------ edges

    def _edge(self, at: dict) -> None:
        """A row at the edge, block by block of columns: their sums are kept on the stack, so that
        whether a tap is inside is asked once for all of them."""
        width = self.vectors * LANES
        block = max(self.options.block // width, 1) * width
        for first in range(0, self.columns, block):
            self._edge_block(at, first, min(block, self.columns - first))

    def _edge_block(self, at: dict, first: int, columns: int) -> None:
        dtype = self.match.hole.dtype
        sums = self.k.alloc(dtype, (-(-columns // LANES) * LANES,), "stack")
        for position, _ in self._vectors_of(columns):
            with position as j:
                start = self.starts.at(False, at, simplify(j + first))
                with self.k.loop(LANES, "vector", width=LANES) as v:
                    zero = Const(0, dtype)
                    self.k.store(
                        sums, simplify(j + v), zero if start is None else element_after(start, v)
                    )
        levels, reads = self._levels([{**at, self.column: Const(first, i64)}], False)
        self._taps(levels, reads[0], self._weights_of(at, Const(0, i64)), sums, first, columns)
        for position, lanes in self._vectors_of(columns):
            with position as j:
                column = simplify(j + first)

                def total(v: Expr, j: Expr = j) -> Expr:
                    return sums[simplify(j + v)]

                self._finish(at, column, lanes, total, None)

    def _vectors_of(self, columns: int) -> Iterator[tuple[AbstractContextManager[Expr], int]]:
        """The vectors of some columns as loops over the first of each, and their lanes."""
        whole, rest = divmod(columns, LANES)
        if whole:
            yield self._multiples(whole), LANES
        if rest:
            yield nullcontext(Const(whole * LANES, i64)), rest

    @contextmanager
    def _multiples(self, count: int) -> Iterator[Expr]:
        with self._loop(count) as x:
            yield simplify(x * LANES)

    def _taps(
        self, levels: list[Level], read: Load, weights: Load, sums: Buffer, first: int, columns: int
    ) -> None:
        """Adds the products of all taps that are inside to the sums of a block of columns."""
        if not any(level.guards for level in levels):
            self._tap(levels, read, weights, sums, first, columns)
            return
        level, *rest = levels
        with self._positions(level) as x:
            inner = element_after(weights, x * (level.weight * self.vectors * LANES))
            self._taps(rest, element_after(read, x * level.step), inner, sums, first, columns)

    def _tap(
        self, levels: list[Level], read: Load, weights: Load, sums: Buffer, first: int, columns: int
    ) -> None:
        stride = math.prod(self.weights.shape[len(self.fixed) + 1 :])
        width = self.vectors * LANES
        for panel, count in self._panels(first, columns):
            with panel as number:
                pieces = _pieces(count)
                base = simplify(number * width - first)
                totals = [self._loaded(sums, simplify(base + j)) for j, _ in pieces]
                there = element_after(read, base) if self.depthwise else read
                centre = 0 if self.starts.classes else self.centre
                tile = _Tile([totals], [n for _, n in pieces], centre, False)
                self._sum(tile, levels, [there], element_after(weights, number * stride), {})
                for total, (j, _) in zip(totals, pieces):
                    with self.k.loop(LANES, "vector", width=LANES) as v:
                        self.k.store(sums, simplify(base + j + v), total[v])

    def _loaded(self, sums: Buffer, position: Expr) -> Buffer:
        total = self.k.alloc(sums.dtype, (LANES,), "reg")
        with self.k.loop(LANES, "vector", width=LANES) as v:
            self.k.store(total, v, sums[simplify(position + v)])
        return total

    # ------------------------------------------------------------ sums

    def _sum(
        self, tile: _Tile, levels: list[Level], reads: list[Load], weights: Load, named: dict
    ) -> None:
        """All products from a level on; `named` are elements that are in registers already."""
        if not levels:
            self._products(tile, reads, weights, named)
            return
        level, *rest = levels
        width = self.vectors * LANES

        def step(at: Expr) -> None:
            there = [element_after(r, at * level.step) for r in reads]
            inner = element_after(weights, at * (level.weight * width))
            self._sum(tile, rest, there, inner, named if tile.unrolled and not rest else {})

        if level.guards:
            with self._positions(level) as x:
                step(x)
            return
        unroll = level.count if tile.unrolled else 1 if rest else self.options.unroll
        whole, left = divmod(level.count, unroll)
        with self._loop(whole) if whole else nullcontext(Const(0, i64)) as x:
            for n in range(unroll if whole else 0):
                step(simplify(x * unroll + n))
        for n in range(left):
            step(Const(whole * unroll + n, i64))

    def _products(self, tile: _Tile, reads: list[Load], weights: Load, named: dict) -> None:
        """One product for every sum; what is loaded is used for a row or column of them."""
        for j, lanes in enumerate(tile.lanes):
            w = self._register(element_after(weights, Const(j * LANES, i64)), 0, LANES)
            there = j * LANES if self.depthwise else 0
            for read, row in zip(reads, tile.totals):
                x = self._other(tile, element_after(read, Const(there, i64)), lanes, named)
                with self.k.loop(LANES, "vector", width=LANES) as v:
                    self._add(row[j], v, x[v] if isinstance(x, Buffer) else x, w[v])

    def _add(self, total: Buffer, v: Index, x: Expr, w: Expr) -> None:
        if total.dtype is i32:
            self.k.store(total, v, total[v] + x * w)
        else:
            self.k.store(total, v, call("fma", x, w, total[v]))

    def _other(self, tile: _Tile, load: Load, lanes: int, named: dict) -> Buffer | Expr:
        """The elements, or the one for all lanes, that the weights are multiplied with."""
        if load not in named:
            if self.depthwise:
                named[load] = self._register(load, tile.centre, lanes)
            else:
                named[load] = self.k.let(self._value(load, tile.centre))
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
            self.k.store(register, v, self._value(element_after(load, v), centre))
        return register


@dataclass(frozen=True)
class _Tile:
    """Sums being taken: `totals` by row and vector, the `lanes` in use of each vector, the `centre`
    that is taken off what is multiplied, and whether the loops are unrolled."""

    totals: list[list[Buffer]]
    lanes: list[int]
    centre: int
    unrolled: bool


def _pieces(width: int) -> list[tuple[int, int]]:
    """The vectors of a panel: where each starts, and its lanes."""
    return [(j, min(LANES, width - j)) for j in range(0, width, LANES)]


def panel_vectors(match: ProductMatch, options: HeliumOptions) -> int:
    """How many vectors of columns are summed at a time."""
    assert match.column is not None
    most = 1 if match.column_alone else options.lane_vectors
    if match.row is None:
        most = options.lane_alone
    return _even_parts(-(-match.column.count // LANES), most)


def _even_parts(vectors: int, most: int) -> int:
    """How many vectors make a panel: of the larger numbers up to `most` that which pads least."""
    sizes = range(min(most, vectors), most // 2, -1)
    return min(sizes, key=lambda n: -vectors % n, default=min(most, vectors))
