"""Bodies of operators that graphc does not define itself.

A body comes from the model's own functions or from the ONNX schema of the operator: fixed, or
built for the node and the types of its operands. `ValueTypes` finds those types with ONNX's shape
inference, on a copy of the model without its weights, the first time one is needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import FunctionProto, ModelProto, NodeProto, TypeProto, helper, numpy_helper

from graphc.errors import UnsupportedError
from graphc.frontend import tensors
from graphc.frontend.checks import schema_of
from graphc.frontend.node import Node
from graphc.frontend.scope import MAX_NESTING
from graphc.frontend.upgrade import OPSETS
from graphc.ir.graph import Value
from graphc.ir.types import TensorType

SMALL = 1024  # items of the largest constant that shape inference may look into


def schema_body(node: Node, types: ValueTypes) -> tuple[FunctionProto, dict[str, Any]] | None:
    """The function body that ONNX gives for a node and its attributes with defaults, or None."""
    schema: Any = schema_of(node.op_type, node.domain, OPSETS.get(node.domain, 1))
    if schema is None:
        return None
    attrs = {**defaults(schema), **node.attrs}
    if schema.has_function:
        return schema.function_body, attrs
    if not schema.has_context_dependent_function:
        return None
    inputs = [types.proto(value) for value in node.inputs]
    try:
        data = schema.get_context_dependent_function(
            _to_proto(node).SerializeToString(), [t.SerializeToString() for t in inputs]
        )
    except Exception as error:
        raise UnsupportedError(f"ONNX's function body cannot be built: {error}") from error
    return FunctionProto.FromString(data), attrs


def defaults(schema: onnx.defs.OpSchema) -> dict[str, Any]:
    """The attributes that have a default in a schema."""
    given = {name: a.default_value for name, a in schema.attributes.items() if a.default_value.type}
    return {name: tensors.to_python(value, name) for name, value in given.items()}


def _to_proto(node: Node) -> NodeProto:
    names = [f"x{n}" if value is not None else "" for n, value in enumerate(node.inputs)]
    outputs = [f"y{n}" if name else "" for n, name in enumerate(node.outputs)]
    proto = helper.make_node(node.op_type, names, outputs, domain=node.domain)
    for name, value in node.attrs.items():
        if isinstance(value, np.ndarray):
            value = numpy_helper.from_array(value)
        proto.attribute.append(helper.make_attribute(name, value))
    for name, graph in node.graphs.items():
        proto.attribute.append(helper.make_attribute(name, graph))
    return proto


class ValueTypes:
    """The types of the values of a model as far as ONNX's shape inference finds them."""

    def __init__(self, model: ModelProto):
        self.model = model
        self._inferred: dict[str, TypeProto] | None = None

    def proto(self, value: Value | None) -> TypeProto:
        """The type of a value; an empty message if it is omitted or not known."""
        if value is None:
            return TypeProto()
        if isinstance(value.type, TensorType):
            shape = value.type.shape
            dims = None if shape is None else [d if isinstance(d, int) else str(d) for d in shape]
            return helper.make_tensor_type_proto(value.type.dtype.onnx, dims)
        if self._inferred is None:
            self._inferred = self._infer()
        return self._inferred.get(value.name, TypeProto())

    def _infer(self) -> dict[str, TypeProto]:
        try:
            inferred = onnx.shape_inference.infer_shapes(without_weights(self.model))
        except Exception:  # an unusual model: its types stay unknown
            return {}
        types: dict[str, TypeProto] = {}
        graphs = [inferred.graph]
        while graphs:
            graph = graphs.pop()
            for info in (*graph.value_info, *graph.input, *graph.output):
                types.setdefault(info.name, info.type)
            graphs += [a.g for node in graph.node for a in node.attribute if a.HasField("g")]
        return types


class Sizes:
    """How many operations the functions of a model come to when the functions they call are
    expanded, so that a few that call each other cannot ask for ever more."""

    def __init__(self, functions: Mapping[tuple[str, str, str], FunctionProto]):
        self.functions = functions
        self._known: dict[tuple[str, str, str], int] = {}

    def of(self, function: FunctionProto, depth: int = 0) -> int:
        """The number of nodes in the body of a function, with those of its sub-graphs. Calls that
        are nested too deep, or are their own callers, count nothing: they are refused for that."""
        key = (function.domain, function.name, function.overload)
        if key not in self._known and depth <= MAX_NESTING:
            self._known[key] = 0
            self._known[key] = self._nodes(function.node, depth + 1)
        return self._known.get(key, 0)

    def _nodes(self, nodes: Iterable[NodeProto], depth: int) -> int:
        total = 0
        for node in nodes:
            called = self.functions.get((node.domain, node.op_type, node.overload))
            total += 1 if called is None else self.of(called, depth)
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    total += self._nodes(attribute.g.node, depth)
        return total


def without_weights(model: ModelProto) -> ModelProto:
    """A copy whose large constants are inputs, to check or to infer types within little memory."""
    copy = ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    copy.functions.extend(model.functions)
    graph = model.graph
    copy.graph.name = graph.name
    copy.graph.node.extend(graph.node)
    copy.graph.output.extend(graph.output)
    copy.graph.value_info.extend(graph.value_info)
    copy.graph.input.extend(graph.input)
    listed = {info.name for info in graph.input}
    for tensor in graph.initializer:
        external = tensor.data_location == onnx.TensorProto.EXTERNAL
        if math.prod(tensor.dims) <= SMALL and not external:
            copy.graph.initializer.append(tensor)
        elif tensor.name not in listed:
            info = helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
            copy.graph.input.append(info)
    return copy
