"""Sequences and optionals: a sequence is a Python list, an empty optional is None, a full one its
element. An empty sequence in an optional is an empty list, so the two differ.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from graphc.errors import ModelError, NeedsValue
from graphc.ir import dtypes
from graphc.ir.opdef import Any_, Int, Operand, host
from graphc.ir.ops.helpers import normal_axis
from graphc.ir.types import OptionalType, SequenceType, TensorType, Type

# ---------------------------------------------------------------- type rules


def _type(operand: Any) -> Type:
    """The type of an argument of an `infer` function (sequences come as their type)."""
    return operand.type if isinstance(operand, Operand) else operand


def _sequence(operand: Any) -> SequenceType:
    type = _type(operand)
    if isinstance(type, OptionalType):
        type = type.element
    if not isinstance(type, SequenceType):
        raise ModelError(f"expected a sequence, found {type}")
    return type


def _common(types: list[Type]) -> Type:
    """One type for all elements of a sequence: the rank is unknown if shapes differ."""
    first = types[0]
    if all(t == first for t in types):
        return first
    kinds = {t.dtype for t in types if isinstance(t, TensorType)}
    if len(kinds) != 1 or not all(isinstance(t, TensorType) for t in types):
        raise ModelError(f"a sequence cannot hold both {first} and {types[1]}")
    return TensorType(kinds.pop(), None)


def _element(operand: Any) -> Type:
    element = _sequence(operand).element
    if isinstance(element, TensorType) and element.shape is None:
        raise NeedsValue("the shapes of the sequence's elements are not known")
    return element


def _scalar(value: Any) -> int:
    if np.size(value) != 1:
        raise ModelError(f"a position or size is one element, found shape {list(np.shape(value))}")
    return int(np.asarray(value).reshape(-1)[0])


def _position(where: Any, length: int, last: int) -> int:
    """A position in 0..last, negative ones counted from `length`."""
    position = _scalar(where)
    place = position + length if position < 0 else position
    if not 0 <= place <= last:
        raise ModelError(f"position {position} is out of range for a sequence of length {length}")
    return place


# ---------------------------------------------------------------- sequences


@host("SequenceConstruct", infer=lambda *items: SequenceType(_common([_type(x) for x in items])))
def sequence_construct(*items: Any_) -> list[np.ndarray]:
    """The sequence of its operands."""
    return list(items)


@host(
    "SequenceEmpty",
    infer=lambda dtype: SequenceType(TensorType(dtypes.of(1 if dtype is None else dtype), None)),
)
def sequence_empty(*, dtype: int | None = None) -> list:
    """A sequence without elements."""
    return []


@host("SequenceLength", infer=lambda sequence: TensorType(dtypes.i64, ()))
def sequence_length(sequence: Any_) -> np.ndarray:
    """The number of elements."""
    return np.array(len(sequence), np.int64)


@host("SequenceAt", infer=lambda sequence, position: _element(sequence))
def sequence_at(sequence: Any_, position: Int) -> np.ndarray:
    """The element at a position; negative ones count from the end."""
    return sequence[_position(position, len(sequence), len(sequence) - 1)]


def _inserted(sequence: SequenceType, item: Operand, position: object = None) -> SequenceType:
    return SequenceType(_common([_sequence(sequence).element, _type(item)]))


@host("SequenceInsert", infer=_inserted)
def sequence_insert(sequence: Any_, item: Any_, position: Int = None) -> list[np.ndarray]:
    """The sequence with an item inserted before a position (at the end by default)."""
    size = len(sequence)
    where = size if position is None else _position(position, size, size)
    return [*sequence[:where], item, *sequence[where:]]


@host("SequenceErase", infer=lambda sequence, position=None: _sequence(sequence))
def sequence_erase(sequence: Any_, position: Int = None) -> list[np.ndarray]:
    """The sequence without the element at a position (the last by default)."""
    size = len(sequence)
    where = _position(-1 if position is None else position, size, size - 1)
    return [*sequence[:where], *sequence[where + 1 :]]


def _split_type(x: TensorType, split: object = None, *, axis: int = 0) -> SequenceType:
    """A sequence of tensors whose shapes are known once it has run."""
    if x.shape is not None:
        normal_axis(axis, len(x.shape))
    return SequenceType(TensorType(x.dtype, None))


@host("SplitToSequence", infer=_split_type)
def split_to_sequence(
    x: Any_, split: Int = None, *, axis: int = 0, keepdims: int = 1
) -> list[np.ndarray]:
    """The parts of x along an axis: of the sizes in `split`, of one size, or of size 1."""
    extent = x.shape[axis]
    if split is None:
        parts: list[np.ndarray] = [np.take(x, [n], axis) for n in range(extent)]
        return parts if keepdims else [np.squeeze(p, axis) for p in parts]
    if np.ndim(split) == 0:
        size = _scalar(split)
        if size <= 0:
            raise ModelError(f"split is {size}, expected a positive size")
        return _cut(x, axis, range(size, extent, size))
    sizes = np.asarray(split).tolist()
    if sum(sizes) != extent or min(sizes, default=0) < 0:
        raise ModelError(f"split {sizes} does not add up to the {extent} elements of axis {axis}")
    return _cut(x, axis, np.cumsum(sizes)[:-1])


def _cut(x: np.ndarray, axis: int, where: np.ndarray | range) -> list[np.ndarray]:
    return [np.ascontiguousarray(part) for part in np.split(x, list(where), axis)]


@host("ConcatFromSequence")
def concat_from_sequence(sequence: Any_, *, axis: int, new_axis: int = 0) -> np.ndarray:
    """The elements joined along an axis, a new one if new_axis."""
    if not sequence:
        raise ModelError("cannot join the elements of an empty sequence")
    join = np.stack if new_axis else np.concatenate
    return join(sequence, axis=axis)


# ---------------------------------------------------------------- optionals


def _optional_type(value: Operand | None = None, *, type: Type | None = None) -> OptionalType:
    if value is not None:
        return OptionalType(_type(value))  # type: ignore[arg-type]
    if type is None:
        raise ModelError("needs an operand or the attribute `type`")
    return OptionalType(type)


@host("Optional", infer=_optional_type)
def optional(value: Any_ = None, *, type: Type | None = None) -> np.ndarray:
    """An optional that holds the operand, or nothing."""
    return value


@host("OptionalHasElement", infer=lambda value=None: TensorType(dtypes.boolean, ()))
def optional_has_element(value: Any_ = None) -> np.ndarray:
    """Whether there is a value."""
    return np.array(value is not None)


def _held_type(value: Operand) -> Type:
    held = _type(value)
    return held.element if isinstance(held, OptionalType) else held


@host("OptionalGetElement", infer=_held_type)
def optional_get_element(value: Any_) -> np.ndarray:
    """The value of an optional; ModelError if it is empty."""
    if value is None:
        raise ModelError("OptionalGetElement: the optional is empty")
    return value
