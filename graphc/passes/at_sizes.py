"""Values and types of a graph of open shape at some sizes: numbers, or other expressions."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from graphc.ir.expr import Expr
from graphc.ir.graph import Value, constant_op, sizes_op
from graphc.ir.types import Dim, TensorType, at

Sizes = Mapping[Expr, Expr]


def dim_at(dim: Dim, sizes: Sizes) -> Dim:
    """A dimension at some sizes. Models have few, at many values."""
    return dim if isinstance(dim, int) else _dim_at(dim, tuple(sizes.items()))


@lru_cache(maxsize=1 << 12)
def _dim_at(dim: Expr, sizes: tuple[tuple[Expr, Expr], ...]) -> Dim:
    return at(dim, dict(sizes))


def value_at(value: Value | None, sizes: Sizes) -> Value | None:
    """A value that stands for another at some sizes."""
    if value is None:
        return None
    if value.constant is not None:  # a new one, as the op in question is no user of this one
        return constant_op(value.constant).output
    dims = value.known
    if dims is None:
        return Value(type_at(value, sizes).with_layout(None))
    numbers = np.empty(dims.shape, object)
    numbers.flat[:] = [dim_at(d, sizes) for d in dims.reshape(-1)]
    if any(isinstance(n, Expr) for n in numbers.flat):
        return sizes_op(numbers).output
    return constant_op(numbers.astype(np.int64)).output


def type_at(value: Value, sizes: Sizes) -> TensorType:
    """The type of a value at some sizes."""
    type = value.tensor
    return TensorType(type.dtype, tuple(dim_at(d, sizes) for d in type.dims), type.layout)


def attrs_at(attrs: Mapping[str, Any], sizes: Sizes) -> dict[str, Any]:
    """Attributes at some sizes: numbers of composites' parts can be made of them."""

    def of(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(of, value))
        return dim_at(value, sizes) if isinstance(value, Expr) else value

    return {name: of(value) for name, value in attrs.items()}
