"""Ranges: the range of a value, from the ranges of its operands.

Interval arithmetic (R. Moore, Interval Analysis, 1966) over scalar bodies. The ends are rounded as
the operation rounds, which keeps order, so they hold for what machines compute. 0.0 lies above
-0.0. Any value may be NaN besides. A choice between two sides is judged knowing which way its
condition went.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import field

import numpy as np

from graphc.ir.dtypes import DType
from graphc.ir.expr import Call, Const, Expr, Index, Load, Reduce
from graphc.ir.graph import Op, Value
from graphc.ir.infer import expand, op_body
from graphc.passes.analysis.structure import has_body
from graphc.records import dataclass

FINITE = "finite"  # a trait: no result is infinite while no operand but the first is
DEPTH = 8  # producers that are followed
ARITHMETIC = ("add", "sub", "mul", "div")
COMPARISONS = ("lt", "le", "gt", "ge")
inf = math.inf


@dataclass(frozen=True)
class Range:
    """The numbers from `low` to `high`, and NaN."""

    low: float
    high: float

    @property
    def is_nonnegative(self) -> bool:
        """Whether nothing is below 0.0, -0.0 included."""
        return math.copysign(1, self.low) > 0

    @property
    def is_finite(self) -> bool:
        return math.isfinite(self.low) and math.isfinite(self.high)

    def joined(self, other: Range) -> Range:
        return Range(_least(self.low, other.low), _largest(self.high, other.high))


ANY, BOOLEAN = Range(-inf, inf), Range(0, 1)
LIMITED = Range(-sys.float_info.max, sys.float_info.max)
UNIT = Range(-1.0, 1.0)
CODOMAINS = {
    "exp": Range(0.0, inf), "cosh": Range(1.0, inf), "tanh": UNIT, "erf": UNIT, "sin": UNIT,
    "cos": UNIT, "sign": UNIT, "asin": Range(-2.0, 2.0), "acos": Range(0.0, 4.0),
    "atan": Range(-2.0, 2.0),
}  # fmt: skip


def _order(number: float) -> tuple[float, float]:
    return number, math.copysign(1, number)


def _least(*numbers: float) -> float:
    return min(numbers, key=_order)


def _largest(*numbers: float) -> float:
    return max(numbers, key=_order)


# ---------------------------------------------------------------- values


def range_of(value: Value | None, depth: int = DEPTH) -> Range:
    """What the elements of a value can be."""
    if value is None or depth == 0:
        return ANY
    if value.constant is not None:
        return _of_array(value.constant)
    op = value.producer
    if op is None:
        return ANY
    if FINITE in op.defn.traits and value.index == 0:
        others = [range_of(v, 1) for v in op.inputs[1:] if v is not None]
        return LIMITED if all(other.is_finite for other in others) else ANY
    if op.defn.form == "composite":
        return range_of(expand(op)[1][value.index], depth - 1)  # of operands that can be anything
    return _Ranges(op, depth).of(op_body(op, value.index), {}) if has_body(op) else ANY


def _of_array(array: np.ndarray) -> Range:
    if array.size == 0 or array.dtype.kind in "Oc":
        return ANY
    wide = array.astype(np.float64)
    low, high = float(np.fmin.reduce(wide, None)), float(np.fmax.reduce(wide, None))
    if math.isnan(low):
        return ANY
    if low == 0:
        low = -0.0 if np.signbit(wide[wide == 0]).any() else 0.0
    return Range(low, high)


# ---------------------------------------------------------------- expressions

Known = Mapping[Expr, Range]


def range_of_expr(expr: Expr, known: Known) -> Range:
    """What an expression can be, given ranges of parts of it."""
    return _Ranges().of(expr, known)


def decided(expr: Expr, known: Known) -> Expr:
    """The side that choices in an expression take, given ranges of parts of it."""
    ranges = _Ranges()
    while isinstance(expr, Call):
        if expr.op.name == "select" and _never(expr.args[0], ranges, known):
            expr = expr.args[2]
        elif expr.op.name in ("min", "max"):
            kept = (a for a, b in (expr.args, expr.args[::-1]) if _leaves(expr, a, b, known))
            side = next(kept, None)
            if side is None:
                return expr
            expr = side
        else:
            return expr
    return expr


def _leaves(extreme: Call, value: Expr, bound: Expr, known: Known) -> bool:
    """Whether a minimum or maximum of a value and a number is the value, NaN included."""
    if not isinstance(bound, Const):
        return False
    limits = range_of_expr(value, known)
    if extreme.op.name == "min":
        return limits.high <= bound.value
    return bound.value <= limits.low


def _never(condition: Expr, ranges: _Ranges, known: Known) -> bool:
    """Whether a comparison cannot hold. With NaN none does."""
    if not (isinstance(condition, Call) and condition.op.name in COMPARISONS):
        return False
    left, right = (ranges.of(x, known) for x in condition.args)
    if condition.op.name in ("gt", "ge"):
        left, right = right, left
    return left.low >= right.high if condition.op.name in ("lt", "gt") else left.low > right.high


@dataclass
class _Ranges:
    """Ranges of the expressions in the body of an op, whose operands may be followed."""

    op: Op | None = None
    depth: int = 0
    operands: dict[Value, Range] = field(default_factory=dict)

    def of(self, expr: Expr, known: Known) -> Range:
        if expr in known:
            return known[expr]
        if isinstance(expr, Const):
            value = float(expr.value) if isinstance(expr.value, (int, float)) else math.nan
            return ANY if math.isnan(value) else Range(value, value)
        if isinstance(expr, Index):
            return Range(0, expr.extent - 1 if isinstance(expr.extent, int) else inf)
        if isinstance(expr, Load):
            return self._operand(expr)
        if isinstance(expr, Reduce):
            return _reduced(expr, self.of(expr.body, known))
        if not isinstance(expr, Call):
            return ANY
        if expr.op.name == "select":
            return self._selected(expr, known)
        if expr.op.name == "mul" and self._same(*expr.args):
            ends = self.of(expr.args[0], known)
            bound = max(abs(ends.low), abs(ends.high))
            return _rounded(Range(0.0, bound * bound), expr.dtype)
        return _called(expr, [self.of(x, known) for x in expr.args])

    def _operand(self, load: Load) -> Range:
        value = self.op.inputs[int(load.source)] if self.op is not None else None
        if value is None:
            return ANY
        if value not in self.operands:
            self.operands[value] = range_of(value, self.depth - 1)
        return self.operands[value]

    def _same(self, a: Expr, b: Expr) -> bool:
        """Whether two factors are equal: one expression, or one element of one operand."""
        if a is b or self.op is None or not (isinstance(a, Load) and isinstance(b, Load)):
            return a is b
        return self.op.inputs[int(a.source)] is self.op.inputs[int(b.source)] and a.index == b.index

    def _selected(self, expr: Call, known: Known) -> Range:
        condition, then, other = expr.args
        if _never(condition, self, known):
            return self.of(other, known)
        sides = [self.of(then, known), self.of(other, known)]
        if isinstance(condition, Call) and condition.op.name in COMPARISONS:
            x = condition.args[0]
            first, second = narrowed(condition, self.of(x, known))
            sides = [self.of(then, {**known, x: first}), self.of(other, {**known, x: second})]
        return sides[0].joined(sides[1])


def narrowed(comparison: Call, held: Range) -> tuple[Range, Range]:
    """The left side of a comparison, of range `held`: where it holds, and where it does not."""
    bound = comparison.args[1]
    if not isinstance(bound, Const):
        return held, held
    limit = float(bound.value)  # type: ignore[arg-type]
    below = Range(held.low, _least(held.high, limit))
    above = Range(_largest(held.low, -0.0 if limit == 0 else limit), held.high)
    return (above, below) if comparison.op.name in ("gt", "ge") else (below, above)


def _rounded(ends: Range, dtype: DType) -> Range:
    """Ends as a type has them; all that the type has if an integer would wrap."""
    if dtype.is_float:
        with np.errstate(all="ignore"):
            return Range(*(float(np.asarray(x).astype(dtype.np)) for x in (ends.low, ends.high)))
    if dtype.is_integer and not dtype.min <= ends.low <= ends.high <= dtype.max:
        return Range(dtype.min, dtype.max)
    return ends


def _reduced(node: Reduce, body: Range) -> Range:
    if node.op in ("max", "min"):
        empty = any(a.extent == 0 for a in node.axes)
        return ANY if empty else body
    if node.op in ("sum", "prod") and node.dtype.is_float and body.is_nonnegative:
        return Range(0.0, inf)
    return ANY


def _called(node: Call, args: list[Range]) -> Range:
    """What an operation gives for arguments in these ranges."""
    name, dtype = node.op.name, node.dtype
    if node.op.rule in ("compare", "logic", "test"):
        return BOOLEAN
    if name in CODOMAINS:
        return CODOMAINS[name]
    if name == "abs":
        first = args[0]
        outside = first.low if first.is_nonnegative else 0.0
        return Range(outside, max(abs(first.low), abs(first.high))) if dtype.is_float else ANY
    if name == "neg":
        return _rounded(Range(-args[0].high, -args[0].low), dtype)
    if name == "sqrt":
        return Range(0.0 if args[0].is_nonnegative else -0.0, inf)
    if name in ("cast", "cast_sat"):
        return _rounded(args[0], dtype) if dtype.is_float else ANY
    if name in ("min", "max"):
        return _extreme(name, args[0], args[1])
    if name == "pow":
        exponent = args[1].low
        even = exponent == args[1].high and exponent % 2 == 0
        return Range(0.0, inf) if even or args[0].is_nonnegative else ANY
    return arithmetic(name, args[0], args[1], dtype) if name in ARITHMETIC else ANY


def _extreme(name: str, a: Range, b: Range) -> Range:
    """Of a zero and another, either may be taken."""
    take: Callable[..., float] = min if name == "min" else max
    low, high = take(a.low, b.low), take(a.high, b.high)
    if low == 0 and not (a.is_nonnegative and b.is_nonnegative):
        low = -0.0
    return Range(low, 0.0 if high == 0 else high)


def arithmetic(name: str, a: Range, b: Range, dtype: DType) -> Range:
    """Sums, differences, products and quotients of numbers in two ranges."""
    if name == "sub":
        name, b = "add", Range(-b.high, -b.low)
    if name == "add":
        low, high = a.low + b.low, a.high + b.high
        return ANY if math.isnan(low) or math.isnan(high) else _rounded(Range(low, high), dtype)
    if name == "div" and (not dtype.is_float or b.low <= 0):
        return Range(0.0, inf) if a.is_nonnegative and b.is_nonnegative else ANY
    corners = [_corner(name, x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
    return _rounded(Range(_least(*corners), _largest(*corners)), dtype)


def _corner(name: str, x: float, y: float) -> float:
    """x * y or x / y; 0 where that is NaN, which is what finite numbers next to it come near."""
    result = x * y if name == "mul" else x / y
    zero = math.copysign(0.0, math.copysign(1, x) * math.copysign(1, y))
    return zero if math.isnan(result) else result
