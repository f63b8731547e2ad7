"""Panels of columns on the stack, packed by a block of tiles a part of the depth at a time.

Where the operand of columns changes from run to run and is larger than caches, as weights are that
are trained, a copy of all of it in panels is written to memory and read again. A block packs what
the next products read instead, which stays in the second level of cache for all rows (the order of
loops of K. Goto and R. van de Geijn, Anatomy of High-Performance Matrix Multiplication, 2008).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from graphc.ir.addresses import flatten_index, flatten_loads, is_affine_in
from graphc.ir.expr import Expr, Index, Load, loads, minimum
from graphc.ir.extents import divided, most, points
from graphc.ir.instructions import transpose
from graphc.ir.kernel import Buffer
from graphc.ir.simplify import simplify
from graphc.passes.analysis.contraction import Match
from graphc.passes.lower.strategies.depth_blocks import STEPS
from graphc.passes.lower.strategies.row_operand import separable
from graphc.passes.lower.strategies.tile_plan import Blocks, RegisterTileOptions, TilePlan
from graphc.passes.lower.strategies.tile_transpose import LARGEST_SIDE, SMALLEST_SIDE

Emitter = Any  # TileEmitter of tile_emitter.py, which imports this module
Block = Any  # of cache_blocks.py, which does too
ON_STACK = 1 << 18  # bytes of the sums of a block, and of its panels, at most
ON_STACK_COPIED = 1 << 19  # the same where rows are copied
PART_OF_BLOCK = 2  # of the second level of cache: sums, panels and copied rows of a block
PART_OF_COPIES = (2, 3)  # of it: the same where rows are copied, once for each block of columns
PART_OF_ROWS = (3, 4)  # of it: what they take with rows that stay there from block to block
COPIED = 2  # times that columns count, which are packed again for each block of rows
NEAR = 4  # times as fast as from beyond are rows read that stay in the second level of cache
PART_FOR_COLUMNS = 2  # of the second level of cache: columns that are not packed in blocks


def packs_in_blocks(match: Match, plan: TilePlan, options: RegisterTileOptions) -> bool:
    """Whether blocks are to pack the columns of a product: those of a large matrix."""
    if not plan.packed or not can_pack_in_blocks(match, plan):
        return False
    size = match.hole.dtype.size
    if points(match.depth) <= 2 * STEPS:
        return False
    columns = points(match.cols) * points(match.depth) * size
    return columns > options.l2_bytes // PART_FOR_COLUMNS


def can_pack_in_blocks(match: Match, plan: TilePlan) -> bool:
    """Whether blocks can pack the columns of a product: a matrix of floats that changes from run to
    run, and runs along memory in the columns or in the last summed index."""
    b = match.b
    if plan.quad is not None or not match.hole.dtype.is_float:
        return False
    spaces = [*match.rows, *match.cols, *match.depth]
    if not isinstance(b, Load) or any(not isinstance(x.extent, int) for x in spaces):
        return False
    if b.source in match.computation.constants or b.dtype is not match.hole.dtype:
        return False
    if len(match.cols) != 1 or len(match.depth) != 1:
        return False
    flat = flatten_loads(b, match.shapes)
    assert isinstance(flat, Load)
    if not separable(flat.index[0], set(match.depth)):
        return False
    along = is_affine_in(flat.index[0], match.depth[-1]) == 1
    turned = along and SMALLEST_SIDE <= plan.lanes <= LARGEST_SIDE
    return turned or is_affine_in(flat.index[0], match.cols[0]) == 1


def packing_blocks(
    plan: TilePlan, tiles: int, panels: int, size: int, l2_bytes: int, copied: bool = False
) -> Blocks:
    """The blocks of so many tiles of rows and panels, with numbers of `size` bytes, that wait least
    for what comes from beyond the first level of cache: rows again for each block of columns, from
    the second level if they stay there, and columns for each of rows. Rows may be `copied` to the
    stack too: then each block copies both operands, and larger ones do so less often."""
    most_on_stack = ON_STACK_COPIED if copied else ON_STACK
    part_of, all_of = PART_OF_COPIES if copied else (1, PART_OF_BLOCK)
    depth = most(plan.depth) * size
    best, least = Blocks(1, 1), tiles * panels * plan.panel * depth * COPIED
    for down in _counts(tiles):
        for right in _counts(panels):
            own = Blocks(-(-tiles // down), -(-panels // right))
            rows, columns = own.tiles * plan.row_tile, own.panels * plan.panel * size
            copy = rows * STEPS * size if copied else 0
            taken = (rows + STEPS) * columns + copy
            if max(rows * columns, STEPS * columns, copy) > most_on_stack:
                continue
            if taken > l2_bytes * part_of // all_of:
                continue
            part, whole = PART_OF_ROWS
            stay = rows * depth + taken <= l2_bytes * part // whole
            passes = 1 + (right - 1) // NEAR if stay else right
            again = panels * plan.panel * down * COPIED
            beyond = (tiles * plan.row_tile * passes + again) * depth
            if beyond < least:
                best, least = own, beyond
    return best


def _counts(items: int) -> list[int]:
    """How many groups of equal size so many items can be in, but for the last group."""
    return sorted({-(-items // size) for size in range(1, items + 1)})


@contextmanager
def packed_on_stack(
    e: Emitter, first: Expr, block: Block, depth: list[Index], most: int, known: dict
) -> Iterator[None]:
    """Packs the panels of a block, from the `first` on, over indices of the depth, of at most so
    many points; the emitter reads them there. `known` are all other indices."""
    if not e.plan.in_blocks:
        yield
        return
    k, width = e.k, e.plan.panel
    copy = k.alloc(e.b.dtype, (block.blocks.panels * most * width,), "stack")
    with k.loop(block.panels) as n:
        start = k.let(simplify(n * (most * width)))
        pack_panel(e, copy, start, k.let(simplify(first + n)), block.pieces, depth, known)
    whole, e.b = e.b, packed_element(e, copy, first, depth, most)
    yield
    e.b = whole


def packed_element(
    e: Emitter, copy: Buffer, first: Expr | int, depth: list[Index], most: int
) -> Load:
    """The element of `b` in panels, from the `first` on, of at most so many rows each."""
    width, extents = e.plan.panel, tuple(x.extent for x in depth)
    place = ((e.column // width - first) * most + flatten_index(tuple(depth), extents)) * width
    return copy[place + e.column % width]


def pack_panel(
    e: Emitter, copy: Buffer, start: Expr, panel: Expr, pieces: list[tuple[int, int]],
    depth: list[Index], known: dict,
) -> None:  # fmt: skip
    """Copies a panel of `b`, over indices of the depth, to where it is to start. `known` are all
    other indices."""
    if e.plan.lanes > 1 and _is_turned(e, depth):
        _turned(e, copy, start, panel, pieces, depth, known)
        return
    with e.k.loops(*(x.extent for x in depth)) as steps:
        _row(e, copy, start, panel, pieces, dict(zip(depth, steps)), depth, known)


def _is_turned(e: Emitter, depth: list[Index]) -> bool:
    """Whether columns run along memory in the depth."""
    if len(depth) != 1 or not SMALLEST_SIDE <= e.plan.lanes <= LARGEST_SIDE:
        return False
    read = loads(e.b)
    is_apart = any(is_affine_in(x.index[0], e.column) not in (0, 1) for x in read)
    return is_apart and all(is_affine_in(x.index[0], depth[0]) in (0, 1) for x in read)


def _row(
    e: Emitter, copy: Buffer, start: Expr, panel: Expr, pieces: list[tuple[int, int]],
    steps: dict, depth: list[Index], known: dict,
) -> None:  # fmt: skip
    """One row of a panel, whose depth is at these steps."""
    place = flatten_index(tuple(steps[x] for x in depth), tuple(x.extent for x in depth))
    at = {i: simplify(v, steps) for i, v in known.items()} | steps
    width = e.plan.panel
    for j, count in pieces:
        with e.columns(panel, j, count) as v:
            value = simplify(e.b, {**at, e.column: panel * width + j + v})
            e.k.store(copy, simplify(start + place * width + j + v), value)


def _turned(
    e: Emitter, copy: Buffer, start: Expr, panel: Expr, pieces: list[tuple[int, int]],
    depth: list[Index], known: dict,
) -> None:  # fmt: skip
    """A panel of columns that run along memory in the depth: in tiles that are transposed."""
    k, side, (last,) = e.k, e.plan.lanes, depth
    whole, left = divided(last.extent, side)
    with k.loop(whole) as q:
        for j, _ in pieces:
            tile = k.alloc(copy.dtype, (side * side,))
            for c in range(side):
                own = minimum(panel * e.plan.panel + j + c, e.plan.columns - 1)
                with k.loop(side, "vector", name=e.lane, width=side) as v:
                    steps = {last: q * side + v}
                    at = {i: simplify(x, steps) for i, x in known.items()} | steps
                    k.store(tile, (v + c * side,), simplify(e.b, {**at, e.column: own}))
            k.emit(transpose(tile, side))
            for r in range(side):
                with k.loop(side, "vector", name=e.lane, width=side) as v:
                    place = start + (q * side + r) * e.plan.panel + j + v
                    k.store(copy, simplify(place), tile[v + r * side])
    if left != 0:
        with k.loop(left) as x:
            _row(e, copy, start, panel, pieces, {last: whole * side + x}, depth, known)
