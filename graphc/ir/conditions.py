"""What an op asks of its operands, in one form for every kind of definition.

Scalar bodies load operands "0", "1", ... at indices of their own; kernels of imperative operators
load buffers in0, in1, ... Both become expressions over "0", "1", ... and indices i0, i1, ... of
known extents, which the interpreter evaluates, and of which pass `checks` makes ops.
"""

from __future__ import annotations

from graphc.errors import GraphcError, InternalError
from graphc.ir.checks import Check, Condition, closed, sentence
from graphc.ir.dtypes import i64
from graphc.ir.expr import (
    Const,
    Expr,
    Index,
    Load,
    Ref,
    Sym,
    free_indices,
    loads,
    select,
    substitute,
    symbols,
    transform,
    walk,
)  # fmt: skip
from graphc.ir.graph import Op
from graphc.ir.imperative.lowering import imperative_conditions
from graphc.ir.infer import conditions_of
from graphc.ir.simplify import bounds
from graphc.ir.types import Dim, TensorType
from graphc.records import dataclass


@dataclass(frozen=True)
class Asked:
    """A check of values: at all indices i0, i1, ... of these extents. `sizes` are the symbols that
    these and the value are made of."""

    value: Expr
    extents: tuple[Dim, ...]
    check: Check

    @property
    def sizes(self) -> tuple[Sym, ...]:
        parts = (self.value, *(e for e in self.extents if isinstance(e, Expr)))
        return tuple(sorted({s for part in parts for s in symbols(part)}, key=lambda s: s.name))


def asked_by(op: Op, named: Op | None = None) -> list[Asked]:
    """What a typed op asks of its operands, where there is anything to ask, and results have
    elements. Messages go by the names of `named`, which is the same op in its graph."""
    if any(0 in type.dims for type in _results(op)):
        return []
    if op.defn.form == "imperative":
        conditions = _of_kernel(op)
    elif op.defn.form in ("elementwise", "indexed"):
        conditions = conditions_of(op)
    else:
        return []
    checks = (_asked(named or op, condition) for condition in conditions)
    return [asked for asked in checks if 0 not in asked.extents]


def _of_kernel(op: Op) -> list[Condition]:
    """What an imperative op asks. None of one that has no kernel for open sizes, whose types are
    not final then."""
    try:
        return imperative_conditions(op)
    except GraphcError:
        if all(v is None or (v.type is not None and v.type.is_static) for v in op.inputs):
            raise
        return []


def _asked(op: Op, condition: Condition) -> Asked:
    value = transform(condition.value, _of_numbered)
    if any(isinstance(node, Ref) for node in walk(value)):
        raise InternalError(f"{op.where()}: a check may depend on operands and indices: {value}")
    axes = sorted(free_indices(value), key=lambda axis: axis.name)
    own: dict[Expr, Expr] = {axis: Index(f"i{n}", axis.extent) for n, axis in enumerate(axes)}
    said = sentence(condition.what, _operand(op, value), condition.low, condition.high)
    lying, low, high = closed(substitute(value, own), condition.low, condition.high)
    lying = _unless_empty(op, lying, low)
    return Asked(
        lying, tuple(axis.extent for axis in axes), Check(low, high, f"{op.where()}: {said}")
    )


def _unless_empty(op: Op, value: Expr, low: int) -> Expr:
    """A value to be checked, or one that lies in range where the sizes leave an op no element."""
    for dim in (d for type in _results(op) for d in type.dims):
        if isinstance(dim, Expr) and bounds(dim)[0] < 1:
            value = select(dim > 0, value, Const(low, i64))
    return value


def _results(op: Op) -> list[TensorType]:
    return [v.type for v in op.outputs if isinstance(v.type, TensorType)]


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
