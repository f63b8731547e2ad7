"""What tiles of a contraction read from beyond the second level of cache, by the order of loops.

An operand that this level does not hold is read again in each pass of a loop outside of its own.
"""

from __future__ import annotations

from collections.abc import Collection

from graphc.ir.dtypes import i64
from graphc.ir.expr import Const, Expr, Index, Load
from graphc.ir.extents import most, points
from graphc.ir.simplify import bounds, simplify
from graphc.passes.lower.strategies.cache_blocks import fitted_blocks, tiles_of
from graphc.passes.lower.strategies.tile_emitter import TileEmitter, row_tiles
from graphc.passes.lower.strategies.tile_plan import COLUMNS_FIRST, ROWS_OUTSIDE, LoopPlan, TilePlan


def from_beyond(e: TileEmitter, plan: TilePlan, loops: LoopPlan) -> int:
    """Bytes, for one value of the outer indices. Rows count once, though several places read them,
    as windows do."""
    held, columns = e.options.held_bytes, bytes_of_columns(e, plan)
    places, panels = max(1, points(e.places)), -(-most(plan.columns) // plan.panel)
    rows = bytes_of_rows(e, plan)
    if loops.blocks is not None:
        down, right = _passes_of_blocks(e, plan, loops)
        return columns * (1 if columns <= held else down) + rows * (1 if rows <= held else right)
    if loops.order == ROWS_OUTSIDE:
        blocks = -(-most(e.tiled.extent) // loops.rows) if loops.rows else 1
        return rows + columns * (1 if columns <= held else places * blocks)
    if loops.order == COLUMNS_FIRST:
        return columns + rows * (1 if rows <= held else panels)
    of_place = bytes_of_rows(e, plan, e.places)
    passes = 1 if columns <= held else places
    return columns * passes + rows * (1 if of_place <= held else panels)


def _passes_of_blocks(e: TileEmitter, plan: TilePlan, loops: LoopPlan) -> tuple[int, int]:
    """How often blocks read all columns, and all rows."""
    bands, places, down, right = row_tiles(e.tiled.extent, plan.row_tile), points(e.places), 1, 0
    for columns in e.panels():
        blocks = fitted_blocks(e, loops, points(e.match.outer), places, bands, columns)
        down = max(down, -(-tiles_of(bands, places) // blocks.tiles))
        right += -(-most(columns.count) // blocks.panels)
    return down, right


def bytes_of_columns(e: TileEmitter, plan: TilePlan) -> int:
    """Of all columns, for one value of the outer indices."""
    return most(plan.columns) * most(plan.depth) * e.match.b.dtype.size * plan.together


def bytes_of_rows(e: TileEmitter, plan: TilePlan, fixed: Collection[Index] = ()) -> int:
    """Of all rows, for one value of the outer indices and of those that are `fixed`."""
    size = e.match.a.dtype.size
    own = [x for x in e.rows if x not in fixed]
    elements = points(own) * most(plan.depth) * plan.together
    if not isinstance(e.a, Load) or len(e.a.index) != 1:
        return elements * size
    still: dict[Expr, Expr] = {x: Const(0, i64) for x in (*e.match.outer, *fixed)}
    low, high = bounds(simplify(e.a.index[0], still))
    return int(min(elements, high - low + plan.together)) * size
