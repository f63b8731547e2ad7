"""Products of one row of bytes with a matrix: four columns at a time, the row widened before.

Each weight is used once, so it is widened where it is used; flash is read one byte for a weight.
The row, less its zero point, is widened into pairs of int16 once (`row`, on the stack). Weights of
four columns lie group by group, so that one instruction loads those of all four (dot_1x4 of
pairs.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from graphc.backends.micro_c.pairs import LANES, PAIR, dot_1x4, spread_row, word
from graphc.backends.micro_c.strategies.epilogues import epilogue
from graphc.ir.addresses import is_affine_in, unflatten_loads
from graphc.ir.dtypes import i8, i32, i64
from graphc.ir.expr import Call, Const, Expr, Index, Load, call, loads
from graphc.ir.extents import points
from graphc.ir.kernel import Buffer, KernelBuilder
from graphc.ir.simplify import simplify
from graphc.passes.analysis.computation import Computation, flat_buffer, index_of
from graphc.passes.analysis.factors import centred_byte, converted, is_below_a_byte
from graphc.passes.analysis.spaces import merge_adjacent, shapes_of
from graphc.passes.analysis.weighted import ProductMatch, match_product
from graphc.passes.lower.lowered import Lowered, in_place_of_epilogue, kernel_of_sums
from graphc.passes.lower.scheduled import Scheduled
from graphc.passes.schedule.steps import Pack, Schedule, Tile, misfit

NAME = "dense"
LEAST_DEPTH = 16  # products of a sum, below which tiles of scalars do as well
COLUMNS = 4  # of a tile
WORD = 4  # bytes


@dataclass(frozen=True)
class _Row:
    """A match; its sum is over `depth`, of `load` less `zero`."""

    match: ProductMatch
    depth: Index
    load: Load
    zero: int
    column: Index
    inplace: list[tuple[str, str]]

    @property
    def groups(self) -> int:
        return -(-self.depth.count // LANES)


@dataclass(frozen=True)
class Dense(Scheduled[_Row]):
    """Products of one row: tile(columns, 4) pack(rows, blocks) pack(columns, panels)."""

    stack: int = 2560
    name = NAME
    takes = "a row of bytes times a matrix"

    def match(self, computation: Computation) -> _Row | str:
        return _row_of(computation)

    def proposals(self, row: _Row) -> Iterable[Schedule] | str:
        if row.groups * PAIR * WORD > self.stack:
            return f"{NAME}: the row must fit {self.stack} bytes of stack"
        steps = Tile("columns", COLUMNS), Pack("rows", "blocks"), Pack("columns", "panels")
        return [Schedule(NAME, steps)]

    def emitted(self, row: _Row, schedule: Schedule) -> Lowered:
        if schedule.the(Tile, "columns").size != COLUMNS:
            raise misfit(schedule, f"tiles of {COLUMNS} columns", schedule.the(Tile, "columns"))
        return _Emitter(row).lowered()


def _row_of(computation: Computation) -> _Row | str:
    """The row and the matrix that a computation multiplies, or why it does not."""
    match = match_product(computation, LEAST_DEPTH)
    if isinstance(match, str):
        return match
    b, column = match.b, match.column
    if match.row is not None or column is None or match.column_alone:
        return f"{NAME}: it must multiply one row"
    if len(match.indices) != 1 or not isinstance(column.extent, int) or column.count < COLUMNS:
        return f"{NAME}: it must have {COLUMNS} columns or more"
    weights = converted(b)
    if not isinstance(weights, Load) or weights.dtype is not i8 or match.hole.dtype is not i32:
        return f"{NAME}: weights must be int8"
    depth, (a,) = merge_adjacent(match.depth, [match.a])
    byte = centred_byte(a)
    if is_below_a_byte(b, computation) or byte is None or len(depth) != 1:
        return f"{NAME}: it must sum bytes less one zero point, and whole bytes"
    if is_affine_in(byte[0].index[0], depth[0]) != 1 or len(loads(a)) != 1:
        return f"{NAME}: bytes must lie behind each other"
    inplace = in_place_of_epilogue(computation, match.offset, match.epilogue_loads(), [match.a])
    if inplace and column.count % COLUMNS:
        return f"{NAME}: columns must be in fours, found {column.count}"
    return _Row(match, depth[0], *byte, column, inplace)


class _Emitter:
    """Emits the loop over columns."""

    def __init__(self, row: _Row):
        self.row, self.match, self.k = row, row.match, KernelBuilder()
        self.weights, self.packed = self._pack()

    def _pack(self) -> tuple[Buffer, Computation]:
        """The weights: by four columns, groups of four of each; those behind the last are any."""
        row, match = self.row, self.match
        shape = (-(-row.column.count // COLUMNS), row.groups, COLUMNS, LANES)
        index = index_of(shape)
        panel, group, lane, within = index
        place = call("min", group * LANES + within, Const(row.depth.count - 1, i64))
        own = _unmerged(place, match.depth)
        at: dict[Expr, Expr] = {**own, row.column: self._column(panel, lane)}
        assert isinstance(match.b, Call)
        b = unflatten_loads(simplify(match.b.args[0], at), shapes_of(match.computation.inputs))
        return match.computation.copied("weights", index, b)

    def _column(self, panel: Expr, lane: Expr | int) -> Expr:
        """A column; the last four may begin among those before."""
        last = Const(self.row.column.count - COLUMNS, i64)
        return simplify(call("min", panel * COLUMNS, last) + lane)

    def lowered(self) -> Lowered:
        row, match, k = self.row, self.match, self.k
        widened = k.alloc(i32, (row.groups * PAIR,), "stack", "row")
        self._widen(widened)
        output = flat_buffer(match.computation.outputs[0].buffer)
        with k.loop(self.weights.shape[0]) as panel:
            places = [{row.column: self._column(panel, lane)} for lane in range(COLUMNS)]
            ends = [epilogue(match.expr, match, at, k) for at in places]
            sums = [k.var(i32, end.start)[()] for end in ends]
            start = simplify(panel * (row.groups * COLUMNS * LANES))
            weights = Load(self.weights.name, (start,), i8)
            k.emit(dot_1x4(sums, widened[Const(0, i64)], weights, row.groups))
            for at, end, total in zip(places, ends, sums):
                value = simplify(end.of(total), at)
                k.store(output, (simplify(match.offset, at),), value)
        read = (*match.epilogue_loads(), match.a)
        kernel = kernel_of_sums(NAME, k, match.computation, read, [self.weights])
        work = 2 * points((*match.indices, *match.depth))
        return Lowered(kernel, [self.packed], [self.weights], inplace=row.inplace, flops=work)

    def _widen(self, widened: Buffer) -> None:
        """The row as pairs, and zeros behind it."""
        row, k = self.row, self.k
        whole, rest = divmod(row.depth.count, LANES)
        first = simplify(row.load, {row.depth: Const(0, i64)})
        assert isinstance(first, Load)
        k.emit(spread_row(widened[Const(0, i64)], first, row.zero, whole))
        if rest:
            at = [Const(whole * LANES + n, i64) for n in range(rest)]
            x = [simplify(row.load, {row.depth: n}).cast(i32) - row.zero for n in at]
            x += [Const(0, i32)] * (LANES - rest)
            k.store(widened, Const(whole * PAIR, i64), word(x[0], x[2]))
            k.store(widened, Const(whole * PAIR + 1, i64), word(x[1], x[3]))


def _unmerged(place: Expr, depth: list[Index]) -> dict[Expr, Expr]:
    """Summed indices at a place of all of them."""
    where: dict[Expr, Expr] = {}
    for k in reversed(depth):
        where[k] = simplify(place % k.count) if k is not depth[0] else simplify(place)
        place = simplify(place // k.count)
    return where
