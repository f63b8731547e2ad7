"""Sums of products with constants, recognised by structure: what strategies here make kernels of.

A computation matches when its only output contains one `sum(a * b)`, `b` depending on constants
alone. `row` is an index of the output that moves `a` only, `column` the innermost one if it moves
`b`; either may be missing. Convolutions, depthwise convolutions and matrix products are all of this
form. Padding is never stored: in a sum it is a guard, and a row index has an interior, where no
guard depends on it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from graphc.ir.dtypes import f32, i32, i64
from graphc.ir.expr import (
    Const,
    Expr,
    Index,
    free_indices,
    loads,
)
from graphc.ir.extents import most
from graphc.ir.instructions import LANES
from graphc.ir.simplify import simplify
from graphc.passes.analysis.computation import Computation
from graphc.passes.analysis.core import Core, Role, core_of, reductions_in, stride
from graphc.passes.analysis.spaces import (
    merge_adjacent,
)

MOST_ROWS = 1 << 16  # of an index that is searched for its interior


@dataclass
class ProductMatch(Core):
    """`indices` of the output less `row` and `column` are the outer loops, in order; `a` and `b`
    are the factors over flat buffers, `depth` the summed indices in the order of the loops."""

    b: Expr
    depth: list[Index]
    row: Index | None
    column: Index | None

    @property
    def column_alone(self) -> bool:
        """Whether elements of `b` serve one column and those of `a` one too."""
        return self.column is not None and self.column in free_indices(self.a)

    @property
    def expr(self) -> Expr:
        """The only output's."""
        return self.exprs[0]


def match_product(computation: Computation, min_depth: int) -> ProductMatch | str:
    """The sum of products that a computation's output contains, or why it is not one of at least so
    many products."""
    if len(computation.outputs) != 1:
        return f"product: it must have one output, found {len(computation.outputs)}"
    core = core_of(computation, "product", flat=True)
    if isinstance(core, str):
        return core
    indices, (offset, *exprs) = merge_adjacent(core.indices, [core.offset, *core.exprs])
    (hole,) = reductions_in(exprs)
    if hole.factors is None:
        return f"product: it must sum products, found a {hole.op} of other terms"
    core = replace(core, indices=indices, offset=offset, exprs=exprs, hole=hole)
    return _classify(core, hole.factors, min_depth)


def _classify(core: Core, factors: tuple[Expr, Expr], min_depth: int) -> ProductMatch | str:
    indices, hole = core.indices, core.hole
    if hole.dtype not in (f32, i32):
        return f"product: sums must be f32 or i32, found {hole.dtype}"
    if not indices:
        return "product: it must have several sums, found one"
    unknown = next((k.extent for k in hole.axes if not isinstance(k.extent, int)), None)
    if unknown is not None:
        return f"product: the number of products must be constant, found {unknown}"
    depth = math.prod(k.count for k in hole.axes)
    if depth < min_depth:
        return f"product: at least {min_depth} products must be summed, found {depth}"
    a, b = factors if core.is_constant(factors[1]) else factors[::-1]
    if not core.is_constant(b) or core.is_constant(a):
        number = "both are" if core.is_constant(b) else "none is"
        return f"product: one factor must be constant, found that {number}"
    if any(k not in free_indices(b) for k in hole.axes):
        return (
            "product: weights must differ along each summed index, found one index that they lack"
        )
    open_weights = [x for x in indices if x in free_indices(b) and not isinstance(x.extent, int)]
    if open_weights:
        return f"product: weights must have constant shapes, found {open_weights[0].extent}"
    core.a, core.b = a, b
    column = indices[-1] if indices[-1] in free_indices(b) else None
    rows = [x for x in indices if core.role(x) is Role.ROW]
    rows = [x for x in rows if isinstance(x.extent, int) or interior(x, core)[1]]
    row = max(reversed(rows), key=lambda x: _row_rank(x, core), default=None)
    return ProductMatch(**vars(core), depth=_ordered(core, row), row=row, column=column)


def _row_rank(row: Index, core: Core) -> tuple[bool, int]:
    """How good tiles along an index are: whether only they let neighbouring bytes be summed four by
    four, and the number of elements that they can be made of."""
    low, high = interior(row, core)
    if not isinstance(row.extent, int):
        return False, 0
    bounded = {k for x in core.guards if row in free_indices(x) for k in free_indices(x)}
    quads = core.hole.dtype is i32 and any(
        k.count >= LANES and k in bounded and stride(x, k) == 1
        for k in core.hole.axes for x in loads(core.a)
    )  # fmt: skip
    return quads, high - low


def _ordered(core: Core, row: Index | None) -> list[Index]:
    """The summed indices: first those with bounds that change from tile to tile, then those that
    move farthest in `a`. So the innermost ones run over all they have, and can be unrolled."""
    atoms = [free_indices(x) for x in core.guards]

    def bounded(k: Index) -> bool:
        return any(k in used and used - {k, row} for used in atoms)

    def longest(k: Index) -> int:
        return max((abs(stride(x, k) or 0) for x in loads(core.a)), default=0)

    return sorted(core.hole.axes, key=lambda k: (not bounded(k), -longest(k)))


def interior(row: Index, core: Core) -> tuple[int, int]:
    """The longest range of `row` in which no guard of the sum depends on it; at the largest sizes
    where its extent is open: all of it, or nothing."""
    atoms = [a for a in core.guards if row in free_indices(a)]
    if not isinstance(row.extent, int):
        return (0, 0) if atoms else (0, most(row.extent))
    extent = row.count
    if not atoms:
        return 0, extent
    if extent > MOST_ROWS:
        return 0, 0
    best, start = (0, 0), None
    for position in range(extent + 1):
        inside = position < extent and all(_holds(a, row, position) for a in atoms)
        if inside:
            start = position if start is None else start
        elif start is not None:
            best = max(best, (start, position), key=lambda r: r[1] - r[0])
            start = None
    return best


def _holds(atom: Expr, row: Index, position: int) -> bool:
    decided = simplify(atom, {row: Const(position, i64)})
    return isinstance(decided, Const) and bool(decided.value)
