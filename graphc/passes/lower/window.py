"""Windows: what a convolution reads of neighbouring positions, computed once for each position.

An expression in which two indices only occur in one sum, `y = oy * stride + ky`, is a function of
that position, which many pairs of them share: `f(oy * stride + ky, c)` becomes
`copy[oy * stride + ky, c]`, where `copy` holds f of every position. f is the guarded load of a
convolution that is padded, a load from a mirrored or enlarged image (`y // 2`), or arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from graphc.ir.dtypes import i64
from graphc.ir.expr import (
    Call,
    Const,
    Expr,
    Index,
    Load,
    free_indices,
    loads,
    select,
    substitute,
)
from graphc.ir.kernel import Buffer
from graphc.ir.simplify import bounds, from_poly, simplify, to_poly
from graphc.passes.lower.computation import Computation

Sum = frozenset[tuple[Index, int]]  # indices and what each is multiplied by
LONGEST = 1 << 24  # extent of a dimension


@dataclass(frozen=True)
class Window:
    """A buffer of `contents` at `index`; `load` from it stands for the expression."""

    buffer: Buffer
    index: tuple[Index, ...]
    contents: Expr
    load: Load


def window(expr: Expr, name: str, computation: Computation, spare: int = 0) -> Window | None:
    """`expr` as a load from a buffer with a dimension for each position, in the order in which they
    lie in memory; None if no indices share one. The last extent has so much to spare, for zeros.
    """
    expr = simplify(expr)
    sums = _in_order_of_memory(_positions(expr), expr, computation)
    if all(len(part) == 1 for part in sums):
        return None
    index, access, inverse = [], [], {}
    for n, part in enumerate(sums):
        position = from_poly({(x,): times for x, times in part})
        low, high = (int(x) for x in bounds(position))
        index.append(Index(f"i{n}", high - low + 1 + spare * (n == len(sums) - 1)))
        access.append(simplify(position - low))
        inverse.update(_inverse(part, index[-1] + low))
    if max(x.count for x in index) > LONGEST:
        return None
    contents = substitute(expr, inverse)
    if spare:
        contents = select(index[-1] < index[-1].count - spare, contents, Const(0, expr.dtype))
    buffer = Buffer(name, expr.dtype, tuple(x.count for x in index))
    return Window(buffer, tuple(index), simplify(contents), buffer[tuple(access)])


def _inverse(part: Sum, position: Expr) -> dict[Expr, Expr]:
    """Values of the indices that add up to a position. They may lie outside of the indices' ranges:
    what depends on their sum alone does not see it."""
    chosen = min((x for x, times in part if times == 1), key=lambda x: x.name)
    return {x: position if x is chosen else Const(0, i64) for x, _ in part}


def _positions(expr: Expr) -> list[Sum]:
    """The sums that `expr` is a function of. An index that occurs in several different ones, or in
    one that skips numbers, is a position by itself."""
    found = list(dict.fromkeys(_sums(expr)))
    shared = {x for part in found for x, _ in part if sum(x in dict(p) for p in found) > 1}
    whole = [p for p in found if _is_dense(p) and not shared & dict(p).keys()]
    taken = {x for part in whole for x, _ in part}
    alone = sorted(free_indices(expr) - taken, key=lambda x: x.name)
    return [*whole, *(frozenset({(x, 1)}) for x in alone)]


def _sums(expr: Expr) -> Iterator[Sum]:
    """The sums of indices in index arithmetic and in comparisons, each divided by what all its
    multiples have in common."""
    waiting, seen = [expr], set()
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        poly = _poly(node)
        if poly is None or (node,) in poly and not isinstance(node, Index):
            waiting += node.children
            continue
        linear = {
            atoms[0]: times
            for atoms, times in poly.items()
            if len(atoms) == 1 and isinstance(atoms[0], Index)
        }
        if linear:
            common = math.gcd(*linear.values())
            sign = 1 if max(linear.values()) > 0 else -1
            yield frozenset((x, sign * times // common) for x, times in linear.items())
        waiting += [x for atoms in poly for x in atoms if atoms != (x,) or x not in linear]


def _poly(node: Expr) -> dict[tuple[Expr, ...], int] | None:
    """The polynomial of index arithmetic, or of the difference that is compared with 0."""
    if isinstance(node, (Call, Index)) and node.dtype is i64:
        return to_poly(node)
    if isinstance(node, Call) and node.op.rule == "compare" and node.args[0].dtype is i64:
        return to_poly(node.args[0] - node.args[1])
    return None


def _is_dense(part: Sum) -> bool:
    """Whether a sum takes every number between its bounds, and one index is taken once."""
    reach = 0
    for x, times in sorted(part, key=lambda term: abs(term[1])):
        if abs(times) > reach + 1:
            return False
        reach += abs(times) * (x.count - 1)
    return any(times == 1 for _, times in part)


def _in_order_of_memory(sums: list[Sum], expr: Expr, computation: Computation) -> list[Sum]:
    """Sorted by where the largest tensor that is read has them."""
    largest = max(
        loads(expr), key=lambda x: math.prod(computation.input(x.source).shape), default=None
    )
    index = largest.index if largest is not None else ()

    def dimension(part: Sum) -> int:
        own = dict(part).keys()
        return next((d for d, where in enumerate(index) if own & free_indices(where)), -1)

    return sorted(sums, key=lambda part: (dimension(part), sorted(x.name for x, _ in part)))
