"""Derivatives of scalar operations, a row for each: the one table of reverse and forward mode.

A row has a function per argument, from (g, y, args) to g times the partial derivative by that
argument, where y is the operation itself. It is linear in g: an adjoint in reverse mode, a tangent
in forward mode. None: the derivative is zero wherever there is one, as of `floor`.

Where there is no derivative, the rows give what PyTorch gives: zero for |x| at 0, half to each side
of min and max if both are equal, the whole for clamp at its
limits.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from graphc.errors import UnsupportedError
from graphc.ir.expr import (
    Call,
    Const,
    Expr,
    call,
    cast,
    cos,
    exp,
    floor,
    log,
    select,
    sign,
    sin,
    sqrt,
)

Partial = Callable[[Expr, Expr, tuple[Expr, ...]], Expr]


def _pow_base(g: Expr, y: Expr, args: tuple[Expr, ...]) -> Expr:
    base, power = args
    if isinstance(power, Const) and power.value == 2:
        return g * (base * 2)
    return select(power.eq(0), 0, g * power * base ** (power - 1))


def _pow_exponent(g: Expr, y: Expr, args: tuple[Expr, ...]) -> Expr:
    base, power = args
    return select(base.eq(0) & (power >= 0), 0, g * y * log(base))


def _extreme(g: Expr, y: Expr, own: Expr, other: Expr, better: Expr) -> Expr:
    equal = own.eq(other)
    return select(better | equal, select(equal, g * 0.5, g), 0)


def _larger(own: int) -> Partial:
    return lambda g, y, a: _extreme(g, y, a[own], a[1 - own], a[own] > a[1 - own])


def _smaller(own: int) -> Partial:
    return lambda g, y, a: _extreme(g, y, a[own], a[1 - own], a[own] < a[1 - own])


def _whole_quotient(a: Expr, b: Expr, towards_zero: bool) -> Expr:
    quotient = a / b
    return call("trunc", quotient) if towards_zero else floor(quotient)


def _clamped(g: Expr, y: Expr, args: tuple[Expr, ...]) -> Expr:
    x, low, high = args
    return select((x >= low) & (x <= high), g, 0)


def _converted(g: Expr, y: Expr, args: tuple[Expr, ...]) -> Expr:
    return cast(g, args[0].dtype)


_TWO_BY_ROOT_PI = 2 / math.sqrt(math.pi)

PARTIALS: dict[str, tuple[Partial, ...] | None] = {
    "neg": (lambda g, y, a: -g,),
    "abs": (lambda g, y, a: g * sign(a[0]),),
    "sqrt": (lambda g, y, a: g * 0.5 / y,),
    "exp": (lambda g, y, a: g * y,),
    "log": (lambda g, y, a: g / a[0],),
    "sin": (lambda g, y, a: g * cos(a[0]),),
    "cos": (lambda g, y, a: -(g * sin(a[0])),),
    "tan": (lambda g, y, a: g * (y * y + 1),),
    "asin": (lambda g, y, a: g / sqrt(1 - a[0] * a[0]),),
    "acos": (lambda g, y, a: -(g / sqrt(1 - a[0] * a[0])),),
    "atan": (lambda g, y, a: g / (a[0] * a[0] + 1),),
    "sinh": (lambda g, y, a: g * call("cosh", a[0]),),
    "cosh": (lambda g, y, a: g * call("sinh", a[0]),),
    "tanh": (lambda g, y, a: g * (1 - y * y),),
    "asinh": (lambda g, y, a: g / sqrt(a[0] * a[0] + 1),),
    "acosh": (lambda g, y, a: g / sqrt(a[0] * a[0] - 1),),
    "atanh": (lambda g, y, a: g / (1 - a[0] * a[0]),),
    "erf": (lambda g, y, a: g * (exp(-(a[0] * a[0])) * _TWO_BY_ROOT_PI),),
    "add": (lambda g, y, a: g, lambda g, y, a: g),
    "sub": (lambda g, y, a: g, lambda g, y, a: -g),
    "mul": (lambda g, y, a: g * a[1], lambda g, y, a: g * a[0]),
    "div": (lambda g, y, a: g / a[1], lambda g, y, a: -(g * y / a[1])),
    "mod": (lambda g, y, a: g, lambda g, y, a: -(g * _whole_quotient(a[0], a[1], False))),
    "rem": (lambda g, y, a: g, lambda g, y, a: -(g * _whole_quotient(a[0], a[1], True))),
    "pow": (_pow_base, _pow_exponent),
    "max": (_larger(0), _larger(1)),
    "min": (_smaller(0), _smaller(1)),
    "clamp": (
        _clamped,
        lambda g, y, a: select(a[0] < a[1], g, 0),
        lambda g, y, a: select(a[0] > a[2], g, 0),
    ),
    "fma": (lambda g, y, a: g * a[1], lambda g, y, a: g * a[0], lambda g, y, a: g),
    "cast": (_converted,),
    "cast_sat": (_converted,),
    # they only round
    "cut_tf32": (lambda g, y, a: g,),
    "round_tf32": (lambda g, y, a: g,),
    "add_half_tf32": (lambda g, y, a: g,),
    # steps
    "sign": None,
    "floor": None,
    "ceil": None,
    "round": None,
    "trunc": None,
    "floordiv": None,
}
"""`select` is not here: its condition goes beside the adjoint (adjoint.py). Operations on integers
and booleans have no derivatives."""


def partial(node: Call, position: int, g: Expr) -> Expr | None:
    """g times the derivative of a call by one of its arguments; None if that is zero.
    UnsupportedError for an operation that takes the bits of numbers."""
    if node.op.name not in PARTIALS:
        raise UnsupportedError(f"{node.op.name} of {node.dtype} has no derivative")
    row = PARTIALS[node.op.name]
    return None if row is None else row[position](g, node, node.args)
