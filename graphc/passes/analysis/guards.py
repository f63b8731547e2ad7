"""Guards of reductions: windows that hang over the edge, without a test per element.

A padded window reduces `select(guard, x[...], identity)`, or a product with such a factor. Where a
part of the guard depends on a reduction axis and on loop indices only, it is a bound on that axis:
the loop then runs over the taps that lie inside.
"""

from __future__ import annotations

from graphc.ir.dtypes import boolean, i64
from graphc.ir.expr import (
    Call,
    Const,
    Expr,
    Index,
    Reduce,
    as_expr,
    free_indices,
    maximum,
    minimum,
)
from graphc.ir.simplify import Poly, from_poly, simplify, to_poly
from graphc.records import dataclass


@dataclass(frozen=True)
class Range:
    """The values low .. low + extent - 1 of an axis."""

    low: Expr
    extent: Expr


def guard_atoms(op: str, identity: Const, body: Expr) -> list[Expr]:
    """The comparisons that must all hold for a term of a reduction to count."""
    if not isinstance(body, Call):
        return []
    if body.op.name == "select" and _same(body.args[2], identity):
        return conjuncts(body.args[0])
    if op == "sum" and body.op.name == "mul":
        return [atom for factor in body.args for atom in guard_atoms(op, identity, factor)]
    return []


def _same(node: Expr, identity: Const) -> bool:
    return isinstance(node, Const) and node.value == identity.value


def conjuncts(node: Expr) -> list[Expr]:
    """The conditions, less constants, that hold together where this one does."""
    if isinstance(node, Call) and node.op.name == "and":
        return [atom for a in node.args for atom in conjuncts(a)]
    return [] if isinstance(node, Const) else [node]


def trim(
    group: list[Reduce], bodies: list[Expr], axis: Index, allowed: frozenset[Index]
) -> tuple[Range, list[Expr]] | None:
    """(Range, bodies without the guards it implies), or None if nothing bounds the axis.

    `allowed` are the loop indices that bounds may depend on.
    """
    atoms = [guard_atoms(r.op, r.identity, b) for r, b in zip(group, bodies)]
    shared = [a for a in dict.fromkeys(atoms[0]) if all(a in conjunction for conjunction in atoms)]
    inside = within(shared, axis, allowed)
    if inside is None:
        return None
    where, used = inside
    implied: dict[Expr, Expr] = {atom: Const(True, boolean) for atom in used}
    return where, [simplify(b, implied) for b in bodies]


def within(
    atoms: list[Expr], axis: Index, allowed: frozenset[Index]
) -> tuple[Range, list[Expr]] | None:
    """The values of an axis for which comparisons hold, and those of them that say so; None if
    nothing bounds the axis. Bounds may depend on the indices `allowed`."""
    low: Expr = Const(0, i64)
    high: Expr = as_expr(axis.extent, i64)
    used: list[Expr] = []
    for atom in atoms:
        if axis not in free_indices(atom) or not free_indices(atom) <= allowed | {axis}:
            continue
        bound = _bound(atom, axis)
        if bound is None:
            continue
        is_low, value = bound
        low, high = (maximum(low, value), high) if is_low else (low, minimum(high, value))
        used.append(atom)
    if not used:
        return None
    low = simplify(low)
    extent = simplify(maximum(simplify(high) - low, Const(0, i64)))
    return Range(low, extent), used


def at_least_zero(atom: Expr) -> Poly | None:
    """The polynomial that a comparison of sizes says is at least 0; None if it is no such
    comparison."""
    if not (isinstance(atom, Call) and atom.op.name in ("ge", "gt", "lt", "le")):
        return None
    left, right = atom.args
    if left.dtype is not i64:
        return None
    poly = to_poly(simplify(left - right))
    if atom.op.name in ("lt", "le"):
        poly = {k: -v for k, v in poly.items()}
    if atom.op.name in ("lt", "gt"):
        poly[()] = poly.get((), 0) - 1
    return {k: v for k, v in poly.items() if v}


def _bound(atom: Expr, axis: Index) -> tuple[bool, Expr] | None:
    """(True, first value) or (False, end) that a comparison affine in `axis` puts on it."""
    poly = at_least_zero(atom)
    if poly is None:
        return None
    step = poly.pop((axis,), 0)
    if step == 0 or any(axis in free_indices(x) for atoms in poly for x in atoms):
        return None
    rest = from_poly(poly)
    if step > 0:  # step * axis + rest >= 0
        return True, -(rest // step)
    return False, rest // -step + 1
