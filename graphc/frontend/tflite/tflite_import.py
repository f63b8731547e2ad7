"""TensorFlow Lite models become graphs.

Operators are built one after the other, in the file's order, with types. What an operator becomes
are ordinary operators; of quantised ones, arithmetic of integers that gives what TensorFlow Lite
Micro's reference kernels give, bit for bit. Operators that are not supported are reported together.
"""

from __future__ import annotations

import os

from graphc.errors import GraphcError, ModelError, UnsupportedError, together
from graphc.frontend.onnx_import import identifier
from graphc.frontend.tflite.handlers import HANDLERS
from graphc.frontend.tflite.node import Node
from graphc.frontend.tflite.reader import Contents, Operator, read
from graphc.frontend.tflite.values import Values
from graphc.ir.build import Builder
from graphc.ir.graph import Graph
from graphc.ir.types import TensorType

NOT_SUPPORTED = "the operator is not supported; docs/tflite.md lists those that are"


def import_tflite(source: str | os.PathLike | bytes | bytearray | memoryview) -> Graph:
    """The graph of a TensorFlow Lite model given as a path or as bytes: of its first subgraph.

    Raises ModelError if the file or the model is wrong, UnsupportedError if an operator or a type
    is not supported, or package tflite is not installed.
    """
    return Importer(read(source)).build()


class Importer:
    """Builds the graph of one model."""

    def __init__(self, contents: Contents):
        self.contents = contents
        self.graph = Graph(identifier(contents.name) or "main")
        self.values = Values(contents.tensors, Builder(self.graph))
        self.refused: list[UnsupportedError] = []
        self.lost: set[int] = set()  # results of operators that were refused

    def build(self) -> Graph:
        for number in self.contents.inputs:
            tensor = self.contents.tensors[number]
            if self.values.has(number):
                raise ModelError(f"input {tensor.where} is listed twice")
            type = TensorType(self.values.dtype(tensor), tensor.shape)
            param = self.graph.add_param(type, self.values.names[number])
            self.values.values[number] = param
        for op in self.contents.operators:
            self._operator(op)
        if self.refused:
            raise together(self.refused)
        results = [self.values.value(number) for number in self.contents.outputs]
        self.graph.set_results(results)
        self.graph.output_names = _output_names(self.contents, self.values.names)
        self.graph.output_types = [value.type for value in results]
        return self.graph

    def _operator(self, op: Operator) -> None:
        named = next((n for n in op.outputs if n >= 0), None)
        name = self.values.names[named] if named is not None else f"operator {op.number}"
        where = f'{op.kind.replace(" ", "_")} "{name}"'
        self.values.b.loc = (name,)
        try:
            handler = HANDLERS.get(op.kind)
            if handler is None:
                raise UnsupportedError(NOT_SUPPORTED)
            if self.lost.intersection(op.inputs):
                self.lost.update(op.outputs)
                return
            for number in op.outputs:
                if self.values.has(number):
                    raise ModelError(f"{self.contents.tensors[number].where} has a value already")
            handler(Node(self.values, op))
        except UnsupportedError as error:
            self.refused.append(UnsupportedError(f"{where}: {error}"))
            self.lost.update(op.outputs)
        except GraphcError as error:
            raise type(error)(f"{where}: {error}") from error


def _output_names(contents: Contents, names: list[str]) -> list[str]:
    """Names of the results; one that is listed again gets another."""
    unique: list[str] = []
    for number in contents.outputs:
        name = names[number]
        while name in unique:
            name += "_"
        unique.append(name)
    return unique
