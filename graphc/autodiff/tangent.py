"""Tangents inside one body: forward mode, from the same table as the adjoints."""

from __future__ import annotations

from collections.abc import Callable

from graphc.autodiff.adjoint import Term, reduced
from graphc.autodiff.derivatives import partial
from graphc.ir.expr import Call, Const, Expr, Load, Reduce, cast, select, walk


def tangent(body: Expr, of_load: Callable[[Load], Expr | None], first: bool = False) -> Expr | None:
    """The tangent of `body`, given those of its loads; None if it is zero. That of a maximum is the
    mean of all elements that are equal to it, or the `first`."""
    known: dict[Expr, Expr | None] = {}
    for node in walk(body):
        known[node] = _tangent(node, known, of_load, first) if node.dtype.is_float else None
    return known[body]


def _tangent(
    node: Expr,
    known: dict[Expr, Expr | None],
    of_load: Callable[[Load], Expr | None],
    first: bool,
) -> Expr | None:
    if isinstance(node, Load):
        return of_load(node)
    if isinstance(node, Reduce):
        below = known[node.body]
        return None if below is None else _of_reduction(node, below, first)
    if not isinstance(node, Call):
        return None
    if node.op.name == "select":
        condition, *sides = node.args
        parts = [known[side] for side in sides]
        if parts[0] is parts[1] is None:
            return None
        zero = Const(0, node.dtype)
        return select(condition, *(zero if part is None else part for part in parts))
    total: Expr | None = None
    for position, child in enumerate(node.args):
        inner = known[child]
        term = None if inner is None else partial(node, position, cast(inner, node.dtype))
        if term is not None:
            term = cast(term, node.dtype)  # of a conversion it is of the type converted from
            total = term if total is None else total + term
    return total


def _of_reduction(node: Reduce, below: Expr, first: bool) -> Expr:
    """The sum of what the terms of a reduction change it by."""
    term = reduced(node, Term(Const(1, node.dtype)), first)
    value = below if node.op == "sum" else below * term.value
    return Reduce("sum", Term(value, term.guard).guarded, node.axes)
