"""Sequences and optionals whose contents are known as values are taken apart.

    SequenceAt([a, b, c], 1)        == b
    SequenceLength([a, b, c])       == 3
    ConcatFromSequence([a, b], k)   == Concat(a, b, axis=k)
    SequenceErase, SequenceInsert, SequenceEmpty, SplitToSequence  == SequenceConstruct(...)
    OptionalGetElement(Optional(x)) == x,  OptionalHasElement(Optional(x)) == true

so that a model that uses sequences of fixed length needs no host code. `forward` rewrites one op in
place and tells whether it did; the rest is removed as dead code.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from graphc.ir.graph import Op, Value
from graphc.ir.types import OptionalType, SequenceType, TensorType
from graphc.passes.control_flow import Inliner

LIMIT = 1024  # elements of a sequence that is taken apart


def forward(op: Op) -> bool:
    """Rewrites an op on sequences or optionals into one on their elements, if they are known."""
    rule = _RULES.get(op.name)
    if rule is None or op.region is None:
        return False
    inliner = Inliner(op)
    result = rule(inliner, op)
    if result is None:
        inliner.undo()
        return False
    return inliner.finish([result])


def _items(value: Value | None) -> list[Value] | None:
    """The elements of a sequence that was constructed from values."""
    producer = None if value is None else value.producer
    if producer is None or producer.name != "SequenceConstruct":
        return None
    return producer.inputs  # type: ignore[return-value]


def _scalar(value: Value | None) -> int | None:
    contents = None if value is None else value.constant
    return None if contents is None else int(contents.reshape(-1)[0])


def _operand(op: Op, position: int) -> Value | None:
    return op.inputs[position] if position < len(op.inputs) else None


def _construct(inliner: Inliner, items: list[Value]) -> Value | None:
    return inliner.emit("SequenceConstruct", *items) if items else None


def _at(inliner: Inliner, op: Op) -> Value | None:
    items, position = _items(op.inputs[0]), _scalar(op.inputs[1])
    if items is None or position is None or not -len(items) <= position < len(items):
        return None
    return items[position]


def _length(inliner: Inliner, op: Op) -> Value | None:
    items = _items(op.inputs[0])
    return None if items is None else inliner.constant(np.array(len(items), np.int64))


def _insert(inliner: Inliner, op: Op) -> Value | None:
    sequence, item = op.inputs[0], op.inputs[1]
    assert sequence is not None and item is not None
    empty = sequence.producer is not None and sequence.producer.name == "SequenceEmpty"
    items = [] if empty else _items(sequence)
    if items is None or len(items) >= LIMIT:
        return None
    where: int | None = len(items)
    if _operand(op, 2) is not None:
        where = _scalar(_operand(op, 2))
    if where is None or not -len(items) <= where <= len(items):
        return None
    return _construct(inliner, [*items[:where], item, *items[where:]])


def _erase(inliner: Inliner, op: Op) -> Value | None:
    items = _items(op.inputs[0])
    where = -1 if _operand(op, 1) is None else _scalar(_operand(op, 1))
    if items is None or where is None or not -len(items) <= where < len(items):
        return None
    where %= len(items)
    return _construct(inliner, [*items[:where], *items[where + 1 :]])


def _concat(inliner: Inliner, op: Op) -> Value | None:
    items, axis = _items(op.inputs[0]), op.attrs["axis"]
    if not items:
        return None
    if op.attrs.get("new_axis", 0):
        where = np.array([axis], np.int64)
        items = [inliner.emit("Unsqueeze", item, where) for item in items]
    return inliner.emit("Concat", *items, axis=axis)


def _split(inliner: Inliner, op: Op) -> Value | None:
    whole, sizes = op.inputs[0], _operand(op, 1)
    if whole is None or not isinstance(whole.type, TensorType) or not whole.type.is_static:
        return None
    if sizes is not None and sizes.constant is None:
        return None
    axis = op.attrs.get("axis", 0) % whole.type.rank
    extent = whole.type.static_shape[axis]
    lengths = _part_lengths(None if sizes is None else sizes.constant, extent)
    if lengths is None or not 0 < len(lengths) <= LIMIT:
        return None
    starts = np.cumsum([0, *lengths])
    where = np.array([axis], np.int64)
    parts = [
        inliner.emit("Slice", whole, starts[n : n + 1], starts[n + 1 : n + 2], where)
        for n in range(len(lengths))
    ]
    if sizes is None and not op.attrs.get("keepdims", 1):
        parts = [inliner.emit("Squeeze", part, where) for part in parts]
    return _construct(inliner, parts)


def _part_lengths(sizes: np.ndarray | None, extent: int) -> list[int] | None:
    """The lengths of the parts of an axis; None if `sizes` does not fit."""
    if sizes is not None and sizes.ndim:
        lengths = [int(size) for size in sizes.reshape(-1)]
        return lengths if sum(lengths) == extent and min(lengths, default=0) >= 0 else None
    step = 1 if sizes is None else int(sizes)
    if step <= 0 or extent > step * LIMIT:
        return None
    return [min(step, extent - start) for start in range(0, extent, step)]


def _get_element(inliner: Inliner, op: Op) -> Value | None:
    return _held(op.inputs[0])


def _held(value: Value | None) -> Value | None:
    """The value in an optional that is certainly full; a tensor or sequence holds itself."""
    if value is None:
        return None
    if isinstance(value.type, (TensorType, SequenceType)):
        return value
    producer = value.producer
    if producer is None or producer.name != "Optional":
        return None
    return _held(_operand(producer, 0))


def _has_element(inliner: Inliner, op: Op) -> Value | None:
    value = _operand(op, 0)
    producer = None if value is None else value.producer
    empty = value is None or (
        isinstance(value.type, OptionalType)
        and producer is not None
        and producer.name == "Optional"
        and _operand(producer, 0) is None
    )
    if empty or _held(value) is not None:
        return inliner.constant(np.array(not empty))
    return None


_RULES: dict[str, Callable[[Inliner, Op], Value | None]] = {
    "SequenceAt": _at,
    "SequenceLength": _length,
    "SequenceInsert": _insert,
    "SequenceErase": _erase,
    "ConcatFromSequence": _concat,
    "SplitToSequence": _split,
    "OptionalGetElement": _get_element,
    "OptionalHasElement": _has_element,
}
