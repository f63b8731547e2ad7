"""The types of batches: static ones, or over sizes that have bounds."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from graphc.errors import ModelError
from graphc.ir import dtypes
from graphc.ir.expr import Const, Expr
from graphc.ir.graph import Graph, clone_graph
from graphc.ir.sizes import sizes_of
from graphc.ir.types import Dim, TensorType, at
from graphc.passes.counts import wholly_typed
from graphc.passes.general import general
from graphc.passes.integers import KEEP_INTEGERS

TARGET = "target"
Types = Mapping[str, TensorType]


def typed_for(model: Graph, types: Types) -> Graph:
    """A copy of a model, typed for inputs of these types; the others have their own. ModelError if
    they do not fit, NeedsValue or NotOpen if an op has no type for all sizes."""
    own = {p.name: types.get(p.name, p.type) for p in model.params}
    tensors = {name: type for name, type in own.items() if isinstance(type, TensorType)}
    if all(type.is_static for type in tensors.values()):
        shapes = {name: type.static_shape for name, type in tensors.items()}
        return wholly_typed(model, shapes, policy=KEEP_INTEGERS)
    opened = clone_graph(model)
    for param in opened.params:
        param.type = own[param.name]
    return general(opened, KEEP_INTEGERS)


class Batches:
    """What types the batches of a model have, of which the sizes `names` stay open."""

    def __init__(self, graph: Graph, names: Collection[str]):
        self.graph = graph
        self.open = [size for name, size in graph.symbols.items() if name in names]
        self._results: dict[tuple[TensorType, ...], TensorType] = {}

    def types(self, feeds: Mapping[str, np.ndarray]) -> dict[str, TensorType]:
        """The types of the arrays of a batch, the target last: static ones, but for sizes that stay
        open. ModelError if an array does not fit, or a size is out of bounds."""
        types = {n: TensorType(dtypes.of(a.dtype), a.shape) for n, a in feeds.items()}
        if not self.open or not feeds:
            return types
        inputs = [(p.name, p.tensor) for p in self.graph.params]
        for name, type in inputs:
            if types[name].dtype is not type.dtype:
                raise ModelError(f"input {name!r} takes {type.dtype}, found {types[name].dtype}")
        sizes = list(self.graph.symbols.values())
        values = sizes_of(sizes, inputs, [feeds[name].shape for name, _ in inputs])
        met: dict[Expr, Expr] = dict(zip(sizes, map(Const, values)))
        fixed = {size: value for size, value in met.items() if size not in self.open}
        for name, type in inputs:
            types[name] = type.with_shape(at(dim, fixed) for dim in type.dims)
        own = tuple(types[name] for name, _ in inputs)
        if own not in self._results:
            self._results[own] = typed_for(self.graph, types).results[0].tensor
        dims = _of_target(self._results[own].dims, types[TARGET].static_shape)
        types[TARGET] = types[TARGET].with_shape(
            dim if at(dim, met) == extent else extent
            for dim, extent in zip(dims, types[TARGET].static_shape)
        )
        return types


def _of_target(result: tuple[Dim, ...], shape: tuple[int, ...]) -> tuple[Dim, ...]:
    """The dims of a target of this shape, by those of the result that it is compared with: the
    same, or without the axis of classes; otherwise the first alone is that of the result."""
    if len(shape) == len(result):
        return result
    if len(shape) == len(result) - 1:
        return (*result[:1], *result[2:])
    return (*result[:1], *shape[1:])[: len(shape)]
