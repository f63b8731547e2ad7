"""Elementwise operators: a scalar expression; the shape follows by broadcasting.

Activation functions are in activations.py, type conversions in casts.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce as fold

from graphc.errors import ModelError
from graphc.ir.build import Builder
from graphc.ir.dtypes import f64, i64
from graphc.ir.expr import TRUE, Expr, call, isinf, isnan, maximum, minimum, select
from graphc.ir.graph import Value
from graphc.ir.opdef import (
    Any_,
    Bool,
    Float,
    Int,
    Known,
    Number,
    Operand,
    OutIndex,
    TypeClass,
    composite,
    op,
)
from graphc.ir.ops.helpers import scalar_of, wide

RUN = 32  # operands combined one after the other
Signed = TypeClass("signed number", lambda d: d.is_signed)


# ---------------------------------------------------------------- one scalar operation


def _unary(name: str, scalar: str, accepts: TypeClass, doc: str) -> None:
    def body(i: OutIndex, x: Operand) -> Expr:
        return call(scalar, x[i])

    body.__doc__ = doc
    body.__annotations__ = {"x": accepts}
    op(name)(body)


def _binary(name: str, scalar: str, accepts: TypeClass, doc: str) -> None:
    def body(i: OutIndex, a: Operand, b: Operand) -> Expr:
        return call(scalar, a[i], b[i])

    body.__doc__ = doc
    body.__annotations__ = {"a": accepts, "b": accepts}
    op(name)(body)


for _name, _scalar, _accepts, _doc in [
    ("Abs", "abs", Number, "|x|; the smallest integer stays as it is."),
    ("Neg", "neg", Signed, "-x."),
    ("Sign", "sign", Number, "-1, 0 or 1; NaN stays."),
    ("Floor", "floor", Float, "The largest whole number not above x."),
    ("Ceil", "ceil", Float, "The smallest whole number not below x."),
    ("Round", "round", Float, "The nearest whole number, halves to even."),
    ("Sqrt", "sqrt", Float, "Square root; NaN below 0."),
    ("Exp", "exp", Float, "e to the power x."),
    ("Log", "log", Float, "Natural logarithm; -inf at 0, NaN below."),
    ("Erf", "erf", Number, "Gauss error function."),
    ("Sin", "sin", Float, "Sine."),
    ("Cos", "cos", Float, "Cosine."),
    ("Tan", "tan", Float, "Tangent."),
    ("Asin", "asin", Float, "Arc sine."),
    ("Acos", "acos", Float, "Arc cosine."),
    ("Atan", "atan", Float, "Arc tangent."),
    ("Sinh", "sinh", Float, "Hyperbolic sine."),
    ("Cosh", "cosh", Float, "Hyperbolic cosine."),
    ("Tanh", "tanh", Float, "Hyperbolic tangent."),
    ("Asinh", "asinh", Float, "Inverse hyperbolic sine."),
    ("Acosh", "acosh", Float, "Inverse hyperbolic cosine."),
    ("Atanh", "atanh", Float, "Inverse hyperbolic tangent."),
    ("Not", "not", Bool, "Logical negation."),
    ("BitwiseNot", "bnot", Int, "All bits flipped."),
    ("IsNaN", "isnan", Float, "Whether x is NaN."),
]:
    _unary(_name, _scalar, _accepts, _doc)

for _name, _scalar, _accepts, _doc in [
    ("Add", "add", Number, "a + b; integers wrap."),
    ("Sub", "sub", Number, "a - b; integers wrap."),
    ("Mul", "mul", Number, "a * b; integers wrap."),
    ("Div", "div", Number, "a / b; integers truncate towards zero."),
    ("Equal", "eq", Any_, "a == b; false if either is NaN."),
    ("Less", "lt", Number, "a < b."),
    ("LessOrEqual", "le", Number, "a <= b."),
    ("Greater", "gt", Number, "a > b."),
    ("GreaterOrEqual", "ge", Number, "a >= b."),
    ("And", "and", Bool, "Logical and."),
    ("Or", "or", Bool, "Logical or."),
    ("Xor", "xor", Bool, "Exclusive or."),
    ("BitwiseAnd", "band", Int, "Bits set in both."),
    ("BitwiseOr", "bor", Int, "Bits set in either."),
    ("BitwiseXor", "bxor", Int, "Bits set in exactly one."),
]:
    _binary(_name, _scalar, _accepts, _doc)


@op("Reciprocal")
def reciprocal(i: OutIndex, x: Float) -> Expr:
    """1 / x."""
    return 1 / x[i]


# ---------------------------------------------------------------- several scalar operations


@op("Mod")
def mod(i: OutIndex, a: Number, b: Number, *, fmod: int = 0) -> Expr:
    """a modulo b with the sign of b, or of a if fmod is set; integers modulo 0 give 0."""
    return call("rem" if fmod else "mod", a[i], b[i])


@op("BitShift")
def bit_shift(i: OutIndex, x: Int, y: Int, *, direction: str) -> Expr:
    """x shifted by y bits; signed right shifts copy the sign bit."""
    if direction not in ("LEFT", "RIGHT"):
        raise ModelError(f"direction must be LEFT or RIGHT, found {direction!r}")
    return x[i] << y[i] if direction == "LEFT" else x[i] >> y[i]


@op("Pow")
def power(i: OutIndex, x: Number, y: Number) -> Expr:
    """x to the power y, in the type of x.

    Integers are raised in 64-bit integers; an integer to a float power in float64, then truncated.
    """
    base, exponent = x[i], y[i]
    if x.dtype.is_integer and y.dtype.is_integer:
        return (base.cast(i64) ** exponent.cast(i64)).cast(x.dtype)
    if x.dtype.is_integer:
        return (base.cast(f64) ** exponent.cast(f64)).cast(x.dtype)
    common = f64 if f64 in (x.dtype, y.dtype) else x.dtype.compute
    return (base.cast(common) ** exponent.cast(common)).cast(x.dtype)


@op("Min")
def smallest(i: OutIndex, *operands: Number) -> Expr:
    """The smallest of all operands; NaN if any is NaN."""
    return _folded(minimum, [x[i] for x in operands])


@op("Max")
def largest(i: OutIndex, *operands: Number) -> Expr:
    """The largest of all operands; NaN if any is NaN."""
    return _folded(maximum, [x[i] for x in operands])


@op("Sum")
def total(i: OutIndex, *operands: Float) -> Expr:
    """The sum of all operands."""
    return _sum(i, operands).cast(operands[0].dtype)


@op("Mean")
def mean(i: OutIndex, *operands: Float) -> Expr:
    """The arithmetic mean of all operands."""
    return (_sum(i, operands) / len(operands)).cast(operands[0].dtype)


def _sum(i: OutIndex, operands: Sequence[Operand]) -> Expr:
    return _folded(lambda a, b: a + b, [wide(x[i]) for x in operands])


def _folded(combine: Callable[[Expr, Expr], Expr], terms: list[Expr]) -> Expr:
    """All terms combined from left to right, RUN at a time, so that no expression is very deep."""
    while len(terms) > RUN:
        terms = [fold(combine, terms[n : n + RUN]) for n in range(0, len(terms), RUN)]
    return fold(combine, terms)


@op("IsInf")
def is_infinite(
    i: OutIndex, x: Float, *, detect_negative: int = 1, detect_positive: int = 1
) -> Expr:
    """Whether x is an infinity of a sign that is asked for."""
    value = wide(x[i])
    wanted = [value > 0] * bool(detect_positive) + [value < 0] * bool(detect_negative)
    if len(wanted) == 2:
        return isinf(value)
    return isinf(value) & (wanted[0] if wanted else ~TRUE)


@op("Where")
def where(i: OutIndex, condition: Bool, a: Any_, b: Any_) -> Expr:
    """a where the condition holds, else b."""
    return select(condition[i], a[i], b[i])


@op("Clip")
def clip(i: OutIndex, x: Number, low: Number = None, high: Number = None) -> Expr:
    """x kept within low..high; high wins if they cross; NaN stays.

    A bound that is NaN is none, as ONNX Runtime has it.
    """
    value = x[i]
    if low is not None:
        value = maximum(value, _given(low[i], value))
    return value if high is None else minimum(value, _given(high[i], value))


def _given(bound: Expr, otherwise: Expr) -> Expr:
    """The bound, or `otherwise` if it is NaN."""
    return select(isnan(bound), otherwise, bound) if bound.dtype.is_float else bound


# ---------------------------------------------------------------- identities


@composite("Identity")
def identity(b: Builder, x: Any_) -> Value:
    """x itself: a tensor, sequence or optional."""
    return x


@composite("Dropout", outputs=None)
def dropout(
    b: Builder, x: Float, ratio: Known(Float) = None, training_mode: Known(Bool) = None, *,
    seed: int | None = None,
) -> tuple[Value, ...]:  # fmt: skip
    """x and an all-true mask; in training, x scaled by 1 / (1 - ratio) where a random mask holds.

    The mask is `uniform(seed) >= ratio`, as in ONNX's reference implementation.
    """
    training = training_mode is not None and scalar_of(training_mode, "training_mode")
    rate = 0.5 if ratio is None else scalar_of(ratio, "ratio")
    if not training or rate == 0:
        return x, b.Expand(b.constant(True), b.dims(x.tensor.dims))
    uniform = b.RandomUniformLike(x, dtype=f64.onnx, seed=None if seed is None else float(seed))
    mask = b.GreaterOrEqual(uniform, rate)
    scaled = b.Mul(x, b.constant(1 / (1 - rate), x.tensor.dtype))
    return b.Where(mask, scaled, b.constant(0, x.tensor.dtype)), mask
