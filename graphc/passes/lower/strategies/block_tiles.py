"""Block tiles: sums over blocks of scaled sums of bytes times codes, in tiles of vector registers.

    sum over blocks b of  float(sum over k of x[row, b, k] * (code[column, b, k] - zero)) * scale

`x` are int8, the codes constants of 2, 4 or 8 bits, several to a byte; zero point and scale belong
to a block. Tiles and loops over them are those of register_tiles.py. Within a block the products
are summed as int32, four to an instruction (dot4_codes of graphc/ir/instructions.py), and the sums
are scaled and added once per block.

* Bytes of codes stay as they are, in panels. Four neighbours are one word of a lane: its lowest
  bits are four codes, the next bits four more. So `x` is copied into that order.
* What a zero point is multiplied by is the sum of a block of `x`, which is computed before
  (transforms/zero_points.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from graphc.ir.addresses import flatten_loads, unflatten_index
from graphc.ir.dtypes import DType, f32, i8, i32, i64, u8
from graphc.ir.expr import Const, Expr, Index, Load, Reduce, cast, free_indices, loads, substitute
from graphc.ir.instructions import LANES, dot4_codes
from graphc.ir.kernel import Buffer
from graphc.ir.simplify import simplify
from graphc.passes.analysis.computation import Computation, index_of
from graphc.passes.analysis.contraction import Match
from graphc.passes.analysis.core import Core, core_of, reductions_in
from graphc.passes.analysis.factors import Codes, centred_codes, converted, is_zero
from graphc.passes.analysis.spaces import known_last, merge_adjacent
from graphc.passes.lower.lowered import Lowered
from graphc.passes.lower.scheduled import Scheduled
from graphc.passes.lower.strategies.column_operand import packed_panels
from graphc.passes.lower.strategies.reductions import combined
from graphc.passes.lower.strategies.register_tiles import check_loops
from graphc.passes.lower.strategies.tile_costs import alternatives
from graphc.passes.lower.strategies.tile_emitter import TileEmitter
from graphc.passes.lower.strategies.tile_plan import RegisterTileOptions, TilePlan, tile_plan
from graphc.passes.lower.strategies.tile_rules import best_plans
from graphc.passes.lower.strategies.tile_schedules import loop_plan_of, schedule_of, tile_plan_of
from graphc.passes.lower.transforms.zero_points import times_sums
from graphc.passes.schedule.steps import Schedule
from graphc.records import dataclass

WRITTEN_OUT = 4  # words of a lane, of a block, that are multiplied without a loop


@dataclass(frozen=True)
class BlockTiles(Scheduled["_Blocks"]):
    """Sums over blocks in register tiles, by schedules as theirs (tile_schedules.py)."""

    options: RegisterTileOptions
    name = "block_tiles"
    takes = "sums over blocks of codes"

    @property
    def _wide(self) -> RegisterTileOptions:
        """Half of the registers are for sums of a block, the others for those of all."""
        return replace(self.options, registers=self.options.registers // 2)

    def match(self, computation: Computation) -> _Blocks | str:
        core = core_of(computation, "block sums", nested=False)
        return core if isinstance(core, str) else _match(core)

    def proposals(self, blocks: _Blocks) -> Iterator[Schedule]:
        plan = tile_plan(blocks.match, self._wide, blocks.codes.byte, LANES)
        emitter = _BlockEmitter(blocks, plan, self._wide)
        best = best_plans(emitter)
        for plans in (best, *alternatives(emitter, *best)):
            yield schedule_of(self.name, *plans)

    def emitted(self, blocks: _Blocks, schedule: Schedule) -> Lowered:
        widest = max(1, self.options.vector_bytes // i32.size)
        plan = tile_plan_of(schedule, blocks.match, widest, blocks.codes.byte, LANES)
        loops = loop_plan_of(schedule, plan)
        emitter = _BlockEmitter(blocks, plan, self._wide)
        check_loops(schedule, emitter, loops)
        return emitter.lowered(loops)


@dataclass
class _Blocks:
    """A match whose hole is the sum within a block, and whose depth is the block, then words and
    fields. `term` is what is summed over blocks: of SUM, the sum within one, and of constants of
    the columns, which loads of `parts` stand for."""

    match: Match
    codes: Codes
    whole: Reduce
    term: Expr
    parts: dict[Load, Expr]


def _match(core: Core) -> _Blocks | str:
    whole = core.hole
    sums = reductions_in([whole.body])
    if whole.op != "sum" or whole.dtype is not f32 or len(whole.axes) != 1 or len(sums) != 1:
        return "block sums: it must be a float32 sum over blocks of one sum, found another form"
    (inner,) = sums
    if inner.factors is None or inner.dtype is not i32:
        return f"block sums: products must be summed as int32, found {inner.dtype}"
    a, b = inner.factors
    if core.indices and core.indices[-1] in free_indices(a):
        a, b = b, a
    codes = centred_codes(b, inner.axes)
    if codes is None or not core.is_constant(b) or codes.byte.count % LANES:
        return "block sums: one factor must be constant codes less a zero point, found none"
    a = converted(a)
    if a.dtype is not i8:
        return f"block sums: the other factor must be int8, found {a.dtype}"
    return _classify(core, inner, a, codes)


def _classify(core: Core, inner: Reduce, a: Expr, codes: Codes) -> _Blocks | str:
    (block,) = core.hole.axes
    of_a, of_codes = free_indices(a), free_indices(codes.load)
    cols = [x for x in core.indices if x in of_codes and x not in of_a]
    if not cols or cols != core.indices[-len(cols) :]:
        return "block sums: the innermost output indices must be those of the codes, found others"
    rows = [x for x in core.indices if x in of_a and x not in of_codes]
    outer = [x for x in core.indices if x not in (*rows, *cols)]
    own = {**vars(core), "hole": inner, "a": a, "b": codes.load, "indices": [*core.indices, block]}
    match = Match(**own, outer=outer, rows=rows, cols=cols, depth=list(inner.axes))
    parts: dict[Load, Expr] = {}

    def part(value: Expr) -> Load:
        load = _scalar(f"part{len(parts)}", value.dtype)
        parts[load] = value
        return load

    term = substitute(core.hole.body, {inner: SUM})
    constants = core.computation.constants
    scales = [x for x in loads(term) if x.source in constants and free_indices(x) & {*cols}]
    term = substitute(term, {x: part(x) for x in scales})
    if not is_zero(codes.zero):
        zero = codes.zero
        if free_indices(zero) & {*cols}:
            zero = cast(part(cast(zero, u8)), i32)
        term = substitute(term, {SUM: SUM - times_sums(match, a, 0, zero, "row_sums")})
    _order_as_codes(match, block, codes)
    match.indices = core.indices
    return _Blocks(match, codes, core.hole, term, parts)


def _scalar(name: str, dtype: DType) -> Load:
    return Load(name, (Const(0, i64),), dtype)


SUM = _scalar("block_sum", i32)
TOTAL = _scalar("sum", f32)


def _order_as_codes(match: Match, block: Index, codes: Codes) -> None:
    """Copies `a` into the order of codes in words; the depth becomes blocks, words, fields."""
    own = [x for x in match.indices if x in free_indices(match.a)]
    word, field = Index("word", codes.byte.count // LANES), Index("field", 8 // codes.bits)
    shape = (*(x.extent for x in own), word.extent, field.extent, LANES)
    index = index_of(shape)
    mapping: dict[Expr, Expr] = dict(zip(own, index))
    mapping[codes.byte] = index[-3] * LANES + index[-1]
    if codes.place is not None:
        mapping[codes.place] = index[-2]
    buffer = match.copied("rows", index, substitute(match.a, mapping), "operand")
    first = (*own, word, field, Const(0, i64))
    match.a = flatten_loads(buffer[first], match.shapes)
    match.depth = [block, word, field]


class _BlockEmitter(TileEmitter):
    """Emits the loops of planned sums over blocks."""

    def __init__(self, blocks: _Blocks, plan: TilePlan, options: RegisterTileOptions):
        self.blocks, match = blocks, blocks.match
        block, word, _ = match.depth
        self.codes = packed_panels(match, plan, blocks.codes.load, [block, word], "codes")
        whole = replace(plan, quad=None)
        self.parts = {
            load: packed_panels(match, whole, part, [block], f"panels{n}")
            for n, (load, part) in enumerate(blocks.parts.items())
        }
        super().__init__(match, plan, options, [self.codes, *self.parts.values()])

    def flatten(self) -> None:
        match, shapes = self.match, self.match.shapes
        columns = unflatten_index(self.column, tuple(x.extent for x in match.cols))
        mapping: dict[Expr, Expr] = dict(zip(match.cols, columns))
        whole = {self.blocks.whole: TOTAL}
        exprs = [substitute(e, whole) for e in match.exprs]
        exprs = [flatten_loads(e, shapes) for e in (*exprs, self.blocks.term)]
        flat = [simplify(e, mapping) for e in (match.offset, match.a, *exprs)]
        rows, flat = merge_adjacent(match.rows, flat)
        self.rows = known_last(rows)
        self.offset, self.a, *self.exprs, self.term = flat
        self.b, self.marker, self.depth = self.blocks.codes.load, TOTAL, match.depth

    def read(self) -> tuple[Expr, ...]:
        return self.a, self.term, *self.exprs

    def sums(
        self, fixed: dict, tiled: Index, row: Expr, size: int, panel: Expr,
        pieces: list[tuple[int, int]],
    ) -> Buffer:  # fmt: skip
        totals = self.zeros(f32, size, pieces)
        block, word, field = self.depth
        with self.k.loop(block.extent) as at_block:
            at: dict = {**fixed, block: at_block}
            sums = self.zeros(i32, size, pieces)
            step = min(word.count, WRITTEN_OUT)
            with self.k.loop(word.count // step) as outer, self.k.loop(step, "unroll") as inner:
                for n in range(field.count):
                    here = {**at, word: outer * step + inner, field: Const(n, i64)}
                    self._multiply_codes(sums, here, tiled, row, size, panel, pieces, n)
            for t in range(size):
                self._add(totals, sums, {**at, tiled: self.row(row, t)}, panel, t, pieces)
        return totals

    def _multiply_codes(
        self, sums: Buffer, at: dict, tiled: Index, row: Expr, size: int, panel: Expr,
        pieces: list[tuple[int, int]], field: int,
    ) -> None:  # fmt: skip
        """Adds the products of four codes in each lane's word."""
        bits = self.blocks.codes.bits
        for j, count in pieces:
            with self.lanes(count) as v:
                w = self.codes.element(at, panel, simplify(v + j))
                for t in range(size):
                    a = self.row_element(at, tiled, row, t)
                    assert isinstance(a, Load)
                    cell = simplify(v + (t * self.plan.panel + j))
                    self.k.emit(dot4_codes(sums[cell], a, w, field * bits, bits))

    def _add(
        self, totals: Buffer, sums: Buffer, at: dict, panel: Expr, t: int,
        pieces: list[tuple[int, int]],
    ) -> None:  # fmt: skip
        """Adds what a row makes of its sums within a block."""
        for j, count in pieces:
            with self.lanes(count) as v:
                cell = simplify(v + (t * self.plan.panel + j))
                column = panel * self.plan.panel + j + v
                values: dict[Expr, Expr] = {SUM: sums[cell], self.column: column}
                for load, panels in self.parts.items():
                    values[load] = panels.element(at, panel, simplify(v + j))
                value = simplify(self.term, {**at, **values})
                self.k.store(totals, cell, combined(self.blocks.whole, totals[cell], value))
