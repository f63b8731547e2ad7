"""Facts about an op with a scalar body, read off it and kept with the op.

    scalar_function(op)     what a pointwise op computes of one element of each operand
    is_pointwise(op)        whether that is all: it changes places with movements of its operands
    choice(op)              of whose elements those of the results are: moved, or largest of some
    is_idempotent(op)       f(f(x)) == f(x)
    is_involution(op)       f(f(x)) == x
    copied_operand(op)      the operand that the result is equal to

No operator's name is looked at, so whoever defines an operator gets the rewrites of its like. All
hold for NaN, infinities and -0.0. Of an op whose operands have no known rank nothing is known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import TypeVar

from graphc.ir.expr import (
    Call,
    Const,
    Expr,
    Load,
    Reduce,
    Ref,
    free_indices,
    loads,
    substitute,
)
from graphc.ir.graph import Op
from graphc.ir.infer import op_body
from graphc.ir.simplify import simplify
from graphc.passes.analysis.ranges import decided, range_of_expr
from graphc.passes.analysis.structure import (
    aligned,
    has_body,
    is_movement,
    moved,
    own_index,
    pointwise,
    same_position,
)

Known = TypeVar("Known")

INVOLUTIONS = ("neg", "not", "bnot")  # scalar operations
IDEMPOTENT = ("abs", "sign", "floor", "ceil", "round", "trunc")
EXTREMES = ("max", "min")


def fact(function: Callable[[Op], Known]) -> Callable[[Op], Known | None]:
    """A fact that is found once for an op, while its operands stay; None for an op that has no
    scalar body, or operands of unknown rank."""

    @wraps(function)
    def known(op: Op) -> Known | None:
        if function not in op.memo:
            op.memo[function] = function(op) if has_body(op) else None
        return op.memo[function]

    return known


# ---------------------------------------------------------------- functions of single elements


@fact
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


@fact
def is_conversion(op: Op) -> bool:
    """Whether the result is the operand in another type."""
    return _is_call(scalar_function(op), ("cast",)) and len(op.inputs) == 1


@fact
def is_involution(op: Op) -> bool:
    """Whether f(f(x)) == x."""
    function = scalar_function(op)
    return _is_call(function, INVOLUTIONS) and isinstance(function.args[0], Ref)  # type: ignore


@fact
def is_idempotent(op: Op) -> bool:
    """Whether f(f(x)) == f(x): what f gives, it leaves as it is."""
    function = scalar_function(op)
    if function is None or len(op.inputs) != 1:
        return False
    if _is_call(function, IDEMPOTENT) and isinstance(function.args[0], Ref):  # type: ignore
        return True
    x = Ref("x0", function.dtype)
    return x.dtype is function.dtype and decided(function, {x: range_of_expr(function, {})}) is x


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


@fact
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
