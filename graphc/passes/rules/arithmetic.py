"""Arithmetic with constants. Every rule holds for NaN, infinities and -0.0; where two roundings
become one, the constants must be of ordinary size, so that no intermediate overflows or vanishes.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from graphc.ir.graph import Op, Value
from graphc.passes.analysis.facts import is_idempotent, is_involution
from graphc.passes.pattern import P, const, opt, var
from graphc.passes.rewriter import Rewriter, rule
from graphc.passes.rules.facts import all_equal, array_of, is_nonnegative, is_normal

x, y, a, b = var("x y a b")
c, d = const("c d")


def _kept(rw: Rewriter, op: Op, x: Value) -> Value | None:
    """x if it has the type of the op's result (a constant may have broadcast it)."""
    return x if x.type == op.output.type else rw.skip("the constant broadcasts the other operand")


# ---------------------------------------------------------------- neutral elements


@rule("add-zero", P.Add(x, c).commutes())
def add_zero(rw: Rewriter, op: Op, x: Value, c: Value) -> Value | None:
    """x + 0 == x for integers; x + -0.0 == x for floats (x + 0.0 is not: it turns -0.0 to 0.0)."""
    number = -0.0 if op.output.tensor.dtype.is_float else 0
    return _kept(rw, op, x) if all_equal(c, number) else rw.skip("the constant is not {}", number)


@rule("subtract-zero", P.Sub(x, c))
def subtract_zero(rw: Rewriter, op: Op, x: Value, c: Value) -> Value | None:
    """x - 0 == x."""
    return _kept(rw, op, x) if all_equal(c, 0.0) else rw.skip("the constant is not 0")


@rule("multiply-one", P.Mul(x, c).commutes())
def multiply_one(rw: Rewriter, op: Op, x: Value, c: Value) -> Value | None:
    """x * 1 == x."""
    return _kept(rw, op, x) if all_equal(c, 1.0) else rw.skip("the constant is not 1")


@rule("divide-one", P.Div(x, c))
def divide_one(rw: Rewriter, op: Op, x: Value, c: Value) -> Value | None:
    """x / 1 == x."""
    return _kept(rw, op, x) if all_equal(c, 1.0) else rw.skip("the constant is not 1")


@rule("power-of-constant", P.Pow(x, c))
def power(rw: Rewriter, op: Op, x: Value, c: Value) -> Value | None:
    """x^1 == x; x^2 == x*x; x^3 == x*x*x; x^0.5 == sqrt(x) and x^-0.5 == 1/sqrt(x) for x >= 0."""
    exponent, dtype = rw.scalar(c), x.tensor.dtype
    if exponent is None or c.tensor.rank > x.tensor.rank or x.type != op.output.type:
        return rw.skip("the exponent is not one number, or changes the shape or the type")
    exponent = float(exponent)
    if exponent == 1:
        return x
    if exponent == 2:
        return rw.Mul(x, x)
    if exponent == 3 and (dtype.is_integer or dtype.bits >= 32):
        return rw.Mul(rw.Mul(x, x), x)
    if exponent in (0.5, -0.5) and dtype.is_float:
        if not is_nonnegative(x):
            return rw.skip("the base may be negative or -0.0")
        if exponent < 0 and dtype.compute is not dtype:
            return rw.skip("the root would be rounded to {} first", dtype)
        root = rw.Sqrt(x)
        return root if exponent > 0 else rw.Reciprocal(root)
    return rw.skip(f"a power of {exponent:g} has no cheaper form in {dtype}")


@rule("double-negation", P.where(is_involution)(P.where(is_involution)(x)))
def double_negation(rw: Rewriter, inner: Op, outer: Op, x: Value) -> Value | None:
    """f(f(x)) == x for an f that is its own inverse: -(-x), not not x."""
    return x if _is_same(inner, outer) else rw.skip("the two are different operators")


@rule("idempotent", P.where(is_idempotent)(P.where(is_idempotent)(x)))
def idempotent(rw: Rewriter, inner: Op, outer: Op, x: Value) -> Value | None:
    """f(f(x)) == f(x) for an f that leaves its results as they are: Relu, Abs, Sign, roundings."""
    return inner.output if _is_same(inner, outer) else rw.skip("the two are different operators")


def _is_same(inner: Op, outer: Op) -> bool:
    return inner.defn is outer.defn and inner.attrs == outer.attrs


# ---------------------------------------------------------------- one spelling


@rule("subtract-to-add", P.Sub(x, c))
def subtract_to_add(rw: Rewriter, op: Op, x: Value, c: Value) -> Value | None:
    """x - c == x + -c."""
    array = array_of(c)
    if array is None or array.dtype.kind != "f" or all_equal(c, 0.0):
        return rw.skip("the constant is 0, or not of floats")
    return rw.Add(x, rw.constant(-array))


@rule("divide-to-multiply", P.Div(x, c))
def divide_to_multiply(rw: Rewriter, op: Op, x: Value, c: Value) -> Value | None:
    """x / c == x * (1/c) if c is a power of two, so that 1/c is exact."""
    array = array_of(c)
    if array is None or array.dtype.kind != "f" or array.dtype.itemsize < 4 or not is_normal(array):
        return rw.skip("the divisor is zero, huge, tiny, or no float32 or wider")
    if not (np.abs(np.frexp(array)[0]) == 0.5).all():
        return rw.skip("the divisor is not a power of two")
    return rw.Mul(x, rw.constant((1 / array).astype(array.dtype)))


# ---------------------------------------------------------------- chains of constants


def _combined(rw: Rewriter, name: str, c: Value, d: Value, x: Value, result: Op) -> Value | None:
    """f(c, d) computed now, if it is of ordinary size and takes no more memory than the two."""
    first, second = array_of(c), array_of(d)
    assert first is not None and second is not None
    exact = first.dtype.kind in "iu"
    if not exact and (first.dtype.itemsize < 4 or first.dtype.kind != "f"):
        return rw.skip("{} is too narrow to change the order of roundings", c.tensor.dtype)
    both = np.broadcast_shapes(first.shape, second.shape)
    if math.prod(both) > max(first.size, second.size):
        return rw.skip("the combined constant would be larger than each")
    if not exact and not (is_normal(first) and is_normal(second)):
        return rw.skip("a constant is zero, huge, tiny or not finite")
    return rw.op(name, c, d)


@rule("multiply-chain", P.Mul(P.Mul(x, c).commutes().only_use(), d).commutes())
def multiply_chain(
    rw: Rewriter, inner: Op, outer: Op, x: Value, c: Value, d: Value
) -> Value | None:
    """(x * c) * d == x * (c * d)."""
    both = _combined(rw, "Mul", c, d, x, outer)
    return None if both is None else rw.Mul(x, both)


@rule("multiply-divide-chain", P.Div(P.Mul(x, c).commutes().only_use(), d))
def multiply_divide_chain(
    rw: Rewriter, inner: Op, outer: Op, x: Value, c: Value, d: Value
) -> Value | None:
    """(x * c) / d == x * (c / d) for floats."""
    if not x.tensor.dtype.is_float:
        return rw.skip("division of integers truncates")
    both = _combined(rw, "Div", c, d, x, outer)
    return None if both is None else rw.Mul(x, both)


@rule("add-chain", P.Add(P.Add(x, c).commutes().only_use(), d).commutes())
def add_chain(rw: Rewriter, inner: Op, outer: Op, x: Value, c: Value, d: Value) -> Value | None:
    """(x + c) + d == x + (c + d) for integers, and for floats c, d of one sign (x + c - c with a
    large c is a way to round)."""
    first, second = array_of(c), array_of(d)
    if first is None or second is None:
        return rw.skip("a constant is not of numbers")
    if first.dtype.kind == "f" and not (np.signbit(first).all() == np.signbit(second).all()
                                        and _one_sign(first) and _one_sign(second)):  # fmt: skip
        return rw.skip("the constants have different signs")
    both = _combined(rw, "Add", c, d, x, outer)
    return None if both is None else rw.Add(x, both)


def _one_sign(array: np.ndarray) -> bool:
    signs = np.signbit(array)
    return bool(signs.all() or not signs.any())


# ---------------------------------------------------------------- choices and bounds


@rule("where-constant", P.Where(c, x, y))
def where_constant(rw: Rewriter, op: Op, c: Value, x: Value, y: Value) -> Value | None:
    """where(true, x, y) == x; where(false, x, y) == y."""
    array = array_of(c)
    if array is None or array.size == 0 or array.any() != array.all():
        return rw.skip("the condition is not the same everywhere")
    chosen = x if array.all() else y
    return _kept(rw, op, chosen)


@rule("where-same", P.Where(y, x, x))
def where_same(rw: Rewriter, op: Op, x: Value, y: Value) -> Value | None:
    """where(c, x, x) == x."""
    return _kept(rw, op, x)


@rule("clip-of-clip", P.Clip(P.Clip(x, opt(a), opt(b)).only_use(), opt(c), opt(d)))
def clip_of_clip(
    rw: Rewriter, inner: Op, outer: Op, x: Value, a: Value | None, b: Value | None,
    c: Value | None, d: Value | None,
) -> Value | None:  # fmt: skip
    """clip(clip(x, a, b), c, d) == clip(x, clip(a, c, d), clip(b, c, d)) for a <= b and c <= d."""
    low, high, floor, top = (None if v is None else rw.scalar(v) for v in (a, b, c, d))
    given = [(v, n) for v, n in ((a, low), (b, high), (c, floor), (d, top)) if v is not None]
    if any(n is None or n != n for _, n in given):
        return rw.skip("a bound is not constant")
    if _crossed(low, high) or _crossed(floor, top):
        return rw.skip("the bounds cross")
    bounds = [_clipped(low, floor, top, max), _clipped(high, floor, top, min)]
    if _crossed(*bounds):
        return rw.skip("the bounds cross")
    return rw.Clip(x, *(None if n is None else np.array(n) for n in bounds))


def _crossed(low: float | None, high: float | None) -> bool:
    return low is not None and high is not None and low > high


def _clipped(bound: Any, low: Any, high: Any, default: Any) -> Any:
    """clip(bound, low, high); without a bound, that of the outer Clip on its side."""
    if bound is None:
        return low if default is max else high
    bound = bound if low is None else max(bound, low)
    return bound if high is None else min(bound, high)
