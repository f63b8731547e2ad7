"""Sequences and optionals of known structure are taken apart: what is left are tensors.

Each function looks at one op whose operands have been treated already. It returns the values that
replace the op's results, or None if the structure is not known (then the op stays, for the host).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from graphc.ir.build import Builder
from graphc.ir.graph import Op, Value
from graphc.ir.types import OptionalType, SequenceType, TensorType

Replacement = list[Value] | None


def elements(value: Value | None) -> list[Value] | None:
    """The members of a sequence of known structure."""
    producer = None if value is None else value.producer
    if producer is None:
        return None
    if producer.name == "SequenceEmpty":
        return []
    if producer.name == "Optional" and producer.inputs:
        return elements(producer.inputs[0])
    return list(producer.inputs) if producer.name == "SequenceConstruct" else None  # type: ignore[arg-type]


def _position(op: Op, operand: int, length: int, default: int) -> int | None:
    """The position operand, counted from the front; None if it is not known or not valid."""
    if operand >= len(op.inputs) or op.inputs[operand] is None:
        return default
    contents = op.inputs[operand].constant  # type: ignore[union-attr]
    if contents is None or contents.size != 1:
        return None
    position = int(contents.reshape(-1)[0])
    position += length if position < 0 else 0
    return position if 0 <= position <= default else None


def _at(op: Op, b: Builder) -> Replacement:
    items = elements(op.inputs[0])
    if items is None:
        return None
    position = _position(op, 1, len(items), len(items) - 1)
    return None if position is None else [items[position]]


def _length(op: Op, b: Builder) -> Replacement:
    items = elements(op.inputs[0])
    return None if items is None else [b.constant(np.array(len(items), np.int64))]


def _insert(op: Op, b: Builder) -> Replacement:
    items, item = elements(op.inputs[0]), op.inputs[1]
    if items is None or item is None or item.type is None:
        return None
    position = _position(op, 2, len(items), len(items))
    if position is None:
        return None
    return [b.SequenceConstruct(*items[:position], item, *items[position:])]


def _erase(op: Op, b: Builder) -> Replacement:
    items = elements(op.inputs[0])
    position = None if not items else _position(op, 1, len(items), len(items) - 1)
    if items is None or position is None:
        return None
    left = items[:position] + items[position + 1 :]
    if left:
        return [b.SequenceConstruct(*left)]
    first = items[0].type
    return [b.SequenceEmpty(dtype=first.dtype.onnx)] if isinstance(first, TensorType) else None


def _is_ranked(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.shape is not None


def _concat(op: Op, b: Builder) -> Replacement:
    items = elements(op.inputs[0])
    if not items or not all(_is_ranked(v) for v in items):
        return None
    axis = op.attrs["axis"]
    if op.attrs.get("new_axis"):
        items = [b.Unsqueeze(v, np.array([axis])) for v in items]
    return items if len(items) == 1 else [b.Concat(*items, axis=axis)]


def _split(op: Op, b: Builder) -> Replacement:
    x, split = op.inputs[0], (op.inputs[1:] or [None])[0]
    if x is None or not isinstance(x.type, TensorType) or not x.type.is_static:
        return None
    axis = op.attrs.get("axis", 0) % x.type.rank
    extent = x.type.static_shape[axis]
    contents = np.array(1) if split is None else split.constant
    if contents is None or not extent or (contents.ndim == 0 and contents <= 0):
        return None
    sizes = [int(n) for n in contents.reshape(-1)]
    if contents.ndim == 0:
        full, rest = divmod(extent, sizes[0])
        sizes = [sizes[0]] * full + ([rest] if rest else [])
    if sum(sizes) != extent:
        return None
    parts = b.Split(x, np.array(sizes), axis=axis, outputs=len(sizes)) if len(sizes) > 1 else x
    pieces = list(parts) if isinstance(parts, tuple) else [parts]
    if split is None and not op.attrs.get("keepdims", 1):
        pieces = [b.Squeeze(piece, np.array([axis])) for piece in pieces]
    return [b.SequenceConstruct(*pieces)]


def _identity(op: Op, b: Builder) -> Replacement:
    (value,) = op.inputs
    return None if value is None or value.type is None else [value]


def _get(op: Op, b: Builder) -> Replacement:
    value = op.inputs[0] if op.inputs else None
    if value is None or value.type is None:
        return None
    if not isinstance(value.type, OptionalType):
        return [value]
    held = value.producer
    if held is None or held.name != "Optional" or not held.inputs:
        return None
    return list(held.inputs)  # type: ignore[arg-type]


def _has(op: Op, b: Builder) -> Replacement:
    value = op.inputs[0] if op.inputs else None
    if value is not None and value.type is None:
        return None
    if value is None or isinstance(value.type, (TensorType, SequenceType)):
        return [b.constant(np.array(value is not None))]
    held = value.producer
    if held is None or held.name != "Optional":
        return None
    return [b.constant(np.array(bool(held.inputs)))]


SIMPLIFY: dict[str, Callable[[Op, Builder], Replacement]] = {
    "SequenceAt": _at,
    "SequenceLength": _length,
    "SequenceInsert": _insert,
    "SequenceErase": _erase,
    "ConcatFromSequence": _concat,
    "SplitToSequence": _split,
    "Identity": _identity,
    "OptionalGetElement": _get,
    "OptionalHasElement": _has,
}


def simplify(op: Op) -> bool:
    """Replaces the op by what it amounts to, if its operands' structure is known."""
    rule = SIMPLIFY.get(op.name)
    if rule is None:
        return False
    found = rule(op, Builder(op.region, op, loc=op.loc))  # type: ignore[arg-type]
    if found is None:
        return False
    for old, new in zip(op.outputs, found):
        if not new.name:
            new.name = old.name
        old.replace_uses(new)
    op.erase()
    return True
