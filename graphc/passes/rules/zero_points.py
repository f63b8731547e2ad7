"""Zero points that change from run to run, taken out of sums of products.

    sum (a - z) w  =  sum a w  -  z sum w

Instructions that multiply several bytes subtract a constant at most; what a quantisation while the
model runs (DynamicQuantizeLinear) subtracts is then one product for each sum of weights, which is a
constant. Integers wrap, so both are equal to the bit. See passes/lower/transforms/zero_points.py,
which does so where targets keep sums in vectors.
"""

from __future__ import annotations

import numpy as np

from graphc.ir.dtypes import i32
from graphc.ir.graph import Op, Value
from graphc.passes.pattern import P, const, opt, var
from graphc.passes.rewriter import Rewriter, rule
from graphc.passes.rules.facts import array_of

PAIRS = "smlad"  # products of bytes, of processors without vectors of them

a, z = var("a z")
w = const("w")


@rule("zero-point-of-sum", P.MatMulInteger(a, w, z, opt(var("y"))))
def zero_point_of_sum(
    rw: Rewriter, product: Op, a: Value, w: Value, z: Value, y: Value | None
) -> Value | None:
    """(a - z) w == a w - z sum(w), by column, where z is no constant."""
    if not rw.ctx.target.machine.has(PAIRS):
        return rw.skip("the processor has no products of pairs")
    if z.constant is not None:
        return rw.skip("the zero point is a constant, which instructions subtract")
    weights, less = array_of(w), None if y is None else array_of(y)
    if weights is None or (y is not None and less is None):
        return rw.skip("the weights are not constant")
    by_column = less is None or less.ndim < 2 and less.size in (1, weights.shape[-1])
    if z.tensor.size != 1 or not by_column:
        return rw.skip("there are zero points for each row")
    zeros = 0 if less is None else less.reshape(-1).astype(np.int64)
    codes = weights.astype(np.int64) - zeros
    y = y if np.any(zeros) else None
    sums = codes.sum(-2, keepdims=weights.ndim > 2).astype(np.int32)
    zero = rw.Reshape(rw.Cast(z, to=i32.onnx), np.empty(0, np.int64))
    total = rw.MatMulInteger(a, w, None, y)
    return rw.Sub(total, rw.Mul(rw.constant(sums), zero))
