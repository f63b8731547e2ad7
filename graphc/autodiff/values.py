"""What the modes of differentiation ask of values."""

from __future__ import annotations

import numpy as np

from graphc.ir.build import Builder
from graphc.ir.graph import Value
from graphc.ir.types import TensorType


def is_float(value: Value | None) -> bool:
    """Whether a value is a tensor of floats, which alone have derivatives."""
    return value is not None and isinstance(value.type, TensorType) and value.type.dtype.is_float


def zeros_like(b: Builder, value: Value) -> Value:
    """Zeros of the type of a value."""
    type = value.tensor
    return b.constant(np.zeros(type.static_shape, type.dtype.np))
