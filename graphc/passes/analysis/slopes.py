"""Slopes: bounds of (f(b) - f(a)) / (b - a) over all numbers a < b that x can be.

The chain rule in interval arithmetic, over the ranges of the parts (ranges.py). It holds for
functions that jump too: a jump is an infinite slope. Rounding is left out of account, so results
that are computed may be out of order by as much. A slope is known only if f of every number that x
can be, infinities included, is a number.
"""

from __future__ import annotations

import math

from graphc.ir.dtypes import f64
from graphc.ir.expr import Call, Const, Expr, walk
from graphc.ir.simplify import simplify
from graphc.passes.analysis.ranges import (
    ARITHMETIC,
    COMPARISONS,
    Known,
    Range,
    arithmetic,
    inf,
    narrowed,
    range_of_expr,
)

NONE, ONE, RISING, BOUNDED = Range(0.0, 0.0), Range(1.0, 1.0), Range(0.0, inf), Range(0.0, 1.0)
FUNCTIONS = {
    "exp": RISING, "sinh": RISING, "sign": RISING, "floor": RISING, "ceil": RISING,
    "round": RISING, "trunc": RISING, "sqrt": RISING, "log": RISING, "tanh": BOUNDED,
    "atan": BOUNDED, "asinh": BOUNDED, "erf": Range(0.0, 1.13), "neg": Range(-1.0, -1.0),
    "cast": ONE, "cut_tf32": ONE, "round_tf32": ONE,
}  # fmt: skip
OF_NONNEGATIVE = ("sqrt", "log")
SMALL = 1e-6  # a jump by no more of what is on either side is rounding


def slope(expr: Expr, x: Expr, known: Known) -> Range | None:
    """The slopes of `expr` as a function of `x`, given ranges of `x` and of other parts of it; None
    if they are not known."""
    if expr is x:
        return ONE
    if x not in walk(expr):
        return NONE
    if not isinstance(expr, Call) or not expr.dtype.is_float or expr.dtype.bits < 16:
        return None
    if expr.op.name == "select":
        return _selected(expr, x, known)
    inner = [slope(arg, x, known) for arg in expr.args]
    slopes = [s for s in inner if s is not None]
    if len(slopes) < len(inner):
        return None
    return _chained(expr, slopes, [range_of_expr(arg, known) for arg in expr.args])


def keeps_nan(expr: Expr, x: Expr) -> bool:
    """Whether `expr` is NaN where `x` is."""
    if expr is x:
        return True
    if not isinstance(expr, Call):
        return False
    sides = expr.args
    if expr.op.name == "select":
        decided = isinstance(expr.args[0], Call) and expr.args[0].op.name in COMPARISONS
        sides = expr.args[2:] if decided and x in expr.args[0].children else expr.args[1:]
        return all(keeps_nan(side, x) for side in sides)
    is_numeric = expr.op.name in (*FUNCTIONS, *ARITHMETIC, "abs", "min", "max")
    return is_numeric and expr.dtype.is_float and any(keeps_nan(side, x) for side in sides)


def at(expr: Expr, x: Expr, number: float) -> float | None:
    """What `expr` is where `x` is a number; None if it depends on more."""
    result = simplify(expr, {x: Const(number, x.dtype)})
    return float(result.value) if isinstance(result, Const) else None  # type: ignore[arg-type]


def _chained(node: Call, slopes: list[Range], ends: list[Range]) -> Range | None:
    """The slopes of an operation, from those and the ranges of its arguments."""
    name = node.op.name
    if name in FUNCTIONS:
        if name in OF_NONNEGATIVE and ends[0].low < 0 or not node.args[0].dtype.is_number:
            return None
        return _product(FUNCTIONS[name], slopes[0])
    if name == "abs":
        positive = Range(-1.0 if ends[0].low < 0 else 1.0, 1.0 if ends[0].high > 0 else -1.0)
        return _product(positive, slopes[0])
    if name in ("min", "max"):
        return slopes[0].joined(slopes[1])
    if name in ("add", "sub"):
        sign = 1 if name == "add" else -1
        opposite = (ends[0].low, sign * ends[1].high), (ends[0].high, sign * ends[1].low)
        if any(math.isinf(a) and math.isinf(b) for a, b in opposite):
            return None
        return arithmetic(name, slopes[0], slopes[1], f64)
    if name == "mul":
        return _multiplied(slopes, ends)
    return _divided(slopes, ends) if name == "div" else None


def _product(a: Range, b: Range) -> Range:
    return arithmetic("mul", a, b, f64)


def _multiplied(slopes: list[Range], ends: list[Range]) -> Range | None:
    for a, b in (ends, ends[::-1]):
        if a.low <= 0 <= a.high and not b.is_finite:
            return None
    terms = _product(ends[0], slopes[1]), _product(ends[1], slopes[0])
    return arithmetic("add", *terms, f64)


def _divided(slopes: list[Range], ends: list[Range]) -> Range | None:
    top, bottom = ends
    if bottom.low <= 0 <= bottom.high or not (top.is_finite or bottom.is_finite):
        return None
    inverse = Range(1 / bottom.high, 1 / bottom.low)
    falling = _product(_product(inverse, inverse), Range(-slopes[1].high, -slopes[1].low))
    terms = _product(inverse, slopes[0]), _product(top, falling)
    return arithmetic("add", *terms, f64)


def _selected(node: Call, x: Expr, known: Known) -> Range | None:
    """The slopes of a choice: those of its sides, and of the jump where it changes."""
    condition, then, other = node.args
    if x not in walk(condition):
        sides = [slope(side, x, known) for side in (then, other)]
        return None if sides[0] is None or sides[1] is None else sides[0].joined(sides[1])
    if not isinstance(condition, Call) or condition.op.name not in COMPARISONS:
        return None
    bound = condition.args[1]
    if condition.args[0] is not x or not isinstance(bound, Const):
        return None
    limit = float(bound.value)  # type: ignore[arg-type]
    for_then, for_other = narrowed(condition, range_of_expr(x, known))
    first, second = slope(then, x, {**known, x: for_then}), slope(other, x, {**known, x: for_other})
    below, above = (then, other) if condition.op.name in ("lt", "le") else (other, then)
    left, right = at(below, x, limit), at(above, x, limit)
    if first is None or second is None or left is None or right is None:
        return None
    return _with_jump(first.joined(second), left, right)


def _with_jump(slopes: Range, left: float, right: float) -> Range | None:
    if math.isnan(left) or math.isnan(right):
        return None
    if abs(right - left) <= SMALL * max(abs(left), abs(right)):
        return slopes
    jump = inf if right > left else -inf
    return slopes.joined(Range(jump, jump))
