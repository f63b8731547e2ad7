"""Zero-point correction: sums of products of bytes less their zero points, as sums of the bytes.

    sum (a - x) (b - y)  =  sum a b  -  x sum b  -  y sum a  +  n x y

for n products. Instructions that multiply bytes then need no zero points. The sums over one factor
alone belong to a column or to a row, and are computed before (at compile time if the factor is
constant). The epilogue subtracts them. Where a window reaches into the padding, a is taken to be x
there. The identity is that of B. Jacob et al., Quantization and Training of Neural Networks for
Efficient Integer-Arithmetic-Only Inference (2018).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from graphc.ir.dtypes import DType, i8, i32, u8
from graphc.ir.expr import Const, Expr, cast, free_indices, substitute
from graphc.ir.simplify import simplify
from graphc.passes.analysis.computation import index_of
from graphc.passes.analysis.contraction import Match
from graphc.passes.analysis.factors import Centred, centred, is_zero
from graphc.passes.lower.transforms.window_sums import sum_over_depth

BYTES = (i8, u8)
NO_CENTRES: Mapping[DType, int] = MappingProxyType({})


def take_zero_points(
    match: Match, centres: Mapping[DType, int] = NO_CENTRES, signed: bool = False
) -> bool:
    """Makes both factors of a match bytes, and the sum what it was; whether that can be done.
    `centres` are what the multiplication itself subtracts from bytes of `a`, by their type; with
    `signed` the bytes of `b` become int8."""
    a, b = centred(match.a), centred(match.b)
    if a is None or b is None:
        return False
    deep = set(match.depth)
    if any(deep & free_indices(x.zero) for x in (a, b)):
        return False
    if signed and b.byte.dtype is u8:
        b = Centred(cast(cast(b.byte, i32) - 128, i8), simplify(b.zero - 128))
    centre = centres.get(a.byte.dtype, 0)
    x, y = simplify(a.zero - centre), b.zero
    total: Expr = match.hole
    if not is_zero(x):
        total = total - times_sums(match, b.byte, 0, x, "column_sums")
    if not is_zero(y):
        total = total - times_sums(match, a.byte, centre, y, "row_sums")
    if not is_zero(x) and not is_zero(y):
        total = total + x * y * math.prod(k.count for k in match.depth)
    match.a, match.b = cast(a.byte, i32), cast(b.byte, i32)
    match.exprs = [substitute(e, {match.hole: total}) for e in match.exprs]
    return True


def times_sums(match: Match, byte: Expr, centre: int, zero: Expr, name: str) -> Expr:
    """A zero point times the sums over the depth of bytes less a centre, computed before."""
    used = free_indices(byte) - set(match.depth)
    own = [x for x in match.indices if x in used]
    index = index_of([x.extent for x in own])
    total = sum_over_depth(match, byte, lambda x: simplify(cast(x, i32) - centre))
    if isinstance(zero, Const):
        total, zero = total * zero, Const(1, i32)
    buffer = match.copied(name, index, substitute(total, dict(zip(own, index))))
    return zero * buffer[tuple(own)]
