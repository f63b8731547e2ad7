"""Register tiling: contractions (GEMM and convolutions) in tiles of vector registers.

* `b` is packed in panels as wide as a tile (column_operand.py);
* `a` is read element by element and broadcast, so it needs no packing (row_operand.py);
* bytes whose products are summed as int32 are multiplied four by four (dot4 of
  graphc/ir/instructions.py); zero points are corrected in the epilogue (zero_points.py). On a
  machine without such an instruction, pairs of int16 are, less their zero points;
* a micro-kernel keeps MR x NR sums in registers over all of k, and the epilogue (bias, activation,
  residual) is applied to them on their way to memory;
* rows are blocked so that a block stays in the second-level cache while all panels pass over it.

Rows, columns and k are those of analysis/contraction.py. Cache blocking and packing follow K. Goto
and R. van de Geijn, Anatomy of High-Performance Matrix Multiplication (2008), with the full depth
of k in one pass, as suits inference shapes. A long depth is summed in blocks, so that errors do not
grow with the number of terms. Where both factors change from run to run, tiles are computed in
blocks (cache_blocks.py). All choices are a schedule (tile_schedules.py): rules make the first one
(tile_plan.py, tile_rules.py), and a cost model ranks others (tile_costs.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from graphc.ir.addresses import flatten_loads, is_affine_in
from graphc.ir.dtypes import f32, f64, i32
from graphc.ir.expr import Expr, Index, Load
from graphc.ir.extents import most, points
from graphc.ir.instructions import LANES, PAIR
from graphc.passes.analysis.computation import Computation
from graphc.passes.analysis.contraction import Match, match_contraction, wide_sums
from graphc.passes.analysis.factors import converted
from graphc.passes.lower.lowered import Lowered
from graphc.passes.lower.scheduled import Scheduled
from graphc.passes.lower.strategies.block_panels import can_pack_in_blocks, packs_in_blocks
from graphc.passes.lower.strategies.column_operand import prepare_columns
from graphc.passes.lower.strategies.reductions import strides_small
from graphc.passes.lower.strategies.row_operand import (
    prepare_rows,
    spread_rows,
    take_pairs,
    take_quads,
)
from graphc.passes.lower.strategies.tile_costs import alternatives
from graphc.passes.lower.strategies.tile_emitter import TileEmitter
from graphc.passes.lower.strategies.tile_plan import (
    COLUMNS_FIRST,
    LoopPlan,
    RegisterTileOptions,
    TilePlan,
    is_read_in_place,
    meet_in_cache,
    tile_plan,
)
from graphc.passes.lower.strategies.tile_rules import (
    best_plans,
    can_be_blocked,
    can_be_in_parts,
    is_constant,
)
from graphc.passes.lower.strategies.tile_schedules import (
    loop_plan_of,
    schedule_of,
    tile_plan_of,
)
from graphc.passes.schedule.steps import Schedule, misfit
from graphc.records import dataclass

FEW_ROWS = 8  # that do not make up for panels made at run time
MEETING = 32  # rows, and columns, from which on it pays to move rows apart in caches
LARGEST_BLOCK = 1 << 17  # sums of a block, on the stack


@dataclass(frozen=True)
class RegisterTiles(Scheduled):
    """Contractions in register tiles, on a machine of these sizes."""

    options: RegisterTileOptions
    name = "register_tiles"

    def propose(self, computation: Computation) -> Iterable[Schedule] | str:
        operands = self._operands(computation)
        if isinstance(operands, str):
            return operands
        match, quad, together = operands
        plan = tile_plan(match, self.options, quad, together)
        if packs_in_blocks(match, plan, self.options):
            plan = replace(plan, packed=False, in_blocks=True)
        if plan.packed and quad is None and not match.rows and not is_constant(match):
            return "contraction: columns that are packed at run time need several rows, found one"
        return self._proposals(self._emitter(match, plan))

    def _proposals(self, emitter: TileEmitter) -> Iterator[Schedule]:
        best = best_plans(emitter)
        yield schedule_of(self.name, *best)
        for plans in alternatives(emitter, *best):
            yield schedule_of(self.name, *plans)

    def made(self, computation: Computation, schedule: Schedule) -> Lowered:
        operands = self._operands(computation)
        if isinstance(operands, str):
            raise misfit(schedule, "a contraction that register tiles take", operands)
        match, quad, together = operands
        widest = max(1, self.options.vector_bytes // match.hole.dtype.size)
        plan = tile_plan_of(schedule, match, widest, quad, together)
        loops = loop_plan_of(schedule, plan)
        _check_columns(schedule, match, plan)
        emitter = self._emitter(match, plan)
        check_loops(schedule, emitter, loops)
        return emitter.lowered(loops)

    def _operands(self, computation: Computation) -> tuple[Match, Index | None, int] | str:
        """The contraction of a computation with its row operand as tiles read it, the index of
        bytes that are multiplied together, and how many are; or why it is none."""
        wide = wide_sums(computation)
        match = match_contraction(wide, self.options.min_depth, (f32, f64, i32))
        if isinstance(match, str):
            return match
        if _runs_along_memory(match, self.options):
            return (
                f"contraction: columns that run along memory in the depth need more than "
                f"{FEW_ROWS} rows to be packed at run time, found {points(match.rows)}"
            )
        if match.hole.dtype is i32:
            return self._of_bytes(match)
        problem = prepare_rows(match)
        if problem:
            return problem
        if _meet_in_blocks(match, self.options):
            spread_rows(match)
        return match, None, 1

    def _of_bytes(self, match: Match) -> tuple[Match, Index, int] | str:
        """The same of a contraction of bytes."""
        pair = take_pairs(match) if self.options.pairs else None
        if pair is not None:
            return pair if isinstance(pair, str) else (match, pair, PAIR)
        quad = take_quads(match, self.options.centres)
        return quad if isinstance(quad, str) else (match, quad, LANES)

    def _emitter(self, match: Match, plan: TilePlan) -> TileEmitter:
        panels = prepare_columns(match, plan, self.options.widened)
        return TileEmitter(match, plan, self.options, panels)


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


def _meet_in_blocks(match: Match, options: RegisterTileOptions) -> bool:
    """Whether rows lie in the same places of caches, which do not hold many of them for the panels
    that pass over them: rows of one matrix, times many constant columns."""
    if len(match.rows) != 1 or len(match.depth) != 1 or match.outer or not is_constant(match):
        return False
    (row,), (deep,) = match.rows, match.depth
    if not isinstance(row.extent, int) or not isinstance(deep.extent, int):
        return False
    assert isinstance(match.a, Load)
    is_far = is_affine_in(match.a.index[0], deep) == 1 and meet_in_cache(match.a, row)
    many = row.extent >= MEETING and points(match.cols) >= MEETING
    return is_far and options.are_low and many


def _check_columns(schedule: Schedule, match: Match, plan: TilePlan) -> None:
    """ModelError if columns cannot be read as a schedule says."""
    if plan.in_blocks and not can_pack_in_blocks(match, plan):
        wanted = "pack(columns, panels), as blocks cannot pack these columns"
        raise misfit(schedule, wanted, "pack(columns, blocks)")
    if not plan.packed and not plan.in_blocks and not is_read_in_place(match, plan):
        raise misfit(schedule, "a step pack(columns, ...), as columns are no neighbours", "none")


def check_loops(schedule: Schedule, emitter: TileEmitter, loops: LoopPlan) -> None:
    """ModelError if tiles cannot be in such loops."""
    rows, plan = emitter.tiled.extent, emitter.plan
    if loops.blocks is not None:
        if not can_be_blocked(emitter) and not can_be_in_parts(emitter):
            wanted = "one tile of columns: blocks need known extents, and no bytes"
            raise misfit(schedule, wanted, "several")
        sums = loops.blocks.panels * plan.panel * max(1, loops.blocks.tiles) * plan.row_tile
        if sums > LARGEST_BLOCK:
            raise misfit(schedule, f"blocks of at most {LARGEST_BLOCK} sums", sums)
    elif plan.in_blocks:
        raise misfit(schedule, "a second tile of columns for pack(columns, blocks)", "none")
    elif sorted(loops.order) != sorted(COLUMNS_FIRST):
        raise misfit(schedule, f"an order of {', '.join(COLUMNS_FIRST)}", ", ".join(loops.order))
    if isinstance(rows, Expr) and (loops.overlap or loops.order[0] == "columns"):
        wanted = "order(places, ...) and no overlap, as rows are known at run time only"
        raise misfit(schedule, wanted, "others")
    if loops.overlap and isinstance(rows, int) and rows < plan.row_tile:
        raise misfit(schedule, f"a tile of at most {rows} rows", plan.row_tile)
    if plan.split and emitter.blocks_apart is None and loops.blocks is None:
        wanted = f"no split_reduce(...) for a depth of {most(plan.depth)} steps"
        raise misfit(schedule, wanted, plan.split)
