"""Which loops should be fastest for tiles of a planned contraction, by rules.

The rules follow the caches: what passes over a block is to stay in the second level, columns that
no cache holds are to come from memory once, and threads are to have enough to share.
"""

from __future__ import annotations

from dataclasses import replace

from graphc.ir.addresses import is_affine_in
from graphc.ir.expr import Expr, Load, loads
from graphc.ir.extents import most, points
from graphc.ir.instructions import PAIR
from graphc.passes.analysis.contraction import Match
from graphc.passes.lower.strategies.block_panels import packing_blocks
from graphc.passes.lower.strategies.cache_blocks import fitted_blocks
from graphc.passes.lower.strategies.depth_blocks import STEPS, depth_blocks
from graphc.passes.lower.strategies.tile_emitter import TileEmitter, row_tiles
from graphc.passes.lower.strategies.tile_plan import (
    COLUMNS_FIRST,
    COLUMNS_OUTSIDE,
    PARALLEL_PIECES,
    ROWS_OUTSIDE,
    Blocks,
    LoopPlan,
    TilePlan,
)
from graphc.passes.lower.strategies.tile_traffic import from_beyond

LARGE_COLUMNS = 16  # times the second level of cache: no cache has room for more columns
FEW_AGAIN = 64  # rows, of which one may be computed twice to have tiles of one size
FEW_PANELS = 4  # that do not make up for a copy of rows
TOGETHER = 8  # panels of a block whose depth the caches do not hold
TILES_FOR_PANEL = 4  # of such a block
STACK = 1 << 17  # bytes of sums on the stack
NEAR = 24 << 10  # bytes that stay in the first cache
BLOCK_SUMS = 1 << 16  # bytes of sums of a block of panels
PART_FOR_SUMS = 8  # of the second level of cache: what sums of larger blocks take
HEIGHTS = (1, 2, 4, 8)  # into so many parts rows may be cut for these
LESS = 0.75  # of what is read from beyond the second cache, which makes up for sums on the stack
PIECES = PARALLEL_PIECES  # independent blocks that there should be, for a few threads to share
DEEP_PIECES = 4  # of them, where each block reads a depth that the caches do not hold
PART_FOR_TILE = 8  # of the second level of cache: what a tile may read without blocks
PART_FOR_BLOCK = 2  # of it: what panels of a block take, and outputs that need no blocks
SEVERAL, MANY_TILES = 4, 16  # places, and tiles for each panel, enough to go over panels inside


def best_plans(e: TileEmitter) -> tuple[TilePlan, LoopPlan]:
    """The plan of an emitter, made complete, and the loops that should be fastest."""
    looped, blocked = e.is_looped(), needs_blocks(e)
    split = STEPS if e.blocks_apart or (blocked and points(e.depth) > 2 * STEPS) else 0
    plan = replace(e.plan, split=split, looped=looped)
    if blocked:
        return plan, _in_blocks(e)
    if passes_often(e):
        return replace(plan, split=STEPS), _blocks_of_panels(e)
    rows = e.tiled.extent
    if isinstance(rows, Expr):
        order = COLUMNS_OUTSIDE if _are_large(e) else ROWS_OUTSIDE
        return plan, LoopPlan(order, _rows_in_cache(e))
    same = same_size(rows, plan.row_tile) if looped or not e.in_place() else 0
    plan = replace(plan, row_tile=same or even_size(rows, plan.row_tile))
    loops = _least_traffic(e, plan, same > 0)
    if plan.packed and plan.split and plan.quad is None and can_be_blocked(e):
        blocks = _larger_blocks(e)
        if from_beyond(e, e.plan, blocks) <= LESS * from_beyond(e, plan, loops):
            return replace(e.plan, split=STEPS, looped=looped), blocks
    return plan, loops


def _least_traffic(e: TileEmitter, plan: TilePlan, overlap: bool) -> LoopPlan:
    """The loops that read least from beyond the second cache; of equal ones, panels outside if
    tiles are few."""
    rows = e.tiled.extent
    assert isinstance(rows, int)
    segments = row_tiles(rows, plan.row_tile, overlap)
    fitting = _rows_in_cache(e)
    whole = all(isinstance(x.count, int) and fitting // x.size >= x.count for x in segments)
    orders = [LoopPlan(ROWS_OUTSIDE, 0 if whole else fitting, overlap)]
    orders.append(LoopPlan(COLUMNS_OUTSIDE, overlap=overlap))
    batch = points((*e.match.outer, *e.places))
    tiles = sum(x.count for x in segments if isinstance(x.count, int))
    if batch < SEVERAL and batch * tiles < MANY_TILES * len(e.panels()):
        orders.reverse()
    if e.places:
        orders.append(LoopPlan(COLUMNS_FIRST, overlap=overlap))
    return min(orders, key=lambda loops: from_beyond(e, plan, loops))


def is_constant(match: Match) -> bool:
    """Whether the operand of columns is known when it is compiled."""
    return all(x.source in match.computation.constants for x in loads(match.b))


def needs_blocks(e: TileEmitter) -> bool:
    """Whether columns change from run to run, and what tiles read, or what they write, is more than
    caches hold."""
    if e.plan.in_blocks:
        return True
    if is_constant(e.match) or not can_be_blocked(e) or e.plan.quad is not None:
        return False
    size, l2 = e.match.hole.dtype.size, e.options.l2_bytes
    read = most(e.plan.depth) * (e.plan.panel + e.plan.row_tile) * size
    written = points(e.rows) * most(e.plan.columns) * size
    return read > l2 // PART_FOR_TILE or written > l2 // PART_FOR_BLOCK


def passes_often(e: TileEmitter) -> bool:
    """Whether panels that the first cache does not hold pass over many low tiles: what such a tile
    multiplies with a vector takes hardly longer than the vector from the second cache."""
    size, plan = e.match.hole.dtype.size, e.plan
    if not e.options.are_low or not plan.packed:
        return False
    if not can_be_blocked(e) and not can_be_in_parts(e):
        return False
    panel = most(plan.depth) * plan.panel * size
    return panel > NEAR // 2 and points(e.depth) > STEPS and points(e.rows) >= MANY_TILES * 2


def _blocks_of_panels(e: TileEmitter) -> LoopPlan:
    """Blocks whose rows the second cache holds for so many steps, over a part of a panel in the
    first."""
    count, held = _tiles_to_hold(e)
    tiles, height = (0 if count <= held else held), min(count, held) * e.plan.row_tile
    panels = max(1, BLOCK_SUMS // (height * e.plan.panel * e.match.hole.dtype.size))
    return LoopPlan(COLUMNS_OUTSIDE, pieces=PIECES, blocks=Blocks(tiles, panels))


def _tiles_to_hold(e: TileEmitter) -> tuple[int, int]:
    """How many tiles there are, and of how many the second cache holds so many steps."""
    rows = row_tiles(e.tiled.extent, e.plan.row_tile)
    count = sum(most(x.count) for x in rows) * points(e.places)
    step = STEPS * e.match.hole.dtype.size * e.plan.row_tile
    return count, max(1, e.options.l2_bytes // 2 // step)


def _larger_blocks(e: TileEmitter) -> LoopPlan:
    """Such blocks of more panels, and of fewer rows where that reads less from beyond the second
    cache, which has room for their sums."""
    (count, held), wide = _tiles_to_hold(e), -(-most(e.panels()[0].count) // DEEP_PIECES)
    room = e.options.l2_bytes // PART_FOR_SUMS // (e.plan.panel * e.match.hole.dtype.size)
    ways = []
    for parts in HEIGHTS:
        height = min(held, -(-count // parts))
        panels = max(1, min(room // (height * e.plan.row_tile), wide))
        blocks = Blocks(0 if height == count else height, panels)
        ways.append(LoopPlan(COLUMNS_OUTSIDE, pieces=DEEP_PIECES, blocks=blocks))
    return min(ways, key=lambda loops: from_beyond(e, e.plan, loops))


def can_be_blocked(e: TileEmitter) -> bool:
    """Whether tiles can be computed in blocks: if all extents are known, but not of bytes."""
    static = all(isinstance(x.extent, int) for x in (*e.depth, *e.rows))
    known = static and isinstance(e.plan.columns, int) and bool(e.depth)
    return known and e.plan.together <= PAIR


def can_be_in_parts(e: TileEmitter) -> bool:
    """Whether tiles can be computed a part of the depth at a time where the rows are known at run
    time only: if all else is known, and the depth is long."""
    known = [*e.depth, *e.match.cols]
    static = all(isinstance(x.extent, int) for x in known) and e.plan.quad is None
    is_one = len(row_tiles(e.tiled.extent, e.plan.row_tile)) == 1
    is_open = isinstance(e.tiled.extent, Expr) and is_one
    return static and is_open and depth_blocks(e.depth) is not None


def _are_large(e: TileEmitter) -> bool:
    """Whether all columns are more than caches hold: they should come from memory once."""
    elements = most(e.plan.columns) * most(e.plan.depth)
    return elements * e.match.hole.dtype.size > LARGE_COLUMNS * e.options.l2_bytes


def _rows_in_cache(e: TileEmitter) -> int:
    """So many rows stay in the second level of cache."""
    row_bytes = most(e.plan.depth) * e.match.hole.dtype.size
    return max(e.plan.row_tile, e.options.held_bytes // max(1, row_bytes))


def _in_blocks(e: TileEmitter) -> LoopPlan:
    """Loops over blocks: those that pack the columns, or as many panels as half of the second cache
    holds, for one tile of rows after another; where these are few, several tiles by several."""
    size, columns = e.match.hole.dtype.size, e.panels()[0]
    rows = row_tiles(e.tiled.extent, e.plan.row_tile)
    assert isinstance(columns.count, int) and all(isinstance(x.count, int) for x in rows)
    assert isinstance(e.a, Load)
    along = is_affine_in(e.a.index[0], e.tiled) == 1
    if e.plan.in_blocks:
        tiles = sum(most(x.count) for x in rows) * points(e.places)
        blocks = packing_blocks(e.plan, tiles, columns.count, size, e.options.l2_bytes, along)
        loops = LoopPlan(pieces=PIECES, blocks=blocks)
    else:
        fitting = e.options.l2_bytes // PART_FOR_BLOCK // (most(e.plan.depth) * e.plan.panel * size)
        room = STACK // (rows[0].size * e.plan.panel * size)
        if fitting >= min(TOGETHER, columns.count):
            loops = LoopPlan(
                pieces=PIECES, blocks=Blocks(1, min(fitting, max(room, 1), columns.count))
            )
        else:
            count = most(rows[0].count) * points(e.places)
            tiles = min(TOGETHER * TILES_FOR_PANEL, count)
            blocks = Blocks(tiles, min(TOGETHER, columns.count))
            loops = LoopPlan(pieces=DEEP_PIECES, blocks=blocks)
    bands = rows if e.plan.in_blocks else rows[:1]
    fitted = fitted_blocks(e, loops, points(e.match.outer), points(e.places), bands, columns)
    return replace(loops, staged=along and fitted.panels >= FEW_PANELS)


def even_size(rows: int, largest: int) -> int:
    """The largest of tiles of almost equal size, of as few as can be."""
    count = -(-rows // largest)
    return -(-rows // count) if count else 1


def same_size(rows: int, largest: int) -> int:
    """The size of tiles that sum few rows twice; 0 if there is no such size, or no need for one."""
    if rows % even_size(rows, largest) == 0:
        return 0
    for size in range(largest, largest * 3 // 4, -1):
        count = -(-rows // size)
        if (count * size - rows) * FEW_AGAIN <= rows:
            return size
    return 0
