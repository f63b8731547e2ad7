"""Register tiling: contractions (GEMM and convolutions) in tiles of vector registers.

* `b` is packed in panels as wide as a tile (column_operand.py);
* `a` is read element by element and broadcast, so it needs no packing (row_operand.py);
* bytes whose products are summed as int32 are multiplied four by four (dot4 of
  graphc/ir/instructions.py); zero points are corrected in the epilogue (zero_points.py);
* a micro-kernel keeps MR x NR sums in registers over all of k, and the epilogue (bias, activation,
  residual) is applied to them on their way to memory;
* rows are blocked so that a block stays in the second-level cache while all panels pass over it.

Rows, columns and k are those of analysis/contraction.py. Cache blocking and packing follow K. Goto
and R. van de Geijn, Anatomy of High-Performance Matrix Multiplication (2008), with the full depth
of k in one pass, as suits inference shapes. A long depth is summed in blocks, so that errors do not
grow with the number of terms. Where both factors change from run to run, tiles are computed in
blocks (cache_blocks.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

from graphc.ir.addresses import flatten_index, flatten_loads, is_affine_in, unflatten_index
from graphc.ir.dtypes import DType, f32, f64, i32, i64
from graphc.ir.expr import (
    Const,
    Expr,
    Index,
    Load,
    as_expr,
    call,
    cost,
    loads,
    maximum,
    minimum,
    select,
    substitute,
)
from graphc.ir.extents import as_dim, ceil_divided, divided, most, points
from graphc.ir.instructions import dot4
from graphc.ir.kernel import Buffer, Kernel, KernelBuilder
from graphc.ir.simplify import simplify
from graphc.ir.types import Dim, elements_of
from graphc.passes.analysis.computation import Computation, flat_buffer
from graphc.passes.analysis.contraction import Match, match_contraction, wide_sums
from graphc.passes.analysis.core import reductions_in
from graphc.passes.analysis.factors import converted
from graphc.passes.analysis.spaces import balanced_tiles, known_last, merge_adjacent
from graphc.passes.lower.lowered import Lowered, in_place_of_epilogues
from graphc.passes.lower.strategies.block_panels import packs_in_blocks
from graphc.passes.lower.strategies.cache_blocks import emit_blocks, needs_blocks
from graphc.passes.lower.strategies.column_operand import Panels, prepare_columns
from graphc.passes.lower.strategies.depth_blocks import DepthBlocks, depth_blocks
from graphc.passes.lower.strategies.reductions import strides_small
from graphc.passes.lower.strategies.row_operand import CENTRES, prepare_rows, take_quads
from graphc.passes.lower.strategies.tile_plan import RegisterTileOptions, TilePlan, tile_plan
from graphc.records import dataclass

PARALLEL_PIECES = 12  # independent parts that a kernel should have, for a few threads to share
LARGE_COLUMNS = 16  # times the second level of cache: no cache has room for more columns
FEW_ROWS = 8  # that do not make up for panels made at run time
SMALL_TILE = 4  # rows, whose sums, two vectors each, are as many as the latency of fma asks
LONG_EPILOGUE = 10  # cost, per product of a step, beyond which it is not repeated for every row
LONG_DEPTH = 128  # products, beside which it takes no time that sums are stored before the epilogue
FEW_AGAIN = 64  # rows, of which one may be computed twice to have tiles of one size

NOTHING = Const(0, i64)
Tile = tuple[dict, Index, Expr, int, Expr, list[tuple[int, int]]]
"""The operands of TileEmitter.sums, which tell where a tile is."""


@dataclass(frozen=True)
class Segment:
    """Panels or tiles of rows: the first (of rows: the first row), how many, the size of each. Of
    an `open` panel fewer columns may be there, of which the columns of the output tell. Rows may
    have an `end`, before which the last tile begins early enough to end there: its first rows are
    those of the tile before, and are summed again, but not stored."""

    first: Dim
    count: Dim
    size: int
    open: bool = False
    end: int | None = None


def lower_register_tiles(computation: Computation, options: RegisterTileOptions) -> Lowered | str:
    """The kernel of a contraction, or the reason why the computation is not one."""
    match = match_contraction(wide_sums(computation), options.min_depth, (f32, f64, i32))
    if isinstance(match, str):
        return match
    if _runs_along_memory(match, options):
        return (
            f"contraction: columns that run along memory in the depth need more than {FEW_ROWS} "
            f"rows to be packed at run time, found {points(match.rows)}"
        )
    quad = take_quads(match) if match.hole.dtype is i32 else prepare_rows(match)
    if isinstance(quad, str):
        return quad
    plan = tile_plan(match, options, quad)
    if packs_in_blocks(match, plan, options):
        plan = replace(plan, packed=False, in_blocks=True)
    if plan.packed and quad is None and not match.rows and not _is_constant(match):
        return "contraction: columns that are packed at run time need several rows, found one"
    return TileEmitter(
        match, plan, options, prepare_columns(match, plan, options.widened)
    ).lowered()


def _runs_along_memory(match: Match, options: RegisterTileOptions) -> bool:
    """Whether there are few rows, and both factors run along memory in the depth: each sum is best
    taken there. Panels of `b`, unless they are made at compile time, take longer to make."""
    b, deepest = converted(match.b), match.depth[-1]
    if not isinstance(b, Load) or b.source in match.computation.constants:
        return False
    if points(match.rows) > FEW_ROWS:
        return False
    flat = flatten_loads(b, match.shapes)
    assert isinstance(flat, Load)
    long_enough = most(deepest.extent) * b.dtype.size >= options.vector_bytes
    along = is_affine_in(flat.index[0], deepest) == 1 and strides_small(match.hole.body, deepest)
    return long_enough and along


def _is_constant(match: Match) -> bool:
    """Whether the operand of columns is known when it is compiled."""
    return all(x.source in match.computation.constants for x in loads(match.b))


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
        self.flatten()
        is_serial = all(self._kind_of(x) == "serial" for x in self.depth)
        is_apart = is_serial and match.hole.dtype.is_float
        self.blocks_apart = depth_blocks(self.depth) if is_apart else None

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

    def lowered(self) -> Lowered:
        match = self.match
        *outer_rows, tiled = self.rows or [Index("m", 1)]
        outer = [*match.outer, *outer_rows]
        is_open = isinstance(tiled.extent, Expr)
        blocked = not is_open and not _is_constant(match) and needs_blocks(self)
        outputs = [flat_buffer(o.buffer) for o in match.computation.outputs]
        used = {x.source for e in self.read() for x in loads(e)}
        used.update(x.buffer.name for x in self.packed)
        inputs = [b for b in match.computation.inputs if b.name in used]
        inplace = in_place_of_epilogues(
            match.computation.outputs, self.offset, self.exprs, inputs, (self.a, self.b)
        )
        overlap = not blocked and (self._is_looped() or not inplace)
        segments = row_tiles(tiled.extent, self.plan.row_tile, overlap)
        panels = self.panels()
        batch = points(outer)
        tiles = sum(most(rows.count) for rows in segments)
        if is_open:
            self._in_blocks(outer, tiled, segments, panels)
        elif blocked:
            emit_blocks(self, match.outer, [*outer_rows, tiled], segments, panels)
        elif self._are_large():
            self._panels_outside(match.outer, outer_rows, tiled, segments, panels)
        elif batch >= 4 or batch * tiles >= 16 * len(panels):
            self._rows_outside(outer, tiled, segments, panels)
        else:
            self._panels_outside(outer, [], tiled, segments, panels)
        params = [flat_buffer(b) for b in (*inputs, *match.temporaries)] + outputs
        steps = most(self.plan.depth) * self.plan.together
        work = points(match.indices) * steps * 2
        kernel = Kernel("contract", tuple(params), self.k.body(), match.computation.label)
        return Lowered(kernel, match.prepare, match.temporaries, flops=work, inplace=inplace)

    def read(self) -> tuple[Expr, ...]:
        """The expressions that the kernel reads inputs in."""
        return self.a, self.b, *self.exprs

    def _are_large(self) -> bool:
        """Whether all columns are more than caches hold: they should come from memory once."""
        elements = most(self.plan.columns) * most(self.plan.depth)
        return elements * self.match.hole.dtype.size > LARGE_COLUMNS * self.options.l2_bytes

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
        self, outer: list[Index], tiled: Index, segments: list[Segment], panels: list[Segment]
    ) -> None:
        """Parallel over outer indices and blocks of row tiles; all panels for each block, or, where
        the blocks are few, a group of panels."""
        for rows in segments:
            assert isinstance(rows.count, int)
            block = min(rows.count, self._block(rows.size))
            while rows.count % block:
                block -= 1
            for fixed, at, part in self._parallel(outer, rows.count // block, [], panels):
                for panel, own, each in part:
                    with self.k.loop(each) as n:
                        number = own + n + panel.first
                        self.tiles(fixed, tiled, at * block, block, rows, number, panel)

    def _block(self, size: int) -> int:
        """Tiles of so many rows that stay in the second level of cache."""
        row_bytes = most(self.plan.depth) * self.match.hole.dtype.size
        return max(1, self.options.l2_bytes // 2 // max(1, size * row_bytes))

    def _in_blocks(
        self, outer: list[Index], tiled: Index, segments: list[Segment], panels: list[Segment]
    ) -> None:
        """Parallel over outer indices, blocks of row tiles and panels, where the rows are known at
        run time only. What rows are left when all tiles are whole belongs to the last block. Blocks
        pass over columns that are large inside of each panel, over others outside."""
        whole, *left = segments
        block = self._block(whole.size)
        blocks = as_dim(maximum((whole.count + block - 1) // block, 1))
        for panel in panels:
            inside = [blocks, panel.count] if not self._are_large() else [panel.count, blocks]
            extents = (*(x.extent for x in outer), *inside)
            with self.k.loop(elements_of(extents), "parallel", name="p") as p:
                *front, one, two = unflatten_index(p, extents)
                at, n = (two, one) if self._are_large() else (one, two)
                fixed = dict(zip(outer, front))
                for rows in segments:
                    tiles = rows.count
                    if rows is whole:
                        tiles = as_dim(minimum(whole.count - at * block, block))
                    elif blocks != 1:
                        tiles = select((at + 1).eq(blocks), rows.count, 0)
                    with self.k.loop(tiles) as t:
                        first = t if rows is not whole else at * block + t
                        row = first * rows.size + rows.first
                        self.tile(fixed, tiled, row, rows.size, n + panel.first, panel)

    def _panels_outside(
        self, outer: list[Index], inner: list[Index], tiled: Index, segments: list[Segment],
        panels: list[Segment],
    ) -> None:  # fmt: skip
        """Parallel over outer indices, panels and inner indices; all row tiles for each panel, or,
        where the panels are few, a group of tiles."""
        for panel in panels:
            for fixed, n, part in self._parallel(outer, panel.count, inner, segments):
                for rows, own, each in part:
                    self.tiles(fixed, tiled, own, each, rows, n + panel.first, panel)

    def _parallel(
        self, outer: Sequence[Index], number: Dim, inner: list[Index], segments: list[Segment]
    ) -> Iterator[tuple[dict, Expr, list[tuple[Segment, Expr, Dim]]]]:
        """Loops over outer indices, so many pieces, and inner indices. Each does all segments, or,
        where they are few, a group of one. Yields the indices, the piece, and its segments, each
        with the first of its items to do and their number."""
        pieces = points((*outer, *inner)) * most(number)
        few = pieces < PARALLEL_PIECES
        for part in [[segment] for segment in segments] if few else [segments]:
            groups = _pieces(part[0].count, pieces) if few else 1
            extents = (*(x.extent for x in outer), number, *(x.extent for x in inner), groups)
            with self.k.loop(elements_of(extents), "parallel", name="p") as p:
                *front, group = unflatten_index(p, extents)
                piece = front.pop(len(outer))
                each = [divided(segment.count, groups)[0] for segment in part]
                own = [(segment, group * n, n) for segment, n in zip(part, each)]
                yield dict(zip((*outer, *inner), front)), piece, own

    # ---------------------------------------------------------------- the micro-kernel

    def tiles(
        self, fixed: dict, tiled: Index, first: Expr, count: Dim, rows: Segment, number: Expr,
        panels: Segment,
    ) -> None:  # fmt: skip
        """So many tiles of rows of a segment, from the first on, in one panel."""
        with self.k.loop(count) as t:
            row = (first + t) * rows.size + rows.first
            start = row if rows.end is None else minimum(row, rows.end - rows.size)
            self.tile(fixed, tiled, start, rows.size, number, panels, simplify(row - start))

    def tile(
        self, fixed: dict, tiled: Index, row: Expr, size: int, number: Expr, panels: Segment,
        done: Expr = NOTHING,
    ) -> None:  # fmt: skip
        """MR x NR sums over the whole depth, then the epilogue, which leaves out the rows that are
        `done`."""
        panel = self.k.let(simplify(number))
        row = self.k.let(simplify(row))
        self.is_open = panels.open
        pieces = self.pieces(panels.size)
        sums = self.sums(fixed, tiled, row, size, panel, pieces)
        stacked = self.blocks_apart is not None
        self.finish_tile(sums, fixed, tiled, row, size, panel, pieces, stacked, done)

    def finish_tile(
        self, sums: Buffer, fixed: dict, tiled: Index, row: Expr, size: int, panel: Expr,
        pieces: list[tuple[int, int]], stacked: bool = False, done: Expr = NOTHING,
    ) -> None:  # fmt: skip
        """The epilogue of a tile of sums, in registers or `stacked`, of the rows that are not
        `done`."""
        if size > 1 and self._is_looped():
            tile = sums if stacked else self._stacked(sums, size, pieces)
            self._finish_in_a_loop(tile, fixed, tiled, row, size, panel, pieces, done)
            return
        for t in range(size):
            self.finish_row(sums, {**fixed, tiled: row + t}, panel, t * self.plan.panel, pieces)

    def pieces(self, width: int) -> list[tuple[int, int]]:
        """The vectors of a panel of so many columns: where each starts, and how many it has."""
        lanes = self.plan.lanes
        return [(j, min(lanes, width - j)) for j in range(0, width, lanes)]

    def _is_looped(self) -> bool:
        """Whether the epilogue is a loop over the rows of a tile, not code for each of them."""
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
                each = as_dim(minimum(extent - first, piece)) if is_open else piece
                self._add_block(total, where, blocks, at, first, each)
            if left != 0:
                start = as_expr(count * piece, i64)
                self._add_block(total, where, blocks, at, start, left)
        return total

    def _add_block(
        self, total: Buffer, where: Tile, blocks: DepthBlocks, at: dict, start: Expr, count: Dim
    ) -> None:
        """Adds to the total of a tile what a block of the depth gives."""
        _, _, _, size, _, pieces = where
        sums = self.zeros(total.dtype, size, pieces)
        with self.k.loop(count) as x:
            inside = {**at, blocks.split: simplify(start + x)}
            self.sum_over(sums, *where, blocks.inside, inside)
        self.set(total, size, pieces, lambda cell: total[cell] + sums[cell])

    def zeros(self, dtype: DType, size: int, pieces: list[tuple[int, int]]) -> Buffer:
        """A tile in registers, of zeros."""
        tile = self.k.alloc(dtype, (size * self.plan.panel,), "reg")
        self.set(tile, size, pieces, lambda cell: Const(0, dtype))
        return tile

    def _finish_in_a_loop(
        self, sums: Buffer, fixed: dict, tiled: Index, row: Expr, size: int, panel: Expr,
        pieces: list[tuple[int, int]], done: Expr,
    ) -> None:  # fmt: skip
        """A long epilogue (an activation with a polynomial) is written once, not once per row, of
        sums on the stack."""
        with self.k.loop(as_dim(size - done)) as left:
            at = done + left
            start = at * self.plan.panel
            self.finish_row(sums, {**fixed, tiled: row + at}, panel, start, pieces)

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
            with self.k.loop(depth[0].extent, self._kind_of(depth[0])) as x:
                inner = {**at, depth[0]: x}
                self.sum_over(sums, fixed, tiled, row, size, panel, pieces, depth[1:], inner)
            return
        # Row by row, so that a broadcast element dies before the next; the loads of the column
        # vectors are the same in every row, and are shared by the code generator.
        where = {**fixed, **at}
        columns: dict[int, Expr] = {}
        for t in range(size):
            a = simplify(self.a, {**where, tiled: row + t})
            for j, count in pieces:
                with self.lanes(count) as v:
                    if j not in columns:
                        columns[j] = self._column_element(where, panel, j, v, at)
                    cell = simplify(v + (t * self.plan.panel + j))
                    self._multiply(sums, cell, a, columns[j])

    def _multiply(self, sums: Buffer, cell: Expr, a: Expr, b: Expr) -> None:
        if self.plan.quad is None:
            self.k.store(sums, cell, call("fma", a, b, sums[cell]))
            return
        assert isinstance(a, Load) and isinstance(b, Load)
        self.k.emit(dot4(sums[cell], a, b, CENTRES.get(a.dtype, 0)))

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

    def _whole_element(self, where: dict, panel: Expr, lane: Expr, at: dict) -> Expr:
        """The element of `b` that is packed whole, whose summed indices may have been merged."""
        (packed,) = self.packed
        outer = tuple(where[x] for x in packed.outer)
        shape = (*packed.buffer.shape[: len(outer) + 1], self.plan.depth, self.plan.panel)
        deep = flatten_index(tuple(at[k] for k in self.depth), tuple(k.extent for k in self.depth))
        place = flatten_index((*outer, panel, deep, lane), shape) * self.plan.together
        return Load("panels", (simplify(place),), packed.part.dtype)

    def _finish(self, cell: Expr, at: dict, panel: Expr, j: int, v: Expr) -> None:
        """The epilogue of one vector of sums, stored once all outputs of it have been computed, as
        they may lie over what is read."""
        mapping = {**at, self.column: panel * self.plan.panel + j + v}
        total = self.k.let(cell)
        values = [simplify(expr, {**mapping, self.marker: total}) for expr in self.exprs]
        if len(values) > 1:
            values = [self.k.let(value) for value in values]
        offset = simplify(self.offset, mapping)
        for output, value in zip(self.match.computation.outputs, values):
            self.k.store(flat_buffer(output.buffer), (offset,), value)


def row_tiles(rows: Dim, largest: int, overlap: bool = False) -> list[Segment]:
    """Tiles of rows, of almost equal size; of one size, where they may `overlap` and few rows are
    summed twice then. Where the rows are known at run time only, tiles of the largest size, then of
    each power of two that may be left, up to that of a small tile: larger ones would be little
    faster. Each size is code of its own."""
    if isinstance(rows, int):
        tiles = [Segment(*tile) for tile in balanced_tiles(rows, largest)]
        return _overlapping(rows, largest) or tiles if overlap and len(tiles) > 1 else tiles
    count, left = divided(rows, largest)
    segments = [Segment(0, count, largest)]
    done: Dim = count * largest
    size = min(SMALL_TILE, 1 << (largest - 1).bit_length() - 1) if largest > 1 else 0
    while size:
        count, left = divided(left, size)
        if count != 0:
            segments.append(Segment(as_dim(done), count, size))
        done, size = done + count * size, size // 2
    return segments


def _overlapping(rows: int, largest: int) -> list[Segment]:
    """Tiles of one size that sum few rows twice; none if there is no such size."""
    for size in range(largest, largest * 3 // 4, -1):
        count = -(-rows // size)
        if (count * size - rows) * FEW_AGAIN <= rows:
            return [Segment(0, count, size, end=rows)]
    return []


def _pieces(count: Dim, others: int) -> int:
    """Into how many equal parts to split `count` iterations, so that with `others` outside there is
    work for several threads."""
    if not isinstance(count, int):
        return 1
    divisors = [d for d in range(1, count + 1) if count % d == 0]
    return next((d for d in divisors if d * others >= PARALLEL_PIECES), divisors[-1])
