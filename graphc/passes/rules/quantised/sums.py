"""Sums, differences and products of two quantised values.

A sum is a * sa / sy + b * sb / sy, both factors in one fixed point. Where that does not round as
ONNX Runtime does, as with round scales, it is a sum of two table entries, which is compared with
where results change. A product is one int32, which is rescaled once. (With one number for all
elements on one side, either is a table.)
"""

from __future__ import annotations

import numpy as np

from graphc.ir.dtypes import i16, i32
from graphc.ir.graph import Op, Value
from graphc.ir.ops.fixed_point import DOMAIN
from graphc.passes.rewriter import Rewriter
from graphc.passes.rules.quantised.activations import Activated
from graphc.passes.rules.quantised.kernels import in_one_kernel, shift_in_kernel
from graphc.passes.rules.quantised.pairs import Pairs, Sum, best_halves, by_tables
from graphc.passes.rules.quantised.per_channel_products import NO_OPERAND, matrix_product
from graphc.passes.rules.quantised.rescale import fixed_point, rescaled
from graphc.passes.rules.quantised.values import (
    Quantised,
    Target,
    activation,
    codes,
    dequantised,
)

MOST_FAILED = 8  # of 65536 pairs, without reason for tables


def addition(rw: Rewriter, op: Op, after: Activated) -> Value | None:
    """A sum of two dequantised values, or a matrix product and its bias."""
    for product, bias in (op.inputs, op.inputs[::-1]):
        inner = product.producer if product is not None else None
        if inner is not None and inner.name == "MatMul":
            alone = product.tensor == op.output.tensor and len(product.uses) == 1  # type: ignore[union-attr]
            columns = op.output.tensor.extent(-1)
            if alone and bias is not None and bias.tensor.size in (1, columns):
                return matrix_product(rw, inner, after, bias)
    return _sum(rw, op, after, 1, in_one_kernel(rw, op, after))


def subtraction(rw: Rewriter, op: Op, after: Activated) -> Value | None:
    """A difference of two dequantised values."""
    return _sum(rw, op, after, -1, False)


def _sum(rw: Rewriter, op: Op, after: Activated, sign: int, one_kernel: bool) -> Value | None:
    """a + sign * b, in whichever form agrees with ONNX Runtime on (nearly) all pairs."""
    a, b = (activation(v) for v in op.inputs)
    if a is None or b is None:
        return rw.skip(NO_OPERAND)
    if after.slope is not None:
        return rw.skip("a sum has no slopes below zero")
    total = Sum(Pairs(a, b, after.target, one_kernel, shift_in_kernel(rw)), sign)
    form, failed = total.best()
    tables = total.tables() if failed > MOST_FAILED else None
    if tables is not None:
        return by_tables(rw, total, tables)
    if form is None:
        return rw.skip("scales {} and {} are out of reach of fixed point", a.step, b.step)
    return rw.op(
        "RescaledSum", a.value, b.value, domain=DOMAIN, a_multiplier=form.by[0],
        b_multiplier=form.by[1], offset=form.offset, shift=form.shift, even=form.halves,
        **after.target.attrs(),
    )  # fmt: skip


def rescaling(rw: Rewriter, dequantise: Op, after: Activated) -> Value | None:
    """A value itself: of 16 bits, or of 8 with a slope per channel below zero (anything simpler is
    a table)."""
    wide = dequantised(dequantise.output)
    slow = not rw.ctx.target.machine.has("fast_floats")
    if wide and wide.dtype is i16 and wide.per_tensor and after.slope is None and slow:
        total = rw.Cast(wide.value, to=i32.onnx)
        factors = np.array([wide.step / after.target.step])
        return rescaled(rw, total, -wide.zero.reshape(-1)[:1], factors, 0, after.target)
    x = activation(dequantise.output)
    if x is None or after.slope is None or after.slope.size == 1:
        return rw.skip(NO_OPERAND if x is None else "one slope for all elements makes a table")
    factors = np.array([x.step / after.target.step])
    slopes = after.slopes(x.value.tensor.extent(1))
    assert slopes is not None
    below = factors * slopes
    halves = _halves_of_slopes(x, slopes, np.append(factors, below), after.target)
    total = _less_zero_point(rw, x)
    return rescaled(rw, total, np.zeros(1), factors, 1, after.target, below, halves)


def _halves_of_slopes(
    x: Quantised, slopes: np.ndarray, factors: np.ndarray, target: Target
) -> int | None:
    """What halves have to become for most values, times the factors, to be as floats have them."""
    fixed = fixed_point(factors)
    if fixed is None:
        return None
    (by, *below), shift = fixed
    whole = codes(x.value).astype(np.int64)[:, None] - x.zero_point
    real = whole.astype(np.float32) * np.float32(x.step)
    real = np.where(whole < 0, real * slopes.astype(np.float32), real)
    totals = whole * np.where(whole < 0, below, by) + (1 << shift - 1)
    return best_halves(totals, shift, target, target.rounded(real / np.float32(target.step)))


def product(rw: Rewriter, op: Op, after: Activated) -> Value | None:
    """A product of two dequantised values."""
    a, b = (activation(v) for v in op.inputs)
    if a is None or b is None:
        return rw.skip(NO_OPERAND)
    if after.slope is not None and after.slope.size > 1:
        return rw.skip("a product has no slopes per channel")
    pairs = Pairs(a, b, after.target, in_one_kernel(rw, op, after), shift_in_kernel(rw))
    total = rw.Mul(_less_zero_point(rw, a), _less_zero_point(rw, b))
    factors = np.array([a.step * b.step / after.target.step])
    if pairs.one_kernel:
        factors = np.array([float(pairs.ratio())])
    below = None if after.slope is None else factors * after.slope
    halves = _halves_of_products(pairs, factors) if below is None else None
    return rescaled(rw, total, np.zeros(1), factors, 0, after.target, below, halves)


def _halves_of_products(pairs: Pairs, factors: np.ndarray) -> int | None:
    """What halves have to become for most products to be as ONNX Runtime has them."""
    fixed = fixed_point(factors)
    if fixed is None:
        return None
    (by,), shift = fixed
    a, b = pairs.centred()
    totals = a * b * int(by) + (1 << shift - 1)
    return best_halves(totals, shift, pairs.target, pairs.products())


def _less_zero_point(rw: Rewriter, x: Quantised) -> Value:
    """x - zero in int32."""
    wide = rw.Cast(x.value, to=i32.onnx)
    return rw.Sub(wide, rw.constant(x.zero_point, i32)) if x.zero_point else wide
