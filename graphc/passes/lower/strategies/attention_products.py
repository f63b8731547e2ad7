"""The two products of an attention as register tiles, and copies of keys and values in panels."""

from __future__ import annotations

from dataclasses import replace

from graphc.ir.addresses import flatten_index, is_affine_in, unflatten_index
from graphc.ir.dtypes import f32, i64
from graphc.ir.expr import Const, Expr, Index, Load, Reduce, cast, minimum, substitute
from graphc.ir.extents import ceil_divided, most
from graphc.ir.kernel import Buffer, KernelBuilder
from graphc.ir.simplify import simplify
from graphc.ir.types import Dim, elements_of
from graphc.passes.analysis.attention import (
    LARGEST,
    PRODUCT,
    RESULT,
    SUM,
    TOTAL,
    Attention,
    first_key,
    last_key,
)
from graphc.passes.analysis.computation import Output, flat_buffer
from graphc.passes.analysis.contraction import Match
from graphc.passes.analysis.spaces import count
from graphc.passes.lower.strategies.attention_plan import AttentionPlan
from graphc.passes.lower.strategies.block_panels import pack_panel, packed_element
from graphc.passes.lower.strategies.tile_emitter import TileEmitter
from graphc.passes.lower.strategies.tile_plan import RegisterTileOptions, TilePlan
from graphc.records import dataclass

COPIED = 64  # rows of a chunk that make up for a copy of values that are apart
FIRST = Const(0, i64)


@dataclass
class Block:
    """A block of keys, from the `first` on, and the products of scores and of values over it."""

    first: Expr
    keys: Dim
    scores: TileEmitter
    values: TileEmitter


class AttentionProducts:
    """The products of an attention with merged indices, over what a kernel keeps on the stack: the
    `queries` and `scores` of a tile, and the `largest` score and the `total` of each row."""

    queries: Buffer
    scores: Buffer
    largest: Buffer
    total: Buffer

    def __init__(self, match: Attention, plan: AttentionPlan, options: RegisterTileOptions):
        self.match, self.plan, self.options = match, plan, options
        self.k = KernelBuilder()
        self.lanes = self.plan.lanes
        self.fixed: dict[Expr, Expr] = {}  # outer indices
        self.depth, self.columns = count(match.depth), count(match.columns)
        self.first, self.last = first_key(match), last_key(match)
        # The first row of a tile, a row in it, and its number in the chunk; a key of a block
        self.top = Index("top", elements_of(x.extent for x in match.rows))
        self.row = Index("row", self.plan.tile_rows)
        self.number = Index("number", self.plan.chunk)
        self.key = Index("key", self.plan.block)
        self.place = self.at_row(self.top + self.row)

    def at_row(self, row: Expr) -> dict[Expr, Expr]:
        """The indices of a row; of the last one, for rows of a tile that are not there."""
        extents = tuple(x.extent for x in self.match.rows)
        if any(rows.end is not None for rows in self.plan.segments):
            row = minimum(row, elements_of(extents) - 1)
        return dict(zip(self.match.rows, unflatten_index(simplify(row), extents)))

    def scores_of(self, first: Expr, keys: Dim) -> TileEmitter:
        """The products of rows and keys, whose epilogue gives scores."""
        m, key = self.match, Index("key", keys)
        steps = flatten_index(tuple(m.depth), tuple(x.extent for x in m.depth))
        a = self.queries[simplify(self.row * self.depth + steps)]
        b = cast(substitute(m.b, {m.key: first + key}), f32)
        hole = Reduce("sum", a * b, tuple(m.depth))
        score = simplify(m.score, {**self.place, m.key: first + key})
        score = substitute(score, {PRODUCT: hole})
        output = Output(self.scores, (), score)
        return self._emitter(
            [output], simplify(self.row * self.plan.pitch + key), [score], hole, a, b,
            [key], m.depth, self.plan.score_vectors,
        )  # fmt: skip

    def values_of(self, first: Expr, keys: Dim) -> TileEmitter:
        """The products of weights and values, whose epilogue gives results."""
        m = self.match
        a = self.scores[simplify(self.row * self.plan.pitch + self.key)]
        b = cast(substitute(m.value, {m.key: first + self.key}), f32)
        hole = Reduce("sum", a * b, (self.key,))
        kept = simplify(self.number * self.plan.tile_rows + self.row)
        facts: dict[Expr, Expr] = {
            SUM: hole, TOTAL: self.total[kept], LARGEST: self.largest[kept]
        }  # fmt: skip
        result = substitute(simplify(m.softmax.result, self.place), facts)
        exprs = [substitute(simplify(e, self.place), {RESULT: result}) for e in m.exprs]
        offset = simplify(m.offset, self.place)
        return self._emitter(
            list(m.computation.outputs), offset, exprs, hole, a, b, m.columns, [],
            self.plan.value_vectors,
        )  # fmt: skip

    def _emitter(
        self, outputs: list[Output], offset: Expr, exprs: list[Expr], hole: Reduce, a: Expr,
        b: Expr, cols: list[Index], depth: list[Index], vectors: int,
    ) -> TileEmitter:  # fmt: skip
        whole = self.match.computation
        inputs = tuple(map(flat_buffer, whole.inputs))
        computation = replace(whole, inputs=inputs, outputs=tuple(outputs))
        match = Match(
            computation, [self.row, *cols], offset, exprs, hole, a, b, [], [self.row], cols, depth
        )
        columns = elements_of(x.extent for x in cols)
        plan = TilePlan(self.lanes, vectors, self.plan.tile_rows, columns, self.depth, False, None)
        return TileEmitter(match, plan, self.options, [], self.k)

    def pack(self, block: Block) -> None:
        """Copies keys, and values unless they are read as they lie, in panels."""
        scores, values = block.scores, block.values
        if not self.plan.few and (self.lanes > 1 or not isinstance(scores.b, Load)):
            self._in_panels(scores, scores.depth, self.depth)
        steps = Index("key", block.keys)
        if not self._in_place(values):
            values.b = substitute(values.b, {self.key: steps})
            self._in_panels(values, [steps], self.plan.block)
            values.b = substitute(values.b, {steps: self.key})

    def _in_place(self, values: TileEmitter) -> bool:
        """Whether values are read as they lie: plain elements, whose columns are neighbours, and
        which are not apart in memory, or few rows are multiplied with them."""
        b = values.b
        if not isinstance(b, Load):
            return False
        if self.lanes == 1:
            return True
        if is_affine_in(b.index[0], values.column) != 1:
            return False
        together = is_affine_in(b.index[0], self.key) == self.columns
        return together or self.plan.chunk * self.plan.tile_rows < COPIED

    def _in_panels(self, e: TileEmitter, depth: list[Index], most_steps: int) -> None:
        """Copies the columns of a product in panels, which its emitter reads from here on."""
        k, width = self.k, e.plan.panel
        number = ceil_divided(e.plan.columns, width)
        copy = k.alloc(f32, (most(number) * most_steps * width,))
        for panels in e.panels():
            e.is_open = panels.open
            with k.loop(panels.count) as n:
                panel = k.let(simplify(n + panels.first))
                start = k.let(simplify(panel * (most_steps * width)))
                pack_panel(e, copy, start, panel, e.pieces(panels.size), depth, self.fixed)
        e.b = packed_element(e, copy, 0, depth, most_steps)
