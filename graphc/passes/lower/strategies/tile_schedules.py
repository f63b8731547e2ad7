"""Schedules of contractions in register tiles, and the plans that they say.

vector(columns, L)          a vector has L columns
tile(columns, N)            a panel has N, whose rows of vectors are read for each row
tile(rows, M)               a tile has M rows; `overlap`: the last begins early
tensorize(dot4)             bytes are multiplied four by four
tensorize(dot2_wide)        bytes less their zero points are multiplied as pairs of int16
pack(columns, panels)       before; without it columns are read as they lie
pack(columns, blocks)       by each block, on the stack
split_reduce(depth, K)      sums of K steps are added up; without it, all steps are one sum
epilogue(rows)              in a loop over the rows of a tile; epilogue(tile): written out
order(...)                  of loops over tiles and panels; of a block, whose tiles else pass first
tile(rows, R)               the second: rows that stay in a cache while panels pass; of a block
tile(columns, C)            the second: columns of a block
stage(rows, stack)          rows of a tile are copied for all panels of a block
bind(..., parallel, P)      threads share at least P pieces
"""

from __future__ import annotations

from typing import Literal

from graphc.ir.expr import Index
from graphc.ir.instructions import LANES, PAIR
from graphc.ir.types import elements_of
from graphc.passes.analysis.contraction import Match
from graphc.passes.lower.strategies.tile_plan import ROWS_OUTSIDE, Blocks, LoopPlan, TilePlan
from graphc.passes.schedule.steps import (
    Bind,
    Epilogue,
    Order,
    Pack,
    Role,
    Schedule,
    SplitReduce,
    Stage,
    Step,
    Tensorize,
    Tile,
    Vector,
    misfit,
)

LARGEST_TILE = 64  # vectors of sums: more have no registers anywhere


def schedule_of(strategy: str, plan: TilePlan, loops: LoopPlan) -> Schedule:
    """The schedule that says these plans; the plan must tell where its epilogue is."""
    assert plan.looped is not None
    end: Literal["apart", "overlap"] = "overlap" if loops.overlap else "apart"
    steps: list[Step] = [
        Vector("columns", plan.lanes),
        Tile("columns", plan.panel),
        Tile("rows", plan.row_tile, end),
    ]
    if plan.quad is not None:
        steps.append(Tensorize("dot4" if plan.together == LANES else "dot2_wide"))
    if plan.packed or plan.in_blocks:
        steps.append(Pack("columns", "blocks" if plan.in_blocks else "panels"))
    if plan.split:
        steps.append(SplitReduce("depth", plan.split))
    steps.append(Epilogue("rows" if plan.looped else "tile"))
    if loops.blocks is None or loops.order != ROWS_OUTSIDE:
        steps.append(Order(*loops.order))
    if loops.blocks is not None and loops.blocks.tiles:
        steps.append(Tile("rows", loops.blocks.tiles * plan.row_tile))
    if loops.rows:
        steps.append(Tile("rows", loops.rows))
    if loops.blocks is not None:
        steps.append(Tile("columns", loops.blocks.panels * plan.panel))
    if loops.staged:
        steps.append(Stage("rows", "stack"))
    outside = next(index for index in loops.order if index != "places")
    return Schedule(strategy, (*steps, Bind(outside, "parallel", loops.pieces)))


def tile_plan_of(
    schedule: Schedule, match: Match, widest: int, quad: Index | None, together: int = 1
) -> TilePlan:
    """The tile that a schedule says, on a machine whose vectors have `widest` lanes; `quad` and
    `together` as in TilePlan. ModelError if it does not suit the contraction."""
    lanes = schedule.the(Vector, "columns").lanes
    panel, rows = schedule.the(Tile, "columns").size, schedule.the(Tile, "rows").size
    if lanes > widest or (quad is not None and lanes != widest):
        raise misfit(schedule, f"vectors of {widest} columns on this machine", lanes)
    if panel % lanes:
        raise misfit(schedule, f"a tile of a multiple of {lanes} columns", panel)
    if panel // lanes * rows > LARGEST_TILE:
        most = f"a tile of at most {LARGEST_TILE} vectors"
        raise misfit(schedule, most, f"{rows} rows of {panel // lanes}")
    instruction = schedule.get(Tensorize)
    name = {LANES: "dot4", PAIR: "dot2_wide"}.get(together)
    if name != (instruction and instruction.instruction):
        wanted = f"tensorize({name})" if name else "no step tensorize(...)"
        raise misfit(schedule, f"{wanted} for factors of this type", instruction or "none")
    pack, split = schedule.get(Pack, "columns"), schedule.get(SplitReduce)
    columns = elements_of(x.extent for x in match.cols)
    depth = elements_of(x.extent for x in match.depth)
    return TilePlan(
        lanes, panel // lanes, rows, columns, depth,
        packed=pack is not None and pack.order == "panels",
        quad=quad,
        in_blocks=pack is not None and pack.order == "blocks",
        split=0 if split is None else split.size,
        looped=schedule.the(Epilogue).at == "rows",
        together=together,
    )  # fmt: skip


def loop_plan_of(schedule: Schedule, plan: TilePlan) -> LoopPlan:
    """The loops that a schedule says."""
    rows, columns = schedule.all(Tile, "rows"), schedule.all(Tile, "columns")
    pieces = schedule.all(Bind)[0].pieces if schedule.all(Bind) else 1
    second = rows[1].size if len(rows) > 1 else 0
    overlap = rows[0].end == "overlap"
    if len(columns) > 1:
        tiles = max(1, second // plan.row_tile) if second else 0
        blocks = Blocks(tiles, max(1, columns[1].size // plan.panel))
        order = schedule.get(Order) or Order(*ROWS_OUTSIDE)
        staged = schedule.get(Stage) is not None
        return LoopPlan(_of(order), pieces=pieces, blocks=blocks, staged=staged)
    return LoopPlan(_of(schedule.the(Order)), second, overlap, pieces)


def _of(order: Order) -> tuple[Role, Role, Role]:
    return order.outer, order.middle, order.inner
