"""Winograd convolution: windows of 3 x 3 taps at stride 1, times weights, by fewer products.

Tiles of m x m outputs take (m + 2)^2 products per pair of channels instead of 9 m^2
(transforms/winograd.py). Weights are transformed and packed at compile time, or, where they are
trained, by a kernel of their own. The kernel goes over blocks of tiles, so that what is transformed
stays in the second level of cache:

* the inputs of a block are transformed, channels in lanes; the operand is read where it lies, so
  padding and concatenation are not copied;
* for each panel of output channels, the products are one small matrix product for each point, in
  tiles of registers (register_tiles.py);
* these are transformed back, and the epilogue is applied, a tile at a time.

Where a tile has an output that is not finite, or very large, that tile and vector of channels is
computed again, directly: an infinity, NaN or outlier of the input, or an overflow on the way, then
reaches those outputs alone whose taps meet it. Rounding errors are larger than those of direct
products, in proportion to the largest inputs of the tile and weights (docs/definitions.md). Which
m, or none, is fastest is estimated (winograd_costs.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager

from graphc.ir.addresses import flatten_loads, unflatten_index
from graphc.ir.dtypes import boolean, f32, i64
from graphc.ir.expr import TRUE, Const, Expr, Index, Load, call, cost, minimum, select, substitute
from graphc.ir.extents import as_dim, ceil_divided, divided, most, part_from
from graphc.ir.instructions import mask
from graphc.ir.kernel import Buffer, KernelBuilder
from graphc.ir.simplify import simplify
from graphc.ir.types import Dim, elements_of
from graphc.passes.analysis.computation import Computation
from graphc.passes.analysis.convolution import Convolution, match_convolution
from graphc.passes.lower.lowered import Lowered, in_place_of_epilogue, kernel_of_sums, store_outputs
from graphc.passes.lower.scheduled import Scheduled
from graphc.passes.lower.strategies.column_operand import packed_panels
from graphc.passes.lower.strategies.next_panel import Turn
from graphc.passes.lower.strategies.tile_emitter import Segment, row_tiles
from graphc.passes.lower.strategies.tile_plan import PARALLEL_PIECES, RegisterTileOptions
from graphc.passes.lower.strategies.winograd_costs import (
    STACK,
    block_of_tiles,
    bytes_of_tile,
    cheapest,
    groups_of_panels,
)
from graphc.passes.lower.strategies.winograd_products import point_products, transformed_panels
from graphc.passes.lower.transforms.winograd import POINTS, TAPS, Winograd, both_ways, winograd
from graphc.passes.schedule.steps import Bind, Schedule, Tile, misfit
from graphc.records import dataclass

LONG_PROLOGUE = 16  # cost beyond which an element is not computed again for each tile that reads it
FEWEST_LANES = 4
LARGEST = float(1 << 30)  # sum of a tile's outputs that leaves others beside it some digits


@dataclass(frozen=True)
class WinogradTiles(Scheduled[Convolution]):
    """Convolutions by Winograd's algorithm, on a machine of these sizes.

    tile(places, M)          a tile has M x M outputs
    tile(rows, T)            a block has T tiles
    bind(rows, parallel, P)  threads share at least P pieces, if few enough transform inputs again
    """

    options: RegisterTileOptions
    name = "winograd"
    takes = "a convolution that the algorithm is for"

    def match(self, computation: Computation) -> Convolution | str:
        planes = match_convolution(computation)
        return planes if isinstance(planes, str) else _unsuitable(planes, self.options) or planes

    def proposals(self, planes: Convolution) -> Iterable[Schedule] | str:
        ranked = cheapest(planes, self.options)
        return ranked if isinstance(ranked, str) else self._proposals(planes, ranked)

    def _proposals(self, planes: Convolution, ranked: list[int]) -> Iterator[Schedule]:
        for share in (1, 2):  # of the tiles of a block
            for outputs in ranked:
                tiles = block_of_tiles(planes, winograd(outputs), self.options)
                yield self._schedule(outputs, -(-tiles // share))

    def _schedule(self, outputs: int, tiles: int) -> Schedule:
        bind = Bind("rows", "parallel", PARALLEL_PIECES)
        return Schedule(self.name, (Tile("places", outputs), Tile("rows", tiles), bind))

    def emitted(self, planes: Convolution, schedule: Schedule) -> Lowered:
        outputs, tiles = (schedule.the(Tile, index).size for index in ("places", "rows"))
        if outputs not in POINTS:
            known = " or ".join(map(str, POINTS))
            raise misfit(schedule, f"a tile of {known} places", outputs)
        form = winograd(outputs)
        most_tiles = max(1, STACK // bytes_of_tile(planes, form))
        if tiles > most_tiles:
            raise misfit(schedule, f"a block of at most {most_tiles} rows", tiles)
        pieces = schedule.the(Bind, "rows").pieces
        return WinogradEmitter(planes, form, tiles, pieces, self.options).lowered()


def _unsuitable(planes: Convolution, options: RegisterTileOptions) -> str:
    """Why Winograd's algorithm is not for a convolution; empty if it is."""
    for s in planes.slides:
        if (s.axis.extent, s.stride, s.dilation) != (TAPS, 1, 1):
            return (
                f"winograd: windows must have {TAPS} taps at stride 1, found {s.axis.extent} taps, "
                f"stride {s.stride}, dilation {s.dilation}"
            )
    lanes, times = options.vector_bytes // f32.size, cost(planes.match.a)
    if lanes < FEWEST_LANES:
        return f"winograd: vectors must have {FEWEST_LANES} floats, found {lanes}"
    if times > LONG_PROLOGUE:
        return (
            f"winograd: the operand may take {LONG_PROLOGUE} operations per element, as tiles "
            f"overlap, found {times}"
        )
    return ""


class WinogradEmitter:
    """Emits the loops of a convolution."""

    def __init__(
        self, planes: Convolution, form: Winograd, block: int, pieces: int,
        options: RegisterTileOptions,
    ):  # fmt: skip
        self.planes, self.form, self.block, self.pieces = planes, form, block, pieces
        self.k = KernelBuilder()
        match, m = planes.match, form.outputs
        down, right = (ceil_divided(s.index.extent, m) for s in planes.slides)
        self.places = (*(x.extent for x in planes.others), down, right)
        self.tiles = elements_of(self.places)
        self.products = point_products(planes, form, self.block, options)
        self.products.k, self.products.lane = self.k, self.k.fresh("i")
        self.plan = self.products.plan
        self.taps = packed_panels(match, self.plan, match.b, match.depth, "taps")
        self.column = Index("column", self.plan.columns)
        self.marker = Load("sum", (Const(0, i64),), f32)
        exprs = [substitute(e, {match.hole: self.marker}) for e in match.exprs]
        exprs = [flatten_loads(e, match.shapes) for e in exprs]
        columns = unflatten_index(self.column, tuple(x.extent for x in match.cols))
        mapping: dict[Expr, Expr] = dict(zip(match.cols, columns))
        self.offset, *self.exprs = (simplify(e, mapping) for e in (match.offset, *exprs))

    def lowered(self) -> Lowered:
        """The kernel, and the packed weights: transformed, and for direct products."""
        match, products = self.planes.match, self.products.match
        self.emit()
        packed, whole = [*match.temporaries, *products.temporaries], match.computation
        kernel = kernel_of_sums("winograd", self.k, whole, (match.a, *self.exprs), packed)
        before = []
        if self.planes.changes:
            before = [transformed_panels(self.planes, self.form, self.products, self.taps)]
        depth, columns = self.planes.channels.count, most(self.plan.columns)
        work = 2 * self.form.points**2 * most(self.tiles) * depth * columns
        return Lowered(
            kernel,
            [*match.prepare, *products.prepare],
            packed,
            before,
            flops=work,
            inplace=in_place_of_epilogue(whole, self.offset, self.exprs, [match.a]),
        )

    def emit(self) -> None:
        """All blocks, in parallel; where they are few, groups of panels of each. Every group
        transforms the inputs for itself."""
        k, n, block = self.k, self.form.points, self.block
        segments = self.products.panels()
        groups = groups_of_panels(self.planes, self.form, block, segments[0].count, self.pieces)
        groups = groups if len(segments) == 1 else 1
        extents = (ceil_divided(self.tiles, block), groups)
        with k.loop(elements_of(extents), "parallel", name="p") as p:
            number, group = unflatten_index(p, extents)
            first = k.let(simplify(number * block))
            count = part_from(self.tiles, first, block)
            depth, panel = self.planes.channels.count, self.plan.panel
            inputs = k.alloc(f32, (n * n * block * depth,), "stack", "inputs")
            products = k.alloc(f32, (n * n * block * panel,), "stack", "products")
            with k.loop(self.covered(count)) as t:
                self.transform_inputs(inputs, first, t)
            for panels in segments:
                per_group = divided(panels.count, groups)[0]
                with k.loop(per_group) as x:
                    of = k.let(simplify(group * per_group + x + panels.first))
                    self.multiply(count, of, panels)
                    with k.loop(count) as t:
                        self.finish(products, first, t, of, panels)

    # ---------------------------------------------------------------- inputs

    def covered(self, count: Dim) -> Dim:
        """How many tiles are multiplied where so many are there: tiles of registers are whole, and
        should not read what nobody has written, which may be slow (subnormal numbers)."""
        if isinstance(count, int):
            return count
        rows = max(x.size for x in row_tiles(self.block, self.plan.row_tile))
        return as_dim(minimum(count + (rows - 1), self.block))

    def _there(self, tile: Expr) -> Expr:
        """The number of a tile; that of the last one for those behind it."""
        whole = divided(self.tiles, self.block)[1] == 0
        return tile if whole else minimum(tile, self.tiles - 1)

    def place(self, tile: Expr) -> tuple[dict[Expr, Expr], Expr, Expr]:
        """Where a tile is: other rows, and the output at its corner, by row and column."""
        *others, down, right = unflatten_index(self.k.let(simplify(tile)), self.places)
        let, m = self.k.let, self.form.outputs
        fixed: dict[Expr, Expr] = {
            x: let(simplify(at)) for x, at in zip(self.planes.others, others)
        }
        return fixed, let(simplify(down * m)), let(simplify(right * m))

    def transform_inputs(self, inputs: Buffer, first: Expr, t: Expr) -> None:
        """All channels of a tile."""
        place = self.place(self._there(first + t))
        depth, lanes = self.planes.channels.count, self.plan.lanes
        whole, rest = divmod(depth, lanes)
        with self.k.loop(whole) as vector:
            self._transform(inputs, place, t, vector * lanes, lanes)
        if rest:
            self._transform(inputs, place, t, Const(whole * lanes, i64), rest)

    def _transform(
        self, inputs: Buffer, place: tuple[dict[Expr, Expr], Expr, Expr], t: Expr, start: Expr,
        lanes: int,
    ) -> None:  # fmt: skip
        """A vector of channels of a tile."""
        k, n, depth = self.k, self.form.points, self.planes.channels.count
        with self.lanes(lanes) as v:
            channel = simplify(start + v)
            tile = [[k.let(self.read(place, y, x, channel)) for x in range(n)] for y in range(n)]
            for i, row in enumerate(both_ways(self.form.inputs, tile, k.let)):
                for j, value in enumerate(row):
                    at = ((i * n + j) * self.block + t) * depth + channel
                    k.store(inputs, simplify(at), value)

    def read(
        self, place: tuple[dict[Expr, Expr], Expr, Expr], y: int, x: int, channel: Expr
    ) -> Expr:
        """An input of a tile; 0 beyond what outputs read."""
        planes, (fixed, top, left) = self.planes, place
        at: dict[Expr, Expr] = {**fixed, planes.channels: channel}
        there: Expr = TRUE
        for slide, corner, offset in ((planes.down, top, y), (planes.right, left, x)):
            position = simplify(corner + offset)
            at[slide.index], at[slide.axis] = position, Const(0, i64)
            if divided(slide.index.extent, self.form.outputs)[1] != 0:
                there = there & (position < slide.index.extent + (TAPS - 1))
        value = simplify(planes.match.a, at)
        return value if there is TRUE else simplify(select(there, value, Const(0, f32)))

    # ---------------------------------------------------------------- products and outputs

    def multiply(self, count: Dim, number: Expr, panels: Segment) -> None:
        """The products of a block for a panel of output channels, in tiles of so many rows that
        cover the tiles that are there."""
        e, k, n = self.products, self.k, self.form.points
        i, j = e.match.outer
        (t,) = e.rows
        e.offset = ((i * n + j) * self.block + t) * e.plan.panel + e.column
        e.offset = e.offset - number * e.plan.panel
        with k.loops(n, n) as point:
            fixed = dict(zip((i, j), point))
            for rows in row_tiles(self.block, e.plan.row_tile):
                tiles: Dim = rows.count
                if isinstance(count, Expr):
                    left = (count - rows.first + (rows.size - 1)) // rows.size
                    tiles = as_dim(minimum(left, rows.count))
                turn = Turn(0, rows.count) if isinstance(rows.count, int) else None
                e.tiles(fixed, t, Const(0, i64), tiles, rows, number, panels, turn)

    def finish(self, products: Buffer, first: Expr, t: Expr, number: Expr, panels: Segment) -> None:
        """The outputs of a tile in a panel."""
        k, m, lanes = self.k, self.form.outputs, self.plan.lanes
        place = self.place(first + t)
        sums = k.alloc(f32, (m * m * lanes,), "stack")
        down, right = (
            part_from(s.index.extent, corner, m) for s, corner in zip(self.planes.slides, place[1:])
        )
        for start in range(0, panels.size, lanes):
            width = min(lanes, panels.size - start)
            failed = self._transform_back(products, sums, t, start, width)
            with k.when(failed):
                self._directly(sums, place, number, start, width)
            with k.loops(down, right) as (y, x), self.products.columns(number, start, width) as v:
                self._store(sums[simplify((y * m + x) * lanes + v)], place, y, x, number, start + v)

    def _transform_back(
        self, products: Buffer, sums: Buffer, t: Expr, start: int, width: int
    ) -> Expr:
        """Stores the sums of a tile for a vector of output channels; whether one of them is very
        large, or no number."""
        k, n, m = self.k, self.form.points, self.form.outputs
        held, bits = k.alloc(boolean, (max(width, 2),), "reg"), k.alloc(i64, (1,), "stack")
        lanes, panel = self.plan.lanes, self.plan.panel
        with self.lanes(width) as v:
            tile = [
                [k.let(products[((i * n + j) * self.block + t) * panel + start + v])
                 for j in range(n)]
                for i in range(n)
            ]  # fmt: skip
            whole: Expr = Const(0, f32)
            for y, row in enumerate(both_ways(self.form.results, tile, k.let)):
                for x, value in enumerate(row):
                    k.store(sums, simplify(v + (y * m + x) * lanes), value)
                    whole = k.let(whole + value)
            k.store(held, v, ~(call("abs", whole) < LARGEST))
        if width == 1:
            return k.let(held[Const(0, i64)])
        k.emit(mask(bits, held))
        return k.let(bits[Const(0, i64)].ne(0))

    def _directly(
        self, sums: Buffer, place: tuple[dict[Expr, Expr], Expr, Expr], number: Expr, start: int,
        width: int,
    ) -> None:  # fmt: skip
        """Stores the sums of a tile for a vector of output channels, from all of its taps."""
        k, m, match, planes = self.k, self.form.outputs, self.planes.match, self.planes
        fixed, top, left = place
        with k.loops(m, m) as (y, x):
            total = k.alloc(f32, (self.plan.lanes,), "reg")
            with self.lanes(width) as v:
                k.store(total, v, Const(0, f32))
            with k.loops(*(axis.extent for axis in match.depth)) as taps:
                at: dict[Expr, Expr] = {**fixed, **dict(zip(match.depth, taps))}
                at[planes.down.index], at[planes.right.index] = top + y, left + x
                value = k.let(self._guarded(at))
                with self.lanes(width) as v:
                    weight = self.taps.element(at, number, start + v)
                    k.store(total, v, call("fma", value, weight, total[v]))
            with self.lanes(width) as v:
                k.store(sums, simplify((y * m + x) * self.plan.lanes + v), total[v])

    def _guarded(self, at: dict[Expr, Expr]) -> Expr:
        """An input at a place, 0 where there is no output."""
        value = simplify(self.planes.match.a, at)
        there: Expr = TRUE
        for slide in self.planes.slides:
            if divided(slide.index.extent, self.form.outputs)[1] != 0:
                there = there & (at[slide.index] < slide.index.extent)
        return value if there is TRUE else select(there, value, Const(0, f32))

    def _store(
        self, total: Load, place: tuple[dict[Expr, Expr], Expr, Expr], y: Expr, x: Expr,
        number: Expr, column: Expr,
    ) -> None:  # fmt: skip
        """The epilogue of one vector of sums."""
        fixed, top, left = place
        at: dict[Expr, Expr] = {
            **fixed,
            self.planes.down.index: top + y,
            self.planes.right.index: left + x,
            self.column: number * self.plan.panel + column,
            self.marker: self.k.let(total),
        }
        outputs = self.planes.match.computation.outputs
        store_outputs(self.k, outputs, self.offset, self.exprs, at)

    def lanes(self, count: int) -> AbstractContextManager[Expr]:
        return self.products.lanes(count)
