"""Blocks of register tiles, where both factors change from run to run and caches do not hold all
that is read and written, as in gradients of weights.

A block is so many tiles of rows by so many panels of columns, and is computed in steps of the depth
that the caches hold. A tile of rows that runs along memory is copied once for all panels of a
block, so that it lies together. The loop over panels is inside, so that outputs, and what the
epilogue reads, are met along memory. What is summed in several steps is added up on the stack.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from graphc.ir.addresses import flatten_index, is_affine_in, unflatten_index
from graphc.ir.expr import Const, Expr, Index, minimum
from graphc.ir.extents import as_dim, points
from graphc.ir.kernel import Buffer
from graphc.ir.simplify import simplify
from graphc.ir.types import Dim, elements_of
from graphc.passes.lower.strategies.depth_blocks import STEPS, cut

Emitter = Any  # TileEmitter of register_tiles.py, which imports this module
Segment = Any  # of the same
FEW_PANELS = 4  # that do not make up for a copy of rows
TOGETHER = 8  # tiles, and panels, of a block whose depth the caches do not hold
STACK = 1 << 17  # bytes of sums on the stack
PIECES = 12  # independent blocks that there should be, for a few threads to share
PART_FOR_TILE = 8  # of the second level of cache: what a tile may read without blocks
PART_FOR_BLOCK = 2  # of it: what panels of a block take, and outputs that need no blocks


@dataclass(frozen=True)
class Blocks:
    """Tiles of rows and panels of columns of a block, at most."""

    tiles: int
    panels: int


def needs_blocks(e: Emitter) -> bool:
    """Whether what tiles read, or what they write, is more than caches hold."""
    size = e.match.hole.dtype.size
    extents = [*e.depth, *e.rows]
    static = all(isinstance(x.extent, int) for x in extents) and isinstance(e.plan.columns, int)
    if not static or not e.depth or e.plan.quad is not None or not e.match.hole.dtype.is_float:
        return False
    read = e.plan.depth * (e.plan.panel + e.plan.row_tile) * size
    written = points(e.rows) * e.plan.columns * size
    l2 = e.options.l2_bytes
    return read > l2 // PART_FOR_TILE or written > l2 // PART_FOR_BLOCK


def emit_blocks(
    e: Emitter, outer: list[Index], tiled: Index, segments: list[Segment], panels: list[Segment]
) -> None:
    """Emits all tiles, parallel over outer indices and blocks."""
    for columns in panels:
        for rows in segments:
            blocks = _blocks(e, points(outer), rows, columns)
            counts = -(-columns.count // blocks.panels), -(-rows.count // blocks.tiles)
            extents = (*(x.extent for x in outer), *counts)
            with e.k.loop(elements_of(extents), "parallel", name="p") as p:
                *front, right, down = unflatten_index(p, extents)
                block = _Block(e, dict(zip(outer, front)), tiled, rows, columns, blocks)
                block.emit(right, down)


def _blocks(e: Emitter, outer: int, rows: Segment, columns: Segment) -> Blocks:
    """The size of blocks: as many panels as half of the second cache holds, for one tile of rows
    after another; or, where these are few, several tiles by several panels."""
    size = e.match.hole.dtype.size
    fitting = e.options.l2_bytes // PART_FOR_BLOCK // (e.plan.depth * e.plan.panel * size)
    room = STACK // (rows.size * e.plan.panel * size)
    if fitting >= min(TOGETHER, columns.count):
        down, right = 1, min(fitting, max(room, 1), columns.count)
    else:
        down, right = min(TOGETHER, rows.count), min(TOGETHER, columns.count)
    while outer * -(-columns.count // right) * -(-rows.count // down) < PIECES:
        if right == down == 1:
            break
        down, right = (down, -(-right // 2)) if right >= down else (-(-down // 2), right)
    return Blocks(_even(rows.count, down), _even(columns.count, right))


def _even(count: int, most: int) -> int:
    """How many of `count` each of the fewest groups of at most so many has."""
    groups = -(-count // most)
    return -(-count // groups)


class _Block:
    """Emits one block."""

    def __init__(
        self, e: Emitter, fixed: dict, tiled: Index, rows: Segment, columns: Segment, blocks: Blocks
    ):
        self.e, self.fixed, self.tiled, self.rows, self.columns = e, fixed, tiled, rows, columns
        self.blocks = blocks
        self.cells = rows.size * e.plan.panel
        lanes = e.plan.lanes
        self.pieces = [(j, min(lanes, columns.size - j)) for j in range(0, columns.size, lanes)]

    def emit(self, right: Expr, down: Expr) -> None:
        """The block that is so many to the right, and so many down."""
        k, blocks = self.e.k, self.blocks
        self.first = k.let(simplify(right * blocks.panels + self.columns.first))
        self.top = k.let(simplify(down * blocks.tiles))
        self.panels = _number(self.columns.count, right, blocks.panels)
        self.tiles = _number(self.rows.count, down, blocks.tiles)
        if points(self.e.depth) <= 2 * STEPS:
            with k.loop(self.tiles) as t:
                self.at_once(self.row(t))
        else:
            self.in_steps()

    def row(self, t: Expr) -> Expr:
        return self.e.k.let(simplify((self.top + t) * self.rows.size + self.rows.first))

    def at_once(self, row: Expr) -> None:
        """The tiles of a row, each over the whole depth."""
        e = self.e
        with self.together(row, e.depth, points(e.depth), {}), e.k.loop(self.panels) as n:
            e.tile(self.fixed, self.tiled, row, self.rows.size, self.first + n, self.columns)

    def in_steps(self) -> None:
        """All tiles, a part of the depth at a time."""
        e, k, right = self.e, self.e.k, self.blocks.panels
        outside, split, whole, room = cut(e.depth, STEPS)
        inside = [Index(split.name, _even(split.count, room)), *whole]
        parts = -(-split.count // inside[0].count)
        extents = (*(x.extent for x in outside), parts)
        total = k.alloc(e.match.hole.dtype, (self.blocks.tiles * right * self.cells,), "stack")
        with k.loop(self.tiles) as t, k.loop(self.panels) as n:
            start = simplify((t * right + n) * self.cells)
            e.set(total, self.rows.size, self.pieces, lambda _: Const(0, total.dtype), start)
        with k.loop(elements_of(extents)) as part:
            *front, piece = unflatten_index(part, extents)
            first = k.let(simplify(piece * inside[0].count))
            steps = _number(split.count, piece, inside[0].count)
            at = dict(zip(outside, front))
            with k.loop(self.tiles) as t:
                row = self.row(t)
                own = [Index(inside[0].name, steps), *inside[1:]]
                at[split] = first + own[0]
                with self.together(row, own, points(inside), at), k.loop(self.panels) as n:
                    self.add(total, simplify((t * right + n) * self.cells), row, n, own, at)
        with k.loop(self.tiles) as t:
            row = self.row(t)
            with k.loop(self.rows.size) as r, k.loop(self.panels) as n:
                start = simplify((t * right + n) * self.cells + r * e.plan.panel)
                place = {**self.fixed, self.tiled: simplify(row + r)}
                e.finish_row(total, place, simplify(self.first + n), start, self.pieces)

    def add(
        self, total: Buffer, start: Expr, row: Expr, n: Expr, depth: list[Index], at: dict
    ) -> None:
        """Adds to a tile what a part of the depth gives."""
        e, size = self.e, self.rows.size
        panel = e.k.let(simplify(self.first + n))
        sums = e.zeros(total.dtype, size, self.pieces)
        with e.k.loop(depth[0].extent) as x:
            here = {i: simplify(v, {depth[0]: x}) for i, v in at.items()} | {depth[0]: x}
            e.sum_over(sums, self.fixed, self.tiled, row, size, panel, self.pieces, depth[1:], here)
        e.set(total, size, self.pieces, lambda c: total[c] + sums[simplify(c - start)], start)

    @contextmanager
    def together(self, row: Expr, depth: list[Index], most: int, at: dict) -> Iterator[None]:
        """Copies the rows of a tile, over some indices of the depth, of at most so many points, to
        the stack, if they run along memory and that pays; the emitter reads them there."""
        e, size = self.e, self.rows.size
        along = is_affine_in(e.a.index[0], self.tiled) == 1
        if not along or size == 1 or self.blocks.panels < FEW_PANELS:
            yield
            return
        extents = tuple(x.extent for x in depth)
        copy = e.k.alloc(e.a.dtype, (most * size,), "stack")
        with e.k.loops(*extents) as steps:
            place = flatten_index(tuple(steps), extents) * size
            known = dict(zip(depth, steps))
            known = {**self.fixed, **{i: simplify(v, known) for i, v in at.items()}, **known}
            with e.lanes(size) as v:
                value = simplify(e.a, {**known, self.tiled: row + v})
                e.k.store(copy, simplify(place + v), value)
        whole, e.a = e.a, copy[flatten_index(tuple(depth), extents) * size + (self.tiled - row)]
        yield
        e.a = whole


def _number(count: int, at: Expr, each: int) -> Dim:
    """How many of `count` there are in a group of at most `each`."""
    return as_dim(minimum(count - at * each, each)) if count % each else each
