"""Blocks of register tiles, where both factors change from run to run and caches do not hold all
that is read and written, as in gradients of weights.

A block is so many tiles of rows by so many panels of columns, and is computed in steps of the depth
that the caches hold. A tile of rows that runs along memory is copied once for all panels of a
block, so that it lies together. The loop over panels is inside, so that outputs, and what the
epilogue reads, are met along memory. What is summed in several steps is added up on the stack.
Columns that are large, such as weights that are trained, are packed there too, a step at a time
(block_panels.py); then all tiles of a block are copied together, and blocks of the same rows follow
one another, so that the second level of cache keeps these.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from graphc.ir.addresses import flatten_index, is_affine_in, unflatten_index
from graphc.ir.dtypes import i64
from graphc.ir.expr import Const, Expr, Index, Load, as_expr, maximum, minimum, select
from graphc.ir.extents import as_dim, part_from, points
from graphc.ir.instructions import LINE, prefetch
from graphc.ir.kernel import Buffer
from graphc.ir.simplify import simplify
from graphc.ir.types import Dim, elements_of
from graphc.passes.lower.strategies.block_panels import ON_STACK_COPIED, packed_on_stack
from graphc.passes.lower.strategies.depth_blocks import cut
from graphc.passes.lower.strategies.tile_plan import COLUMNS_OUTSIDE, Blocks, LoopPlan
from graphc.records import dataclass

Emitter = Any  # TileEmitter of tile_emitter.py, which imports this module
Segment = Any  # of the same


def emit_blocks(
    e: Emitter, loops: LoopPlan, outer: list[Index], rows: list[Index], segments: list[Segment],
    panels: list[Segment],
) -> None:  # fmt: skip
    """Emits all tiles, parallel over outer indices and blocks. Tiles run along the last index of
    the rows; those at other places of the rows count as further ones."""
    assert loops.blocks is not None
    is_apart = loops.blocks.tiles > 0 and not e.plan.in_blocks
    together = [[rows] for rows in segments] if is_apart else [segments]
    for columns in panels:
        for bands in together:
            blocks = fitted_blocks(e, loops, points(outer), points(rows[:-1]), bands, columns)
            groups = -(-tiles_of(bands, points(rows[:-1])) // blocks.tiles)
            counts = [-(-columns.count // blocks.panels), groups]
            if e.plan.in_blocks:  # so that rows stay in the cache for the next columns
                counts.reverse()
            extents = (*(x.extent for x in outer), *counts)
            with e.k.loop(elements_of(extents), "parallel", name="p") as p:
                *front, right, down = unflatten_index(p, extents)
                if e.plan.in_blocks:
                    right, down = down, right
                block = _Block(e, loops, dict(zip(outer, front)), rows, bands, columns, blocks)
                block.emit(right, down, groups)


def fitted_blocks(
    e: Emitter, loops: LoopPlan, outer: int, places: int, bands: list[Segment], columns: Segment
) -> Blocks:
    """The blocks of these tiles, at so many places, and panels: none larger than planned, smaller
    where threads would have too little to share, of nearly equal size."""
    assert loops.blocks is not None
    count = tiles_of(bands, places)
    down, right = min(loops.blocks.tiles, count) or count, min(loops.blocks.panels, columns.count)
    while outer * -(-columns.count // right) * -(-count // down) < loops.pieces:
        if right == 1 and (down == 1 or not loops.blocks.tiles):
            break
        if right >= down or not loops.blocks.tiles:
            right = -(-right // 2)
        else:
            down = -(-down // 2)
    return Blocks(_even(count, down), _even(columns.count, right))


def tiles_of(bands: list[Segment], places: int) -> int:
    """How many tiles bands have, at so many places."""
    return sum(x.count for x in bands) * places


def _even(count: int, most: int) -> int:
    """How many of `count` each of the fewest groups of at most so many has."""
    groups = -(-count // most)
    return -(-count // groups)


@dataclass
class _Band:
    """Tiles of one size of a block: their rows, the number of the first, how many there are, at
    most and in this block, and where their sums start."""

    rows: Segment
    top: Expr
    size: int
    tiles: Dim
    start: int = 0


class _Block:
    """Emits one block."""

    def __init__(
        self,
        e: Emitter,
        loops: LoopPlan,
        fixed: dict,
        rows: list[Index],
        bands: list[Segment],
        columns: Segment,
        blocks: Blocks,
    ):
        self.e, self.fixed, self.columns = e, fixed, columns
        *self.places, self.tiled = rows
        self.segments, self.blocks = bands, blocks
        self.steps = e.plan.split
        self.is_staged = loops.staged and blocks.panels > 1
        self.panels_outside = loops.order == COLUMNS_OUTSIDE
        self.are_again = loops.blocks is not None and loops.blocks.tiles > 0
        self.pieces = e.pieces(columns.size)

    def emit(self, right: Expr, down: Expr, groups: int) -> None:
        """The block that is so many to the right, and so many of `groups` down."""
        k, blocks = self.e.k, self.blocks
        self.first = k.let(simplify(right * blocks.panels + self.columns.first))
        self.panels = part_from(self.columns.count, right * blocks.panels, blocks.panels)
        self.bands: list[_Band] = []
        for rows in self.segments:
            count = rows.count * points(self.places)
            size = -(-count // groups)
            first = down * size
            tiles = part_from(count, first, size)
            if -(-count // size) < groups:  # so that the last ones have none
                tiles = as_dim(maximum(minimum(count - first, size), 0))
            band = _Band(rows, k.let(simplify(first)), size, tiles)
            band.start = sum(map(self.cells, self.bands))
            self.bands.append(band)
        whole = self.steps if self.panels_outside else 2 * self.steps  # depths that are not split
        if not self.steps or points(self.e.depth) <= whole:
            for band in self.bands:
                with k.loop(band.tiles) as t:
                    self.at_once(band.rows.size, *self.row(band, t))
        else:
            self.in_steps()

    def cells(self, band: _Band) -> int:
        """The sums of all tiles of a band."""
        return band.size * self.blocks.panels * self.of_tile(band)

    def of_tile(self, band: _Band) -> int:
        return band.rows.size * self.e.plan.panel

    def row(self, band: _Band, t: Expr) -> tuple[dict, Expr]:
        """The place and the first row of a tile."""
        extents = (*(x.extent for x in self.places), band.rows.count)
        *place, tile = unflatten_index(band.top + t, extents)
        fixed = {x: self.e.k.let(simplify(v)) for x, v in zip(self.places, place)}
        row = self.e.k.let(simplify(tile * band.rows.size + band.rows.first))
        return {**self.fixed, **fixed}, row

    def at_once(self, size: int, fixed: dict, row: Expr) -> None:
        """The tiles of a row, each over the whole depth."""
        e = self.e
        rows = self.together(size, row, e.depth, points(e.depth), fixed)
        with rows, e.k.loop(self.panels) as n:
            e.tile(fixed, self.tiled, row, size, self.first + n, self.columns)

    def in_steps(self) -> None:
        """All tiles, a part of the depth at a time."""
        e, k = self.e, self.e.k
        outside, split, whole, room = cut(e.depth, self.steps)
        inside = [Index(split.name, _even(split.count, room)), *whole]
        parts = -(-split.count // inside[0].count)
        extents = (*(x.extent for x in outside), parts)
        total = k.alloc(e.match.hole.dtype, (sum(map(self.cells, self.bands)),), "stack")
        zero = Const(0, total.dtype)
        for band in self.bands:
            with k.loop(band.tiles) as t, k.loop(self.panels) as n:
                e.set(total, band.rows.size, self.pieces, lambda _: zero, self.start(band, t, n))
        with k.loop(elements_of(extents)) as part:
            *front, piece = unflatten_index(part, extents)
            first = k.let(simplify(piece * inside[0].count))
            steps = part_from(split.count, piece * inside[0].count, inside[0].count)
            own = [Index(inside[0].name, steps), *inside[1:]]
            at = {**dict(zip(outside, front)), split: first + own[0]}
            known = {**self.fixed, **at}
            with packed_on_stack(e, self.first, self, own, points(inside), known):
                if self.panels_outside:
                    is_last = (part + 1).eq(elements_of(extents))
                    self.add_panels(total, own, points(inside), at, is_last)
                else:
                    self.add_rows(total, own, points(inside), at)
        for band in self.bands:
            with k.loop(band.tiles) as t:
                fixed, row = self.row(band, t)
                with k.loop(band.rows.size) as r, k.loop(self.panels) as n:
                    start = simplify(self.start(band, t, n) + r * e.plan.panel)
                    place = {**fixed, self.tiled: simplify(row + r)}
                    e.finish_row(total, place, simplify(self.first + n), start, self.pieces)

    def start(self, band: _Band, t: Expr, n: Expr) -> Expr:
        """Where the sums of a tile start."""
        return simplify((t * self.blocks.panels + n) * self.of_tile(band) + band.start)

    def add_rows(self, total: Buffer, own: list[Index], most: int, at: dict) -> None:
        """Adds to all tiles what a part of the depth gives: the panels pass over a tile of rows."""
        k = self.e.k
        for band in self.bands:
            size = band.rows.size
            room = band.size * most * size * self.e.match.a.dtype.size
            at_once = self.e.plan.in_blocks and self.copies(size) and room <= ON_STACK_COPIED
            copy = self.copied(band, own, most, at) if at_once else None
            with k.loop(band.tiles) as t:
                fixed, row = self.row(band, t)
                here = {**fixed, **at}
                if copy is not None:
                    rows = self.reading(copy, size, row, own, t * (most * size))
                else:
                    rows = self.together(size, row, own, most, here)
                with rows, k.loop(self.panels) as n:
                    self.add(total, self.start(band, t, n), size, row, n, own, here)

    def add_panels(
        self, total: Buffer, own: list[Index], most: int, at: dict, is_last: Expr
    ) -> None:
        """The same: the rows pass over a part of a panel, which the first cache holds, while the
        part that is next comes into the second."""
        k = self.e.k
        with k.loop(self.panels) as n:
            tiles, after = 0, self.next_part(n, own, at, is_last)
            for band in self.bands:
                with k.loop(band.tiles) as t:
                    fixed, row = self.row(band, t)
                    if after is not None:
                        self.fetch(after, most, tiles + t)
                    start = self.start(band, t, n)
                    self.add(total, start, band.rows.size, row, n, own, {**fixed, **at})
                tiles += band.size

    def next_part(self, n: Expr, own: list[Index], at: dict, is_last: Expr) -> Load | None:
        """Where the part of a panel begins that is multiplied after that of panel `n`: the same of
        the next panel, the next of the first panel, or, after the last, that of the next block.
        None where panels are several tensors."""
        e, plan = self.e, self.e.plan
        none = dict.fromkeys(own, Const(0, i64))
        start = {i: simplify(v, none) for i, v in at.items()} | none
        first = e.panel_element({**self.fixed, **start}, self.first + n)
        if first is None:
            return None
        size = as_expr(own[0].extent, i64) * points(own[1:])
        block = self.panels * as_expr(plan.depth, i64)
        again = block if self.are_again else 0  # for the tiles of rows of the next block
        to_first = size + plan.depth - block
        step = select(is_last, size - again, to_first)
        step = select((n + 1).eq(self.panels), step, plan.depth)
        (index,) = first.index
        return Load(first.source, (e.k.let(simplify(index + step * e.row_of_panel)),), first.dtype)

    def fetch(self, after: Load, steps: int, tile: Expr) -> None:
        """Asks for the lines of a part of so many steps that fall to a tile."""
        lines = -(-steps * self.e.row_of_panel * after.dtype.size // LINE)
        share = -(-lines // sum(band.size for band in self.bands))
        at = after.index[0] + tile * (share * LINE // after.dtype.size)
        self.e.k.emit(prefetch(Load(after.source, (simplify(at),), after.dtype), share))

    def add(
        self, total: Buffer, start: Expr, size: int, row: Expr, n: Expr, depth: list[Index],
        at: dict,
    ) -> None:  # fmt: skip
        """Adds to a tile what a part of the depth gives."""
        e = self.e
        panel = e.k.let(simplify(self.first + n))
        sums = e.zeros(total.dtype, size, self.pieces)
        with e.steps(depth[0].extent, len(depth) == 1) as x:
            here = {i: simplify(v, {depth[0]: x}) for i, v in at.items()} | {depth[0]: x}
            e.sum_over(sums, {}, self.tiled, row, size, panel, self.pieces, depth[1:], here)
        e.set(total, size, self.pieces, lambda c: total[c] + sums[simplify(c - start)], start)

    @contextmanager
    def together(
        self, size: int, row: Expr, depth: list[Index], most: int, at: dict
    ) -> Iterator[None]:
        """Copies the rows of a tile, over some indices of the depth, of at most so many points, to
        the stack, if they run along memory and are staged; the emitter reads them there."""
        if not self.copies(size):
            yield
            return
        copy = self.e.k.alloc(self.e.a.dtype, (most * size,), "stack")
        extents = tuple(x.extent for x in depth)
        with self.e.k.loops(*extents) as steps:
            place = flatten_index(tuple(steps), extents) * size
            self.copy_step(copy, place, size, row, dict(zip(depth, steps)), at)
        with self.reading(copy, size, row, depth):
            yield

    def copies(self, size: int) -> bool:
        """Whether rows of a tile of so many are copied to the stack."""
        return self.is_staged and size > 1 and is_affine_in(self.e.a.index[0], self.tiled) == 1

    def copied(self, band: _Band, depth: list[Index], most: int, at: dict) -> Buffer:
        """A copy of the rows of all tiles of a band, over indices of the depth, of at most so many
        points: tiles pass over a step, so that rows are read as they lie."""
        k, size, extents = self.e.k, band.rows.size, tuple(x.extent for x in depth)
        copy = k.alloc(self.e.a.dtype, (band.size * most * size,), "stack")
        with k.loops(*extents) as steps, k.loop(band.tiles) as t:
            fixed, row = self.row(band, t)
            place = (t * most + flatten_index(tuple(steps), extents)) * size
            self.copy_step(copy, place, size, row, dict(zip(depth, steps)), {**fixed, **at})
        return copy

    def copy_step(
        self, copy: Buffer, place: Expr, size: int, row: Expr, steps: dict, at: dict
    ) -> None:
        """Copies the rows of a tile at one step of the depth."""
        known = {**{i: simplify(v, steps) for i, v in at.items()}, **steps}
        with self.e.lanes(size) as v:
            value = simplify(self.e.a, {**known, self.tiled: row + v})
            self.e.k.store(copy, simplify(place + v), value)

    @contextmanager
    def reading(
        self, copy: Buffer, size: int, row: Expr, depth: list[Index], start: Expr | int = 0
    ) -> Iterator[None]:
        """Has the emitter read the rows of a tile where they were copied to, from the start on."""
        e, extents = self.e, tuple(x.extent for x in depth)
        place = flatten_index(tuple(depth), extents) * size + (self.tiled - row)
        whole, e.a = e.a, copy[place + start]
        yield
        e.a = whole
