"""Operations that machines lack, in terms of those they have: modulo and powers.

    mod(a, b)       of floats: rem(a, b), moved to the side of b; a zero takes the sign of b
    floordiv(a, b)  of floats: (a - mod(a, b)) / b, rounded to the nearest whole number
    pow(a, b)       of integers: by squaring, wrapping; 1 / a**-b, truncated, for negative b
    bitcast         from and to booleans, whose bits are 0 or 1

They give what numpy gives (npy_divmod), bit for bit.
"""

from __future__ import annotations

from graphc.ir.dtypes import boolean, f32, i8, u8
from graphc.ir.expr import (
    Call,
    Const,
    Expr,
    absolute,
    bitcast,
    call,
    called,
    cast,
    select,
    transform,
)

EXPANDED = ("mod", "floordiv", "pow", "bitcast")


def float_mod(a: Expr, b: Expr) -> Expr:
    """a modulo b with the sign of b; NaN for b = 0."""
    rest = call("rem", a, b)
    moved = select((rest < 0.0) ^ (b < 0.0), rest + b, rest)
    zero = select(b < 0.0, Const(-0.0, b.dtype), Const(0.0, b.dtype))
    return select(rest.eq(0.0), zero, moved)


def float_floordiv(a: Expr, b: Expr) -> Expr:
    """The whole number below a / b; a / b itself for b = 0."""
    rest = call("rem", a, b)
    below = (rest < 0.0) ^ (b < 0.0)
    moved = rest.ne(0.0) & below
    quotient = (a - rest) / b - select(moved, Const(1.0, a.dtype), Const(0.0, a.dtype))
    floor = call("floor", quotient)
    nearest = select(quotient - floor > 0.5, floor + 1.0, floor)
    ratio = a / b
    return select(b.eq(0.0), ratio, select(quotient.eq(0.0), ratio * 0.0, nearest))


def integer_pow(base: Expr, exponent: Expr) -> Expr:
    """base ** exponent in wrapping arithmetic, one squaring per bit of the exponent."""
    dtype = base.dtype
    if isinstance(exponent, Const):
        return _constant_pow(base, exponent.value)
    bits = dtype.bits - (dtype.kind == "int")
    one: Expr = Const(1, dtype)
    result, power = one, base
    for n in range(bits):
        here = (exponent >> n) & 1
        result = select(here.eq(0), result, result * power)
        power = power * power
    if dtype.kind == "uint":
        return result
    return select(exponent < 0, _inverse_pow(base, (exponent & 1).eq(0)), result)


def _constant_pow(base: Expr, exponent: int) -> Expr:
    dtype = base.dtype
    if exponent < 0:
        return _inverse_pow(base, Const(exponent % 2 == 0, boolean))
    result: Expr = Const(1, dtype)
    power = base
    while exponent:
        if exponent & 1:
            result = result * power
        exponent >>= 1
        if exponent:
            power = power * power
    return result


def _inverse_pow(base: Expr, even: Expr) -> Expr:
    """1 / base**n truncated: not zero only for a base of 1 or -1."""
    unit = absolute(base).eq(1)
    return select(unit, select(even, Const(1, base.dtype), base), Const(0, base.dtype))


def expand_arithmetic(root: Expr) -> Expr:
    """Replaces the operations named above; narrow floats are widened to float32 once."""
    if called(root).isdisjoint(EXPANDED):
        return root

    def visit(node: Expr) -> Expr | None:
        if not isinstance(node, Call):
            return None
        name = node.op.name
        if name in ("mod", "floordiv") and node.dtype.is_float:
            function = float_mod if name == "mod" else float_floordiv
            compute = f32 if node.dtype.compute is f32 else node.dtype
            a, b = (cast(x, compute) for x in node.args)
            return cast(function(a, b), node.dtype)
        if name == "pow" and node.dtype.is_integer:
            return integer_pow(*node.args)
        if name == "bitcast" and boolean in (node.dtype, node.args[0].dtype):
            (value,) = node.args
            if node.dtype is boolean:
                return bitcast(value, u8).ne(0)
            return bitcast(cast(value, u8), node.dtype) if node.dtype is i8 else cast(value, u8)
        return None

    return transform(root, visit)
