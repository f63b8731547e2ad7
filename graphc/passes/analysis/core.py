"""The core of a computation: its one reduction, what is reduced, and the role of every index.

What matches sums of products, windows or products with constants starts here. The outputs are
`exprs` over the `indices`, stored at `offset`. They hold the reduction `hole` once: what they make
of it is the epilogue. A sum of products has factors `a` and `b`, whose loads and conversions are
the prologues; of another reduction, `a` is what is reduced and `b` is None.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum

from graphc.ir.addresses import flatten_loads, is_affine_in
from graphc.ir.expr import (
    Expr,
    Index,
    Load,
    Reduce,
    Ref,
    free_indices,
    loads,
    reduces,
    substitute,
    walk,
)
from graphc.ir.simplify import simplify
from graphc.passes.analysis.computation import Computation, memoised
from graphc.passes.analysis.guards import guard_atoms
from graphc.passes.analysis.spaces import drop_units, shapes_of, split_divided
from graphc.records import dataclass


class Role(Enum):
    """What an index does in a reduction."""

    BATCH = "of the output, in both factors or in none"
    ROW = "of the output, in the first factor alone"
    COLUMN = "of the output, in the second factor alone"
    DEPTH = "reduced"
    POSITION = "of the output, moving a window"
    TAP = "reduced, moving within a window"


@dataclass
class Core:
    """The one reduction of a computation (see the module)."""

    computation: Computation
    indices: list[Index]
    offset: Expr
    exprs: list[Expr]
    hole: Reduce
    a: Expr
    b: Expr | None

    @property
    def shapes(self) -> dict[str, tuple]:
        """The shapes of what is read, by name."""
        return shapes_of(self.computation.inputs)

    @property
    def guards(self) -> list[Expr]:
        """The comparisons that must all hold for a term to count."""
        return guard_atoms(self.hole.op, self.hole.identity, self.hole.body)

    def role(self, index: Index) -> Role:
        """What an index of the output or of the reduction does."""
        if index in self.hole.axes:
            return Role.DEPTH
        in_a = index in free_indices(self.a)
        in_b = self.b is not None and index in free_indices(self.b)
        if in_a == in_b:
            return Role.BATCH
        return Role.ROW if in_a else Role.COLUMN

    def is_constant(self, factor: Expr) -> bool:
        """Whether a factor is read from constants alone."""
        reads = loads(factor)
        return bool(reads) and all(x.source in self.computation.constants for x in reads)

    def epilogue_loads(self) -> list[Load]:
        """What is read besides the factors."""
        sum_of = Ref("sum", self.hole.dtype)
        return [x for e in self.exprs for x in loads(substitute(e, {self.hole: sum_of}))]


def stride(load: Load, index: Index) -> int | None:
    """The elements that a step of an index moves a flat load by; None if it is not affine."""
    return is_affine_in(load.index[0], index)


def reductions_in(exprs: Iterable[Expr], nested: bool = True) -> list[Reduce]:
    """The distinct reductions of several expressions; without `nested`, those in no other one."""
    if nested:
        return list(dict.fromkeys(n for e in exprs for n in reduces(e)))
    reductions: dict[Reduce, None] = {}
    seen: set[Expr] = set()
    stack = [*exprs]
    while stack:
        node = stack.pop()
        if isinstance(node, Reduce):
            reductions[node] = None
        elif node not in seen:
            seen.add(node)
            stack.extend(node.children)
    return list(reductions)


def outermost(exprs: Iterable[Expr]) -> list[Reduce]:
    """Reductions, and those inside them that do not depend on their axes."""
    reductions = reductions_in(exprs)
    axes = {axis for r in reductions for axis in r.axes}
    return [r for r in reductions if not free_indices(r) & axes]


def rows_of(exprs: Iterable[Expr], indices: Sequence[Index]) -> dict[Reduce, frozenset[Index]]:
    """The outermost reductions of expressions over indices, and the indices of the row that each is
    of: those that it depends on. A row reduction depends on some, one per element on all."""
    return {r: free_indices(r) & {*indices} for r in outermost(exprs)}


@memoised
def core_of(
    computation: Computation,
    kind: str,
    *,
    unit_axes: bool = True,
    flat: bool = False,
    nested: bool = True,
) -> Core | str:
    """The core of a computation over one space, or why it has none. Without `unit_axes`, reductions
    over one element are gone; with `flat`, buffers have one dimension; without `nested`, the hole
    may hold other reductions."""
    if not computation.has_one_space:
        return f"{kind}: outputs must have one shape, found different ones"
    loops, offset, exprs = computation.over_loops()
    if flat:
        shapes = shapes_of(computation.inputs)
        exprs = [simplify(flatten_loads(e, shapes)) for e in exprs]
    indices, (offset, *exprs) = drop_units(loops, [offset, *exprs])
    if not unit_axes:
        exprs = [_without_unit_axes(e) for e in exprs]
    indices, (offset, *exprs) = split_divided(indices, [offset, *exprs])
    sums = reductions_in(exprs, nested)
    if len(sums) != 1:
        return f"{kind}: it must have one reduction, found {len(sums) or 'none'}"
    (hole,) = sums
    if not free_indices(hole) <= set(indices):
        return f"{kind}: its reduction must stand alone, found it inside another"
    a, b = hole.factors or (hole.body, None)
    return Core(computation, indices, offset, exprs, hole, a, b)


def _without_unit_axes(expr: Expr) -> Expr:
    """Reductions over axes of one element less these."""
    mapping: dict[Expr, Expr] = {}
    for node in walk(expr):
        if isinstance(node, Reduce) and any(a.extent == 1 for a in node.axes):
            axes, (body,) = drop_units(list(node.axes), [node.body])
            mapping[node] = Reduce(node.op, body, tuple(axes)) if axes else body
    return substitute(expr, mapping) if mapping else expr
