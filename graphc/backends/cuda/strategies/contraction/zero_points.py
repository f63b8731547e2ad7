"""Sums of products of bytes less their zero points, as sums of products of the bytes themselves.

    sum (a - x) (b - y)  =  sum a b  -  x sum b  -  y sum a  +  n x y

for n products. So matrix cores, which multiply bytes as they are, need no zero points: the sums
over one factor alone belong to a column or to a row, and are computed before (at compile time if
the factor is constant). Where a window reaches into the padding, a is taken to be x there. The
identity is that of B. Jacob et al., Quantization and Training of Neural Networks for Efficient
Integer-Arithmetic-Only Inference (2018).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from graphc.ir.dtypes import i8, i32, u8
from graphc.ir.expr import Call, Const, Expr, Index, Reduce, cast, free_indices, select, substitute
from graphc.ir.kernel import Buffer
from graphc.ir.simplify import simplify
from graphc.passes.lower.contraction import Match

BYTES = (i8, u8)


@dataclass(frozen=True)
class Centred:
    """A factor: a byte less a zero point, both as expressions."""

    byte: Expr
    zero: Expr

    @property
    def is_plain(self) -> bool:
        return isinstance(self.zero, Const) and self.zero.value == 0


def centred(expr: Expr) -> Centred | None:
    """A factor of int32 as a byte less a zero point; None if it is none."""
    if isinstance(expr, Call) and expr.op.name == "select":
        guard, value, other = expr.args
        inner = centred(value)
        if inner is None or not _is_zero(other) or not isinstance(inner.zero, Const):
            return None
        padding = Const(inner.zero.value, inner.byte.dtype)
        return Centred(select(guard, inner.byte, padding), inner.zero)
    if not isinstance(expr, Call) or expr.dtype is not i32:
        return None
    if expr.op.name == "cast":
        byte = expr.args[0]
        return Centred(byte, Const(0, i32)) if byte.dtype in BYTES else None
    if expr.op.name != "sub":
        return None
    inner, zero = centred(expr.args[0]), expr.args[1]
    if inner is None or not inner.is_plain:
        return None
    if isinstance(zero, Const) and not inner.byte.dtype.min <= zero.value <= inner.byte.dtype.max:
        return None
    return Centred(inner.byte, zero)


def _is_zero(expr: Expr) -> bool:
    return isinstance(expr, Const) and expr.value == 0


def take_zero_points(match: Match) -> bool:
    """Makes both factors of a match bytes, and the sum what it was; whether that can be done."""
    a, b = centred(match.a), centred(match.b)
    if a is None or b is None:
        return False
    deep = set(match.depth)
    if any(deep & free_indices(x.zero) for x in (a, b)):
        return False
    total: Expr = match.hole
    if not a.is_plain:
        total = total - _sum_of(match, b.byte, a.zero, "column_sums")
    if not b.is_plain:
        total = total - _sum_of(match, a.byte, b.zero, "row_sums")
    if not a.is_plain and not b.is_plain:
        count = math.prod(x.count for x in match.depth)
        total = total + a.zero * b.zero * count
    match.a, match.b = cast(a.byte, i32), cast(b.byte, i32)
    match.exprs = [substitute(e, {match.hole: total}) for e in match.exprs]
    return True


def _sum_of(match: Match, byte: Expr, zero: Expr, name: str) -> Expr:
    """A zero point times the sums of a factor over the depth, which are computed before."""
    used = free_indices(byte) - set(match.depth)
    own = [x for x in match.indices if x in used]
    index = tuple(Index(f"i{n}", x.count) for n, x in enumerate(own))
    total = Reduce("sum", cast(byte, i32), tuple(match.depth))
    if isinstance(zero, Const):
        total, zero = total * zero, Const(1, i32)  # type: ignore[assignment]
    buffer = Buffer(name, i32, tuple(x.count for x in own))
    contents = simplify(substitute(total, dict(zip(own, index))))
    match.add(buffer, index, contents, f"{name} of {match.computation.label}")
    return zero * buffer[tuple(own)]
