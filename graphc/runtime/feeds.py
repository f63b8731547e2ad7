"""Inputs for a model that has none at hand: drawn at random, always the same for one seed.

Floats are standard normal and small integers any. Wider integers are usually ids, positions or
masks: they stay below the extent of what they index, as far as the graph shows it, and are ones
where the name says that they are a mask.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from graphc.errors import ModelError
from graphc.ir.graph import Graph, Op, Value
from graphc.ir.types import OptionalType, SequenceType, TensorType, Type

UNKNOWN_EXTENT = 2  # what integers stay below if the graph does not say
SEQUENCE_LENGTH = 2


def open_dims(graph: Graph) -> dict[str, int]:
    """The dimension symbols that inputs leave open, each with the least useful extent it allows."""
    return {name: max(symbol.lo, 1) for name, symbol in graph.symbols.items()}


def random_feeds(
    graph: Graph, seed: int = 0, given: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Contents for every input of a graph, in order; those in `given` are kept.

    Types must be static. ModelError for inputs that have no shape, or hold strings.
    """
    rng = np.random.default_rng(seed)
    given = given or {}
    feeds = {}
    for param in graph.params:
        drawn = given[param.name] if param.name in given else _draw(param, param.type, rng)
        feeds[param.name] = drawn
    return feeds


def _draw(param: Value, type: Type | None, rng: np.random.Generator) -> Any:
    if isinstance(type, OptionalType):
        return _draw(param, type.element, rng)
    if isinstance(type, SequenceType):
        return [_draw(param, type.element, rng) for _ in range(SEQUENCE_LENGTH)]
    if not isinstance(type, TensorType) or not type.is_static:
        raise ModelError(
            f"input {param.name!r} is {type}: its shape must be given, or its contents"
        )
    shape, dtype = type.static_shape, type.dtype
    if dtype.kind == "string":
        raise ModelError(f"input {param.name!r} holds strings, which must be given")
    if dtype.kind == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if not dtype.is_integer:
        return _complex_or_real(rng, shape, dtype.np)
    if "mask" in param.name.lower():
        return np.ones(shape, dtype.np)
    if dtype.np.itemsize == 1:
        return rng.integers(int(dtype.min), int(dtype.max) + 1, shape).astype(dtype.np)
    return rng.integers(0, max(index_bound(param), 1), shape).astype(dtype.np)


def _complex_or_real(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> Any:
    real = rng.standard_normal(shape)
    if dtype.kind == "c":
        return np.asarray(real + 1j * rng.standard_normal(shape), dtype)
    return np.asarray(real, np.float32 if dtype.kind != "f" else dtype).astype(dtype)


def index_bound(value: Value) -> int:
    """The least extent that the elements of a value index, or UNKNOWN_EXTENT."""
    bounds = [bound for op, position in value.uses for bound in _bounds(op, position)]
    return min(bounds, default=UNKNOWN_EXTENT)


def _bounds(op: Op, position: int) -> list[int]:
    if op.name in ("Gather", "GatherElements") and position == 1:
        data = op.inputs[0]
        if data is not None and isinstance(data.type, TensorType) and data.type.shape is not None:
            extent = data.type.shape[op.attrs.get("axis", 0)]
            return [extent] if isinstance(extent, int) else []
    if op.name in ("Cast", "Identity", "Reshape", "Unsqueeze", "Squeeze", "Transpose", "Flatten"):
        return [b for o, p in op.output.uses if position == 0 for b in _bounds(o, p)]
    return []
