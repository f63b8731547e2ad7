"""How long a contraction takes in register tiles, by its schedule, so that few need be measured.

A step of the depth takes as long as its multiply-adds, its loads, or the latency of a sum,
whichever is longest. Beside that, panels that the first cache does not hold come from the second,
rows and panels that this does not hold from beyond; neither is hidden entirely. Figures are clocks
of a core with two vector multiply-adds and two loads in each; only their order matters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from graphc.ir.expr import Expr, cost
from graphc.ir.extents import most, points
from graphc.passes.lower.strategies.tile_emitter import TileEmitter, row_tiles
from graphc.passes.lower.strategies.tile_plan import (
    COLUMNS_FIRST,
    COLUMNS_OUTSIDE,
    ROWS_OUTSIDE,
    Blocks,
    LoopPlan,
    TilePlan,
)
from graphc.passes.lower.strategies.tile_traffic import from_beyond

Plans = tuple[TilePlan, LoopPlan]
PER_CLOCK = 2  # multiply-adds, and loads
LATENCY = 4  # clocks of a multiply-add, whose result the next step adds to
NEAR = 24 << 10  # bytes that stay in the first cache
FROM_SECOND, FROM_BEYOND = 48, 12  # bytes in a clock
UNHIDDEN = 0.4  # of the time of what is read, beside products
STARTING = 12  # clocks of a tile beside its steps and its sums
SHORTEST_TILE = 2  # rows, where there are more
MOST_VECTORS = 8  # of a panel
RANKED = 8  # alternatives that are worth a measurement


def alternatives(e: TileEmitter, plan: TilePlan, loops: LoopPlan) -> list[Plans]:
    """Other plans than the one of the rules, the fastest by estimate first."""
    seen = {(plan, loops)}
    own = [p for p in dict.fromkeys(_candidates(e, plan, loops)) if p not in seen]
    return sorted(own, key=lambda p: clocks(e, *p))[:RANKED]


def _candidates(e: TileEmitter, plan: TilePlan, loops: LoopPlan) -> Iterator[Plans]:
    """Tiles that the registers hold, in loops of every order; blocks of other sizes."""
    if loops.blocks is not None:
        yield from _other_blocks(plan, loops)
        return
    rows = e.tiled.extent
    if isinstance(rows, Expr):
        for other in (ROWS_OUTSIDE, COLUMNS_OUTSIDE):
            yield plan, replace(loops, order=other)
        return
    for tile in _tiles(e, plan, rows):
        for order in (ROWS_OUTSIDE, COLUMNS_OUTSIDE, COLUMNS_FIRST):
            if order == COLUMNS_FIRST and not e.places:
                continue
            block = loops.rows if order == ROWS_OUTSIDE else 0
            yield tile, LoopPlan(order, max(block, tile.row_tile) if block else 0)
            if rows % tile.row_tile:
                yield tile, LoopPlan(order, max(block, tile.row_tile) if block else 0, True)


def _other_blocks(plan: TilePlan, loops: LoopPlan) -> Iterator[Plans]:
    """Blocks of twice and half the size."""
    assert loops.blocks is not None
    tiles, panels = loops.blocks.tiles, loops.blocks.panels
    for down, right in ((tiles, panels * 2), (tiles, panels // 2), (tiles // 2, panels)):
        if right and bool(down) == bool(tiles):
            yield plan, replace(loops, blocks=Blocks(down, right))
    yield plan, replace(loops, staged=not loops.staged)


def _tiles(e: TileEmitter, plan: TilePlan, rows: int) -> Iterator[TilePlan]:
    """Tiles whose sums, columns and one element of a row fit the registers."""
    needed = -(-most(plan.columns) // plan.lanes)
    for vectors in range(1, min(needed, MOST_VECTORS) + 1):
        largest = max(1, min((e.options.registers - vectors - 1) // vectors, rows))
        heights = {-(-rows // count) for count in range(1, rows + 1) if rows // count >= 1}
        fitting = {h for h in heights if h <= largest} | {largest}
        for height in sorted(fitting, reverse=True)[:4]:
            if height >= min(SHORTEST_TILE, rows):
                yield replace(plan, vectors=vectors, row_tile=height)


def clocks(e: TileEmitter, plan: TilePlan, loops: LoopPlan) -> float:
    """An estimate of the time of a kernel."""
    size = e.match.hole.dtype.size * plan.together
    depth, columns = most(plan.depth), most(plan.columns)
    rows, places = most(e.tiled.extent), points((*e.match.outer, *e.places))
    after = sum(map(cost, e.exprs)) + 2
    whole, rest = divmod(columns, plan.panel)
    widths = [(whole, plan.vectors), (1 if rest else 0, -(-rest // plan.lanes))]
    tiles = row_tiles(rows, plan.row_tile, loops.overlap)
    time = 0.0
    for segment in tiles:
        for panels, vectors in widths:
            time += most(segment.count) * panels * _tile(depth, segment.size, vectors, after)
    panel = depth * plan.panel * e.match.b.dtype.size * plan.together
    passes = sum(most(s.count) for s in tiles) * -(-columns // plan.panel)
    if panel > NEAR:
        time += UNHIDDEN * passes * panel / FROM_SECOND
    time += UNHIDDEN * passes * plan.row_tile * depth * size / FROM_SECOND
    beyond = points(e.match.outer) * from_beyond(e, plan, loops)
    return places * time + UNHIDDEN * beyond / FROM_BEYOND


def _tile(depth: int, rows: int, vectors: int, after: int) -> float:
    """Clocks of a tile."""
    sums = rows * vectors
    step = max(sums / PER_CLOCK, (rows + vectors) / PER_CLOCK, LATENCY)
    return depth * step + sums * after / PER_CLOCK + STARTING
