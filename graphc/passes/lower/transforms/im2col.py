"""Implicit im2col: the windows of a convolution as a buffer that holds each position once.

im2col copies every window into a row of a matrix, so an element that several windows contain is
stored several times. Here it is stored once. An expression in which two indices only occur as one
sum, `y = oy * stride + ky`, is a function of that position: `f(oy * stride + ky, c)` becomes
`copy[oy * stride + ky, c]`, where `copy` holds f of every position. Rows of the matrix then are
overlapping views of the copy, and the convolution is a matrix product (implicit GEMM). f is the
guarded load of a padded convolution, a load from a mirrored or enlarged image (`y // 2`), or
arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from graphc.ir.dtypes import i64
from graphc.ir.expr import Call, Const, Expr, Index, Load, free_indices, loads, select, substitute
from graphc.ir.extents import as_dim, least, most, points
from graphc.ir.kernel import Buffer
from graphc.ir.simplify import from_poly, simplify, to_poly
from graphc.ir.types import Dim
from graphc.passes.analysis.computation import Computation, index_of
from graphc.records import dataclass

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
    lie in memory; None if no position is shared. The last extent has so much to spare, for zeros.
    """
    expr = simplify(expr)
    sums = _in_order_of_memory(_positions(expr), expr, computation)
    written = [from_poly({(x,): times for x, times in part}) for part in sums]
    lows, extents = [_lowest(part) for part in sums], [_extent(part) for part in sums]
    if math.prod(map(most, extents)) >= points(free_indices(expr)):
        return None
    if max(map(most, extents)) > LONGEST:
        return None
    exact = extents[-1]
    extents[-1] = as_dim(extents[-1] + spare)
    index = index_of(extents)
    contents = substitute(expr, _inverse(sums, [i + low for i, low in zip(index, lows)]))
    if spare:
        contents = select(index[-1] < exact, contents, Const(0, expr.dtype))
    buffer = Buffer(name, expr.dtype, tuple(extents))
    access = tuple(simplify(p - low) for p, low in zip(written, lows))
    return Window(buffer, index, simplify(contents), buffer[access])


def _lowest(part: Sum) -> Dim:
    """The least value of a sum."""
    return as_dim(sum((times * (x.extent - 1) for x, times in part if times < 0), start=0))


def _extent(part: Sum) -> Dim:
    """How many numbers there are between the bounds of a sum."""
    return as_dim(sum((abs(times) * (x.extent - 1) for x, times in part), start=1))


def _inverse(sums: list[Sum], positions: list[Expr]) -> dict[Expr, Expr]:
    """Values of the indices that add up to the positions. They may lie outside of the indices'
    ranges: what depends on their sums alone does not see it."""
    values: dict[Expr, Expr] = {}
    for part, position in zip(sums, positions):
        chosen = min((x for x, times in part if times == 1), key=lambda x: x.name)
        values.update({x: position if x is chosen else Const(0, i64) for x, _ in part})
    return values


def _positions(expr: Expr) -> list[Sum]:
    """The fewest sums that `expr` is a function of: indices share one if all index arithmetic has
    multiples of them in the same proportion, and the sum does not skip numbers."""
    terms = list(_linear_terms(expr))
    shared: dict[tuple[int, ...], list[tuple[Index, int]]] = {}
    for x in sorted(free_indices(expr), key=lambda x: x.name):
        multiples = [linear.get(x, 0) for linear in terms]
        first = next((times for times in multiples if times), 1)
        common = math.copysign(math.gcd(*multiples) or 1, first)
        shared.setdefault(tuple(int(m // common) for m in multiples), []).append((x, int(common)))
    sums: list[Sum] = []
    for group in shared.values():
        common = math.gcd(*(times for _, times in group))
        whole = frozenset((x, times // common) for x, times in group)
        sums += [whole] if _is_dense(whole) else [frozenset({(x, 1)}) for x, _ in group]
    return sums


def _linear_terms(expr: Expr) -> Iterator[dict[Index, int]]:
    """What indices are multiplied by in each sum of index arithmetic and in each comparison."""
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
        linear = {a[0]: n for a, n in poly.items() if len(a) == 1 and isinstance(a[0], Index)}
        if linear:
            yield linear
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
        reach += abs(times) * (least(x.extent) - 1)
    return any(times == 1 for _, times in part)


def _in_order_of_memory(sums: list[Sum], expr: Expr, computation: Computation) -> list[Sum]:
    """Sorted by where the largest tensor that is read has them."""
    largest = max(loads(expr), key=lambda x: most(computation.input(x.source).size), default=None)
    index = largest.index if largest is not None else ()

    def dimension(part: Sum) -> int:
        own = dict(part).keys()
        return next((d for d, where in enumerate(index) if own & free_indices(where)), -1)

    return sorted(sums, key=lambda part: (dimension(part), sorted(x.name for x, _ in part)))
