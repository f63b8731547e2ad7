"""What an op asks of its operands, in one form for every kind of definition.

Scalar bodies load operands "0", "1", ... at indices of their own; kernels of imperative operators
load buffers in0, in1, ... Both become expressions over "0", "1", ... and indices i0, i1, ... of
known extents, which the interpreter evaluates, and of which pass `checks` makes ops.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphc.errors import InternalError
from graphc.ir.checks import Check, Condition, sentence
from graphc.ir.expr import Expr, Index, Load, Ref, free_indices, loads, substitute, transform, walk
from graphc.ir.graph import Op
from graphc.ir.imperative.lowering import imperative_conditions
from graphc.ir.infer import conditions_of


@dataclass(frozen=True)
class Asked:
    """A check of values: at all indices i0, i1, ... of these extents."""

    value: Expr
    extents: tuple[int, ...]
    check: Check


def asked_by(op: Op, named: Op | None = None) -> list[Asked]:
    """What an op with static types asks of its operands, where there is anything to ask. Messages
    go by the names of `named`, which is the same op in its graph."""
    if op.defn.form == "imperative":
        conditions = imperative_conditions(op)
    elif op.defn.form in ("elementwise", "indexed"):
        conditions = conditions_of(op)
    else:
        return []
    checks = (_asked(named or op, condition) for condition in conditions)
    return [asked for asked in checks if 0 not in asked.extents]


def _asked(op: Op, condition: Condition) -> Asked:
    value = transform(condition.value, _of_numbered)
    if any(isinstance(node, Ref) for node in walk(value)):
        raise InternalError(f"{op.where()}: a check may depend on operands and indices: {value}")
    axes = sorted(free_indices(value), key=lambda axis: axis.name)
    own: dict[Expr, Expr] = {axis: Index(f"i{n}", axis.extent) for n, axis in enumerate(axes)}
    said = sentence(condition.what, _operand(op, value), condition.low, condition.high)
    check = Check(condition.low, condition.high, f"{op.where()}: {said}")
    return Asked(substitute(value, own), tuple(axis.count for axis in axes), check)


def _of_numbered(node: Expr) -> Expr | None:
    if isinstance(node, Load) and node.source.startswith("in"):
        return Load(node.source.removeprefix("in"), node.index, node.dtype)
    return None


def _operand(op: Op, value: Expr) -> str:
    """Where a value is read from, for messages."""
    numbers = sorted({int(load.source) for load in loads(value)})
    if not numbers or numbers[0] >= len(op.inputs):
        return ""
    operand, params = op.inputs[numbers[0]], op.defn.params
    role = params[min(numbers[0], len(params) - 1)].name
    name = operand.name if operand is not None else ""
    return f"{role} {name!r}" if name else role
