"""What the modes of differentiation ask of values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphc.ir.build import Builder
from graphc.ir.graph import Region, Value
from graphc.ir.types import TensorType


def is_float(value: Value | None) -> bool:
    """Whether a value is a tensor of floats, which alone have derivatives."""
    return value is not None and isinstance(value.type, TensorType) and value.type.dtype.is_float


def zeros_like(b: Builder, value: Value) -> Value:
    """Zeros of the type of a value."""
    type = value.tensor
    return b.constant(np.zeros(type.static_shape, type.dtype.np))


def seeded(
    region: Region, results: Sequence[Value], given: Sequence[Value | None]
) -> dict[Value, Value]:
    """The gradients of results, added up where a value is returned twice."""
    b, seeds = Builder(region), dict[Value, Value]()
    for value, g in zip(results, given):
        if g is not None:
            seeds[value] = b.Add(seeds[value], g) if value in seeds else g
    return seeds
