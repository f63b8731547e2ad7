"""Sums of products of bytes, from panels of pairs of int16: a packed matrix product in blocks.

SMLAD multiplies two int16 by two. Widening bytes to such pairs takes as many instructions as the
products, so it is done once, outside of the loops (K. Goto and R. van de Geijn, Anatomy of
High-Performance Matrix Multiplication, 2008, pack blocks of both operands likewise):

* A block of rows (windows of the image, less the zero point) is widened into `rows`, once for all
  columns. Padding is zeros there, and so is what is left of the last group of four.
* For each block, two columns of weights at a time are widened into `columns`, once for all rows of
  the block. So flash is read once for a block, not once for two rows.
* A tile of two rows by two columns then reads both in order (dot_2x2 of pairs.py).

Blocks are as many rows as a limit of stack allows; rows run over all positions of an image. The
last block, and the last columns, overlap the ones before where they do not divide, unless the
result is computed in place of an operand. Of an odd number of rows that fit a block the last one is
computed twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from graphc.backends.micro_c.pairs import LANES, PAIR, dot_2x2, spread, spread_pairs, word
from graphc.backends.micro_c.strategies.epilogues import Epilogue, epilogue
from graphc.backends.micro_c.strategies.scalar_tiles import Window
from graphc.ir.addresses import flatten_index, is_affine_in, unflatten_index, unflatten_loads
from graphc.ir.dtypes import i8, i32, i64
from graphc.ir.expr import TRUE, Call, Const, Expr, Index, Load, call, free_indices, loads, select
from graphc.ir.extents import points
from graphc.ir.kernel import Buffer, KernelBuilder
from graphc.ir.simplify import simplify
from graphc.passes.analysis.computation import Computation, flat_buffer, index_of
from graphc.passes.analysis.core import Role
from graphc.passes.analysis.factors import centred, converted, is_below_a_byte
from graphc.passes.analysis.spaces import count, merge_adjacent, shapes_of, uses_division
from graphc.passes.analysis.weighted import ProductMatch, interior, match_product
from graphc.passes.lower.lowered import Lowered, in_place_of_epilogue, kernel_of_sums
from graphc.passes.lower.scheduled import Scheduled
from graphc.passes.schedule.steps import Pack, Schedule, Tile, misfit

NAME = "panels"
LEAST_DEPTH = 8  # products of a sum, below which tiles of scalars do as well
LEAST_ROWS = 4  # of a block, below which widening weights costs as much as it saves
WORD = 4  # bytes
GROUP = 2 * PAIR  # words of a group, of two rows or columns


@dataclass(frozen=True)
class PanelOptions:
    """`stack`: the bytes that a block of rows and two columns may take; `most`: rows of a block."""

    stack: int = 2560
    most: int = 16


class Operands:
    """A match; `rows` are its indices that move `a` alone, counted together; `outer` the others,
    less the column."""

    def __init__(self, match: ProductMatch):
        self.match, row = match, match.row
        assert row is not None and match.column is not None
        self.column = match.column
        self.rows = [x for x in match.indices if match.role(x) is Role.ROW]
        self.outer = [x for x in match.indices if x not in (*self.rows, self.column)]
        self.count = count(self.rows)
        self.edges = Window(*merge_adjacent(match.depth, [match.a]))
        atoms: dict[Expr, Expr] = {x: TRUE for x in match.guards if row in free_indices(x)}
        self.middle = Window(*merge_adjacent(match.depth, [simplify(match.a, atoms)]))
        self.inside = interior(row, match)
        self.inplace = in_place_of_epilogue(
            match.computation, match.offset, match.epilogue_loads(), [match.a]
        )

    def at(self, place: Expr) -> dict[Expr, Expr]:
        """The rows' indices at a place of all of them."""
        where = unflatten_index(place, tuple(x.count for x in self.rows))
        return {x: simplify(e) for x, e in zip(self.rows, where)}

    @property
    def extents(self) -> list[int]:
        """Of the summed indices as they are packed: one, if the last has fewer than four values."""
        extents = [k.count for k in self.middle.depth]
        return extents if extents[-1] >= LANES else [count(self.middle.depth)]

    @property
    def deep(self) -> list[int]:
        """The extents, the last in groups of four."""
        *outer, last = self.extents
        return [*outer, -(-last // LANES)]

    @property
    def groups(self) -> int:
        """Groups of four elements of a row."""
        return math.prod(self.deep)

    def block(self, options: PanelOptions) -> int:
        """The rows of a block: the fewest that make no more blocks than the most that fit do, so
        that the last block overlaps the one before by as few as can be."""
        row = self.groups * PAIR * WORD
        fit = min(options.most, options.stack // row - PAIR, self.even)
        most = next((n for n in range(fit // PAIR * PAIR, 0, -PAIR) if self.takes(n)), 0)
        if not most or self.inplace:
            return most
        blocks = -(-self.count // most)
        return -(-self.count // (blocks * PAIR)) * PAIR

    def takes(self, rows: int) -> bool:
        """Whether blocks of so many rows do."""
        return rows <= self.even and not (self.inplace and self.count % rows)

    @property
    def even(self) -> int:
        """The rows, and one more where they are odd."""
        return -(-self.count // PAIR) * PAIR


@dataclass(frozen=True)
class Panels(Scheduled[Operands]):
    """Packed products in blocks.

    tile(rows, 2) tile(rows, R)       tiles of two rows, in blocks of R rows
    tile(columns, 2)
    pack(rows, blocks) pack(columns, blocks)
    """

    options: PanelOptions = PanelOptions()
    name = NAME
    takes = "a sum of products that panels take"

    def match(self, computation: Computation) -> Operands | str:
        return operands_of(computation)

    def proposals(self, operands: Operands) -> Iterable[Schedule] | str:
        rows = operands.block(self.options)
        if rows < LEAST_ROWS:
            return f"{NAME}: a block must have {LEAST_ROWS} rows, {rows} fit"
        return (self._schedule(size) for size in range(rows, 1, -PAIR) if operands.takes(size))

    def _schedule(self, rows: int) -> Schedule:
        tiles = Tile("rows", PAIR), Tile("rows", rows), Tile("columns", PAIR)
        return Schedule(NAME, (*tiles, Pack("rows", "blocks"), Pack("columns", "blocks")))

    def emitted(self, operands: Operands, schedule: Schedule) -> Lowered:
        rows = schedule.all(Tile, "rows")[-1].size
        if rows % PAIR or not operands.takes(rows):
            raise misfit(schedule, f"an even block that suits {operands.count} rows", rows)
        return _Emitter(operands, rows).lowered()


def operands_of(computation: Computation) -> Operands | str:
    """What a computation's products are of, or why panels do not take them."""
    match = match_product(computation, LEAST_DEPTH)
    if isinstance(match, str):
        return match
    if is_below_a_byte(match.b, computation):
        return f"{NAME}: weights must have whole bytes, found several in a byte"
    if match.row is None or match.column is None or match.column_alone:
        return f"{NAME}: rows and columns must share what they read"
    if not all(isinstance(x.extent, int) for x in match.indices):
        return f"{NAME}: the numbers of rows and columns must be known"
    b = match.b
    weights = converted(b)
    a = centred(match.a)
    if a is None or not isinstance(a.zero, Const) or len(loads(a.byte)) != 1:
        return f"{NAME}: it must sum bytes less one zero point"
    if not isinstance(weights, Load) or weights.dtype is not i8 or match.hole.dtype is not i32:
        return f"{NAME}: weights must be int8"
    operands = Operands(match)
    if match.column.count < PAIR or operands.inplace and match.column.count % PAIR:
        return f"{NAME}: columns must be in pairs, found {match.column.count}"
    place = Index("place", operands.count)
    stored = [match.offset, *(x.index[0] for x in match.epilogue_loads())]
    if uses_division([simplify(e, operands.at(place)) for e in stored], place):
        return f"{NAME}: the rows of the result must lie behind each other"
    return operands


class _Emitter:
    """Emits the loops over blocks of `size` rows."""

    def __init__(self, operands: Operands, size: int):
        self.operands, self.match, self.size = operands, operands.match, size
        self.k = KernelBuilder()
        self.groups = operands.groups
        self.weights, self.packed = self._pack()

    # ---------------------------------------------------------------- weights

    @property
    def panels(self) -> int:
        return -(-self.operands.column.count // PAIR)

    def _pack(self) -> tuple[Buffer, Computation]:
        """The weights as they are read: by two columns, groups of four; those behind the last are
        any."""
        match, operands = self.match, self.operands
        fixed = [x for x in operands.outer if x in free_indices(match.b)]
        deep = operands.deep
        shape = (*(x.count for x in fixed), self.panels, *deep, PAIR, LANES)
        index = index_of(shape)
        panel, *position, lane, within = index[len(fixed) :]
        last = call("min", position[-1] * LANES + within, operands.extents[-1] - 1)
        mapping: dict[Expr, Expr] = dict(zip(fixed, index))
        mapping.update(self._coordinates([*position[:-1], last], match.depth))
        mapping[operands.column] = self._column(panel, lane)
        assert isinstance(match.b, Call)
        b = unflatten_loads(simplify(match.b.args[0], mapping), shapes_of(match.computation.inputs))
        return match.computation.copied("weights", index, b)

    def _coordinates(self, position: list[Expr], depth: list[Index]) -> dict[Expr, Expr]:
        """Summed indices at a position among the extents that are packed."""
        if [k.count for k in depth] == self.operands.extents:
            return dict(zip(depth, position))
        offset = flatten_index(tuple(position), tuple(self.operands.extents))
        return dict(zip(depth, unflatten_index(offset, tuple(k.count for k in depth))))

    def _column(self, panel: Expr, lane: Expr | int) -> Expr:
        """A column of a panel; the last panel may begin in the one before it."""
        last = self.operands.column.count - PAIR
        return simplify(call("min", panel * PAIR, Const(last, i64)) + lane)

    # ---------------------------------------------------------------- loops

    def lowered(self) -> Lowered:
        match, operands, k = self.match, self.operands, self.k
        words = self.groups * PAIR
        rows = k.alloc(i32, (words * self.size,), "stack", "rows")
        columns = k.alloc(i32, (words * PAIR,), "stack", "columns")
        blocks = -(-operands.count // self.size)
        with k.loops(*(x.count for x in operands.outer), blocks) as at:
            *others, block = at
            here = dict(zip(operands.outer, others))
            last = max(operands.count - self.size, 0)
            first = simplify(call("min", block * self.size, Const(last, i64)))
            with k.loops(self.size // PAIR, PAIR) as (pair, t):
                start = simplify(pair * (self.groups * GROUP) + t * PAIR)
                self._widen(rows, start, self._place(first + pair * PAIR + t), here)
            with k.loop(self.panels) as panel:
                self._widen_columns(columns, here, panel)
                ends = [self._epilogue(here, panel, lane) for lane in range(PAIR)]
                with k.loop(self.size // PAIR) as pair:
                    place = simplify(first + pair * PAIR)
                    self._tile(rows, columns, pair, place, panel, here, ends)
        read = (*match.epilogue_loads(), match.a)
        kernel = kernel_of_sums(NAME, k, match.computation, read, [self.weights])
        work = 2 * points((*match.indices, *match.depth))
        return Lowered(kernel, [self.packed], [self.weights], inplace=operands.inplace, flops=work)

    def _place(self, place: Expr) -> Expr:
        """A row; the last one again in place of one behind it, in a block longer than all rows."""
        last = Const(self.operands.count - 1, i64)
        return simplify(call("min", place, last) if self.size > self.operands.count else place)

    def _epilogue(self, here: dict, panel: Expr, lane: int) -> Epilogue:
        """What is made of the sums of a column."""
        at = {**here, self.operands.column: self._column(panel, lane)}
        return epilogue(self.match.expr, self.match, at, self.k)

    def _tile(
        self, rows: Buffer, columns: Buffer, pair: Expr, first: Expr, panel: Expr, here: dict,
        ends: list[Epilogue],
    ) -> None:  # fmt: skip
        """Two rows by two columns, and what is made of their sums."""
        match, k = self.match, self.k
        cells = [(t, u) for t in range(PAIR) for u in range(PAIR)]
        sums = [k.var(i32, ends[u].start)[()] for _, u in cells]
        start = simplify(pair * (self.groups * GROUP))
        k.emit(dot_2x2(sums, rows[start], columns[Const(0, i64)], self.groups))
        stores = []
        for (t, u), total in zip(cells, sums):
            at = {**here, **self.operands.at(self._place(first + t))}
            at[self.operands.column] = self._column(panel, u)
            value = simplify(ends[u].of(total), at)
            stores.append((simplify(match.offset, at), k.let(value)))
        output = flat_buffer(match.computation.outputs[0].buffer)
        for where, value in stores:
            k.store(output, (where,), value)

    # ---------------------------------------------------------------- widening

    def _widen_columns(self, columns: Buffer, here: dict, panel: Expr) -> None:
        """Two columns of weights."""
        fixed = [here[x] for x in self.operands.outer if x in free_indices(self.match.b)]
        extents = self.weights.shape[: len(fixed) + 1]
        start = flatten_index((*fixed, panel), extents) * (self.groups * PAIR * LANES)
        source = Load(self.weights.name, (simplify(start),), i8)
        self.k.emit(spread_pairs(columns[Const(0, i64)], source, self.groups))

    def _widen(self, rows: Buffer, start: Expr, place: Expr, here: dict) -> None:
        """The elements of a row from `start` on."""
        operands, row = self.operands, self.match.row
        at = {**here, **operands.at(place)}
        assert row is not None
        low, high = operands.inside
        if (low, high) == (0, row.count):
            self._window(operands.middle, rows, start, at)
        elif low >= high:
            self._window(operands.edges, rows, start, at)
        else:
            with self.k.when(simplify(call("and", at[row] >= low, at[row] < high))):
                self._window(operands.middle, rows, start, at)
            with self.k.otherwise():
                self._window(operands.edges, rows, start, at)

    def _window(self, window: Window, rows: Buffer, start: Expr, at: dict) -> None:
        """The elements of a row, by runs of neighbours if there are such."""
        *outer, last = window.depth
        if not self._has_runs(window):
            self._elements(rows, start, at)
            return
        with self.k.loops(*(x.count for x in outer)) as position:
            here = {**at, **dict(zip(outer, position))}
            element = centred(simplify(window.a, here))
            assert element is not None and isinstance(element.zero, Const)
            byte, guard = _apart(element.byte)
            first = self._group(window, list(position), start)
            with self.k.where(guard):
                self._run(rows, first, last, byte, element.zero.value)
            if guard is not TRUE:
                with self.k.otherwise(), self.k.loop(-(-last.count // LANES)) as group:
                    for n in range(PAIR):
                        self.k.store(rows, simplify(first + group * GROUP + n), 0)

    def _has_runs(self, window: Window) -> bool:
        """Whether elements along the last index are neighbours without guards, from a group on."""
        last, (load,) = window.depth[-1], loads(window.a)
        element = centred(window.a)
        assert element is not None
        byte, guard = _apart(element.byte)
        packed = self.operands.extents[-1]
        aligned = last.count == packed or last.count % LANES == 0 == packed % last.count
        fits = isinstance(byte, Load) and aligned and last.count >= LANES
        return (
            fits and last not in free_indices(guard) and is_affine_in(load.index[0], last) == 1
        )  # fmt: skip

    def _group(self, window: Window, position: list[Expr], start: Expr) -> Expr:
        """Where in `rows` a run begins."""
        *outer, last = window.depth
        offset = flatten_index((*position, Const(0, i64)), tuple(k.count for k in window.depth))
        extents = self.operands.extents
        *before, inner = unflatten_index(offset, tuple(extents))
        group = flatten_index((*before, inner // LANES), tuple(self.operands.deep))
        return simplify(start + group * GROUP)

    def _run(self, rows: Buffer, first: Expr, last: Index, byte: Expr, zero: int) -> None:
        """Neighbours, four at a time, and the rest of them."""
        whole, rest = divmod(last.count, LANES)
        load = simplify(byte, {last: Const(0, i64)})
        assert isinstance(load, Load)
        self.k.emit(spread(rows[first], load, zero, whole))
        if rest:
            at = [Const(whole * LANES + n, i64) for n in range(rest)]
            values = [simplify(byte, {last: x}).cast(i32) - zero for x in at]
            self._store_group(rows, simplify(first + whole * GROUP), values)

    def _store_group(self, rows: Buffer, place: Expr, values: list[Expr]) -> None:
        """A group of up to four elements, the rest 0."""
        values = values + [Const(0, i32)] * (LANES - len(values))
        self.k.store(rows, place, word(values[0], values[2]))
        self.k.store(rows, simplify(place + 1), word(values[1], values[3]))

    def _elements(self, rows: Buffer, start: Expr, at: dict) -> None:
        """All elements of a row, one by one."""
        edges, operands = self.operands.edges, self.operands
        last = operands.extents[-1]
        with self.k.loops(*operands.deep) as (*outer, group):
            values = []
            for n in range(LANES):
                place = simplify(group * LANES + n)
                where = self._coordinates([*outer, place], edges.depth)
                value = simplify(edges.a, {**at, **where})
                values.append(simplify(select(place < last, value, 0)))
            first = flatten_index((*outer, group), tuple(operands.deep))
            self._store_group(rows, simplify(start + first * GROUP), values)


def _apart(byte: Expr) -> tuple[Expr, Expr]:
    """What is read, and the guard before it."""
    return (byte.args[1], byte.args[0]) if isinstance(byte, Call) else (byte, TRUE)
