"""Ops bound to the definitions of their operators: operands and attributes are checked and paired
with parameters; the definition then gives the shapes of the outputs, and a scalar body for each.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from graphc.errors import InternalError, ModelError, NeedsValue
from graphc.ir.expr import Call, Expr, Load, Reduce
from graphc.ir.opdef import Any_, Maps, OpDef, Operand, OutIndex, Param
from graphc.ir.types import Shape, TensorType, Type, broadcast, holds_maps
from graphc.ir.wide_bodies import once_rounded
from graphc.records import dataclass


@dataclass
class Arguments:
    """The operands and attributes of one op, bound to the parameters of its definition.

    `positional` holds, per parameter, an Operand (tensor), a numpy array (Known), or None; the
    members of a variadic parameter follow one by one.
    """

    positional: list
    keywords: dict[str, Any]


def bind(
    defn: OpDef,
    types: Sequence[Type | None],
    attrs: dict[str, Any],
    constants: Sequence[np.ndarray | None] = (),
    wrap: Callable[[int, TensorType], Any] = Operand,
) -> Arguments:
    """Checks operands and attributes against the definition and pairs them with it."""
    positional: list[Any] = []
    params = list(defn.params)
    for position in range(max(len(types), len(params))):
        param = params[min(position, len(params) - 1)] if params else None
        if position >= len(params) and (param is None or param.kind != "variadic"):
            raise ModelError(f"takes at most {len(params)} operands, found {len(types)}")
        assert param is not None
        if param.kind == "variadic" and position >= len(types):
            break
        type = types[position] if position < len(types) else None
        known = constants[position] if position < len(constants) else None
        positional.append(_argument(param, position, type, known, wrap))
    return Arguments(positional, bind_attrs(defn, attrs))


def _argument(
    param: Param, position: int, type: Type | None, known: np.ndarray | None,
    wrap: Callable[..., Any],
) -> Any:  # fmt: skip
    if type is None:
        if param.kind == "required":
            raise ModelError(f"operand {position} ({param.name}) is missing")
        return None
    if not isinstance(type, TensorType):  # a sequence, optional or map: host rules get its type
        if holds_maps(type) and param.accepts is not Maps:
            raise ModelError(
                f"operand {param.name} is {type}, which operators on tensors and sequences do not "
                "take: the result of ZipMap can only be an output; use the operand of ZipMap"
            )
        if param.accepts not in (Any_, Maps):
            raise ModelError(f"operand {param.name} takes {param.accepts}, found {type}")
        return type if wrap is Operand else wrap(position, type)
    if not param.accepts.accepts(type.dtype):
        raise ModelError(f"operand {param.name} takes {param.accepts}, found {type.dtype}")
    if not param.accepts.known:
        return wrap(position, type)
    if known is None:
        raise NeedsValue(f"the contents of operand {param.name} must be known", position)
    return known


def bind_attrs(defn: OpDef, attrs: dict[str, Any]) -> dict[str, Any]:
    """Attributes with defaults filled in; ModelError on an unknown or missing one."""
    unknown = [name for name in attrs if name not in defn.attrs]
    if unknown:
        raise ModelError(f"has no attribute {unknown[0]!r}; it takes {sorted(defn.attrs)}")
    missing = [name for name in defn.required_attrs if name not in attrs]
    if missing:
        raise ModelError(f"attribute {missing[0]!r} is required")
    return {**defn.attrs, **attrs}


@functools.cache
def _named_by(rule: Callable) -> tuple[frozenset[str], bool]:
    """The parameters of a shape rule, and whether it takes all other attributes besides."""
    parameters = inspect.signature(rule, eval_str=True).parameters
    shared = [p.annotation for p in parameters.values() if p.kind is p.VAR_KEYWORD]
    names = {*parameters, *(key for attrs in shared if isinstance(attrs, dict) for key in attrs)}
    return frozenset(names), any(not isinstance(attrs, dict) for attrs in shared)


def infer_shapes(defn: OpDef, arguments: Arguments, count: int) -> list:
    """What the definition's `infer` says of each output: shapes, or Types."""
    if defn.infer is None:
        operands = [a for a in arguments.positional if isinstance(a, Operand)]
        return [broadcast(*(a.shape for a in operands))] * count
    names, all_others = _named_by(defn.infer)
    keywords = {k: v for k, v in arguments.keywords.items() if all_others or k in names}
    if "count" in names:
        keywords["count"] = count
    result = defn.infer(*arguments.positional, **keywords)
    return result if isinstance(result, list) else [result] * max(count, 1)


def body(defn: OpDef, arguments: Arguments, shape: Shape, output: int, count: int = 1) -> Expr:
    """The scalar body of one output over indices i0, i1, ... with loads from "0", "1", ..."""
    assert defn.function is not None
    index = OutIndex.make(shape, output, count)
    result = defn.function(index, *arguments.positional, **arguments.keywords)
    if isinstance(result, tuple):
        if output >= len(result):
            raise ModelError(f"has {len(result)} outputs, {count} are asked for")
        result = result[output]
    if not isinstance(result, Expr):
        raise InternalError(f"the body of {defn.name} returned {result!r}, not an expression")
    result = once_rounded(result)
    if 0 not in shape:
        operands = {str(a.position): a for a in arguments.positional if isinstance(a, Operand)}
        for load in unguarded_loads(result):
            if load.source in operands:
                operands[load.source].check_read(load.index)
    return result


def unguarded_loads(expr: Expr) -> Iterator[Load]:
    """The loads that are evaluated at every index, whatever a condition says."""
    seen: set[Expr] = set()
    stack = [expr]
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if isinstance(node, Load):
            yield node
        if isinstance(node, Call) and node.op.name == "select":
            stack.append(node.args[0])
        elif not isinstance(node, Reduce) or all(axis.extent != 0 for axis in node.axes):
            stack.extend(node.children)
