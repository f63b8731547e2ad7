"""Sums of products with constants, recognised by structure: what strategies here make kernels of.

A computation matches when its only output contains one `sum(a * b)`, `b` depending on constants
alone. `row` is an index of the output that moves `a` only, `column` the innermost one if it moves
`b`; either may be missing. Convolutions, depthwise convolutions and matrix products are all of this
form. Padding is never stored: in a sum it is a guard, and a row index has an interior, where no
guard depends on it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from graphc.ir.addresses import flatten_index, flatten_loads, is_affine_in
from graphc.ir.dtypes import f32, i32, i64
from graphc.ir.expr import (
    Call,
    Const,
    Expr,
    Index,
    Load,
    Reduce,
    Ref,
    free_indices,
    loads,
    substitute,
    walk,
)
from graphc.ir.instructions import LANES
from graphc.ir.simplify import simplify
from graphc.passes.analysis.computation import Computation
from graphc.passes.analysis.guards import guard_atoms
from graphc.passes.analysis.spaces import (
    drop_units,
    merge_adjacent,
    shapes_of,
    split_divided,
)

MOST_ROWS = 1 << 16  # of an index that is searched for its interior


@dataclass
class ProductMatch:
    """`indices` of the output less `row` and `column` are the outer loops, in order; `a` and `b`
    are the factors over flat buffers, `depth` the summed indices in the order of the loops."""

    computation: Computation
    indices: list[Index]
    offset: Expr
    expr: Expr
    hole: Reduce
    a: Expr
    b: Expr
    depth: list[Index]
    row: Index | None
    column: Index | None

    @property
    def column_alone(self) -> bool:
        """Whether elements of `b` serve one column and those of `a` one too."""
        return self.column is not None and self.column in free_indices(self.a)

    def epilogue_loads(self) -> list[Load]:
        """What is read besides the factors."""
        return loads(substitute(self.expr, {self.hole: Ref("sum", self.hole.dtype)}))


def match_product(computation: Computation, min_depth: int) -> ProductMatch | str:
    """The sum of products that a computation's output contains, or why it is not one of at least so
    many products."""
    if len(computation.outputs) != 1:
        return "several outputs"
    output = computation.outputs[0]
    shapes = shapes_of(computation.inputs)
    expr = simplify(flatten_loads(output.expr, shapes))
    offset = flatten_index(output.index, output.extents)
    indices, (offset, expr) = drop_units(list(output.index), [offset, expr])
    indices, (offset, expr) = split_divided(indices, [offset, expr])
    sums = [n for n in walk(expr) if isinstance(n, Reduce)]
    if len(sums) != 1:
        return f"{len(sums)} reductions instead of one"
    indices, (offset, expr) = merge_adjacent(indices, [offset, expr])
    hole = next(n for n in walk(expr) if isinstance(n, Reduce))
    return _classify(computation, indices, offset, expr, hole, min_depth)


def _classify(
    computation: Computation, indices: list[Index], offset: Expr, expr: Expr, hole: Reduce,
    min_depth: int,
) -> ProductMatch | str:  # fmt: skip
    body = hole.body
    if hole.op != "sum" or not (isinstance(body, Call) and body.op.name == "mul"):
        return "not a sum of products"
    if hole.dtype not in (f32, i32):
        return f"{hole.dtype} is neither f32 nor i32"
    if not indices or math.prod(k.count for k in hole.axes) < min_depth:
        return "too few products or sums"
    a, b = body.args
    if not _is_constant(b, computation):
        a, b = b, a
    if not _is_constant(b, computation) or _is_constant(a, computation):
        return "not exactly one factor is constant"
    if any(k not in free_indices(b) for k in hole.axes):
        return "a summed index is missing in the weights"
    in_a, in_b = free_indices(a), free_indices(b)
    column = indices[-1] if indices[-1] in in_b else None
    rows = [x for x in indices if x in in_a and x not in in_b]
    row = max(reversed(rows), key=lambda x: _row_rank(x, hole, a), default=None)
    depth = _ordered(hole, a, row)
    return ProductMatch(computation, indices, offset, expr, hole, a, b, depth, row, column)


def _row_rank(row: Index, hole: Reduce, a: Expr) -> tuple[bool, int]:
    """How good tiles along an index are: whether only they let neighbouring bytes be summed four by
    four, and the number of elements that they can be made of."""
    low, high = interior(row, hole)
    atoms = guard_atoms(hole.op, hole.identity, hole.body)
    bounded = {k for x in atoms if row in free_indices(x) for k in free_indices(x)}
    quads = hole.dtype is i32 and any(
        k.count >= LANES and k in bounded and is_affine_in(x.index[0], k) == 1
        for k in hole.axes for x in loads(a)
    )  # fmt: skip
    return quads, high - low


def _is_constant(factor: Expr, computation: Computation) -> bool:
    reads = loads(factor)
    return bool(reads) and all(x.source in computation.constants for x in reads)


def _ordered(hole: Reduce, a: Expr, row: Index | None) -> list[Index]:
    """The summed indices: first those with bounds that change from tile to tile, then those that
    move farthest in `a`. So the innermost ones run over all they have, and can be unrolled."""
    atoms = [free_indices(x) for x in guard_atoms(hole.op, hole.identity, hole.body)]

    def bounded(k: Index) -> bool:
        return any(k in used and used - {k, row} for used in atoms)

    def stride(k: Index) -> int:
        return max((abs(is_affine_in(x.index[0], k) or 0) for x in loads(a)), default=0)

    return sorted(hole.axes, key=lambda k: (not bounded(k), -stride(k)))


def interior(row: Index, hole: Reduce) -> tuple[int, int]:
    """The longest range of `row` in which no guard of the sum depends on it."""
    atoms = [a for a in guard_atoms(hole.op, hole.identity, hole.body) if row in free_indices(a)]
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
