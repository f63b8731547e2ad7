"""What the modes of differentiation ask of values."""

from __future__ import annotations

from collections.abc import Sequence

from graphc.ir.build import Builder
from graphc.ir.graph import Op, Region, Value
from graphc.ir.types import TensorType


def is_float(value: Value | None) -> bool:
    """Whether a value is a tensor of floats, which alone have derivatives."""
    return value is not None and isinstance(value.type, TensorType) and value.type.dtype.is_float


def zeros_like(b: Builder, value: Value) -> Value:
    """Zeros of the type of a value."""
    return filled(b, value.tensor, 0)


def filled(b: Builder, type: TensorType, number: float) -> Value:
    """A tensor of this type with one number everywhere; its dims may be over sizes."""
    return b.Expand(b.constant(number, type.dtype), b.dims(type.dims))


def added_to_zeros(value: Value) -> Op | None:
    """The scatter that makes a value by adding to zeros, if one does."""
    op = value.producer
    if op is None or op.name != "ScatterND" or op.attrs.get("reduction") != "add":
        return None
    fill = op.operand(0).producer
    number = fill.operand(0).constant if fill is not None and fill.name == "Expand" else None
    return op if number is not None and not number.any() else None


def seeded(
    region: Region, results: Sequence[Value], given: Sequence[Value | None]
) -> dict[Value, Value]:
    """The gradients of results, added up where a value is returned twice."""
    b, seeds = Builder(region), dict[Value, Value]()
    for value, g in zip(results, given):
        if g is not None:
            seeds[value] = b.Add(seeds[value], g) if value in seeds else g
    return seeds
