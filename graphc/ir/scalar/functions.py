"""exp, log, tanh, erf as float32 polynomials: for vectors, and for targets without libm.

Range reductions and the coefficients of exp, log and tanh's shape follow Cephes (S. L. Moshier,
Methods and Programs for Mathematical Functions, 1989); the polynomials of erf and tanh are our own
Chebyshev fits in float64. Errors stay below 3 units in the last place of float32 (erf: 2e-7
absolute). NaN goes through; overflow gives inf, underflow 0.

Rounding to an integer adds a large number, which leaves that integer in the low bits. Whoever takes
sums in the order in which they are written, in float32, gets it as a float by subtracting the
number again (IN_ORDER); if it also has an instruction for products with powers of two, no bits are
taken (SCALED). Compilers that may reorder sums leave out both, and where sums are wider
than float32, adding rounds nothing; so POLYNOMIALS take it off the bits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from graphc.ir.dtypes import f8e8m0, f32, i32
from graphc.ir.expr import (
    Call,
    Const,
    Expr,
    ExprLike,
    absolute,
    bitcast,
    call,
    called,
    cast,
    select,
    transform,
)

MAGIC = 12582912.0  # 1.5 * 2**23: adding it leaves an integer in the low bits


def _f(value: float) -> Const:
    return Const(value, f32)


def fma(a: Expr, b: ExprLike, c: ExprLike) -> Expr:
    """a * b + c; whether the product is rounded is left open."""
    return call("fma", a, b, c)


def polynomial(x: Expr, coefficients: list[float]) -> Expr:
    """Horner's scheme, highest power first."""
    result: Expr = _f(coefficients[0])
    for c in coefficients[1:]:
        result = fma(result, x, _f(c))
    return result


def _power_of_two(n: Expr) -> Expr:
    """2**n for an i32 n in -126..127."""
    return bitcast((n + 127) << Const(23, i32), f32)


_EXP = [0.0013814459089189768, 0.008368780836462975, 0.04166839271783829, 0.1666651964187622,
        0.4999999403953552, 1.0, 1.0]  # fmt: skip


def exp_f32(x: Expr, in_order: bool = False, scaled: bool = False) -> Expr:
    """2**n * e**r with n = round(x / ln 2), |r| <= ln 2 / 2."""
    above = select(x < -104.0, -104.0, x)
    y, n, whole = _reduced_exp(select(above > 89.0, 89.0, above), in_order)
    if scaled:
        return call("scale", y, n)
    half = whole >> Const(1, i32)  # in two steps, so that subnormal results are reached
    return y * _power_of_two(half) * _power_of_two(whole - half)


def _exp_in_range(x: Expr, scaled: bool = False) -> Expr:
    """`exp_f32` for -87 <= x <= 88, where 2**n is a normal number, or NaN."""
    y, n, whole = _reduced_exp(x, in_order=scaled)
    return call("scale", y, n) if scaled else y * _power_of_two(whole)


def _reduced_exp(x: Expr, in_order: bool) -> tuple[Expr, Expr, Expr]:
    """e**r, and n as a float and as an integer."""
    shifted = fma(x, _f(1.44269504088896341), _f(MAGIC))
    whole = bitcast(shifted, i32) - bitcast(_f(MAGIC), i32)
    n = shifted - MAGIC if in_order else cast(whole, f32)
    r = fma(n, _f(-0.693359375), x)
    r = fma(n, _f(2.12194440e-4), r)
    return polynomial(r, _EXP), n, whole


_LOG = [7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1,
        -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1]  # fmt: skip


def log_f32(x: Expr) -> Expr:
    """log(m) + e * ln 2 with the mantissa m in sqrt(1/2) .. sqrt(2)."""
    tiny = x < 1.17549435e-38
    scaled = select(tiny, x * 8388608.0, x)
    bits = bitcast(scaled, i32)
    exponent = (bits - 0x3F3504F3) >> Const(23, i32)
    mantissa = bitcast(bits - (exponent << Const(23, i32)), f32)
    e = cast(exponent, f32) - select(tiny, _f(23.0), _f(0.0))
    m = mantissa - 1.0
    z = m * m
    y = polynomial(m, _LOG) * m * z
    y = fma(e, _f(-2.12194440e-4), y) - z * 0.5
    result = fma(e, _f(0.693359375), m + y)
    result = select(x.eq(float("inf")), float("inf"), result)
    result = select(x.eq(0.0), float("-inf"), result)
    return select(x >= 0.0, result, float("nan"))


_TANH = [-0.006104947533458471, 0.021003641188144684, -0.05385249853134155, 0.13332782685756683,
         -0.333333283662796]  # fmt: skip


_EXP_TWICE = [0.2655238135984185, 0.6706500677540498, 1.3334061236913548, 1.9999557064552047,
              1.9999993821373208, 1.0000000718663564]  # fmt: skip


def tanh_f32(x: Expr, in_order: bool = False) -> Expr:
    """|x| + |x|**3 p(x**2) for small x, 1 - 2 / (e**2|x| + 1) above, with the sign of x, also that
    of -0.0, which is put back in its bit. The exponential is 2**n q(r) with n = round(2|x| / ln 2);
    its error matters less, the larger it is, so one product takes n from |x|."""
    size = absolute(x)
    z = x * x
    small = fma(polynomial(z, _TANH) * z, size, size)
    clipped = select(size > 10.0, 10.0, size)  # from 9.02 on, the result is 1
    shifted = fma(clipped, _f(2.8853900817779268), _f(MAGIC))
    whole = bitcast(shifted, i32) - bitcast(_f(MAGIC), i32)
    n = shifted - MAGIC if in_order else cast(whole, f32)
    r = fma(n, _f(-0.34657359027997264), clipped)
    large = 1.0 - 2.0 / fma(polynomial(r, _EXP_TWICE), _power_of_two(whole), 1.0)
    sign = bitcast(x, i32) & Const(i32.min, i32)
    return bitcast(bitcast(select(size < 0.625, small, large), i32) | sign, f32)


_ERF_SMALL = [8.144524326780811e-05, -0.0008088070899248123, 0.005196115467697382,
              -0.02685738168656826, 0.11283658444881439, -0.37612631916999817,
              1.128379225730896]  # fmt: skip
_ERFC = [-1.577663510943239e-06, 4.489322964218445e-05, -0.0005870881723240018,
         0.004714576993137598, -0.02629471756517887, 0.10986018180847168, 0.6320570111274719,
         1.1300996541976929, -0.00028745856252498925]  # fmt: skip


def erf_f32(x: Expr, scaled: bool = False) -> Expr:
    """x p(x**2) for |x| < 0.96, else 1 - exp(-q(|x|)) with the sign of x."""
    size = absolute(x)
    small = x * polynomial(x * x, _ERF_SMALL)
    clipped = select(size > 4.1, 4.1, size)
    large = 1.0 - _exp_in_range(-polynomial(clipped, _ERFC), scaled)
    return select(size < 0.96, small, select(x < 0.0, -large, large))


def round_f32(x: Expr) -> Expr:
    """Halves to even: below 2**23, adding that leaves no room for a fraction. Keeps -0.0."""
    size, large = absolute(x), _f(8388608.0)
    whole = cast(bitcast(size + large, i32) - bitcast(large, i32), f32)
    signed = select(x < 0.0, -whole, whole)
    return select((size < 8388608.0) & x.ne(0.0), signed, x)


Functions = dict[str, Callable[[Expr], Expr]]
POLYNOMIALS: Functions = {"exp": exp_f32, "log": log_f32, "tanh": tanh_f32, "erf": erf_f32}
IN_ORDER: Functions = {  # erf is the faster with an exponential whose integer is taken off the bits
    **POLYNOMIALS, "exp": partial(exp_f32, in_order=True), "tanh": partial(tanh_f32, in_order=True),
}  # fmt: skip
SCALED: Functions = {
    **IN_ORDER, "exp": partial(exp_f32, in_order=True, scaled=True),
    "erf": partial(erf_f32, scaled=True),
}  # fmt: skip


def expand_math(root: Expr, functions: Functions = POLYNOMIALS) -> Expr:
    """Replaces those functions of float32 (and of narrower floats, computed in float32)."""
    if called(root).isdisjoint(functions):
        return root

    def visit(node: Expr) -> Expr | None:
        if not (isinstance(node, Call) and node.op.name in functions):
            return None
        if node.dtype.compute is not f32:
            return None
        wide = functions[node.op.name](cast(node.args[0], f32))
        return cast(wide, node.dtype)

    return transform(root, visit)


def sign_as_select(root: Expr) -> Expr:
    """sign(x) by comparisons: NaN stays, and so does a zero's value."""
    if "sign" not in called(root):
        return root

    def visit(node: Expr) -> Expr | None:
        if isinstance(node, Call) and node.op.name == "sign":
            x = node.args[0]
            one, minus = Const(1, x.dtype), Const(-1, x.dtype)
            if x.dtype.kind == "uint":
                return select(x > 0, one, Const(0, x.dtype))
            if x.dtype is f8e8m0:  # has no zero, and nothing below
                return select(call("isnan", x), x, one)
            zero_or_nan = select(x.eq(0), Const(0, x.dtype), x)
            return select(x > 0, one, select(x < 0, minus, zero_or_nan))
        return None

    return transform(root, visit)
