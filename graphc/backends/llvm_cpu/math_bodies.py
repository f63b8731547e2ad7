"""Functions of C's library in float64, as expressions, for machines that have none.

exp: Cody and Waite's reduction, then Taylor's series; log: the series of artanh; arcs of tangents:
angle sums, then the series; erf: its series with positive terms only, or the continued fraction of
erfc (Abramowitz and Stegun, 7.1.6 and 7.1.14). Errors are a few units in the last place; of `power`
as many times that as the exponent of e has, up to 1e-13. float32 is rounded from these. The
arguments of `sine` and `cosine` are reduced by math_ir.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from graphc.ir.dtypes import f64, i64
from graphc.ir.expr import (
    Const,
    Expr,
    absolute,
    bitcast,
    call,
    cast,
    select,
)

_MAGIC = 6755399441055744.0  # 1.5 * 2**52: adding it leaves an integer in the low bits
_LN2_HIGH, _LN2_LOW = 0.6931471803691238, 1.9082149292705877e-10  # of 33 bits, and what is left
_INFINITY, _NAN = math.inf, math.nan


def _f(value: float) -> Const:
    return Const(value, f64)


def _i(value: int) -> Const:
    return Const(value, i64)


def _series(x: Expr, coefficients: Sequence[float]) -> Expr:
    """Horner's scheme, lowest power first."""
    result: Expr = _f(coefficients[-1])
    for c in reversed(coefficients[:-1]):
        result = result * x + _f(c)
    return result


def _signed(size: Expr, x: Expr) -> Expr:
    """A size with the sign of x, also that of -0.0."""
    sign = bitcast(x, i64) & _i(int(i64.min))
    return bitcast((bitcast(size, i64) & _i(int(i64.max))) | sign, f64)


def _sqrt(x: Expr) -> Expr:
    return call("sqrt", x)


def _power_of_two(n: Expr) -> Expr:
    return bitcast((n + 1023) << _i(52), f64)


def exp(x: Expr) -> Expr:
    x = select(x > 710.0, 710.0, select(x < -746.0, -746.0, x))
    shifted = x * _f(1 / math.log(2)) + _MAGIC
    n = shifted - _MAGIC
    whole = bitcast(shifted, i64) - bitcast(_f(_MAGIC), i64)
    r = (x - n * _f(_LN2_HIGH)) - n * _f(_LN2_LOW)
    half = whole >> _i(1)  # in two steps, so that subnormal results are reached
    y = _series(r, [1 / math.factorial(k) for k in range(14)])
    return y * _power_of_two(half) * _power_of_two(whole - half)


_ARTANH = [1 / (2 * k + 1) for k in range(13)]


def _artanh_twice(s: Expr) -> Expr:
    return s * 2.0 * _series(s * s, _ARTANH)


def log(x: Expr) -> Expr:
    tiny = x < 2.2250738585072014e-308
    scaled = select(tiny, x * _f(2.0**54), x)
    bits = bitcast(scaled, i64)
    exponent = (bits - _i(0x3FE6A09E667F3BCD)) >> _i(52)  # the mantissa is within sqrt(2)
    m = bitcast(bits - (exponent << _i(52)), f64) - 1.0
    e = cast(exponent, f64) - select(tiny, _f(54.0), _f(0.0))
    result = e * _f(_LN2_HIGH) + (_artanh_twice(m / (m + 2.0)) + e * _f(_LN2_LOW))
    result = select(x.eq(_INFINITY), _INFINITY, result)
    result = select(x.eq(0.0), -_INFINITY, result)
    return select(x >= 0.0, result, _NAN)


def _log1p(y: Expr) -> Expr:
    """log(1 + y), also where y is small."""
    return select(absolute(y) < 0.34, _artanh_twice(y / (y + 2.0)), log(y + 1.0))


def sine(r: Expr) -> Expr:
    """The sine of -pi/4..pi/4."""
    z = r * r
    terms = [(-1) ** k / math.factorial(2 * k + 1) for k in range(1, 9)]
    return r * (z * _series(z, terms) + 1.0)


def cosine(r: Expr) -> Expr:
    """The cosine of -pi/4..pi/4."""
    return _series(r * r, [(-1) ** k / math.factorial(2 * k) for k in range(10)])


def atan(x: Expr) -> Expr:
    size = absolute(x)
    inverted = size > 1.0
    y = select(inverted, 1.0 / size, size)
    eighth = math.tan(math.pi / 8)
    low, high = y < math.tan(math.pi / 16), y > math.tan(3 * math.pi / 16)
    c = select(low, _f(0.0), select(high, _f(1.0), _f(eighth)))
    angle = select(low, _f(0.0), select(high, _f(math.pi / 4), _f(math.pi / 8)))
    t = (y - c) / (y * c + 1.0)
    part = angle + t * _series(t * t, [(-1) ** k / (2 * k + 1) for k in range(13)])
    return _signed_or_nan(select(inverted, _f(math.pi / 2) - part, part), x)


def _signed_or_nan(size: Expr, x: Expr) -> Expr:
    return select(call("isnan", x), x, _signed(size, x))


def asin(x: Expr) -> Expr:
    return atan(x / _sqrt((1.0 - x) * (x + 1.0)))


def acos(x: Expr) -> Expr:
    return atan(_sqrt((1.0 - x) / (x + 1.0))) * 2.0


def sinh(x: Expr) -> Expr:
    size, z = absolute(x), x * x
    small = x * _series(z, [1 / math.factorial(2 * k + 1) for k in range(10)])
    half = exp(size * 0.5)
    large = half * 0.5 * half - 0.5 / half / half
    return select(size < 1.0, small, _signed(large, x))


def cosh(x: Expr) -> Expr:
    half = exp(absolute(x) * 0.5)
    return half * 0.5 * half + 0.5 / half / half


def tanh(x: Expr) -> Expr:
    size = absolute(x)
    return select(
        size < 0.5, sinh(x) / cosh(x), _signed_or_nan(1.0 - 2.0 / (exp(size * 2.0) + 1.0), x)
    )


def asinh(x: Expr) -> Expr:
    size = absolute(x)
    z = size * size
    near = _log1p(size + z / (_sqrt(z + 1.0) + 1.0))
    return _signed_or_nan(select(size > 1e8, log(size) + math.log(2), near), x)


def acosh(x: Expr) -> Expr:
    t = x - 1.0
    near = select(t < 0.0, _NAN, _log1p(t + _sqrt(t * 2.0 + t * t)))
    return select(x > 1e8, log(x) + math.log(2), near)


def atanh(x: Expr) -> Expr:
    size = absolute(x)
    return _signed_or_nan(_log1p(size * 2.0 / (1.0 - size)) * 0.5, x)


def erf(x: Expr) -> Expr:
    size = absolute(x)
    y = select(size > 6.0, _f(6.0), size)
    z = y * y
    small: Expr = _f(1.0)
    for k in range(60, 0, -1):
        small = z * (2.0 / (2 * k + 1)) * small + 1.0
    fraction: Expr = y
    for k in range(30, 0, -1):
        fraction = y + _f(k / 2) / fraction
    falling = exp(-z)
    near = falling * y * small * (2 / math.sqrt(math.pi))
    far = 1.0 - falling / fraction * (1 / math.sqrt(math.pi))
    return _signed_or_nan(select(y < 3.0, near, far), x)


def power(x: Expr, y: Expr) -> Expr:
    size = absolute(x)
    beyond = absolute(y) >= 4503599627370496.0  # from there on, every number is an integer
    whole = select(beyond, 0, cast(y, i64))
    is_whole = beyond | cast(whole, f64).eq(y)
    is_odd = (absolute(y) < 9007199254740992.0) & is_whole & (_low(y, beyond, whole)).eq(1)
    result = exp(y * log(size))
    result = select(size.eq(1.0) & call("isinf", y), 1.0, result)
    negative = bitcast(x, i64) < 0
    result = select(negative & is_odd, -result, result)
    unreal = (x < 0.0) & ~is_whole & (size < _INFINITY)
    result = select(unreal, _NAN, result)
    return select(x.eq(1.0) | y.eq(0.0), 1.0, result)


def _low(y: Expr, beyond: Expr, whole: Expr) -> Expr:
    """The lowest bit of an integer below 2**53."""
    return select(beyond, cast(select(beyond, y, 0.0), i64), whole) & _i(1)


BODIES: dict[str, Callable[..., Expr]] = {
    "exp": exp, "log": log, "asin": asin, "acos": acos, "atan": atan, "sinh": sinh, "cosh": cosh,
    "tanh": tanh, "asinh": asinh, "acosh": acosh, "atanh": atanh, "erf": erf, "pow": power,
}  # fmt: skip
