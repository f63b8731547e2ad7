"""Operations that machines lack, in terms of those they have: modulo, powers, rounding.

    mod(a, b)       of floats: rem(a, b), moved to the side of b; a zero takes the sign of b
    floordiv(a, b)  of floats: (a - mod(a, b)) / b, rounded to the nearest whole number
    pow(a, b)       of integers: by squaring, wrapping; 1 / a**-b, truncated, for negative b
    bitcast         from and to booleans, whose bits are 0 or 1
    mul_high, mul_high_rounded      of i32: the product in 64 bits, shifted
    clamp           a minimum of a maximum
    shr_rounded, shr_to_even, shr_to_odd, round_tf32, add_half_tf32, cut_tf32: sums, masks of bits
    scale           a product in float64 with a power of two, which is made of its bits

They give what numpy gives (npy_divmod), bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

from graphc.ir.dtypes import boolean, f32, f64, i8, i32, i64, u8, u32
from graphc.ir.expr import (
    Call,
    Const,
    Expr,
    absolute,
    bitcast,
    call,
    called,
    cast,
    maximum,
    minimum,
    select,
    transform,
)
from graphc.ir.scalar.ops import HALF_OF_TF32, KEPT_BY_TF32


def rounded_to_tf32(value: Expr) -> Expr:
    """A float32 rounded to the 10 bits of fraction that TF32 has, halves away from zero."""
    rounded = bitcast((bitcast(value, u32) + HALF_OF_TF32) & KEPT_BY_TF32, f32)
    return select(_is_special(value), value, rounded)


def half_added(value: Expr) -> Expr:
    """A float32 that, cut to TF32, is the nearest value: half of the last bit kept is added."""
    half = select(_is_special(value), Const(0, u32), Const(HALF_OF_TF32, u32))
    return bitcast(bitcast(value, u32) + half, f32)


def cut_to_tf32(value: Expr) -> Expr:
    """A float32 without the 13 bits of fraction that TF32 lacks."""
    return bitcast(bitcast(value, u32) & KEPT_BY_TF32, f32)


def _is_special(value: Expr) -> Expr:
    """Whether a float32 is infinite or no number."""
    return (bitcast(value, u32) & 0x7F800000).eq(0x7F800000)


def clamp(value: Expr, low: Expr, high: Expr) -> Expr:
    """The value kept within low..high."""
    return minimum(maximum(value, low), high)


def mul_high(a: Expr, b: Expr) -> Expr:
    """The upper 32 bits of a product of two i32."""
    return ((a.cast(i64) * b.cast(i64)) >> 32).cast(i32)


def mul_high_rounded(a: Expr, b: Expr) -> Expr:
    """The upper 32 bits of a product of two i32, halves rounded up."""
    return ((a.cast(i64) * b.cast(i64) + (1 << 31)) >> 32).cast(i32)


def shr_rounded(value: Expr, distance: Expr) -> Expr:
    """value >> distance, and the last bit that was shifted out."""
    return (value >> distance) + ((value >> distance - 1) & 1)


def shr_to_even(value: Expr, distance: Expr) -> Expr:
    """value >> distance, less one where that is odd and no bit that was shifted out is set."""
    whole = value >> distance
    return whole - select(_is_multiple(value, distance), whole & 1, 0)


def shr_to_odd(value: Expr, distance: Expr) -> Expr:
    """value >> distance, less one where that is even and no bit that was shifted out is set."""
    whole = value >> distance
    return whole - select(_is_multiple(value, distance), (whole & 1) ^ 1, 0)


def _is_multiple(value: Expr, distance: Expr) -> Expr:
    return (value & ((Const(1, i64) << distance) - 1)).eq(0)


def scale(value: Expr, n: Expr) -> Expr:
    """value * 2**floor(n) of float32; what is beyond the exponents of float64 is also beyond those
    of float32."""
    most = Const(400.0, f32)
    whole = cast(clamp(call("floor", select(call("isnan", n), 0.0, n)), -most, most), i64)
    power = bitcast((whole + 1023) << Const(52, i64), f64)
    ends = select(n > 0.0, Const(math.inf, f64), Const(0.0, f64))
    power = select(call("isinf", n), ends, power)
    return select(call("isnan", n), n, cast(cast(value, f64) * power, f32))


OF_TF32 = {"round_tf32": rounded_to_tf32, "add_half_tf32": half_added, "cut_tf32": cut_to_tf32}
LACKED_BY_C: dict[str, Callable[..., Expr]] = {
    **OF_TF32, "clamp": clamp, "mul_high": mul_high,
    "mul_high_rounded": mul_high_rounded, "shr_rounded": shr_rounded,
    "shr_to_even": shr_to_even, "shr_to_odd": shr_to_odd, "scale": scale,
}  # fmt: skip
EXPANDED = ("mod", "floordiv", "pow", "bitcast", *LACKED_BY_C)


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


def expand_arithmetic(root: Expr, names: Collection[str] = EXPANDED) -> Expr:
    """Replaces the operations named above, or those of them in `names`; narrow floats are widened
    to float32 once."""
    if called(root).isdisjoint(names):
        return root

    def visit(node: Expr) -> Expr | None:
        if not isinstance(node, Call) or node.op.name not in names:
            return None
        name = node.op.name
        if name in ("mod", "floordiv") and node.dtype.is_float:
            function = float_mod if name == "mod" else float_floordiv
            compute = f32 if node.dtype.compute is f32 else node.dtype
            a, b = (cast(x, compute) for x in node.args)
            return cast(function(a, b), node.dtype)
        if name in LACKED_BY_C:
            return LACKED_BY_C[name](*node.args)
        if name == "pow" and node.dtype.is_integer:
            return integer_pow(*node.args)
        if name == "bitcast" and boolean in (node.dtype, node.args[0].dtype):
            (value,) = node.args
            if node.dtype is boolean:
                return bitcast(value, u8).ne(0)
            return bitcast(cast(value, u8), node.dtype) if node.dtype is i8 else cast(value, u8)
        return None

    return transform(root, visit)
