"""What the modes of differentiation ask of values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphc.ir.build import Builder
from graphc.ir.expr import Index, as_expr
from graphc.ir.graph import Region, Value
from graphc.ir.ops.generic import generic_op
from graphc.ir.types import TensorType


def is_float(value: Value | None) -> bool:
    """Whether a value is a tensor of floats, which alone have derivatives."""
    return value is not None and isinstance(value.type, TensorType) and value.type.dtype.is_float


def zeros_like(b: Builder, value: Value) -> Value:
    """Zeros of the type of a value."""
    return filled(b, value.tensor, 0)


def filled(b: Builder, type: TensorType, number: float) -> Value:
    """A tensor of this type with one number everywhere; its dims may be over sizes."""
    if type.is_static:
        return b.constant(np.full(type.static_shape, number, type.dtype.np))
    space = [Index(f"i{d}", extent) for d, extent in enumerate(type.dims)]
    return generic_op(b, space, as_expr(number, type.dtype), _no_operand)


def _no_operand(source: str) -> Value:
    raise KeyError(source)


def seeded(
    region: Region, results: Sequence[Value], given: Sequence[Value | None]
) -> dict[Value, Value]:
    """The gradients of results, added up where a value is returned twice."""
    b, seeds = Builder(region), dict[Value, Value]()
    for value, g in zip(results, given):
        if g is not None:
            seeds[value] = b.Add(seeds[value], g) if value in seeds else g
    return seeds
