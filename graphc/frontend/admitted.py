"""Element types that ONNX's operators do not take, though graphc's do.

graphc's definitions take whole classes of types (any integer, any float), ONNX lists them one by
one. Where an op has a type that its schema does not list, it is exported between conversions: its
operands to the narrowest listed type that holds all their values, its results back. That gives the
same numbers where converting back commutes with what the op computes:

* integers wrap, and sums, differences and products of wrapped integers are those of wide ones,
  wrapped. Everything else must read what has not left the range of the type (`_wraps`);
* floats are rounded once more, or once less.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
from onnx import TensorProto

from graphc.errors import UnsupportedError
from graphc.frontend import opsets
from graphc.ir import dtypes
from graphc.ir.dtypes import DType
from graphc.ir.expr import Call, Expr, Reduce, loads, walk
from graphc.ir.graph import Op, Value
from graphc.ir.infer import op_body
from graphc.ir.types import TensorType

WIDER = ("i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "bf16", "f16", "f32", "f64")
MODULAR = frozenset(("add", "sub", "mul", "neg", "sum", "prod"))
WITHIN = frozenset((  # what stays in the range of its operands' type
    "min", "max", "select", "cast", "sign", "band", "bor", "bxor", "shr", "mod", "rem",
    "eq", "ne", "lt", "le", "gt", "ge", "and", "or", "xor", "not",
))  # fmt: skip
FLOAT32_BODIES = frozenset(("MeanVarianceNormalization",))  # ONNX's have constants of float32


@dataclass(frozen=True)
class Conversions:
    """The types that operands are converted to, and results from; None: as they are."""

    operands: list[DType | None]
    results: list[DType | None]


def conversions(op: Op, operands: Sequence[Value | None]) -> Conversions | None:
    """What an op that has an ONNX schema is to be put between, or None if it can stand as it is.

    UnsupportedError if it has a type that ONNX does not take, and no other would do.
    """
    schema: Any = opsets.schema(op)
    formal_in, formal_out = _formals(schema.inputs, operands), _formals(schema.outputs, op.outputs)
    bound: dict[str, DType] = {}
    for formal, value in zip((*formal_in, *formal_out), (*operands, *op.outputs)):
        if value is not None and isinstance(value.type, TensorType):
            bound.setdefault(formal, value.type.dtype)
    refused = {f: d for f, d in bound.items() if not _admits(schema, f, d)}
    if not refused:
        return None
    chosen = {f: _wider(op, schema, f, d) for f, d in refused.items()}
    if not set(chosen) <= set(formal_in) or not _commutes(op, set(refused.values())):
        raise UnsupportedError(_message(op, refused))
    return Conversions([chosen.get(f) for f in formal_in], [chosen.get(f) for f in formal_out])


def _formals(declared: Sequence[Any], values: Sequence[Any]) -> list[str]:
    """The type variable (or type) that a schema gives each operand or result. The members of one
    that may have different types have a variable each."""
    names = []
    for position in range(len(values)):
        formal = declared[min(position, len(declared) - 1)]
        names.append(formal.type_str if formal.is_homogeneous else f"{formal.type_str}/{position}")
    return names


def _admits(schema: Any, formal: str, dtype: DType) -> bool:
    """Whether a type variable may stand for tensors of a type."""
    if schema.name in FLOAT32_BODIES and dtype is not dtypes.f32:
        return False
    variable = formal.partition("/")[0]
    name = f"tensor({TensorProto.DataType.Name(dtype.onnx).lower()})"
    for constraint in schema.type_constraints:
        if constraint.type_param_str == variable:
            return name in constraint.allowed_type_strs
    return name == variable


def _wider(op: Op, schema: onnx.defs.OpSchema, formal: str, dtype: DType) -> DType:
    """The narrowest type that is listed and holds all values of a type."""
    for name in WIDER:
        wide = dtypes.BY_NAME[name]
        if wide.is_float != dtype.is_float or wide.bits <= dtype.bits:
            continue
        if dtype.is_number and wide.min <= dtype.min and _admits(schema, formal, wide):
            return wide
    raise UnsupportedError(_message(op, {formal: dtype}))


def _message(op: Op, refused: dict[str, DType]) -> str:
    types = ", ".join(dict.fromkeys(map(str, refused.values())))
    return f"{op.where()}: ONNX's {op.name} does not take {types}; Cast to a type that it takes"


# ---------------------------------------------------------------- what may be converted


def _commutes(op: Op, refused: Collection[DType]) -> bool:
    """Whether an op computes the same on types wider than those refused."""
    if all(dtype.is_float for dtype in refused):
        return True
    if op.defn.form not in ("elementwise", "indexed"):
        return op.defn.form == "imperative"  # these order, move and add up elements
    return all(_wraps(op_body(op, number), refused) for number in range(len(op.outputs)))


def _wraps(body: Expr, types: Collection[DType]) -> bool:
    """Whether nothing but sums and products reads what may have left the range of its type."""
    return not any(
        _may_leave_range(part, types)
        for node in walk(body)
        if isinstance(node, (Call, Reduce)) and _name(node) not in MODULAR
        for part in _deciding(node)
    )


def _deciding(node: Call | Reduce) -> Sequence[Expr]:
    """What a node reads that decides more than which of its operands it gives."""
    if isinstance(node, Call) and node.op.name == "select":
        return (node.args[0],)
    return node.children


def _may_leave_range(part: Expr, types: Collection[DType]) -> bool:
    """Whether a part computes what these types cannot hold, with elements (not positions)."""
    wide = (n for n in walk(part) if n.dtype in types and isinstance(n, (Call, Reduce)))
    return any(loads(n) for n in wide if _name(n) not in WITHIN)


def _name(node: Call | Reduce) -> str:
    return node.op if isinstance(node, Reduce) else node.op.name
