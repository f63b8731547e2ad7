"""Facts about an op with a scalar body, read off it and kept with the op.

    scalar_function(op)     what a pointwise op computes of one element of each operand
    is_pointwise(op)        whether that is all: it changes places with movements of its operands
    choice(op)              of whose elements those of the results are: moved, or largest of some
    is_monotone(op, n)      whether f never falls as operand n grows
    is_linear_in(op, n)     f(.., a * x + b * y, ..) == a * f(.., x, ..) + b * f(.., y, ..)
    limits(op)              f(x) == min(max(x, low), high)
    negative_factor(op)     f(x) == x, or x times this below 0
    is_idempotent(op)       f(f(x)) == f(x)
    is_involution(op)       f(f(x)) == x
    copied_operand(op)      the operand that the result is equal to

No operator's name is looked at, so whoever defines an operator gets the rewrites of its like. All
hold for NaN, infinities and -0.0. Of an op whose operands have no known rank nothing is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, TypeVar

from graphc.ir.alike import once
from graphc.ir.expr import (
    Call,
    Const,
    Expr,
    Load,
    Reduce,
    Ref,
    called,
    free_indices,
    loads,
    substitute,
)
from graphc.ir.graph import Op, Value
from graphc.ir.infer import op_body
from graphc.ir.simplify import simplify
from graphc.passes.analysis.ranges import Range, decided, range_of, range_of_expr
from graphc.passes.analysis.slopes import keeps_nan, slope
from graphc.passes.analysis.structure import (
    aligned,
    has_body,
    is_movement,
    moved,
    own_index,
    pointwise,
    same_position,
)
from graphc.records import dataclass

Known = TypeVar("Known")

INVOLUTIONS = ("neg", "not", "bnot")  # scalar operations
IDEMPOTENT = ("abs", "sign", "floor", "ceil", "round", "trunc")
EXTREMES = ("max", "min")


def fact(function: Callable[[Op], Known]) -> Callable[[Op], Known | None]:
    """A fact that is found once for an op, while its operands stay; None for an op that has no
    scalar body, or operands of unknown rank, and until all its types are known."""

    @wraps(function)
    def known(op: Op) -> Known | None:
        if function not in op.memo:
            if not op.is_typed:
                return None
            op.memo[function] = function(op) if has_body(op) else None
        return op.memo[function]

    return known


def fact_of_body(function: Callable[[Op], Known]) -> Callable[[Op], Known | None]:
    """As `fact`, of what follows from the bodies of an op alone: found once for all that are
    alike."""

    def shared(op: Op) -> Known:
        facts: dict[Callable, Any] | None = op.memo.get(fact_of_body)
        if facts is None:
            dims = tuple([v.tensor.dims for v in op.outputs])
            facts = op.memo[fact_of_body] = once(op, ("facts", dims), dict[Callable, Any])
        if function not in facts:
            facts[function] = function(op)
        return facts[function]

    return fact(wraps(function)(shared))


# ---------------------------------------------------------------- functions of single elements


@fact_of_body
def scalar_function(op: Op) -> Expr | None:
    """What the elements of the only result are of the operands' elements at the same place, over
    Refs x0, x1, ...; None if they depend on more."""
    if op.defn.form != "elementwise" or len(op.outputs) != 1:
        return None
    body, own = op_body(op), own_index(op.output)
    elements: dict[Expr, Expr] = {}
    for load in loads(body):
        value = op.inputs[int(load.source)]
        assert value is not None
        if not same_position(load.index, aligned(own, value.tensor.dims)):
            return None
        elements[load] = Ref(f"x{load.source}", load.dtype)
    function = substitute(body, elements)
    return None if free_indices(function) else function


def is_pointwise(op: Op) -> bool:
    """Whether each element of the only result is a function of those at its place, the same
    everywhere."""
    return scalar_function(op) is not None


@fact_of_body
def is_conversion(op: Op) -> bool:
    """Whether the result is the operand in another type."""
    return _is_call(scalar_function(op), ("cast",)) and len(op.inputs) == 1


@fact_of_body
def is_involution(op: Op) -> bool:
    """Whether f(f(x)) == x."""
    function = scalar_function(op)
    return _is_call(function, INVOLUTIONS) and isinstance(function.args[0], Ref)  # type: ignore


@fact_of_body
def is_idempotent(op: Op) -> bool:
    """Whether f(f(x)) == f(x): what f gives, it leaves as it is."""
    function = scalar_function(op)
    if function is None or len(op.inputs) != 1:
        return False
    if _is_call(function, IDEMPOTENT) and isinstance(function.args[0], Ref):  # type: ignore
        return True
    x = Ref("x0", function.dtype)
    return x.dtype is function.dtype and decided(function, {x: range_of_expr(function, {})}) is x


@fact
def _known_function(op: Op) -> tuple[Expr, dict[Expr, Range]] | None:
    """The scalar function of an op, constants of one element put in; and the ranges of the other
    operands' elements."""
    function = scalar_function(op)
    if function is None:
        return None
    given = {n: value for n, value in enumerate(op.inputs) if value is not None}
    ranges: dict[Expr, Range] = {
        Ref(f"x{n}", value.tensor.dtype): range_of(value) for n, value in given.items()
    }
    return simplify(function, _numbers(op)), ranges


def _numbers(op: Op) -> dict[Expr, Expr]:
    """The operands, as `scalar_function` names them, that are constants of one element."""
    numbers: dict[Expr, Expr] = {}
    for n, value in enumerate(op.inputs):
        if value is not None and value.constant is not None and value.constant.size == 1:
            dtype = value.tensor.dtype
            numbers[Ref(f"x{n}", dtype)] = Const(value.constant.item(), dtype)
    return numbers


def never_limits(op: Op, ends: Range) -> bool:
    """Whether a pointwise op gives its first operand as it is, if that keeps within these ends."""
    function = scalar_function(op)
    if not isinstance(function, Call) or not called(function) & {*EXTREMES, "select"}:
        return False
    x = Ref("x0", op.output.tensor.dtype)
    return decided(simplify(function, _numbers(op)), {x: ends}) is x


def is_monotone(op: Op, operand: int = 0, falling: bool = False) -> bool:
    """Whether the elements of a pointwise op's result never fall (or, with `falling`, never rise)
    as those of an operand grow, but for rounding; and NaN gives NaN."""
    known, value = _known_function(op), op.inputs[operand]
    if known is None or value is None:
        return False
    function, ranges = known
    x = Ref(f"x{operand}", value.tensor.dtype)
    bounds = slope(function, x, ranges)
    if bounds is None or not keeps_nan(function, x):
        return False
    return bounds.high <= 0 if falling else bounds.low >= 0


def limits(op: Op) -> tuple[float, float] | None:
    """The least and the largest result of an op that otherwise gives its first operand."""
    known = _known_function(op)
    return None if known is None else _limits(known[0], Ref("x0", op.output.tensor.dtype))


def _limits(function: Expr, x: Expr) -> tuple[float, float] | None:
    if function is x:
        return -math.inf, math.inf
    if not isinstance(function, Call) or function.op.name not in (*EXTREMES, "select"):
        return None
    name, (inner, bound) = function.op.name, function.args[-2:]
    if name == "select":  # x < bound: bound, x
        condition, inner, bound = function.args[0], *function.args[:0:-1]
        if not _is_call(condition, ("lt", "gt")) or condition.children != (x, bound):
            return None
        name = "max" if condition.op.name == "lt" else "min"  # type: ignore[attr-defined]
    ends = _limits(inner, x)
    if ends is None or not isinstance(bound, Const):
        return None
    keep, number = max if name == "max" else min, float(bound.value)  # type: ignore[arg-type]
    return keep(ends[0], number), keep(ends[1], number)


def negative_factor(op: Op) -> float | Value | None:
    """What an op multiplies negative elements of its first operand by, and leaves others as they
    are: a number, or an operand."""
    known = _known_function(op)
    if known is None or not _is_call(known[0], ("select",)):
        return None
    condition, below, above = known[0].children
    x = Ref("x0", op.output.tensor.dtype)
    is_below_zero = _is_call(condition, ("lt",)) and condition.children == (x, Const(0.0, x.dtype))
    if above is not x or not is_below_zero or not _is_call(below, ("mul",)):
        return None
    factor = next((arg for arg in below.children if arg is not x), None)
    if isinstance(factor, Const):
        return float(factor.value)  # type: ignore[arg-type]
    return op.inputs[int(factor.name[1:])] if isinstance(factor, Ref) else None


# ---------------------------------------------------------------- sums with factors


@fact_of_body
def _linear_operands(op: Op) -> frozenset[int]:
    bodies = [op_body(op, n) for n in range(len(op.outputs))]
    read = {load.source for body in bodies for load in loads(body)}
    return frozenset(int(n) for n in read if all(_is_linear(body, n) for body in bodies))


def is_linear_in(op: Op, operand: int) -> bool:
    """Whether all results are sums of elements of a float operand times factors that do not depend
    on it."""
    return operand in (_linear_operands(op) or ())


def _is_linear(node: Expr, operand: str) -> bool:
    """Whether an expression is a sum of elements of an operand with factors, or zero."""
    if isinstance(node, Load):
        return node.source == operand and not _reads(node.index, operand)
    if isinstance(node, Const):
        return node.value == 0
    if not node.dtype.is_float:
        return False
    if isinstance(node, Reduce):
        return node.op == "sum" and _is_linear(node.body, operand)
    if not isinstance(node, Call):
        return False
    name, args = node.op.name, node.args
    if name in ("add", "sub", "neg", "cast"):
        return all(_is_linear(arg, operand) for arg in args)
    if name == "select":
        return not _reads(args[:1], operand) and all(_is_linear(x, operand) for x in args[1:])
    if name == "mul" and _is_linear(args[1], operand):
        args = args[::-1]
    return name in ("mul", "div") and _is_linear(args[0], operand) and not _reads(args[1:], operand)


def _reads(nodes: Iterable[Expr], operand: str) -> bool:
    return any(load.source == operand for node in nodes for load in loads(node))


def _is_call(node: Expr | None, names: tuple[str, ...]) -> bool:
    return isinstance(node, Call) and node.op.name in names


# ---------------------------------------------------------------- elements that stay what they are


@dataclass(frozen=True)
class Choice:
    """The results' elements are those of `operands` (their numbers), or `fills`: moved, or, with
    `extreme`, the largest or smallest of some. With `by_data`, which ones depends on what other
    operands hold. The order of elements decides at most, so any increasing function of single
    elements may as well be applied before as after, to the fills too."""

    operands: tuple[int, ...]
    fills: frozenset
    extreme: bool
    by_data: bool

    @property
    def is_of_elements(self) -> bool:
        """Whether nothing but elements is chosen."""
        return not self.fills


@fact_of_body
def choice(op: Op) -> Choice | None:
    """Of whose elements those of all results are; None if there is more to one."""
    operands: set[int] = set()
    deciding: set[int] = set()
    fills: set = set()
    extreme = False
    waiting: list[tuple[Expr, Const | None]] = [
        (op_body(op, n), None) for n in range(len(op.outputs))
    ]
    while waiting:
        node, identity = waiting.pop()
        if isinstance(node, Load):
            operands.add(int(node.source))
            deciding |= {int(x.source) for position in node.index for x in loads(position)}
        elif isinstance(node, Call) and node.op.name == "select":
            deciding |= {int(x.source) for x in loads(node.args[0])}
            waiting += [(side, identity) for side in node.args[1:]]
        elif isinstance(node, Reduce) and node.op in EXTREMES:
            extreme = True
            waiting.append((node.body, node.identity))
        elif isinstance(node, Call) and node.op.name in EXTREMES:
            extreme = True
            waiting += [(side, identity) for side in node.args]
        elif not isinstance(node, Const):
            return None
        elif identity is None or node.value != identity.value:
            fills.add(node.value)
    if not operands or operands & deciding:
        return None
    return Choice(tuple(sorted(operands)), frozenset(fills), extreme, bool(deciding))


def only_moves(op: Op) -> bool:
    """Whether all elements of the results are elements of one operand, which is no table of
    constants, whatever these are."""
    known = choice(op)
    if known is None or not known.is_of_elements or known.extreme or len(known.operands) != 1:
        return False
    value = op.inputs[known.operands[0]]
    return value is not None and value.constant is None


def chosen(op: Op) -> list[int]:
    """The operands of whose elements those of the only output are by their position alone, beside
    zeros and infinities, which roundings keep; empty if there is more to it."""
    known = choice(op) if op.defn.form == "indexed" and len(op.outputs) == 1 else None
    if known is None or known.by_data:
        return []
    inf = float("inf")
    return list(known.operands) if known.fills <= {0, inf, -inf} else []


@fact
def is_broadcast(op: Op) -> bool:
    """Whether the result is one operand, repeated along dims of extent 1 or new ones."""
    if not is_movement(op):
        return False
    number, source = moved(op)
    pairs = zip(source.tensor.dims[::-1], op.output.tensor.dims[::-1])
    return pointwise(op, number) and all(a in (1, b) for a, b in pairs)


@fact
def copied_operand(op: Op) -> int | None:
    """The operand that the only result is equal to, element for element and in type."""
    type = op.output.type if len(op.outputs) == 1 else None
    if type is None or all(v is None or v.type != type for v in op.inputs):
        return None
    body = simplify(op_body(op))
    if not isinstance(body, Load):
        return None
    number = int(body.source)
    value = op.inputs[number]
    assert value is not None
    own = own_index(op.output)
    same = all(a is b or b.extent == 1 for a, b in zip(body.index, own))
    return number if value.type == type and same else None
