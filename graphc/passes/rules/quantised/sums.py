"""Sums, differences and products of two quantised values.

A sum is a * sa / sy + b * sb / sy, both factors in one fixed point. A product is one int32, which
is rescaled once. (With one number for all elements on one side, either is a table.)
"""

from __future__ import annotations

import math

import numpy as np

from graphc.ir.dtypes import i32
from graphc.ir.graph import Op, Value
from graphc.ir.ops.fixed_point import DOMAIN, TO_EVEN, TO_ODD, UP
from graphc.passes.rewriter import Rewriter
from graphc.passes.rules.quantised.activations import Activated
from graphc.passes.rules.quantised.kernels import in_one_kernel
from graphc.passes.rules.quantised.products import NO_OPERAND, matrix_product
from graphc.passes.rules.quantised.rescale import (
    LARGEST_SHIFT,
    MULTIPLIER_BITS,
    many_halves,
    rescaled,
)
from graphc.passes.rules.quantised.tables import codes
from graphc.passes.rules.quantised.values import Quantised, activation

SUM_BITS = 12  # that the sum of two multiplied bytes has beyond the multipliers


def addition(rw: Rewriter, op: Op, after: Activated) -> Value | None:
    """A sum of two dequantised values, or a matrix product and its bias."""
    for product, bias in (op.inputs, op.inputs[::-1]):
        inner = product.producer if product is not None else None
        if inner is not None and inner.name == "MatMul":
            alone = product.tensor == op.output.tensor and len(product.uses) == 1  # type: ignore[union-attr]
            columns = op.output.tensor.static_shape[-1]
            if alone and bias is not None and bias.tensor.size in (1, columns):
                return matrix_product(rw, inner, after, bias)
    return _sum(rw, op, after, 1, in_one_kernel(rw, op))


def subtraction(rw: Rewriter, op: Op, after: Activated) -> Value | None:
    """A difference of two dequantised values."""
    return _sum(rw, op, after, -1, False)


def _sum(rw: Rewriter, op: Op, after: Activated, sign: int, with_zero: bool) -> Value | None:
    """a + sign * b; halves become even before or with the zero point."""
    a, b = (activation(v) for v in op.inputs)
    if a is None or b is None:
        return rw.skip(NO_OPERAND)
    if after.slope is not None:
        return rw.skip("a sum has no slopes below zero")
    target = after.target
    factors = [a.step / target.step, sign * b.step / target.step]
    shift = MULTIPLIER_BITS - 1 - math.frexp(max(map(abs, factors)))[1]
    if not (1 <= shift <= LARGEST_SHIFT - SUM_BITS and min(map(abs, factors)) > 0):
        return rw.skip(f"factors {factors} are out of reach of fixed point")
    by = [round(math.ldexp(f, shift)) for f in factors]
    offset = (target.zero_point << shift) + (1 << shift - 1)
    offset -= a.zero_point * by[0] + b.zero_point * by[1]
    halves = UP
    if _gives_halves(a, b, by, shift):
        halves = TO_EVEN if with_zero or target.zero_point % 2 == 0 else TO_ODD
    return rw.op(
        "RescaledSum", a.value, b.value, domain=DOMAIN, a_multiplier=by[0], b_multiplier=by[1],
        offset=offset, shift=shift, even=halves, **target.attrs(),
    )  # fmt: skip


def _gives_halves(a: Quantised, b: Quantised, by: list[int], shift: int) -> bool:
    """Whether the multiplied sums of pairs of values often are halfway between two integers."""
    terms = [(codes(q.value).astype(np.int64) - q.zero_point) * m for q, m in zip((a, b), by)]
    return many_halves(terms[0][:, None] + terms[1], shift)


def rescaling(rw: Rewriter, dequantise: Op, after: Activated) -> Value | None:
    """A value itself, with a slope per channel below zero (anything simpler is a table)."""
    x = activation(dequantise.output)
    if x is None or after.slope is None:
        return rw.skip(NO_OPERAND)
    factors = np.array([x.step / after.target.step])
    channels = x.value.tensor.static_shape[1]
    below = factors * after.slopes(channels)
    return rescaled(rw, _less_zero_point(rw, x), np.zeros(1), factors, 1, after.target, below)


def product(rw: Rewriter, op: Op, after: Activated) -> Value | None:
    """A product of two dequantised values."""
    a, b = (activation(v) for v in op.inputs)
    if a is None or b is None:
        return rw.skip(NO_OPERAND)
    if after.slope is not None and after.slope.size > 1:
        return rw.skip("a product has no slopes per channel")
    with_zero = in_one_kernel(rw, op)
    total = rw.Mul(_less_zero_point(rw, a), _less_zero_point(rw, b))
    factors = np.array([a.step * b.step / after.target.step])
    below = None if after.slope is None else factors * after.slope
    return rescaled(rw, total, np.zeros(1), factors, 0, after.target, below, with_zero)


def _less_zero_point(rw: Rewriter, x: Quantised) -> Value:
    """x - zero in int32."""
    wide = rw.Cast(x.value, to=i32.onnx)
    return rw.Sub(wide, rw.constant(x.zero_point, i32)) if x.zero_point else wide
