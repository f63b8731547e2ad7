"""Adjoints inside one body: how a change of each element that is read changes the result.

From the root down, each node of the expression gets its adjoint, a list of terms. A term holds
where its guard does (what `select` chose on the way), once for every value of its axes (those of
the reductions on the way). Guards are kept beside the values, so that what is not chosen never
counts, even if it is infinite or NaN. A load at the bottom ends with terms that say what it adds to
the gradient of its operand (transpose.py brings them there).

Reductions: a sum hands its adjoint on. A maximum hands it to where it is reached, in equal parts,
as PyTorch's amax does, or, of operators with the trait FIRST, to the first place, as its poolings
do. A product multiplies by the product of the others, also if there are zeros.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from graphc.autodiff.derivatives import partial
from graphc.errors import UnsupportedError
from graphc.ir.addresses import flatten_index
from graphc.ir.dtypes import i32
from graphc.ir.expr import (
    TRUE,
    Call,
    Const,
    Expr,
    Index,
    Load,
    Reduce,
    as_expr,
    cast,
    free_indices,
    select,
    substitute,
    walk,
)
from graphc.records import dataclass


@dataclass(frozen=True)
class Term:
    """A part of an adjoint: `value` where `guard` holds, for all values of `axes`."""

    value: Expr
    guard: Expr = TRUE
    axes: tuple[Index, ...] = ()

    @property
    def guarded(self) -> Expr:
        """The value, or zero where the guard does not hold."""
        return self.value if self.guard is TRUE else select(self.guard, self.value, 0)

    def indices(self) -> frozenset[Index]:
        """The indices that it depends on or runs over."""
        return free_indices(self.value) | free_indices(self.guard) | {*self.axes}


def adjoints(body: Expr, seed: Expr, first: bool = False) -> dict[Load, list[Term]]:
    """The terms of every load of floats below `body`, whose own adjoint is `seed`. That of a
    maximum is for all elements that are equal to it, or the `first`."""
    terms: dict[Expr, list[Term]] = {body: [Term(seed)]}
    reached: dict[Load, list[Term]] = {}
    for node in reversed(list(walk(body))):
        own = merged(terms.pop(node, []))
        if isinstance(node, Load):
            if own and node.dtype.is_float:
                reached[node] = own
            continue
        for term in own:
            for child, below in _handed_on(node, term, first):
                terms.setdefault(child, []).append(below)
    return reached


def merged(terms: list[Term]) -> list[Term]:
    """Terms over the same axes made one."""
    by_axes: dict[tuple[Index, ...], Term] = {}
    for term in terms:
        known = by_axes.get(term.axes)
        by_axes[term.axes] = term if known is None else _joined(known, term)
    return list(by_axes.values())


def _joined(one: Term, other: Term) -> Term:
    if one.guard is other.guard:
        return replace(one, value=one.value + other.value)
    if one.guard is ~other.guard:
        return Term(select(one.guard, one.value, other.value), TRUE, one.axes)
    return Term(one.guarded + other.guarded, one.guard | other.guard, one.axes)


def _handed_on(node: Expr, term: Term, first: bool) -> Iterable[tuple[Expr, Term]]:
    """What a node hands to its children of a term of its own adjoint."""
    if not node.dtype.is_float:
        return
    if isinstance(node, Reduce):
        yield node.body, reduced(node, term, first)
    elif isinstance(node, Call) and node.op.name == "select":
        condition, then, otherwise = node.args
        yield then, replace(term, guard=term.guard & condition)
        yield otherwise, replace(term, guard=term.guard & ~condition)
    elif isinstance(node, Call):
        for position, child in enumerate(node.args):
            if child.dtype.is_float and any(_is_read(part) for part in walk(child)):
                value = partial(node, position, term.value)
                if value is not None:
                    yield child, _chosen(replace(term, value=value))


def _chosen(term: Term) -> Term:
    """A term that is zero where a condition does not hold, with that for a guard."""
    value = term.value
    if isinstance(value, Call) and value.op.name == "select" and _is_zero(value.args[2]):
        return replace(term, value=value.args[1], guard=term.guard & value.args[0])
    return term


def _is_zero(node: Expr) -> bool:
    """Whether an expression is the constant zero."""
    return isinstance(node, Const) and node.value == 0


def _is_read(node: Expr) -> bool:
    return isinstance(node, Load) and node.dtype.is_float


def reduced(node: Reduce, term: Term, first: bool = False) -> Term:
    """The adjoint of what is reduced, from that of the reduction; of extremes, as in `adjoints`."""
    axes = (*term.axes, *node.axes)
    if node.op == "sum":
        return Term(term.value, term.guard, axes)
    if node.op in ("min", "max"):
        reaches = node.body.eq(node)
        if first:
            return Term(term.value, term.guard & _is_first(node, reaches), axes)
        return Term(term.value / _count(node, reaches), term.guard & reaches, axes)
    if node.op == "prod":
        return Term(term.value * _others(node), term.guard, axes)
    raise UnsupportedError(f"the reduction {node.op} has no derivative")


def _is_first(node: Reduce, condition: Expr) -> Expr:
    """Whether a term of a reduction is the first one that a condition holds of."""
    again = {axis: Index(f"{axis.name}_f", axis.extent) for axis in node.axes}
    extents = tuple(axis.extent for axis in node.axes)
    number, other = (cast(flatten_index(tuple(x), extents), i32) for x in (again, again.values()))
    candidate = select(substitute(condition, again), other, as_expr(i32.max, i32))
    return number.eq(Reduce("min", candidate, tuple(again.values())))


def _count(node: Reduce, condition: Expr) -> Expr:
    """How many terms of a reduction a condition holds of."""
    again = {axis: Index(f"{axis.name}_n", axis.extent) for axis in node.axes}
    one = select(substitute(condition, again), as_expr(1, node.dtype), as_expr(0, node.dtype))
    return Reduce("sum", one, tuple(again.values()))


def _others(node: Reduce) -> Expr:
    """The product of all terms but one, from the product of those that are not zero."""
    again = {axis: Index(f"{axis.name}_p", axis.extent) for axis in node.axes}
    factor = substitute(node.body, again)
    nonzero = Reduce("prod", select(factor.eq(0), 1, factor), tuple(again.values()))
    zeros = _count(node, node.body.eq(0))
    own = node.body
    return select(
        own.eq(0),
        select(zeros.eq(1), nonzero, 0),
        select(zeros.eq(0), nonzero / select(own.eq(0), 1, own), 0),
    )
