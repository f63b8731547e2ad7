"""Register tiling without vectors: sums of products in tiles of scalar variables.

A tile of output elements, `rows` of them along the row index and `columns` along the innermost one
(see passes/analysis/weighted.py), is summed in scalar variables, so that each element loaded serves
several products.

* Packing: `b` is stored in the order it is read in: [outer..., column tile, summed indices...,
  column].
* Padding is never stored. A guard that depends on the row index holds for all taps in the middle
  of its range; the remainder at either end is computed one element at a time, by the same code
  for both. All other guards become bounds of the loops over the summed indices
  (passes/analysis/guards.py).
* There is one size of tiles. The last tile overlaps its neighbour where the range is no multiple of
  it, unless the result is computed in place of an operand. What is left of a row whose extent is
  known at run time is computed one element at a time.
* Where eight-bit integers lie in a row along the innermost summed index, four products are one
  instruction (intrinsics.py); the weights of a column are then stored four by four. In the middle
  of the row, where no guard is in between, that index may be several: the taps along a row of the
  image and the channels of each.
* Where floats lie in a row along it, and the core has registers for them, products along it are a
  function (float_runs.py), and the sums of a tile an array.
* Where loads of signed bytes take an instruction more than of unsigned ones, bytes of weights are
  stored plus 128, if several columns share what they are multiplied by: its sum, times 128, is
  subtracted in the end.
* The innermost summed index is unrolled, wholly if it is short.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from graphc.backends.micro_c import float_runs
from graphc.ir.addresses import flatten_index, is_affine_in, unflatten_index, unflatten_loads
from graphc.ir.dtypes import DType, f32, i8, i16, i32, i64, u8
from graphc.ir.expr import TRUE, Call, Const, Expr, Index, Load, call, free_indices, loads
from graphc.ir.extents import divided, points
from graphc.ir.instructions import LANES, dot4, dot4_mixed
from graphc.ir.kernel import Buffer, Intrin, KernelBuilder, Store
from graphc.ir.simplify import simplify
from graphc.passes.analysis.computation import Computation, index_of
from graphc.passes.analysis.factors import centred_byte, converted, is_below_a_byte
from graphc.passes.analysis.guards import trim
from graphc.passes.analysis.spaces import merge_adjacent, shapes_of
from graphc.passes.analysis.weighted import ProductMatch, interior, match_product
from graphc.passes.lower.lowered import Lowered, in_place_of_epilogue, kernel_of_sums, store_outputs
from graphc.passes.lower.scheduled import Scheduled
from graphc.passes.schedule.steps import Dot, Schedule, Tensorize, Tile, Unroll, misfit

QUADS: dict[str, Callable[..., Intrin]] = {"dot4": dot4, "dot4_mixed": dot4_mixed}
SHIFT = 128  # of signed bytes that are stored as unsigned ones
LEAST_RUN = 8  # floats in a row, below which a function is slower than what it replaces
LOOP = 3  # instructions of a loop around a tile, per product of each sum


@dataclass(frozen=True)
class TileOptions:
    """Sizes of tiles: `rows` x `columns`, `alone` columns where there are no rows to share them
    (as many rows where columns share nothing), for sums of floats and of integers."""

    rows: int = 4
    columns: int = 4
    alone: int = 8
    integer_rows: int = 2
    integer_columns: int = 2
    integer_alone: int = 4
    quads: bool = True  # whether four products of bytes are one instruction
    runs: bool = False  # whether products of floats in a row are a function (float_runs.py)
    run_rows: int = 2
    run_columns: int = 8
    quad_rows: int = 2
    quad_columns: int = 2
    quad_alone: int = 4
    quad_unroll: int = 4  # groups of four in one step of a long innermost loop
    unroll: int = 4  # steps of a long innermost loop
    whole: int = 8  # the longest innermost loop that is unrolled wholly
    min_depth: int = 3  # products summed, below which a plain nest does as well
    epilogue_loop: bool = False  # whether columns of a tile of one row are finished by a loop
    unsigned: bool = False  # whether bytes of weights are stored plus 128


@dataclass(frozen=True)
class ScalarTiles(Scheduled["_Operands"]):
    """Sums of products in tiles of scalars.

    tile(rows, R) tile(columns, C)   so many sums at a time
    tensorize(dot4, T)               products of bytes, T instructions in a row; dot4_mixed: of
                                     int16 and bytes
    unroll(depth, T, W)              T steps of a long sum in a row; all of a sum of at most W
    """

    options: TileOptions
    name = "tiles"
    takes = "a sum of products that tiles take"

    def match(self, computation: Computation) -> _Operands | str:
        match = match_product(computation, self.options.min_depth)
        if isinstance(match, str):
            return match
        if is_below_a_byte(match.b, computation):
            return "tiles: weights must have whole bytes, found several in a byte"
        return _Operands(match, self.options)

    def proposals(self, operands: _Operands) -> Iterator[Schedule]:
        """The tile of the fewest instructions that has as many sums as there are registers for,
        then tiles of other shapes."""
        rows, columns = operands.sizes()
        yield self._schedule(operands, rows, columns)
        sums = rows * columns
        shapes = [
            (r, c)
            for r in range(1, min(sums, operands.most_rows) + 1)
            for c in range(1, min(sums // r, operands.most_columns) + 1)
        ]
        others = [shape for shape in shapes if shape != (rows, columns)]
        for other in sorted(others, key=lambda s: (sum(s) + LOOP) / (s[0] * s[1])):
            yield self._schedule(operands, *other)

    def _schedule(self, operands: _Operands, rows: int, columns: int) -> Schedule:
        o, steps = self.options, [Tile("rows", rows), Tile("columns", columns)]
        quads = [Tensorize(operands.instruction, o.quad_unroll)] if operands.quads else []
        return Schedule(self.name, (*steps, *quads, Unroll("depth", o.unroll, o.whole)))

    def emitted(self, operands: _Operands, schedule: Schedule) -> Lowered:
        for index, most in (("rows", operands.most_rows), ("columns", operands.most_columns)):
            size = schedule.the(Tile, index).size
            if size > most:
                raise misfit(schedule, f"a tile of at most {most} {index}", size)
        if schedule.get(Tensorize) is not None and not operands.quads:
            wanted = "no step tensorize(...): products are not of bytes that lie in a row"
            raise misfit(schedule, wanted, schedule.get(Tensorize))
        return _Emitter(operands, schedule).lowered()


def _is_run(a: Expr, last: Index, guards: list[Expr]) -> bool:
    """Whether a factor is floats that are neighbours along an index, where guards hold."""
    load = simplify(a, {atom: TRUE for atom in guards})
    return isinstance(load, Load) and load.dtype is f32 and is_affine_in(load.index[0], last) == 1


def _widened(b: Expr) -> DType | None:
    """The type that stored weights are converted to when they are read; None if they have it."""
    cast = isinstance(b, Call) and b.op.name == "cast" and b.args[0].dtype.size < b.dtype.size
    return b.dtype if cast else None


def _read(factor: Expr) -> tuple[Any, ...] | None:
    """What instructions take of a factor: (load, centre) of a byte less a constant, (load,) of an
    int16."""
    load = converted(factor)
    return (load,) if isinstance(load, Load) and load.dtype is i16 else centred_byte(factor)


def _all_quads(factors: list[Expr]) -> bool:
    return all(_read(factor) is not None for factor in factors)


def _reshaped(position: tuple[Expr, ...], of: list[Index], to: list[Index]) -> tuple[Expr, ...]:
    """A place among some indices as one among others, which run over the same."""
    if of == to:
        return position
    offset = flatten_index(position, tuple(k.extent for k in of))
    return unflatten_index(offset, tuple(k.extent for k in to))


def best_size(count: int, most: int, partners: int, once: bool) -> int:
    """The length of tiles along an index of `count` elements that costs the fewest instructions.

    A tile of r x c sums takes r * c products, r + c loads and some more for its loop; `partners` is
    the other side. What is left over is computed by a tile that overlaps its neighbour, or, if
    every element may be computed `once` only, one element at a time.
    """
    single = 2 * partners + 1 + LOOP

    def cost(size: int) -> int:
        whole, rest = divmod(count, size)
        tile = size * partners + size + partners + LOOP
        return whole * tile + (rest * single if once else tile if rest else 0)

    return min(range(min(most, count), 0, -1), key=cost, default=1)


# ---------------------------------------------------------------- emission


class Window:
    """What is summed: an element `a`, and the summed indices, of which those that move through it
    as one are one loop."""

    def __init__(self, depth: list[Index], exprs: list[Expr]):
        self.depth, (self.a,) = depth, exprs


class _Operands:
    """A match, and what of its factors may be read together."""

    def __init__(self, match: ProductMatch, options: TileOptions):
        self.match, self.options = match, options
        self.edges = Window(*merge_adjacent(match.depth, [match.a]))
        self.middle = self._middle()
        self.quads = self._has_quads()
        self.runs = self._has_runs()
        self.inplace = in_place_of_epilogue(
            match.computation, match.offset, match.epilogue_loads(), [match.a]
        )

    @property
    def inside(self) -> int:
        """The rows that no guard depends on."""
        low, high = interior(self.match.row, self.match) if self.match.row is not None else (0, 0)
        return high - low

    @property
    def most_rows(self) -> int:
        """Of a tile."""
        return max(1, self.inside)

    @property
    def most_columns(self) -> int:
        """Of a tile."""
        column = self.match.column
        return 1 if column is None else max(1, column.count)

    def sizes(self) -> tuple[int, int]:
        """The rows and columns of the tile that takes the fewest instructions."""
        o, match = self.options, self.match
        integer = match.hole.dtype is i32
        rows, columns = (o.integer_rows, o.integer_columns) if integer else (o.rows, o.columns)
        alone = o.integer_alone if integer else o.alone
        if self.quads:
            rows, columns, alone = o.quad_rows, o.quad_columns, o.quad_alone
        if self.runs:
            rows, columns = o.run_rows, o.run_columns
        if match.row is None:
            rows, columns = 1, alone
        elif match.column is None or match.column_alone:
            rows, columns = alone, 1
        once = bool(self.inplace)
        if match.column is not None:
            columns = best_size(match.column.count, columns, rows, once)
        return best_size(self.inside, rows, columns, once), columns

    def _middle(self) -> Window:
        """The sum where no guard depends on the row: more of its indices move as one."""
        row = self.match.row
        atoms = [x for x in self.match.guards if row is not None and row in free_indices(x)]
        held: dict[Expr, Expr] = {atom: TRUE for atom in atoms}
        return Window(*merge_adjacent(self.match.depth, [simplify(self.match.a, held)]))

    def _has_quads(self) -> bool:
        """Whether both factors are bytes, or those of `a` int16, and those of `a` are neighbours
        along the last sum."""
        b, last = self.match.b, self.middle.depth[-1]
        if self.match.hole.dtype is not i32 or _widened(b) is None or last.count < LANES:
            return False
        stored = [x.dtype for x in loads(b)]
        reads = [x for x in loads(self.middle.a)]
        return (
            self.options.quads and stored == [i8] and len(reads) == 1
            and reads[0].dtype in (i8, u8, i16)
            and is_affine_in(reads[0].index[0], last) == 1
        )  # fmt: skip

    def _has_runs(self) -> bool:
        """Whether products are of floats that are neighbours along the last sum, by weights that
        are stored as floats, and no guard depends on it."""
        match, last = self.match, self.edges.depth[-1]
        if not self.options.runs or match.hole.dtype is not f32 or match.column_alone:
            return False
        guarded = any(last in free_indices(atom) for atom in match.guards)
        return (
            not guarded and self.middle.depth[-1].count >= LEAST_RUN and self.apart >= 0
            and all(_is_run(w.a, w.depth[-1], match.guards) for w in (self.edges, self.middle))
            and isinstance(match.b, Load) and match.b.dtype is f32
        )  # fmt: skip

    @property
    def may_shift(self) -> bool:
        """Whether weights are signed bytes, and columns share what they are multiplied by."""
        b, match = self.match.b, self.match
        return (
            self.options.unsigned and match.hole.dtype is i32 and not match.column_alone
            and match.column is not None and isinstance(b, Call) and _widened(b) is i32
            and b.args[0].dtype is i8
        )  # fmt: skip

    @property
    def apart(self) -> int:
        """How far apart rows are in the only array that is read; -1 if that is not known."""
        read, row = loads(self.middle.a), self.match.row
        apart = is_affine_in(read[0].index[0], row) if row is not None else 0
        return -1 if apart is None or len(read) > 1 else apart

    @property
    def instruction(self) -> Dot:
        """That of four products."""
        (read,) = loads(self.middle.a)
        return "dot4_mixed" if read.dtype is i16 else "dot4"


class _Emitter:
    """Emits the loops that a schedule says."""

    def __init__(self, operands: _Operands, schedule: Schedule):
        self.match = match = operands.match
        self.k = KernelBuilder()
        dot = schedule.get(Tensorize)
        self.quads, self.edges = dot is not None, operands.edges
        self.operands, self.runs = operands, operands.runs
        self.middle = operands.middle if self.quads or self.runs else operands.edges
        instruction = None if dot is None else dot.instruction
        self.multiply = None if instruction is None else QUADS[instruction]
        self.spread = instruction == "dot4_mixed"
        self.quad_unroll = 1 if dot is None else dot.times
        self.unroll = schedule.the(Unroll, "depth")
        self.outer = [x for x in match.indices if x is not match.row and x is not match.column]
        self.inplace = operands.inplace
        self.rows, self.columns = (schedule.the(Tile, x).size for x in ("rows", "columns"))
        self.wide = _widened(match.b)
        self.shifted = not self.quads and operands.may_shift and self.columns > 1
        self.epilogue_loop = operands.options.epilogue_loop and self.rows == 1
        self.weights, self.packed = self._pack()

    # ---------------------------------------------------------------- weights

    def _pack(self) -> tuple[Buffer, Computation]:
        """The weights as they are read, and how to make them."""
        match = self.match
        used = free_indices(match.b)
        fixed = [x for x in self.outer if x in used]
        lanes = self.columns if match.column is not None else 1
        panels = -(-match.column.count // lanes) if match.column is not None else 1
        deep, tail = [k.count for k in self.middle.depth], [lanes]
        end = Const(deep[-1] - 1, i64)
        if self.quads:
            deep[-1], tail = -(-deep[-1] // LANES), [lanes, LANES]
        shape = (*(x.count for x in fixed), panels, *deep, *tail)
        index = index_of(shape)
        first = len(fixed) + 1
        panel, lane = index[first - 1], index[first + len(deep)]
        position: list[Expr] = list(index[first : first + len(deep)])
        if self.quads:
            position[-1] = call("min", position[-1] * LANES + self._within(index[-1]), end)
        mapping: dict[Expr, Expr] = dict(zip(fixed, index))
        mapping.update(self._unmerged(tuple(position)))
        if match.column is not None:
            mapping[match.column] = self._column(panel, lane)
        shapes = shapes_of(match.computation.inputs)
        stored = match.b if self.wide is None else match.b.args[0]  # type: ignore[attr-defined]
        b = unflatten_loads(simplify(stored, mapping), shapes)
        if self.shifted:
            b = (b.cast(i32) + SHIFT).cast(u8)
        return match.computation.copied("weights", index, b)

    def _within(self, place: Expr) -> Expr:
        """Which of four products is at a place; as well at which place one is."""
        return place % 2 * 2 + place // 2 if self.spread else place

    def _column(self, panel: Expr, lane: Expr | int) -> Expr:
        """A column of a panel. The last panel is full too: it begins in the one before it, or, if
        every element is computed once, ends with the last column again and again."""
        assert self.match.column is not None
        last = Const(self.match.column.count - 1, i64)
        if self.inplace:
            return simplify(call("min", panel * self.columns + lane, last))
        start = call("min", panel * self.columns, last + 1 - self.columns)
        return simplify(start + lane)

    def _unmerged(self, position: tuple[Expr, ...]) -> dict[Expr, Expr]:
        """The original summed indices in terms of positions on the merged ones."""
        original = _reshaped(position, self.middle.depth, self.match.depth)
        return dict(zip(self.match.depth, original))

    def _weight(self, at: dict, panel: Expr, lane: int) -> Expr:
        used = free_indices(self.match.b)
        fixed = tuple(at[x] for x in self.outer if x in used)
        own = self.middle.depth if self.middle.depth[-1] in at else self.edges.depth
        deep = _reshaped(tuple(at[k] for k in own), own, self.middle.depth)
        where = (*fixed, panel, *deep, Const(lane, i64))
        if self.quads:
            group, within = simplify(deep[-1] // LANES), simplify(self._within(deep[-1] % LANES))
            where = (*fixed, panel, *deep[:-1], group, Const(lane, i64), within)
        position = flatten_index(where, self.weights.shape)
        stored = Load(self.weights.name, (position,), self.weights.dtype)
        return stored if self.wide is None else stored.cast(self.wide)

    # ---------------------------------------------------------------- loops

    def lowered(self) -> Lowered:
        match = self.match
        self._outer(list(self.outer), {})
        read = (*match.epilogue_loads(), match.a)
        kernel = kernel_of_sums("tiles", self.k, match.computation, read, [self.weights])
        work = 2 * points((*match.indices, *match.depth))
        return Lowered(kernel, [self.packed], [self.weights], inplace=self.inplace, flops=work)

    def _outer(self, outer: list[Index], at: dict) -> None:
        if outer:
            with self.k.loop(outer[0].extent) as x:
                self._outer(outer[1:], {**at, outer[0]: x})
            return
        row = self.match.row
        if row is None:
            self._columns(self.middle, at, None, Const(0, i64), 1)
            return
        if not isinstance(row.extent, int):
            self._open_rows(at, row)
            return
        low, high = interior(row, self.match)
        size, extent = self.rows, row.count
        tiles, rest = divmod(high - low, size)
        tiles += bool(rest and not self.inplace)
        covered = min(tiles * size, high - low)
        if tiles:
            with self.k.loop(tiles) as x:
                first = call("min", x * size + low, Const(high - size, i64))
                self._columns(self.middle, at, row, simplify(first), size)
        if extent > covered:
            with self.k.loop(extent - covered) as x:
                beyond = call("min", call("max", x - (low - 1), Const(0, i64)), Const(1, i64))
                self._columns(self.edges, at, row, simplify(x + beyond * covered), 1)

    def _open_rows(self, at: dict, row: Index) -> None:
        """Tiles as far as they go, then row by row."""
        whole, left = divided(row.extent, self.rows)
        with self.k.loop(whole) as x:
            self._columns(self.middle, at, row, simplify(x * self.rows), self.rows)
        with self.k.loop(left) as x:
            self._columns(self.middle, at, row, simplify(whole * self.rows + x), 1)

    def _columns(self, window: Window, at: dict, row: Index | None, first: Expr, size: int) -> None:
        """All columns of a tile of rows."""
        column = self.match.column
        if column is None:
            self._tile(window, at, row, first, size, Const(0, i64), 1)
            return
        whole, rest = divmod(column.count, self.columns)
        whole += bool(rest and not self.inplace)
        with self.k.loop(whole) as panel:
            self._tile(window, at, row, first, size, panel, self.columns)
        if rest and self.inplace:
            self._tile(window, at, row, first, size, Const(whole, i64), rest)

    # ---------------------------------------------------------------- one tile

    def _tile(
        self,
        window: Window,
        at: dict,
        row: Index | None,
        first: Expr,
        size: int,
        panel: Expr,
        width: int,
    ) -> None:
        """The sums of size x width elements, and what is made of them."""
        whole = width == self.weights.shape[-1]  # functions read panels of as many columns as sums
        self.in_runs = self.runs and whole and float_runs.fits(size, width)
        self.once = len(window.depth) == 1
        totals = self._totals(size * width)
        self.factor_sums = self._totals(size) if self.shifted else []
        cells: list[tuple] = []
        for t in range(size):
            for u in range(width):
                cell = {**at}
                if row is not None:
                    cell[row] = simplify(first + t)
                if self.match.column is not None:
                    cell[self.match.column] = self._column(panel, u)
                cells.append((cell, u, totals[len(cells)]))
        factors = [simplify(window.a, cell) for cell, _, _ in cells]
        bound = frozenset(x for e in (*at.values(), first, panel) for x in free_indices(e))
        self._sum(list(window.depth), factors, at, panel, cells, bound)
        if self.epilogue_loop and width > 1:
            self._finish_in_loop(cells, panel)
            return
        for n, (cell, _, total) in enumerate(cells):
            self._finish(cell, total, self.factor_sums[n // width] if self.shifted else None)

    def _finish(self, cell: dict, total: Expr, factor_sum: Expr | None) -> None:
        """Stores what is made of a sum."""
        value = total if factor_sum is None else total - factor_sum * SHIFT
        outputs = self.match.computation.outputs
        here = {**cell, self.match.hole: value}
        store_outputs(self.k, outputs, self.match.offset, self.match.exprs, here)

    def _finish_in_loop(self, cells: list[tuple], panel: Expr) -> None:
        """The same for the columns of one row, by one piece of code for all of them."""
        sums = self.k.alloc(self.match.hole.dtype, (len(cells),), "stack")
        for n, (_, _, total) in enumerate(cells):
            self.k.store(sums, n, total)
        with self.k.loop(len(cells)) as lane:
            assert self.match.column is not None
            cell = {**cells[0][0], self.match.column: self._column(panel, lane)}
            self._finish(cell, sums[lane], self.factor_sums[0] if self.shifted else None)

    def _totals(self, number: int) -> list[Load]:
        """The sums of a tile, 0: variables, or an array that functions add to or set."""
        dtype = self.match.hole.dtype
        zero = Const(0, dtype)
        if not self.in_runs:
            return [self.k.var(dtype, zero)[()] for _ in range(number)]
        sums = self.k.alloc(dtype, (number,), "stack")
        for n in range(0 if self.once else number):
            self.k.store(sums, n, zero)
        return [sums[Const(n, i64)] for n in range(number)]

    def _sum(
        self, depth: list[Index], factors: list[Expr], at: dict, panel: Expr, cells: list[tuple],
        bound: frozenset,
    ) -> None:  # fmt: skip
        if not depth:
            self._products(factors, at, panel, cells)
            return
        axis, *rest = depth
        hole = self.match.hole
        trimmed = trim([hole] * len(factors), factors, axis, bound)
        if trimmed is not None:
            inside, factors = trimmed
            if isinstance(inside.extent, Const) and inside.extent.value <= 0:
                return
            low, extent = inside.low, inside.extent
        else:
            low, extent = Const(0, i64), Const(axis.count, i64)
        self._steps(axis, low, extent, not rest, (rest, factors, at, panel, cells, bound))

    def _steps(self, axis: Index, low: Expr, extent: Expr, last: bool, state: tuple) -> None:
        """The loop over `extent` values of an axis from `low`, unrolled if it is the last."""
        count = extent.value if isinstance(extent, Const) else None
        aligned = axis is self.middle.depth[-1] or axis.count % LANES == 0
        if last and self.quads and aligned and count == axis.count and _all_quads(state[1]):
            self._groups(axis, count, state)
            return
        if last and self.in_runs:
            self._run(axis, low, state)
            return
        if last and count is not None and count <= self.unroll.whole:
            for n in range(count):
                self._step(axis, simplify(low + n), state, frozenset())
            return
        unroll = self.unroll.times if last and count is not None else 1
        whole, left = divmod(count, unroll) if count is not None else (extent, 0)
        with self.k.loop(whole) as x:
            for n in range(unroll):
                self._step(axis, simplify(low + x * unroll + n), state, frozenset({x}))
        for n in range(left):
            self._step(axis, simplify(low + (whole * unroll + n)), state, frozenset())

    def _run(self, axis: Index, low: Expr, state: tuple) -> None:
        """All of the last sum by a function."""
        _, factors, at, panel, cells, _ = state
        width = max(lane for _, lane, _ in cells) + 1
        first, weight = simplify(factors[0], {axis: low}), self._weight({**at, axis: low}, panel, 0)
        assert isinstance(first, Load) and isinstance(weight, Load)
        shape = len(cells) // width, width
        apart = self.operands.apart
        self.k.emit(float_runs.run(cells[0][2], first, weight, shape, apart, axis.count, self.once))

    def _groups(self, axis: Index, count: int, state: tuple) -> None:
        """The whole of the last sum, four products at a time."""
        groups = count // LANES
        unroll = min(groups, self.quad_unroll)
        whole, left = divmod(groups, unroll)
        with self.k.loop(whole) as x:
            for n in range(unroll):
                self._quad_products(axis, simplify((x * unroll + n) * LANES), state)
        for n in range(left):
            self._quad_products(axis, Const((whole * unroll + n) * LANES, i64), state)
        for n in range(groups * LANES, count):
            self._step(axis, Const(n, i64), state, frozenset())

    def _quad_products(self, axis: Index, position: Expr, state: tuple) -> None:
        """Four products for every cell."""
        _, factors, at, panel, cells, _ = state
        for factor, (_, lane, total) in zip(factors, cells):
            read = _read(simplify(factor, {axis: position}))
            weight = self._weight({**at, axis: position}, panel, lane)
            assert read is not None and self.multiply is not None and isinstance(weight, Call)
            load, *centre = read
            narrow = weight.args[0]
            assert isinstance(narrow, Load)
            self.k.emit(self.multiply(total, load, narrow, *centre))

    def _step(self, axis: Index, position: Expr, state: tuple, new: frozenset) -> None:
        rest, factors, at, panel, cells, bound = state
        moved = [simplify(f, {axis: position}) for f in factors]
        self._sum(rest, moved, {**at, axis: position}, panel, cells, bound | new)

    def _products(self, factors: list[Expr], at: dict, panel: Expr, cells: list[tuple]) -> None:
        """One product for every cell; each factor is loaded once."""
        named: dict[Expr, Expr] = {}

        def name(value: Expr) -> Expr:
            if value not in named:
                named[value] = self.k.let(value)
            return named[value]

        width = len(cells) // max(1, len(self.factor_sums))
        for sum_, a in zip(self.factor_sums, factors[::width]):
            self.k.emit(Store(sum_.source, sum_.index, sum_ + name(a)))
        for a, (_, lane, total) in zip(factors, cells):
            b = self._weight(at, panel, lane)
            left, right = name(a), name(b)
            integer = total.dtype is i32
            value = total + left * right if integer else call("fma", left, right, total)
            self.k.emit(Store(total.source, total.index, value))
