"""Products scaled down by 32 bits or more, on machines of 32 bits.

cast<i32>(x + c >> s), with x and c of 64 bits, 32 <= s < 64 and c a multiple of 2^32, is a shift of
the high half alone: (cast<i32>(x >> 32) + c / 2^32) >> s - 32. The high half of a product is one
instruction on many processors, what follows is arithmetic of 32 bits, and the distance of the shift
may come from a register. Requantisation, with c = 2^(s-1), has this form.
"""

from __future__ import annotations

from dataclasses import replace

from graphc.ir.dtypes import i32, i64
from graphc.ir.expr import Call, Const, Expr, call, cast, transform
from graphc.ir.kernel import Kernel, map_body
from graphc.ir.simplify import bounds, from_poly, to_poly

HALF = 32


def use_high_halves(kernel: Kernel) -> Kernel:
    """The kernel with such shifts in terms of high halves."""
    return replace(kernel, body=map_body(kernel.body, lambda e: transform(e, high_half)))


def high_half(node: Expr) -> Expr | None:
    """The expression on the high half; None if the node has another form or might overflow."""
    if not (isinstance(node, Call) and node.op.name == "cast" and node.dtype is i32):
        return None
    shifted = node.args[0]
    if not (isinstance(shifted, Call) and shifted.op.name == "shr" and shifted.dtype is i64):
        return None
    value, distance = shifted.args
    if not (isinstance(distance, Const) and HALF <= distance.value < 2 * HALF):
        return None
    poly = to_poly(value)
    constant = poly.pop((), 0)
    product = from_poly(poly)
    low, high = (bound + constant for bound in bounds(product))
    limit = float(1 << 2 * HALF - 1)
    if constant % (1 << HALF) or not -limit < low <= high < limit:
        return None
    half = cast(call("shr", product, Const(HALF, i64)), i32) + (constant >> HALF)
    return call("shr", half, Const(distance.value - HALF, i32))
