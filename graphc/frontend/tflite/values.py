"""The tensors of a model that is being imported, as values of the graph."""

from __future__ import annotations

import numpy as np

from graphc.errors import ModelError, UnsupportedError
from graphc.frontend.tflite.reader import Tensor
from graphc.ir.build import Builder
from graphc.ir.dtypes import DType
from graphc.ir.graph import Value

TO_IMAGE, FROM_IMAGE = (0, 3, 1, 2), (0, 2, 3, 1)


class Values:
    """What is computed so far. `values` and `images` are the tensors by their numbers: as they are
    stored, and with the channels first (see node.py). `b` builds the graph."""

    def __init__(self, tensors: list[Tensor], b: Builder):
        self.tensors, self.b = tensors, b
        self.values: dict[int, Value] = {}
        self.images: dict[int, Value] = {}
        self.names = _unique_names(tensors)

    def has(self, number: int) -> bool:
        """Whether a tensor has a value."""
        return number in self.values or number in self.images

    def dtype(self, tensor: Tensor) -> DType:
        if tensor.dtype is None:
            raise UnsupportedError(
                f"{tensor.where} is of type {tensor.kind}, which is not supported"
            )
        return tensor.dtype

    def value(self, number: int) -> Value:
        """A tensor as it is stored."""
        if number not in self.values:
            tensor = self.tensors[number]
            if number in self.images:
                value = self.b.Transpose(self.images[number], perm=FROM_IMAGE)
            elif tensor.contents is not None:
                value = self.b.constant(tensor.contents)
            elif tensor.is_variable:
                raise UnsupportedError(
                    f"{tensor.where} is a variable, which operators change; make the state an "
                    "input and an output of the model (graphc keeps it with --state)"
                )
            else:
                raise ModelError(f"{tensor.where} is read before any operator computes it")
            value.name = self.names[number]
            self.values[number] = value
        return self.values[number]

    def image(self, number: int) -> Value:
        """A tensor with the channels before the spatial dims."""
        if number not in self.images:
            contents = self.tensors[number].contents
            if contents is not None:
                self.images[number] = self.b.constant(
                    np.ascontiguousarray(contents.transpose(TO_IMAGE))
                )
            else:
                self.images[number] = self.b.Transpose(self.value(number), perm=TO_IMAGE)
        return self.images[number]

    def define(self, tensor: Tensor, value: Value) -> None:
        self._check(tensor, value.tensor.dtype, value.tensor.dims)
        value.name = value.name or self.names[tensor.number]
        self.values[tensor.number] = value

    def define_image(self, tensor: Tensor, value: Value) -> None:
        dims = value.tensor.dims
        self._check(tensor, value.tensor.dtype, tuple(dims[d] for d in FROM_IMAGE))
        value.name = value.name or self.names[tensor.number]
        self.images[tensor.number] = value

    def _check(self, tensor: Tensor, dtype: DType, dims: tuple) -> None:
        if tuple(dims) != tensor.shape:
            raise ModelError(
                f"gives a result of shape {list(dims)}, {tensor.where} is {list(tensor.shape)}"
            )
        if dtype is not self.dtype(tensor):
            raise ModelError(f"gives a result of {dtype}, {tensor.where} is {tensor.kind}")


def _unique_names(tensors: list[Tensor]) -> list[str]:
    """A name for each tensor, none of them twice."""
    taken: set[str] = set()
    names = []
    for tensor in tensors:
        name = tensor.name or f"tensor_{tensor.number}"
        if name in taken:
            name = f"{name}_{tensor.number}"
        while name in taken:
            name += "_"
        taken.add(name)
        names.append(name)
    return names
