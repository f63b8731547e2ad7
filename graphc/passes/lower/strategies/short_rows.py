"""Rows shorter than a vector, several of them vectorised together.

The innermost dimension of boxes or of an image's colours is 4 or 3 elements long. As many rows as
make whole vectors form a block, whose lanes read elements at known distances.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from graphc.ir.dtypes import i64
from graphc.ir.expr import Call, Const, Expr, Index, Load, Reduce, loads, substitute, walk
from graphc.ir.extents import divided, most
from graphc.ir.known_lanes import known_lanes, lane_distances
from graphc.ir.simplify import simplify
from graphc.ir.types import Dim
from graphc.passes.lower.strategies.reductions import NestOptions, element_bytes
from graphc.passes.lower.strategies.tile_transpose import is_inside
from graphc.records import dataclass

MOST_VECTORS = 16  # of a block
MOST_WORK = 256  # operations in a block, which is unrolled


@dataclass(frozen=True)
class ShortRows:
    """Blocks of `rows` positions of `across`, each with all of `along`, in `vectors` vectors."""

    across: Index
    along: Index
    rows: int
    lanes: int

    @property
    def vectors(self) -> int:
        return self.rows * self.along.count // self.lanes

    def at(self, block: Expr, vector: int, lane: Index) -> dict[Expr, Expr]:
        """The position of a lane of one of the vectors of a block."""
        element = lane + vector * self.lanes
        inner = self.along.count
        return {
            self.across: block * self.rows + simplify(element // inner),
            self.along: simplify(element % inner),
        }


def short_rows(
    indices: list[Index],
    offset: Expr,
    exprs: Sequence[Expr],
    options: NestOptions,
    sizes: dict[str, Dim],
) -> ShortRows | None:
    """The blocks of an iteration space, whose elements are stored at `offset`; None if its rows are
    not short, or what they read is better read in another way. `sizes` are those of buffers."""
    nodes = {node for e in exprs for node in walk(e)}
    if not options.vector_bytes or len(indices) < 2:
        return None
    if any(isinstance(node, Reduce) for node in nodes):
        return None
    across, along = indices[-2:]
    lanes = options.lanes(element_bytes(list(exprs)))
    if not isinstance(along.extent, int) or not 1 < along.extent < lanes:
        return None
    rows = ShortRows(across, along, lanes // math.gcd(along.count, lanes), lanes)
    work = sum(isinstance(node, (Call, Load)) for node in nodes)
    if rows.rows > most(across.extent) or rows.vectors > MOST_VECTORS:
        return None
    if rows.vectors > 1 and rows.vectors * work > MOST_WORK:
        return None
    return rows if _are_loads_of_vectors(rows, offset, exprs, sizes) else None


def _are_loads_of_vectors(
    rows: ShortRows, offset: Expr, exprs: Sequence[Expr], sizes: dict[str, Dim]
) -> bool:
    """Whether elements are stored side by side, and read at known distances."""
    block = Index("block", divided(rows.across.extent, rows.rows)[0])
    lane = Index("lane", rows.lanes)
    read = [x for e in exprs for x in loads(e)]
    if any(not is_inside(x, sizes[x.source]) for x in read):
        return False
    for vector in range(rows.vectors):
        place = rows.at(block, vector, lane)
        stored = lane_distances(substitute(offset, place), lane, rows.lanes)
        if stored is None or list(stored) != list(range(rows.lanes)):
            return False
        if any(known_lanes(substitute(x.index[0], place), lane, rows.lanes) is None for x in read):
            return False
    return True


def start_of(offset: Expr, place: dict[Expr, Expr], lane: Index) -> Expr:
    """Where the elements of a vector start."""
    return simplify(substitute(offset, place), {lane: Const(0, i64)})
