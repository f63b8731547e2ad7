"""Packing: the column operand of a contraction in panels, each as wide as a tile.

The operand is packed in panels [outer..., n / NR, k, NR], at compile time if it is constant, unless
its rows are contiguous in n already. Constants that take less than a byte per element (several
codes to a byte, with scales) and narrow floats stay in their type: each constant has panels, and
elements are dequantised where they are multiplied.
"""

from __future__ import annotations

from collections.abc import Collection

from graphc.ir.addresses import flatten_index, flatten_loads, unflatten_index
from graphc.ir.dtypes import DType, i64
from graphc.ir.expr import Const, Expr, Index, Load, free_indices, loads, select
from graphc.ir.extents import as_dim
from graphc.ir.kernel import Buffer
from graphc.ir.simplify import simplify
from graphc.passes.analysis.computation import index_of
from graphc.passes.analysis.contraction import Match
from graphc.passes.analysis.factors import converted, is_below_a_byte
from graphc.passes.lower.strategies.tile_plan import TilePlan
from graphc.records import dataclass


@dataclass(frozen=True)
class Panels:
    """Where a part of `b` lies: `buffer` is [outer..., panel, depth..., lane], over those outer and
    summed indices that the part depends on."""

    part: Expr
    buffer: Buffer
    outer: list[Index]
    depth: list[Index]

    def element(self, at: dict, panel: Expr, lane: Expr) -> Load:
        """The part at a lane of a panel; the first of bytes that lie together."""
        place = (*(at[x] for x in self.outer), panel, *(at[k] for k in self.depth), lane)
        place += (Const(0, i64),) * (self.buffer.rank - len(place))
        return Load(self.buffer.name, (flatten_index(place, self.buffer.shape),), self.part.dtype)


def prepare_columns(match: Match, plan: TilePlan, widened: Collection[DType]) -> list[Panels]:
    """Packs `b`, whole or in parts; reads it in place if the plan says so. Constants of
    the types in `widened` stay narrow."""
    if not plan.packed:
        match.b = flatten_loads(match.b, match.shapes)
        return []
    stays = is_below_a_byte(match.b, match.computation) or _is_widened(match, widened)
    if plan.quad is not None or not stays:
        return [packed_panels(match, plan, match.b, match.depth, "panels")]
    parts = sorted(loads(match.b), key=lambda x: x.source)
    depth = [[k for k in match.depth if k in free_indices(x)] for x in parts]
    return [
        packed_panels(match, plan, part, deep, f"panels{n}")
        for n, (part, deep) in enumerate(zip(parts, depth))
    ]


def _is_widened(match: Match, types: Collection[DType]) -> bool:
    """Whether `b` is a constant of one of these types, converted."""
    narrow = converted(match.b)
    return (
        isinstance(narrow, Load)
        and narrow is not match.b
        and narrow.dtype in types
        and narrow.source in match.computation.constants
    )


def packed_panels(
    match: Match, plan: TilePlan, part: Expr, depth: list[Index], name: str
) -> Panels:
    """Asks for panels of a part of `b`; bytes that are multiplied four by four lie together."""
    used = free_indices(part)
    outer = [x for x in match.outer if x in used]
    panels = as_dim((plan.columns + plan.panel - 1) // plan.panel)
    deep = tuple(k.extent for k in depth)
    bytes_of = () if plan.quad is None else (plan.together,)
    shape = (*(x.extent for x in outer), panels, *deep, plan.panel, *bytes_of)
    index = index_of(shape)
    lane = len(outer) + 1 + len(deep)
    panel, inner = index[len(outer)], index[len(outer) + 1 : lane]
    column = panel * plan.panel + index[lane]
    mapping: dict[Expr, Expr] = dict(zip((*outer, *depth), (*index[: len(outer)], *inner)))
    if plan.quad is not None:
        mapping[plan.quad] = inner[-1] * plan.together + index[-1]
    mapping.update(zip(match.cols, unflatten_index(column, tuple(x.extent for x in match.cols))))
    contents = simplify(part, mapping)
    if as_dim(plan.columns % plan.panel) != 0:
        contents = select(column < plan.columns, contents, Const(0, contents.dtype))
    return Panels(part, match.copied(name, index, contents), outer, depth)
