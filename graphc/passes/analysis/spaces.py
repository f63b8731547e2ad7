"""Iteration spaces: dropping unit dimensions, merging and splitting dimensions of a computation.

Two adjacent dimensions can be merged when every load and store that depends on them addresses
memory as if they were one: then the inner loops are longer, which is what vectors want. A dimension
is split when all index arithmetic uses it as `i // c` and `i % c` (groups, attention heads).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from graphc.ir.addresses import stride_in
from graphc.ir.dtypes import i64
from graphc.ir.expr import (
    Call,
    Const,
    Expr,
    Index,
    Reduce,
    as_expr,
    free_indices,
    loads,
    symbols,
    transform,
    walk,
)
from graphc.ir.extents import as_dim, least, most
from graphc.ir.kernel import Buffer
from graphc.ir.simplify import bounds, simplify
from graphc.ir.types import elements_of


def count(indices: Iterable[Index]) -> int:
    """The number of positions of several indices."""
    return math.prod(x.count for x in indices)


def shapes_of(buffers: tuple[Buffer, ...]) -> dict[str, tuple]:
    """The shapes of buffers by name."""
    return {b.name: b.shape for b in buffers}


def uses_division(exprs: list[Expr], index: Index) -> bool:
    """Whether `index` occurs under a // or %."""
    for expr in exprs:
        for node in walk(expr):
            if isinstance(node, Call) and node.op.name in ("floordiv", "mod", "div", "rem"):
                if index in free_indices(node):
                    return True
    return False


def fuse_indices(
    exprs: list[Expr], outer: Index, inner: Index, name: str
) -> tuple[Index, list[Expr]] | None:
    """(merged index, exprs over it) if addressing allows, else None."""
    merged = Index(name, elements_of((outer.extent, inner.extent)))
    width = as_expr(inner.extent, i64)
    mapping: dict[Expr, Expr] = {outer: merged // width, inner: merged % width}
    if symbols(width):  # what is affine needs no division
        mapping = {inner: merged - outer * width}
    new = [simplify(e, mapping) for e in exprs]
    before = uses_division(exprs, outer) or uses_division(exprs, inner)
    apart = uses_division(new, merged) or any(outer in free_indices(e) for e in new)
    return None if before or apart else (merged, new)


def merge_adjacent(indices: list[Index], exprs: list[Expr]) -> tuple[list[Index], list[Expr]]:
    """Merges neighbouring indices wherever possible; exprs must have flat loads."""
    position = len(indices) - 2
    while position >= 0:
        outer, inner = indices[position], indices[position + 1]
        merged = fuse_indices(exprs, outer, inner, outer.name)
        if merged is not None:
            index, exprs = merged
            indices = [*indices[:position], index, *indices[position + 2 :]]
        position -= 1
    return indices, exprs


def known_last(indices: list[Index]) -> list[Index]:
    """Indices in the order in which the last is tiled: the longest of known extent, where the one
    that is last may be shorter."""
    known = [x for x in indices if isinstance(x.extent, int)]
    if not known or known[-1] is indices[-1]:
        return indices
    longest = max(known, key=lambda x: most(x.extent))
    if least(indices[-1].extent) >= most(longest.extent):
        return indices
    return [*(x for x in indices if x is not longest), longest]


def drop_units(indices: list[Index], exprs: list[Expr]) -> tuple[list[Index], list[Expr]]:
    """Removes dimensions of extent 1."""
    units: dict[Expr, Expr] = {x: Const(0, i64) for x in indices if x.extent == 1}
    if units:
        exprs = [simplify(e, units) for e in exprs]
    return [x for x in indices if x not in units], exprs


def merge_reductions(expr: Expr) -> Expr:
    """Merges the axes of every Reduce wherever addressing allows; loads must be flat. They first
    take the order that they have in memory, which may round sums otherwise, but as well."""

    def visit(node: Expr) -> Expr | None:
        if not isinstance(node, Reduce):
            return None
        axes, bodies = split_divided(list(node.axes), [node.body])
        axes.sort(key=lambda axis: -_longest_stride(bodies[0], axis))
        axes, (body,) = merge_adjacent(axes, bodies)
        return Reduce(node.op, body, tuple(axes)) if axes != list(node.axes) else None

    return transform(expr, visit)


def _longest_stride(expr: Expr, index: Index) -> float:
    """The largest step in memory that an index makes at most; 0 if none is known."""
    steps = (stride_in(x.index[0], index) for x in loads(expr) if len(x.index) == 1)
    return max((max(map(abs, bounds(step))) for step in steps if step is not None), default=0)


def split_divided(indices: list[Index], exprs: list[Expr]) -> tuple[list[Index], list[Expr]]:
    """Splits an index used as i // c and i % c into two, where that removes the divisions."""
    for position, index in enumerate(indices):
        divisor = _divisor(exprs, index)
        if divisor is None:
            continue
        outer = Index(index.name + "o", as_dim(as_expr(index.extent, i64) // divisor))
        inner = Index(index.name + "i", divisor)
        mapping: dict[Expr, Expr] = {index: outer * divisor + inner}
        new = [simplify(e, mapping) for e in exprs]
        left = [*indices[:position], outer, inner, *indices[position + 1 :]]
        return split_divided(left, new)
    return indices, exprs


def _divisor(exprs: list[Expr], index: Index) -> Expr | None:
    """What an index is divided by without rest."""
    for expr in exprs:
        for node in walk(expr):
            if not (isinstance(node, Call) and node.op.name in ("floordiv", "mod")):
                continue
            by = node.args[1]
            if node.args[0] is index and (isinstance(by, Const) or symbols(by)):
                if as_dim(as_expr(index.extent, i64) % by) == 0:
                    return by
    return None


def balanced_tiles(total: int, largest: int) -> list[tuple[int, int, int]]:
    """Segments (start, count, size) that cover `total` with tiles of almost equal size."""
    if total <= 0:
        return []
    count = -(-total // largest)
    small, extra = divmod(total, count)
    segments = [(0, extra, small + 1)] if extra else []
    return [*segments, (extra * (small + 1), count - extra, small)]
