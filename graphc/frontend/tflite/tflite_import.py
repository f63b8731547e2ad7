"""TensorFlow Lite models become graphs.

Operators are built one after the other, in the file's order, with types. What an operator becomes
are ordinary operators; of quantised ones, arithmetic of integers that gives what TensorFlow Lite
Micro's reference kernels give, bit for bit. Operators that are not supported are reported together.
"""

from __future__ import annotations

import os

import numpy as np

from graphc.errors import GraphcError, ModelError, UnsupportedError, together
from graphc.frontend.onnx_import import identifier
from graphc.frontend.tflite.handlers import HANDLERS
from graphc.frontend.tflite.node import FROM_IMAGE, TO_IMAGE, Node
from graphc.frontend.tflite.reader import Contents, Operator, Tensor, read
from graphc.ir.build import Builder
from graphc.ir.dtypes import DType
from graphc.ir.graph import Graph, Value
from graphc.ir.types import TensorType

NOT_SUPPORTED = "the operator is not supported; docs/tflite.md lists those that are"


def import_tflite(source: str | os.PathLike | bytes | bytearray | memoryview) -> Graph:
    """The graph of a TensorFlow Lite model given as a path or as bytes: of its first subgraph.

    Raises ModelError if the file or the model is wrong, UnsupportedError if an operator or a type
    is not supported, or package tflite is not installed.
    """
    return Importer(read(source)).build()


class Importer:
    """Builds the graph of one model. `values` and `images` are the tensors that are computed so
    far, by their numbers: as they are stored, and with the channels first."""

    def __init__(self, contents: Contents):
        self.contents, self.tensors = contents, contents.tensors
        self.graph = Graph(identifier(contents.name) or "main")
        self.b = Builder(self.graph)
        self.values: dict[int, Value] = {}
        self.images: dict[int, Value] = {}
        self.refused: list[UnsupportedError] = []
        self.lost: set[int] = set()  # results of operators that were refused
        self.names = _unique_names(contents)

    def build(self) -> Graph:
        for number in self.contents.inputs:
            tensor = self.tensors[number]
            if number in self.values:
                raise ModelError(f"input {tensor.where} is listed twice")
            type = TensorType(self.dtype(tensor), tensor.shape)
            self.values[number] = self.graph.add_param(type, self.names[number])
        for op in self.contents.operators:
            self._operator(op)
        if self.refused:
            raise together(self.refused)
        results = [self.value(number) for number in self.contents.outputs]
        self.graph.set_results(results)
        self.graph.output_names = _output_names(self.contents, self.names)
        self.graph.output_types = [value.type for value in results]
        return self.graph

    def _operator(self, op: Operator) -> None:
        named = next((n for n in op.outputs if n >= 0), None)
        name = self.names[named] if named is not None else f"operator {op.number}"
        where = f'{op.kind.replace(" ", "_")} "{name}"'
        self.b.loc = (name,)
        try:
            handler = HANDLERS.get(op.kind)
            if handler is None:
                raise UnsupportedError(NOT_SUPPORTED)
            if self.lost.intersection(op.inputs):
                self.lost.update(op.outputs)
                return
            for number in op.outputs:
                if number in self.values or number in self.images:
                    raise ModelError(f"{self.tensors[number].where} has a value already")
            handler(Node(self, op))
        except UnsupportedError as error:
            self.refused.append(UnsupportedError(f"{where}: {error}"))
            self.lost.update(op.outputs)
        except GraphcError as error:
            raise type(error)(f"{where}: {error}") from error

    # ------------------------------------------------------------ tensors

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


def _unique_names(contents: Contents) -> list[str]:
    """A name for each tensor, none of them twice."""
    taken: set[str] = set()
    names = []
    for tensor in contents.tensors:
        name = tensor.name or f"tensor_{tensor.number}"
        if name in taken:
            name = f"{name}_{tensor.number}"
        while name in taken:
            name += "_"
        taken.add(name)
        names.append(name)
    return names


def _output_names(contents: Contents, names: list[str]) -> list[str]:
    """Names of the results; one that is listed again gets another."""
    found: list[str] = []
    for number in contents.outputs:
        name = names[number]
        while name in found:
            name += "_"
        found.append(name)
    return found
