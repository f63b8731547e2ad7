"""Contractions: matrix products and convolutions alike, recognised by structure.

A computation matches when its outputs contain one `sum(a * b)` in which some output indices occur
in `a` alone (rows, m), some in `b` alone (columns, n, the innermost output index among them), and
the summed ones in both (k). Indices in both factors, or in neither, are outer loops. Nothing is
said of how such sums are computed: targets have strategies for that, which start from a Match. Sums
of narrow floats are taken in float32, by definition (see expr.Reduce).
"""

from __future__ import annotations

from dataclasses import field, replace
from itertools import takewhile

from graphc.ir.dtypes import DType, f32, f64
from graphc.ir.expr import (
    Expr,
    Index,
    Reduce,
    cast,
    free_indices,
    substitute,
    transform,
)
from graphc.ir.extents import points
from graphc.ir.kernel import Buffer
from graphc.passes.analysis.computation import Computation, memoised
from graphc.passes.analysis.core import Core, Role, core_of, reductions_in
from graphc.passes.analysis.spaces import shapes_of, split_divided
from graphc.records import dataclass


@dataclass
class Match(Core):
    """A matched contraction. `rows`, `cols` and `outer` partition the output indices; the last of
    `depth` is the innermost summed index. `exprs` are the outputs' with `hole` for the sum."""

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

    def copied(self, name: str, index: tuple[Index, ...], contents: Expr, kind: str = "") -> Buffer:
        """Asks for a temporary with these contents (see Computation.copied)."""
        known = (*self.computation.inputs, *self.temporaries)
        buffer, filled = replace(self.computation, inputs=known).copied(name, index, contents, kind)
        self.prepare.append(filled)
        self.temporaries.append(buffer)
        return buffer


@memoised
def match_contraction(
    computation: Computation, min_depth: int = 1, types: tuple[DType, ...] = (f32, f64)
) -> Match | str:
    """The sum of products that a computation's outputs contain, or why it is no contraction of at
    least so many products in one of these types."""
    sums = reductions_in([o.expr for o in computation.outputs])
    if len(sums) != 1:
        return f"contraction: it must have one reduction, found {len(sums) or 'none'}"
    if sums[0].factors is None:
        return f"contraction: it must sum products, found a {sums[0].op} of other terms"
    if sums[0].dtype not in types:
        wanted = " or ".join(t.name for t in types)
        return f"contraction: sums must be {wanted}, found {sums[0].dtype}"
    core = core_of(computation, "contraction")
    if isinstance(core, str):
        return core
    axes, (split,) = split_divided(list(core.hole.axes), [core.hole.body])
    if len(axes) > len(core.hole.axes):
        parts = Reduce("sum", split, tuple(axes))
        exprs = [substitute(e, {core.hole: parts}) for e in core.exprs]
        core = replace(core, exprs=exprs, hole=parts)
    return _classify(core, min_depth)


def _classify(core: Core, min_depth: int) -> Match | str:
    indices, hole = core.indices, core.hole
    if hole.factors is None:
        return f"contraction: it must sum products, found a {hole.op} of other terms"
    if not indices:
        return "contraction: it must have several output elements, found one"
    a, b = hole.factors
    core.a, core.b = (b, a) if indices[-1] in free_indices(a) else (a, b)
    if core.role(indices[-1]) is not Role.COLUMN:
        return "contraction: the innermost output index must be in one factor, found it in " + (
            "both" if indices[-1] in free_indices(core.b) else "none"
        )
    if not free_indices(a) & free_indices(b) >= set(hole.axes):
        return "contraction: summed indices must be in both factors, found one that is not"
    depth = points(hole.axes)
    if depth < min_depth:
        return f"contraction: at least {min_depth} products must be summed, found {depth}"
    columns = takewhile(lambda x: core.role(x) is Role.COLUMN, reversed(indices))
    cols = list(columns)[::-1]
    rest = indices[: len(indices) - len(cols)]
    rows = [x for x in rest if core.role(x) is Role.ROW]
    outer = [x for x in rest if x not in rows]
    if points(cols) == 1 and points(rows) > 4:
        return f"contraction: {points(rows)} rows must have several columns, found one"
    return Match(**vars(core), outer=outer, rows=rows, cols=cols, depth=list(hole.axes))


@memoised
def wide_sums(computation: Computation) -> Computation:
    """The computation with sums of products of narrow floats written as sums of float32s."""

    def widen(node: Expr) -> Expr | None:
        if not isinstance(node, Reduce) or not node.factors or node.dtype.compute is node.dtype:
            return None
        return cast(Reduce("sum", node.term, node.axes), node.dtype)

    outputs = tuple(replace(o, expr=transform(o.expr, widen)) for o in computation.outputs)
    return replace(computation, outputs=outputs)
