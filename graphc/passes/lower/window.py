"""Padded windows: guarded loads of a convolution or pooling, turned into loads of a padded copy.

A load `select(0 <= y and y < H, x[n, y - p, c], 0)` with y = oy * s + ky becomes `padded[n, y, c]`,
where `padded` covers every y that occurs and holds 0 (or whatever the other branch is) outside.
"""

from __future__ import annotations

from graphc.ir.dtypes import i64
from graphc.ir.expr import Call, Const, Expr, Index, Load, free_indices, select
from graphc.ir.kernel import Buffer
from graphc.ir.simplify import bounds, simplify, to_poly
from graphc.passes.lower.computation import Computation


def padded_window(expr: Expr, name: str, computation: Computation, spare: int = 0):
    """(buffer, its index, its contents, the load that replaces `expr`), or None if no window. The
    last extent of the buffer has so much to spare, which is filled like all that is outside.
    """
    if not (isinstance(expr, Call) and expr.op.name == "select"):
        return None
    condition, load, other = expr.args
    if not isinstance(load, Load) or free_indices(other):
        return None
    source = computation.input(load.source)
    positions, access = [], []
    shape: list[int] = []
    for dim, (where, extent) in enumerate(zip(load.index, source.shape)):
        where = simplify(where)
        low, high = bounds(where)
        if low >= 0 and high < int(extent):
            low, high = 0, int(extent) - 1
        elif not _exact_bounds(where) or high - low > 1 << 24:
            return None
        exact = int(high - low + 1)
        shape.append(exact + spare if dim == len(load.index) - 1 else exact)
        index = Index(f"i{dim}", shape[-1])
        positions.append((index, index + int(low)))
        access.append(simplify(where - int(low)))
    moved = _move_condition(condition, list(load.index), [p for _, p in positions])
    if moved is None:
        return None
    if spare:
        moved = moved & (positions[-1][0] < exact)
    contents = select(moved, Load(load.source, tuple(p for _, p in positions), load.dtype), other)
    buffer = Buffer(name, load.dtype, tuple(shape))
    return buffer, tuple(i for i, _ in positions), simplify(contents), buffer[tuple(access)]


def _exact_bounds(where: Expr) -> bool:
    """Whether every position between the bounds is meant: the guard then covers what lies outside.

    True for sums of multiples of indices, not for positions chosen by a select (reflection).
    """
    return all(isinstance(x, Index) for atoms in to_poly(where) for x in atoms)


def _move_condition(condition: Expr, old: list[Expr], new: list[Expr]) -> Expr | None:
    """The condition with each load index replaced by its new position; None if it depends on
    anything else."""
    if isinstance(condition, Const):
        return condition
    if not isinstance(condition, Call):
        return None
    if condition.op.rule == "logic":
        parts = [_move_condition(a, old, new) for a in condition.args]
        if any(p is None for p in parts):
            return None
        return condition.rebuild(parts)  # type: ignore[arg-type]
    if condition.op.rule != "compare" or condition.args[0].dtype is not i64:
        return None
    left, right = condition.args
    difference = to_poly(simplify(left - right))
    for before, after in zip(old, new):
        poly = to_poly(simplify(before))
        for sign in (1, -1):
            rest = dict(difference)
            for atoms, value in poly.items():
                rest[atoms] = rest.get(atoms, 0) - sign * value
            rest = {k: v for k, v in rest.items() if v}
            if all(k == () for k in rest) and any(poly):
                moved = after * sign + rest.get((), 0)
                return condition.rebuild((simplify(moved), Const(0, i64)))
    return None
