"""What an op adds to the gradient of one operand, as ops of the graph.

The adjoints of the loads (adjoint.py) are brought to the elements that they read. Where the index
can be solved (transpose.py) that is an op over the elements of the operand: a `graphc.Generic`
whose body is a guarded sum. Where an index comes from data, or is clamped, the adjoints are
computed where they arise and added up by ScatterND.

A reduction inside an adjoint (the maximum of a row, a sum of squares) becomes an op of its own,
over the indices that it depends on, so that it is computed once for each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

from graphc.autodiff.adjoint import Term, adjoints
from graphc.autodiff.transpose import Solution, Unsolvable, solve
from graphc.autodiff.values import filled
from graphc.ir.addresses import is_affine_in
from graphc.ir.build import Builder
from graphc.ir.dtypes import i64
from graphc.ir.expr import (
    TRUE,
    Call,
    Expr,
    Index,
    Load,
    Reduce,
    cast,
    free_indices,
    loads,
    reduce,
    reduces,
    select,
    substitute,
)
from graphc.ir.graph import Op, Value
from graphc.ir.infer import op_body
from graphc.ir.opdef import FIRST, OutIndex
from graphc.ir.ops.generic import generic_op
from graphc.ir.ops.helpers import choose
from graphc.ir.simplify import bounds, simplify
from graphc.ir.types import TensorType
from graphc.records import dataclass


@dataclass
class Sources:
    """The values that expressions about one op load from: its operands "0", "1", ..., and others
    that are given names as they come."""

    b: Builder
    op: Op
    values: dict[str, Value] = field(default_factory=dict)
    reductions: dict[Expr, Expr] = field(default_factory=dict)

    def value(self, source: str) -> Value:
        """The value of a name."""
        return self.op.operand(int(source)) if source.isdigit() else self.values[source]

    def load(self, name: str, value: Value, index: Sequence[Expr]) -> Load:
        """An element of a value, which has this name from now on."""
        self.values[name] = value
        return Load(name, index, value.tensor.dtype)

    def computed(self, expr: Expr) -> Expr:
        """The expression with every reduction read from an op that computes it."""
        return rebuilt(expr, self._reduction)

    def _reduction(self, node: Reduce) -> Expr:
        known = self.reductions.get(node)
        if known is None:
            whole = Reduce(node.op, self.computed(node.body), node.axes)
            space = sorted(free_indices(whole), key=lambda x: x.name)
            value = generic_op(self.b, space, whole, self.value)
            known = self.load(f"r{len(self.values)}", value, space)
            self.reductions[node] = known
        return known


def rebuilt(expr: Expr, replace: Callable[[Reduce], Expr]) -> Expr:
    """The expression with its outermost reductions replaced."""
    done: dict[Expr, Expr] = {}

    def visit(node: Expr) -> Expr:
        if node not in done:
            if isinstance(node, Reduce):
                done[node] = replace(node)
            else:
                children = node.children
                new = tuple(visit(child) for child in children)
                done[node] = node if new == children else node.rebuild(new)
        return done[node]

    return visit(expr) if reduces(expr) else expr


def takes_first(op: Op) -> bool:
    """Whether the gradient of a maximum is for the first of equal elements alone."""
    return FIRST in op.defn.traits


def contributions(
    b: Builder, op: Op, cotangents: Sequence[Value | None], wanted: Sequence[int]
) -> Mapping[int, list[Value]]:
    """What an op with scalar bodies adds to the gradients of its operands with the positions
    `wanted`, from the gradients of its results (None: zero)."""
    sources = Sources(b, op)
    terms: dict[int, list[tuple[Load, Term, tuple[Index, ...]]]] = {}
    for number, cotangent in enumerate(cotangents):
        if cotangent is None:
            continue
        result = op.outputs[number]
        body = op_body(op, number)
        index = OutIndex.make(result.tensor.dims, number)
        space: tuple[Index, ...] = tuple(index)  # type: ignore[arg-type]
        seed = sources.load(f"g{number}", cotangent, space)
        sources.reductions[body] = sources.load(f"y{number}", result, space)
        element = sources.reductions[body]
        for load, reached in adjoints(body, seed, takes_first(op)).items():
            if int(load.source) in wanted:
                for term in reached:
                    kept = _reading(term, body, element, sources)
                    terms.setdefault(int(load.source), []).append((load, kept, space))
    return {position: _gradient(sources, position, own) for position, own in terms.items()}


def _reading(term: Term, body: Expr, result: Expr, sources: Sources) -> Term:
    """A term that reads the result of the op rather than computing it again."""

    def read(expr: Expr) -> Expr:
        if not isinstance(body, Load):
            expr = substitute(expr, {body: result})
        return sources.computed(expr)

    return Term(read(term.value), read(term.guard), term.axes)


def _gradient(
    sources: Sources, position: int, terms: list[tuple[Load, Term, tuple[Index, ...]]]
) -> list[Value]:
    """The ops that bring the terms of one operand to its elements. Those without a sum are one."""
    type = sources.op.operand(position).tensor
    element = tuple(Index(f"j{d}", extent) for d, extent in enumerate(type.dims))
    plain: Expr | None = None
    values = []
    for load, term, space in terms:
        loops = (*space, *term.axes)
        try:
            expr = _gathered(sources, load, term, loops, element)
        except Unsolvable:
            values.append(_scattered(sources, load, term, loops, type))
            continue
        if reduces(expr):
            values.append(generic_op(sources.b, element, cast(expr, type.dtype), sources.value))
        else:
            plain = expr if plain is None else plain + expr
    if plain is not None:
        values.append(generic_op(sources.b, element, cast(plain, type.dtype), sources.value))
    return values


def _gathered(
    sources: Sources, load: Load, term: Term, loops: Sequence[Index], element: Sequence[Index]
) -> Expr:
    """The gradient at an element, from the one term: a guarded sum over what is not solved."""
    solution = solve(load.index, element, loops)
    rest = [index for index in loops if index not in solution.known]
    positions = [simplify(position) for position in load.index]
    here: dict[Expr, Expr] = {p: e for p, e in zip(positions, element) if isinstance(p, Call)}
    guard, value = (substitute(simplify(e), here) for e in (term.guard, term.value))
    solution.require(simplify(guard, solution.known))
    value = simplify(value, solution.known)
    outer = [c for c in solution.guards if free_indices(c).isdisjoint(rest)]
    inner = Solution(guards=[c for c in solution.guards if c not in outer])
    summed = _forwards(_guarded(sources, value, inner.guard), rest)
    return _guarded(sources, reduce("sum", summed, rest), Solution(guards=outer).guard)


def _forwards(value: Expr, axes: Sequence[Index]) -> Expr:
    """A term whose summed axes are counted from their ends where they walk against the element, as
    taps do in the gradient of a convolution: so it slides over its taps as a convolution does."""
    for axis in axes:
        for position in (position for load in loads(value) for position in load.index):
            if len(free_indices(position)) > 1 and (is_affine_in(position, axis) or 0) < 0:
                value = simplify(value, {axis: axis.extent - 1 - axis})
                break
    return value


def _guarded(sources: Sources, value: Expr, guard: Expr) -> Expr:
    """The value where the guard holds, else zero. Of a product whose one factor alone may lie
    outside, that factor is zero: so it is the product of a contraction."""
    if guard is TRUE:
        return value
    if isinstance(value, Call) and value.op.name == "mul":
        outside = [not _is_inside(sources, factor) for factor in value.args]
        if sum(outside) < 2:
            own = outside.index(True) if any(outside) else 0
            factors = list(value.args)
            factors[own] = select(guard, factors[own], 0)
            return factors[0] * factors[1]
    return select(guard, value, 0)


def _is_inside(sources: Sources, expr: Expr) -> bool:
    """Whether every element that an expression reads is there at all its indices."""
    for load in loads(expr):
        for position, extent in zip(load.index, sources.value(load.source).tensor.dims):
            place = simplify(position)
            if bounds(place)[0] < 0 or simplify(place < extent) is not TRUE:
                return False
    return True


def _scattered(
    sources: Sources, load: Load, term: Term, loops: Sequence[Index], type: TensorType
) -> Value:
    """The adjoints computed where they arise, and added up at the elements that they belong to.

    The last dims that are indices of the loop, whole and in order, are slices that are added at
    once. What the element does not depend on is summed before.
    """
    b = sources.b
    depth = len(load.index)
    whole: list[Index] = []
    while depth and _is_whole(load.index[depth - 1], type.dims[depth - 1], load.index[: depth - 1]):
        depth -= 1
        whole.insert(0, load.index[depth])  # type: ignore[arg-type]
    picked = [cast(position, i64) for position in load.index[:depth]]
    used = frozenset[Index]().union(*(free_indices(p) for p in picked))
    space = [x for x in loops if x in used]
    summed = [x for x in loops if x not in used and x not in whole]
    total = reduce("sum", term.guarded, summed)
    updates = generic_op(b, (*space, *whole), cast(total, type.dtype), sources.value)
    axis = Index("axis", depth)
    guard = term.guard if free_indices(term.guard) <= used else TRUE
    safe = [select(guard, p, 0) if guard is not TRUE else p for p in picked]
    where = generic_op(b, (*space, axis), choose(axis, safe), sources.value)
    zeros = filled(b, type, 0)
    return b.ScatterND(zeros, where, updates, reduction="add")


def _is_whole(position: Expr, extent: object, others: Sequence[Expr]) -> bool:
    """Whether a dim is read by an index of its own, that runs over all of it."""
    return (
        isinstance(position, Index)
        and position.extent == extent
        and not any(position in free_indices(other) for other in others)
    )
