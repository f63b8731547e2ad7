"""Contractions: matrix products and convolutions alike, recognised by structure.

A computation matches when its outputs contain one `sum(a * b)` in which some output indices occur
in `a` alone (rows, m), some in `b` alone (columns, n, the innermost output index among them), and
the summed ones in both (k). Indices in both factors, or in neither, are outer loops. Nothing is
said of how such sums are computed: targets have strategies for that, which start from a Match.
Sums of narrow floats are taken in float32, which is what they mean (see expr.Reduce).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from graphc.ir.dtypes import DType, f32, f64
from graphc.ir.expr import (
    Call,
    Expr,
    Index,
    Reduce,
    cast,
    free_indices,
    substitute,
    transform,
    walk,
)
from graphc.ir.kernel import Buffer
from graphc.passes.analysis.computation import Computation
from graphc.passes.analysis.spaces import drop_units, shapes_of, split_divided


@dataclass
class Match:
    """A matched contraction. `rows`, `cols` and `outer` partition the output indices; the last of
    `depth` is the innermost summed index. `exprs` are the outputs' with `hole` for the sum."""

    computation: Computation
    indices: list[Index]
    offset: Expr
    exprs: list[Expr]
    hole: Reduce
    a: Expr
    b: Expr
    outer: list[Index]
    rows: list[Index]
    cols: list[Index]
    depth: list[Index]
    prepare: list[Computation] = field(default_factory=list)
    temporaries: list[Buffer] = field(default_factory=list)

    @property
    def shapes(self) -> dict[str, tuple]:
        return shapes_of((*self.computation.inputs, *self.temporaries))

    def add(self, buffer: Buffer, index: tuple[Index, ...], expr: Expr, label: str) -> None:
        """Asks for a temporary filled with `expr`."""
        known = (*self.computation.inputs, *self.temporaries)
        whole = replace(self.computation, inputs=known)
        self.prepare.append(whole.filling(buffer, index, expr, label))
        self.temporaries.append(buffer)


def match_contraction(
    computation: Computation, min_depth: int = 1, types: tuple[DType, ...] = (f32, f64)
) -> Match | str:
    """The sum of products that a computation's outputs contain, or why it is no contraction of at
    least so many products in one of these types."""
    if not computation.has_one_space:
        return "contraction: outputs have different shapes"
    loops, offset, exprs = computation.over_loops()
    sums = {n for e in exprs for n in walk(e) if isinstance(n, Reduce)}
    if len(sums) != 1:
        return f"contraction: {f'it has {len(sums)} reductions' if sums else 'it reduces nothing'}"
    hole = next(iter(sums))
    body = hole.body
    if hole.op != "sum" or not (isinstance(body, Call) and body.op.name == "mul"):
        return "contraction: not a sum of products"
    if hole.dtype not in types:
        return f"contraction: {hole.dtype} is not {' or '.join(t.name for t in types)}"
    if not free_indices(hole) <= set(loops):
        return "contraction: nested in another reduction"
    indices, (offset, *exprs) = drop_units(loops, [offset, *exprs])
    indices, (offset, *exprs) = split_divided(indices, [offset, *exprs])
    left = [n for e in exprs for n in walk(e) if isinstance(n, Reduce)]
    if not left:
        return "contraction: the sum has no terms within bounds"
    hole = left[0]
    axes, (split,) = split_divided(list(hole.axes), [hole.body])
    if len(axes) > len(hole.axes):
        parts = Reduce("sum", split, tuple(axes))
        exprs = [substitute(e, {hole: parts}) for e in exprs]
        hole = parts
    return _classify(computation, indices, offset, exprs, hole, min_depth)


def _classify(
    computation: Computation, indices: list[Index], offset: Expr, exprs: list[Expr], hole: Reduce,
    min_depth: int,
) -> Match | str:  # fmt: skip
    body = hole.body
    if not (isinstance(body, Call) and body.op.name == "mul"):
        return "contraction: not a sum of products"
    if not indices:
        return "contraction: a single output element"
    a, b = body.args
    if indices[-1] in free_indices(a):
        a, b = b, a
    in_a, in_b = free_indices(a), free_indices(b)
    if indices[-1] in in_a or indices[-1] not in in_b:
        return "contraction: the innermost output index is not in exactly one factor"
    if any(k not in in_a or k not in in_b for k in hole.axes):
        return "contraction: a summed index is in one factor only"
    depth = math.prod(k.count for k in hole.axes)
    if depth < min_depth:
        return f"contraction: only {depth} products to sum"
    cols: list[Index] = []
    for index in reversed(indices):
        if index in in_a or index not in in_b:
            break
        cols.insert(0, index)
    rest = indices[: len(indices) - len(cols)]
    rows = [x for x in rest if x in in_a and x not in in_b]
    outer = [x for x in rest if x not in rows]
    if math.prod(x.count for x in cols) == 1 and math.prod(x.count for x in rows) > 4:
        return "contraction: a single column"
    return Match(
        computation, indices, offset, exprs, hole, a, b, outer, rows, cols, list(hole.axes)
    )


def wide_sums(computation: Computation) -> Computation:
    """The computation with sums of products of narrow floats written as sums of float32s."""

    def widen(node: Expr) -> Expr | None:
        if not isinstance(node, Reduce) or node.op != "sum" or node.dtype.compute is node.dtype:
            return None
        if not (isinstance(node.body, Call) and node.body.op.name == "mul"):
            return None
        return cast(Reduce("sum", node.term, node.axes), node.dtype)

    outputs = tuple(replace(o, expr=transform(o.expr, widen)) for o in computation.outputs)
    return replace(computation, outputs=outputs)
