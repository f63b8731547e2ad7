"""The loops of contractions in tiles of vector registers, as a schedule says.

A micro-kernel keeps the sums of a tile in registers over all of the depth, or over a part of it at
a time; the epilogue (bias, activation, residual) is applied to them on their way to memory. Tiles
of rows pass over panels of columns, or panels over tiles, as the schedule orders them
(tile_schedules.py). What is left over at edges is in tiles of other sizes or stored under masks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

from graphc.ir.addresses import (
    element_after,
    flatten_index,
    flatten_loads,
    is_affine_in,
    unflatten_index,
)
from graphc.ir.dtypes import DType, i64
from graphc.ir.expr import (
    Const,
    Expr,
    Index,
    Load,
    Ref,
    as_expr,
    call,
    cast,
    cost,
    loads,
    maximum,
    minimum,
    select,
    substitute,
    transform,
)
from graphc.ir.extents import as_dim, ceil_divided, divided, least, most, part_from, points
from graphc.ir.instructions import PAIR, dot2_wide, dot4
from graphc.ir.kernel import Buffer, KernelBuilder
from graphc.ir.simplify import simplify
from graphc.ir.types import Dim, elements_of
from graphc.passes.analysis.contraction import Match
from graphc.passes.analysis.core import reductions_in
from graphc.passes.analysis.spaces import balanced_tiles, known_last, merge_adjacent
from graphc.passes.lower.lowered import Lowered, in_place_of_epilogue, kernel_of_sums, store_outputs
from graphc.passes.lower.strategies.cache_blocks import emit_blocks
from graphc.passes.lower.strategies.column_operand import Panels
from graphc.passes.lower.strategies.depth_blocks import DepthBlocks, depth_blocks
from graphc.passes.lower.strategies.next_panel import NextPanel, Turn
from graphc.passes.lower.strategies.tile_plan import LoopPlan, RegisterTileOptions, TilePlan
from graphc.records import dataclass

UNROLLED = 2  # steps of the depth in a trip
LONG_EPILOGUE = 10  # cost, per product of a step, beyond which it is not repeated for every row
SMALL_PANELS = 1 << 16  # bytes of constants, which take no time to come from anywhere
LONG_DEPTH = 128  # products, beside which it takes no time that sums are stored before the epilogue

NOTHING = Const(0, i64)
Tile = tuple[dict, Index, Expr, int, Expr, list[tuple[int, int]]]
"""The operands of TileEmitter.sums, which tell where a tile is."""


@dataclass(frozen=True)
class Segment:
    """Panels or tiles of rows: the first (of rows: the first row), how many, the size of each. Of
    an `open` panel fewer columns may be there, of which the columns of the output tell. Rows may
    have an `end`, before which the last tile begins early enough to end there: its first rows are
    those of the tile before, and are summed again, but not stored. If all rows are fewer than those
    of a tile, the last one is summed for all that are not there."""

    first: Dim
    count: Dim
    size: int
    open: bool = False
    end: Dim | None = None

    def start(self, number: Expr) -> Expr:
        """The first row of a tile."""
        row = number * self.size + self.first
        if self.end is None:
            return simplify(row)
        early = minimum(row, as_expr(self.end) - self.size)
        return simplify(early if least(self.end) >= self.size else maximum(early, 0))

    def there(self, row: Expr) -> list[Expr] | None:
        """The rows of a tile from this one on; None if they follow one another."""
        if self.end is None or least(self.end) >= self.size:
            return None
        return [simplify(minimum(row + t, self.end - 1)) for t in range(self.size)]


class TileEmitter:
    """Emits the loops of a planned contraction."""

    def __init__(
        self, match: Match, plan: TilePlan, options: RegisterTileOptions, panels: list[Panels],
        k: KernelBuilder | None = None,
    ):  # fmt: skip
        self.match, self.plan, self.options, self.packed = match, plan, options, panels
        self.k = k or KernelBuilder()
        self.lane = self.k.fresh("i")  # of all vectors, so that they share their expressions
        self.column = Index("column", plan.columns)
        self.is_open = False  # whether the panel at hand may lack columns
        self.there: list[Expr] | None = None  # rows of the tile at hand, if it may lack some
        self.next_panel = NextPanel(self.k)
        self.flatten()
        self._begin_rows()
        is_serial = all(self._kind_of(x) == "serial" for x in self.depth)
        is_apart = is_serial and match.hole.dtype.is_float and plan.split > 0
        self.blocks_apart = depth_blocks(self.depth, plan.split) if is_apart else None

    def flatten(self) -> None:
        """Epilogue, offset and operands over merged outer and row indices and one column."""
        match, shapes = self.match, self.match.shapes
        exprs = [flatten_loads(e, shapes) for e in match.exprs]
        hole = reductions_in(exprs)[0]
        marker = Load("sum", (Const(0, i64),), hole.dtype)
        exprs = [substitute(e, {hole: marker}) for e in exprs]
        columns = unflatten_index(self.column, tuple(x.extent for x in match.cols))
        mapping: dict[Expr, Expr] = dict(zip(match.cols, columns))
        all_exprs = [simplify(e, mapping) for e in (match.offset, match.a, *exprs)]
        b = match.b if self.plan.packed else simplify(match.b, mapping)
        rows = match.rows
        rows, all_exprs = merge_adjacent(rows, all_exprs)
        self.offset, self.a, *self.exprs = all_exprs
        self.b, self.rows, self.marker = b, known_last(rows), marker
        depth = match.depth
        if not self.plan.packed:
            depth, (a, b) = merge_adjacent(depth, [self.a, self.b])
            self.a, self.b = a, b
        elif self._is_whole:
            depth, (self.a,) = merge_adjacent(depth, [self.a])
        self.depth = depth

    @property
    def _is_whole(self) -> bool:
        """Whether `b` is one tensor of panels."""
        return [x.part for x in self.packed] == [self.match.b]

    def lowered(self, loops: LoopPlan) -> Lowered:
        """The kernel, with tiles in such loops."""
        match = self.match
        outer, places, tiled = match.outer, self.places, self.tiled
        inplace = self.in_place()
        # products of bytes, and those of a high tile, take longer than reading columns
        is_slow = self.plan.quad is not None or not self.options.are_low
        segments = row_tiles(tiled.extent, self.plan.row_tile, loops.overlap, is_slow)
        if any(rows.end is not None for rows in segments) and not self.is_looped():
            inplace = []  # rows that are computed twice must not have been written over
        panels = self.panels()
        if isinstance(tiled.extent, Expr) and loops.blocks is not None:
            self._in_parts(loops, [*outer, *places], tiled, segments, panels)
        elif isinstance(tiled.extent, Expr):
            self._in_blocks(loops, [*outer, *places], tiled, segments, panels)
        elif loops.blocks is not None:
            emit_blocks(self, loops, outer, [*places, tiled], segments, panels)
        elif loops.order[0] == "columns":
            self._panels_outside(loops, outer, places, tiled, segments, panels)
        elif loops.order[1] == "rows":
            self._rows_outside(loops, [*outer, *places], tiled, segments, panels)
        else:
            self._panels_outside(loops, [*outer, *places], [], tiled, segments, panels)
        steps = most(self.plan.depth) * self.plan.together
        work = points(match.indices) * steps * 2
        kernel = kernel_of_sums(
            "contract", self.k, match.computation, self.read(), match.temporaries
        )
        return Lowered(kernel, match.prepare, match.temporaries, flops=work, inplace=inplace)

    @property
    def tiled(self) -> Index:
        """The index of rows that tiles run along."""
        return self.rows[-1] if self.rows else Index("m", 1)

    @property
    def places(self) -> list[Index]:
        """The other indices of rows."""
        return self.rows[:-1]

    def in_place(self) -> list[tuple[str, str]]:
        """Which outputs may lie in which inputs."""
        operands = self.a, self.b
        return in_place_of_epilogue(self.match.computation, self.offset, self.exprs, operands)

    def read(self) -> tuple[Expr, ...]:
        """The expressions that the kernel reads inputs in."""
        return self.a, self.b, *self.exprs

    def panels(self) -> list[Segment]:
        """The whole panels, and the one that is not, if there may be one. Where that is known at
        run time only, code for panels that may lack columns does for all: it stores by masks."""
        panel = self.plan.panel
        whole, rest = divided(self.plan.columns, panel)
        if isinstance(rest, Expr):
            return [Segment(0, ceil_divided(self.plan.columns, panel), panel, open=True)]
        full = [] if whole == 0 else [Segment(0, whole, panel)]
        return [*full, Segment(whole, 1, rest)] if rest else full

    def _rows_outside(
        self, loops: LoopPlan, outer: list[Index], tiled: Index, segments: list[Segment],
        panels: list[Segment],
    ) -> None:  # fmt: skip
        """Parallel over outer indices and blocks of row tiles; all panels for each block, or, where
        the blocks are few, a group of panels."""
        for rows in segments:
            assert isinstance(rows.count, int)
            blocks = -(-rows.count // loops.tiles_of_block(rows.size))
            block = -(-rows.count // blocks)
            for fixed, at, part in self._parallel(loops, outer, blocks, [], panels):
                tiles = part_from(rows.count, at * block, block)
                for panel, own, count in part:
                    with self.k.loop(count) as n:
                        number, turn = own + n + panel.first, Turn(NOTHING, block)
                        self.tiles(fixed, tiled, at * block, tiles, rows, number, panel, turn)

    def _in_blocks(
        self, loops: LoopPlan, outer: list[Index], tiled: Index, segments: list[Segment],
        panels: list[Segment],
    ) -> None:  # fmt: skip
        """Parallel over outer indices, blocks of row tiles and panels, where the rows are known at
        run time only. What rows are left when all tiles are whole belongs to the last block."""
        whole, *left = segments
        block = loops.tiles_of_block(whole.size)
        panels_first = loops.order[1] == "columns"
        blocks = as_dim(maximum((whole.count + block - 1) // block, 1))
        for panel in panels:
            inside = [panel.count, blocks] if panels_first else [blocks, panel.count]
            extents = (*(x.extent for x in outer), *inside)
            with self.k.loop(elements_of(extents), "parallel", name="p") as p:
                *front, one, two = unflatten_index(p, extents)
                at, n = (two, one) if panels_first else (one, two)
                fixed = dict(zip(outer, front))
                for rows in segments:
                    tiles = rows.count
                    if rows is whole:
                        tiles = as_dim(minimum(whole.count - at * block, block))
                    elif blocks != 1:
                        tiles = select((at + 1).eq(blocks), rows.count, 0)
                    first = at * block if rows is whole else NOTHING
                    turn = None
                    if rows is whole:
                        turn = Turn(first, whole.count) if panels_first else Turn(NOTHING, tiles)
                    self.tiles(fixed, tiled, first, tiles, rows, n + panel.first, panel, turn)

    def _in_parts(
        self, loops: LoopPlan, outer: list[Index], tiled: Index, segments: list[Segment],
        panels: list[Segment],
    ) -> None:  # fmt: skip
        """Parallel over outer indices, groups of panels and blocks of row tiles, where the rows are
        known at run time only and the depth is long: the rows pass over a part of a panel, which
        the first cache holds, and what the parts give is added up on the stack."""
        (rows,) = segments
        assert loops.blocks is not None
        block = loops.blocks.tiles or most(rows.count)
        blocks = ceil_divided(rows.count, block)
        for panel in panels:
            assert isinstance(panel.count, int)
            together = next(n for n in range(loops.blocks.panels, 0, -1) if panel.count % n == 0)
            extents = (*(x.extent for x in outer), panel.count // together, blocks)
            with self.k.loop(elements_of(extents), "parallel", name="p") as p:
                *front, group, at = unflatten_index(p, extents)
                first = self.k.let(simplify(at * block))
                tiles = as_dim(minimum(as_expr(rows.count) - first, block))
                number = simplify(group * together + panel.first)
                fixed = dict(zip(outer, front))
                self._add_parts(fixed, tiled, first, (tiles, block), rows, number, together, panel)

    def _add_parts(
        self, fixed: dict, tiled: Index, first: Expr, count: tuple[Dim, int], rows: Segment,
        number: Expr, together: int, panels: Segment,
    ) -> None:  # fmt: skip
        """So many tiles of rows, and at most so many, from the first on, in several panels."""
        k, parts, (tiles, most_tiles) = self.k, self.blocks_apart, count
        assert parts is not None
        cells, pieces = rows.size * self.plan.panel, self.pieces(panels.size)
        total = k.alloc(self.match.hole.dtype, (together * most_tiles * cells,), "stack")
        zero = Const(0, total.dtype)
        with k.loop(together) as n, k.loop(tiles) as t, k.loop(rows.size) as r:
            start = simplify((n * most_tiles + t) * cells + r * self.plan.panel)
            self.set(total, 1, pieces, lambda cell: zero, start)

        def over_tiles(finish: bool, at: dict, begin: Expr = NOTHING, size: Dim = 0) -> None:
            with k.loop(together) as n, k.loop(tiles) as t:
                panel, row, done = self._placed(number + n, rows, first + t, panels)
                start = simplify((n * most_tiles + t) * cells)
                where: Tile = (fixed, tiled, row, rows.size, panel, pieces)
                if finish:
                    self.finish_tile(total, *where, True, done, start)
                else:
                    self._add_block(total, where, parts, at, begin, size, start)

        with k.loops(*(x.extent for x in parts.outside)) as outside:
            at = dict(zip(parts.outside, outside))
            whole, left = divmod(parts.split.count, parts.piece)
            with k.loop(whole) as part:
                over_tiles(False, at, k.let(simplify(part * parts.piece)), parts.piece)
            if left:
                over_tiles(False, at, as_expr(whole * parts.piece, i64), left)
        over_tiles(True, {})

    def _panels_outside(
        self, loops: LoopPlan, outer: list[Index], inner: list[Index], tiled: Index,
        segments: list[Segment], panels: list[Segment],
    ) -> None:  # fmt: skip
        """Parallel over outer indices, panels and inner indices; all row tiles for each panel, or,
        where the panels are few, a group of tiles."""
        for panel in panels:
            for fixed, n, part in self._parallel(loops, outer, panel.count, inner, segments):
                places = tuple(x.extent for x in inner)
                place = flatten_index(tuple(fixed[x] for x in inner), places)
                for rows, own, count in part:
                    turn = None
                    if isinstance(rows.count, int):
                        turn = Turn(place * rows.count + own, rows.count * points(inner))
                    self.tiles(fixed, tiled, own, count, rows, n + panel.first, panel, turn)

    def _parallel(
        self, loops: LoopPlan, outer: Sequence[Index], number: Dim, inner: list[Index],
        segments: list[Segment],
    ) -> Iterator[tuple[dict, Expr, list[tuple[Segment, Expr, Dim]]]]:  # fmt: skip
        """Loops over outer indices, so many pieces, and inner indices. Each does all segments, or,
        where they are few, a group of one. Yields the indices, the piece, and its segments, each
        with the first of its items to do and their number."""
        pieces = points((*outer, *inner)) * most(number)
        few = pieces < loops.pieces
        for part in [[segment] for segment in segments] if few else [segments]:
            groups = _groups(part[0].count, pieces, loops.pieces) if few else 1
            extents = (*(x.extent for x in outer), number, *(x.extent for x in inner), groups)
            with self.k.loop(elements_of(extents), "parallel", name="p") as p:
                *front, group = unflatten_index(p, extents)
                piece = front.pop(len(outer))
                counts = [divided(segment.count, groups)[0] for segment in part]
                own = [(segment, group * n, n) for segment, n in zip(part, counts)]
                yield dict(zip((*outer, *inner), front)), piece, own

    # ---------------------------------------------------------------- the micro-kernel

    def tiles(
        self, fixed: dict, tiled: Index, first: Expr, count: Dim, rows: Segment, number: Expr,
        panels: Segment, turn: Turn | None = None,
    ) -> None:  # fmt: skip
        """So many tiles of rows of a segment, from the first on, in one panel. `turn` is that of
        the first of them."""
        with self.k.loop(count) as t:
            start = rows.start(first + t)
            done = simplify((first + t) * rows.size + rows.first - start)
            own = turn and replace(turn, number=simplify(turn.number + t))
            self.tile(fixed, tiled, start, rows.size, number, panels, done, rows, own)

    def tile(
        self, fixed: dict, tiled: Index, row: Expr, size: int, number: Expr, panels: Segment,
        done: Expr = NOTHING, rows: Segment | None = None, turn: Turn | None = None,
    ) -> None:  # fmt: skip
        """MR x NR sums over the whole depth, then the epilogue, which leaves out the rows that are
        `done`, and those that are not there."""
        panel, row = self._begin_tile(number, row, panels, rows)
        pieces = self.pieces(panels.size)
        after = self._after(fixed, panel) if turn is not None else None
        with self.next_panel.shared(after, most(self.plan.depth), self.row_of_panel, turn):
            sums = self.sums(fixed, tiled, row, size, panel, pieces)
        stacked = self.blocks_apart is not None
        self.finish_tile(sums, fixed, tiled, row, size, panel, pieces, stacked, done)

    def _after(self, fixed: dict, panel: Expr) -> Load | None:
        """Where the next panel begins, which lies behind this one; None if panels are in the second
        level of cache already: they were packed in this run, and it holds them all."""
        first = self.panel_element({**fixed, **dict.fromkeys(self.depth, NOTHING)}, panel)
        size = points(self.match.outer) * most(self.plan.columns) * most(self.plan.depth)
        constants = self.match.computation.constants
        is_cold = all(x.source in constants for x in loads(self.match.b))
        least_size = SMALL_PANELS if is_cold else self.options.held_bytes
        if first is None or size * self.plan.together * first.dtype.size <= least_size:
            return None
        step = as_expr(self.plan.depth, i64) * self.row_of_panel
        return element_after(first, step)

    def _placed(
        self, number: Expr, rows: Segment, tile: Expr, panels: Segment
    ) -> tuple[Expr, Expr, Expr]:
        """The panel and the first row of a tile of a segment, and how many rows are done."""
        start = rows.start(tile)
        done = simplify(tile * rows.size + rows.first - start)
        return *self._begin_tile(number, start, panels, rows), done

    def _begin_tile(
        self, number: Expr, row: Expr, panels: Segment, rows: Segment | None
    ) -> tuple[Expr, Expr]:
        """Names the panel and the first row of a tile, and where its rows begin."""
        panel = self.k.let(simplify(number))
        row = self.k.let(simplify(row))
        self.is_open = panels.open
        there = rows.there(row) if rows else None
        self.there = there and list(map(self.k.let, there))
        self.starts = [
            {begin: self.k.let(simplify(at * stride)) for stride, begin in self.begins.items()}
            for at in self.there or ()
        ]
        return panel, row

    def row(self, first: Expr, t: int) -> Expr:
        """A row of the tile that begins at the `first`."""
        return first + t if self.there is None else self.there[t]

    def row_element(self, where: dict, tiled: Index, first: Expr, t: int) -> Expr:
        """The element of `a` in a row of a tile."""
        if self.there is None:
            return simplify(self.a, {**where, tiled: first + t})
        return simplify(self.a_begun, {**where, tiled: self.there[t], **self.starts[t]})

    def _begin_rows(self) -> None:
        """Where rows do not follow one another, it is computed once where each begins. `a_begun`
        reads `a` from there; by stride in rows, `begins` are the names that it has for that."""
        self.begins: dict[int, Ref] = {}

        def begun(node: Expr) -> Expr | None:
            if not isinstance(node, Load) or len(node.index) != 1:
                return None
            stride = is_affine_in(node.index[0], self.tiled)
            if not stride:
                return None
            begin = self.begins.setdefault(stride, Ref(f"row_of_{stride}", i64))
            return node.rebuild([simplify(node.index[0], {self.tiled: NOTHING}) + begin])

        self.a_begun = transform(self.a, begun) if isinstance(self.tiled.extent, Expr) else self.a

    def finish_tile(
        self, sums: Buffer, fixed: dict, tiled: Index, row: Expr, size: int, panel: Expr,
        pieces: list[tuple[int, int]], stacked: bool = False, done: Expr = NOTHING,
        start: Expr = NOTHING,
    ) -> None:  # fmt: skip
        """The epilogue of a tile of sums, in registers or `stacked`, which begin at the `start`, of
        the rows that are not `done`."""
        if size > 1 and self.is_looped():
            tile = sums if stacked else self._stacked(sums, size, pieces)
            self._finish_in_a_loop(tile, fixed, tiled, row, size, panel, pieces, done, start)
            return
        for t in range(size):
            at = {**fixed, tiled: self.row(row, t)}
            self.finish_row(sums, at, panel, start + t * self.plan.panel, pieces)

    def pieces(self, width: int) -> list[tuple[int, int]]:
        """The vectors of a panel of so many columns: where each starts, and how many it has."""
        lanes = self.plan.lanes
        return [(j, min(lanes, width - j)) for j in range(0, width, lanes)]

    def is_looped(self) -> bool:
        """Whether the epilogue is a loop over the rows of a tile, not code for each of them."""
        if self.plan.looped is not None:
            return self.plan.looped
        if self.blocks_apart is not None or most(self.plan.depth) >= LONG_DEPTH:
            return True
        return sum(map(cost, self.exprs)) > LONG_EPILOGUE // self.plan.together

    def sums(
        self, fixed: dict, tiled: Index, row: Expr, size: int, panel: Expr,
        pieces: list[tuple[int, int]],
    ) -> Buffer:  # fmt: skip
        """The sums of a tile: in registers, or on the stack where they are those of blocks."""
        dtype, blocks = self.match.hole.dtype, self.blocks_apart
        where: Tile = (fixed, tiled, row, size, panel, pieces)
        if blocks is None:
            sums = self.zeros(dtype, size, pieces)
            self.sum_over(sums, *where, self.depth, {})
            return sums
        total = self.k.alloc(dtype, (size * self.plan.panel,), "stack")
        with self.k.loop(size) as t:
            self.set(total, 1, pieces, lambda cell: Const(0, dtype), t * self.plan.panel)
        with self.k.loops(*(x.extent for x in blocks.outside)) as outside:
            at = dict(zip(blocks.outside, outside))
            extent, piece = blocks.split.extent, blocks.piece
            is_open = isinstance(extent, Expr)  # so that any block may be the last
            count, left = (ceil_divided(extent, piece), 0) if is_open else divided(extent, piece)
            with self.k.loop(count) as block:
                first = block * piece
                length = as_dim(minimum(extent - first, piece)) if is_open else piece
                self._add_block(total, where, blocks, at, first, length)
            if left != 0:
                start = as_expr(count * piece, i64)
                self._add_block(total, where, blocks, at, start, left)
        return total

    def _add_block(
        self, total: Buffer, where: Tile, blocks: DepthBlocks, at: dict, first: Expr, count: Dim,
        start: Expr = NOTHING,
    ) -> None:  # fmt: skip
        """Adds to the total of a tile, which begins at the `start`, what a block of the depth
        gives, so many steps from the first on."""
        _, _, _, size, _, pieces = where
        sums = self.zeros(total.dtype, size, pieces)
        with self.steps(count, not blocks.inside) as x:
            inside = {**at, blocks.split: simplify(first + x)}
            self.sum_over(sums, *where, blocks.inside, inside)
        self.set(
            total, size, pieces, lambda cell: total[cell] + sums[simplify(cell - start)], start
        )

    def zeros(self, dtype: DType, size: int, pieces: list[tuple[int, int]]) -> Buffer:
        """A tile in registers, of zeros."""
        tile = self.k.alloc(dtype, (size * self.plan.panel,), "reg")
        self.set(tile, size, pieces, lambda cell: Const(0, dtype))
        return tile

    def _finish_in_a_loop(
        self, sums: Buffer, fixed: dict, tiled: Index, row: Expr, size: int, panel: Expr,
        pieces: list[tuple[int, int]], done: Expr, start: Expr,
    ) -> None:  # fmt: skip
        """A long epilogue (an activation with a polynomial) is written once, not once per row, of
        sums on the stack."""
        end: Expr = as_expr(size, i64)
        if self.there is not None:
            end = simplify(self.there[-1] - row + 1)  # all of them, if the last is there
        with self.k.loop(as_dim(end - done)) as left:
            at = done + left
            own = simplify(start + at * self.plan.panel)
            self.finish_row(sums, {**fixed, tiled: row + at}, panel, own, pieces)

    def _stacked(self, sums: Buffer, size: int, pieces: list[tuple[int, int]]) -> Buffer:
        """A copy of a tile of registers on the stack, whose rows a loop can go over."""
        tile = self.k.alloc(sums.dtype, (size * self.plan.panel,), "stack")
        self.set(tile, size, pieces, lambda cell: sums[cell])
        return tile

    def finish_row(
        self, sums: Buffer, at: dict, panel: Expr, start: Expr | int, pieces: list[tuple[int, int]]
    ) -> None:
        for j, count in pieces:
            with self.columns(panel, j, count) as v:
                self._finish(sums[simplify(v + start + j)], at, panel, j, v)

    @contextmanager
    def columns(self, panel: Expr, j: int, count: int) -> Iterator[Expr]:
        """As `lanes`, from column j of a panel on: those that are there."""
        if not self.is_open:
            with self.lanes(count) as v:
                yield v
            return
        inside = simplify(self.plan.columns - panel * self.plan.panel - j)
        if count == 1:
            with self.k.when(inside > 0):
                yield Const(0, i64)
            return
        there = as_dim(minimum(inside, count))
        with self.k.loop(there, "vector", name=self.lane, width=count) as v:
            yield v

    def set(
        self, tile: Buffer, size: int, pieces: list[tuple[int, int]],
        value: Callable[[Expr], Expr], start: Expr | int = 0,
    ) -> None:  # fmt: skip
        """Stores a value, given its cell, into all cells of a tile, which starts there."""
        for t in range(size):
            for j, count in pieces:
                with self.lanes(count) as v:
                    cell = simplify(v + start + (t * self.plan.panel + j))
                    self.k.store(tile, cell, value(cell))

    def lanes(self, count: int) -> AbstractContextManager[Expr]:
        kind = "vector" if count > 1 else "unroll"
        return self.k.loop(count, kind, name=self.lane, width=count)

    def sum_over(
        self, sums: Buffer, fixed: dict, tiled: Index, row: Expr, size: int, panel: Expr,
        pieces: list[tuple[int, int]], depth: list[Index], at: dict,
    ) -> None:  # fmt: skip
        if depth:
            is_innermost = len(depth) == 1 and self._kind_of(depth[0]) == "serial"
            with self.steps(depth[0].extent, is_innermost, self._kind_of(depth[0])) as x:
                inner = {**at, depth[0]: x}
                self.sum_over(sums, fixed, tiled, row, size, panel, pieces, depth[1:], inner)
            return
        # Row by row, so that a broadcast element dies before the next; the loads of the column
        # vectors are the same in every row, and are shared by the code generator.
        where = {**fixed, **at}
        if self.next_panel.share is not None:
            self.next_panel.step(self._step(at))
        columns: dict[int, Expr] = {}
        for t in range(size):
            a = self.row_element(where, tiled, row, t)
            for j, count in pieces:
                with self.lanes(count) as v:
                    if j not in columns:
                        columns[j] = self._column_element(where, panel, j, v, at)
                    cell = simplify(v + (t * self.plan.panel + j))
                    self._multiply(sums, cell, a, columns[j])

    @contextmanager
    def steps(self, extent: Dim, is_innermost: bool, kind: str = "serial") -> Iterator[Expr]:
        """A loop over steps of the depth. Of an innermost one, two steps are one trip, as counting
        takes the place of multiply-adds. Where each row has a pointer of its own, LLVM reads the
        columns of both steps first, and has a register too few: a step is a trip then."""
        times = UNROLLED if is_innermost and self.there is None else 1
        if times == 1 or not isinstance(extent, int) or extent % times or extent == times:
            with self.k.loop(extent, kind) as x:
                yield x
            return
        with self.k.loop(extent // times) as trip, self.k.loop(times, "unroll") as x:
            yield trip * times + x

    def _multiply(self, sums: Buffer, cell: Expr, a: Expr, b: Expr) -> None:
        if self.plan.quad is None:
            self.k.store(sums, cell, call("fma", a, b, sums[cell]))
            return
        assert isinstance(a, Load) and isinstance(b, Load)
        if self.plan.together == PAIR:
            self.k.emit(dot2_wide(sums[cell], a, b))
            return
        self.k.emit(dot4(sums[cell], a, b, self.options.centres.get(a.dtype, 0)))

    def _column_element(self, where: dict, panel: Expr, j: int, v: Expr, at: dict) -> Expr:
        if not self.plan.packed:
            column = panel * self.plan.panel + j + v
            return simplify(self.b, {**where, self.column: column})
        if self._is_whole:
            return self._whole_element(where, panel, v + j, at)
        cols = self.match.cols
        flat = panel * self.plan.panel + j + v
        columns = unflatten_index(flat, tuple(x.extent for x in cols))
        mapping: dict[Expr, Expr] = {**where, **dict(zip(cols, columns))}
        mapping.update((x.part, x.element(where, panel, v + j)) for x in self.packed)
        return simplify(self.match.b, mapping)

    def _kind_of(self, depth: Index) -> str:
        """The loop over a summed index: written out, if it says where in a byte a code lies."""
        if self._is_whole or not self.packed or any(depth in x.depth for x in self.packed):
            return "serial"
        return "unroll"

    def panel_element(self, at: dict, panel: Expr) -> Load | None:
        """The first element of a panel at a step of the depth; None if `b` has several panels."""
        return self._whole_element(at, panel, NOTHING, at) if self._is_whole else None

    @property
    def row_of_panel(self) -> int:
        """Elements of a panel at a step of the depth."""
        return self.plan.panel * self.plan.together

    def _step(self, at: dict) -> Expr:
        """The number of a step of the depth."""
        return flatten_index(tuple(at[k] for k in self.depth), tuple(k.extent for k in self.depth))

    def _whole_element(self, where: dict, panel: Expr, lane: Expr, at: dict) -> Load:
        """The element of `b` that is packed whole, whose summed indices may have been merged."""
        (packed,) = self.packed
        outer = tuple(where[x] for x in packed.outer)
        shape = (*packed.buffer.shape[: len(outer) + 1], self.plan.depth, self.plan.panel)
        place = flatten_index((*outer, panel, self._step(at), lane), shape) * self.plan.together
        return Load("panels", (simplify(place),), packed.part.dtype)

    def _finish(self, cell: Expr, at: dict, panel: Expr, j: int, v: Expr) -> None:
        """The epilogue of one vector of sums."""
        column, total = panel * self.plan.panel + j + v, self.k.let(cell)
        here = {**at, self.column: column, self.marker: total}
        store_outputs(self.k, self.match.computation.outputs, self.offset, self.exprs, here)


def row_tiles(rows: Dim, size: int, overlap: bool = False, lone: bool = False) -> list[Segment]:
    """Tiles of rows: all of this size, of which the last may `overlap` the one before it, or of
    almost equal sizes up to this one. Each size is code of its own. So where the rows are known at
    run time only, the last overlaps; a `lone` row may have a tile of its own."""
    if isinstance(rows, int):
        if overlap:
            return [Segment(0, -(-rows // size), size, end=rows)]
        return [Segment(*tile) for tile in balanced_tiles(rows, size)]
    count, left = divided(rows, size)
    if left == 0:
        return [Segment(0, count, size)]
    tiles = Segment(0, ceil_divided(rows, size), size, end=rows)
    if not lone or least(rows) > 1:
        return [tiles]
    is_lone = rows.eq(1)
    return [
        replace(tiles, count=select(is_lone, 0, tiles.count)),
        Segment(0, cast(is_lone, i64), 1),
    ]


def _groups(count: Dim, others: int, pieces: int) -> int:
    """Into how many equal parts to split `count` iterations, so that with `others` outside there
    are so many pieces, if there can be."""
    if not isinstance(count, int):
        return 1
    divisors = [d for d in range(1, count + 1) if count % d == 0]
    return next((d for d in divisors if d * others >= pieces), divisors[-1])
