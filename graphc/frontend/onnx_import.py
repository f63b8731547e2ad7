"""ONNX models become graphs.

The model is read, checked, lifted to the newest opset (`upgrade`) and walked once. A `Scope` maps
ONNX names to values for one region. Regions are isolated from above: a name found in an enclosing
scope becomes an extra operand of the op that owns the region and an extra parameter of the region
(a capture), except constants, which are repeated inside (their arrays are shared). An operator
without a definition is replaced by its function body: the model's own or the ONNX schema's.
"""

from __future__ import annotations

import os
import re
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto

from graphc.errors import ModelError, UnsupportedError
from graphc.frontend import tensors, upgrade
from graphc.ir import opdef
from graphc.ir.expr import Sym
from graphc.ir.graph import Graph, Op, Region, Value, constant_op
from graphc.ir.opdef import OpDef
from graphc.ir.types import Type

# What import_onnx takes: a path, the bytes of a model, or a model.
Source = "str | os.PathLike | bytes | ModelProto"

MAX_NESTING = 64
_IGNORED_ATTRIBUTES = {"consumed_inputs"}


def import_onnx(source: Any) -> Graph:
    """The graph of an ONNX model given as a path, bytes or a ModelProto.

    ModelError: the file or the model is wrong. UnsupportedError: an operator has neither a
    definition nor a function body.
    """
    model = upgrade.upgrade(_load(source))
    return _Importer(model).graph()


def _load(source: Any) -> ModelProto:
    if isinstance(source, ModelProto):
        return source
    try:
        if isinstance(source, (bytes, bytearray, memoryview)):
            return onnx.load_from_string(bytes(source))
        return onnx.load(os.fspath(source))
    except OSError as error:
        raise ModelError(f"{source}: {error.strerror}") from error
    except Exception as error:
        raise ModelError(f"not an ONNX model: {error}") from error


class Scope:
    """The names visible in one region, and the captures made so far."""

    def __init__(self, region: Region, parent: Scope | None = None):
        self.region, self.parent = region, parent
        self.values: dict[str, Value] = {}
        self.captures: dict[str, Value] = {}
        self.depth: int = parent.depth + 1 if parent else 0
        if self.depth > MAX_NESTING:
            raise ModelError(f"sub-graphs are nested more than {MAX_NESTING} deep")

    def find(self, name: str) -> Value:
        """The value with this name, captured from an enclosing scope where necessary."""
        value = self.values.get(name)
        if value is None:
            if self.parent is None:
                raise ModelError(f"value {name!r} is used but not defined before")
            outer = self.parent.find(name)
            if outer.constant is not None:
                inner = constant_op(outer.constant, outer.name, outer.producer.loc)  # type: ignore
                value = self.region.append(inner).output
            else:
                value = self.captures[name] = self.region.add_param(outer.type, name)
            self.values[name] = value
        return value

    def define(self, name: str, value: Value) -> None:
        if name in self.values:
            raise ModelError(f"value {name!r} is defined twice")
        self.values[name] = value


class _Importer:
    def __init__(self, model: ModelProto):
        self.model = model
        self.functions = {(f.domain, f.name): f for f in model.functions}
        self.symbols: dict[str, Sym] = {}

    def graph(self) -> Graph:
        proto = self.model.graph
        graph = Graph(_identifier(proto.name) or "main")
        scope = Scope(graph)
        constants = {t.name for t in proto.initializer}
        constants |= {t.values.name for t in proto.sparse_initializer}
        for info in proto.input:
            if info.name not in constants:
                type = self.input_type(info)
                scope.define(info.name, graph.add_param(type, info.name))
        self.fill(scope, proto)
        graph.output_names = [info.name for info in proto.output]
        graph.symbols = {s.name: s for s in self.symbols.values()}
        return graph

    def input_type(self, info: onnx.ValueInfoProto) -> Type:
        where = f"input {info.name!r}"
        return tensors.to_type(info.type, where, lambda d, n: self.dim(d, n, info.name))

    def dim(self, proto, position: int, owner: str):
        if proto.HasField("dim_value"):
            return tensors.checked_dims([proto.dim_value], f"input {owner!r}")[0]
        key = proto.dim_param or f"{owner}.{position}"
        if key not in self.symbols:
            name = _identifier(proto.dim_param) or f"{_identifier(owner)}_d{position}"
            taken = {s.name for s in self.symbols.values()}
            while name in taken:
                name += "_"
            self.symbols[key] = Sym(name)
        return self.symbols[key]

    def fill(self, scope: Scope, proto: GraphProto) -> None:
        """Adds the constants, nodes and results of a graph whose inputs are defined."""
        for tensor in proto.initializer:
            array = tensors.to_array(tensor, f"initializer {tensor.name!r}")
            self.constant(scope, tensor.name, array)
        for sparse in proto.sparse_initializer:
            name = sparse.values.name
            self.constant(scope, name, tensors.to_dense(sparse, f"initializer {name!r}"))
        for node in proto.node:
            self.node(scope, node)
        scope.region.set_results([scope.find(info.name) for info in proto.output])

    def constant(self, scope: Scope, name: str, array: np.ndarray, loc: tuple = ()) -> None:
        scope.define(name, scope.region.append(constant_op(array, name, loc)).output)

    def node(self, scope: Scope, node: NodeProto) -> None:
        loc = node.name or next(filter(None, node.output), node.op_type)
        where = f'{node.op_type} "{loc}"'
        try:
            if node.op_type == "Constant" and node.domain in ("", "ai.onnx"):
                self.constant(scope, node.output[0], constant_value(node, where), (loc,))
                return
            defn = opdef.find(node.op_type, node.domain)
            if defn is None:
                self.expand(scope, node, where)
            else:
                self.op(scope, node, defn, loc, where)
        except (ModelError, UnsupportedError) as error:
            if str(error).startswith(where):
                raise
            raise type(error)(f"{where}: {error}") from error

    def op(self, scope: Scope, node: NodeProto, defn: OpDef, loc: str, where: str) -> None:
        inputs = [scope.find(name) if name else None for name in node.input]
        while inputs and inputs[-1] is None:
            inputs.pop()
        attrs, regions, captured = {}, [], []
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                regions.append(self.region(scope, attribute.g))
            elif attribute.name not in _IGNORED_ATTRIBUTES:
                attrs[attribute.name] = tensors.to_python(attribute, where)
        if regions:
            captured = _share_captures([r for r, _ in regions])
            if "captures" in defn.attrs:
                attrs["captures"] = len(captured)
        if node.op_type == "If":
            names = [a.name for a in node.attribute if a.type == AttributeProto.GRAPH]
            regions = [regions[names.index(n)] for n in ("then_branch", "else_branch")]
        opdef.bind_attrs(defn, attrs)
        inputs += [scope.find(name) for name in captured]
        outputs = list(node.output)
        while outputs and not outputs[-1]:
            outputs.pop()
        made = Op(defn, inputs, attrs, len(outputs), [s.region for s, _ in regions], (loc,))
        scope.region.append(made)
        for name, value in zip(outputs, made.outputs):
            value.name = name
            if name:
                scope.define(name, value)

    def region(self, scope: Scope, proto: GraphProto) -> tuple[Scope, int]:
        """A region for a sub-graph; the int is the number of parameters that it declares."""
        inner = Scope(Region(), scope)
        for info in proto.input:
            inner.define(info.name, inner.region.add_param(None, info.name))
        self.fill(inner, proto)
        return inner, len(proto.input)

    def expand(self, scope: Scope, node: NodeProto, where: str) -> None:
        full = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        raise UnsupportedError(f"{where}: operator {full} is not defined")


def _share_captures(scopes: list[Scope]) -> list[str]:
    """Gives all regions of an op the same captures in the same order; returns their names."""
    names = list(dict.fromkeys(name for scope in scopes for name in scope.captures))
    for scope in scopes:
        region = scope.region
        declared = [p for p in region.params if scope.captures.get(p.name) is not p]
        region.params = declared
        for name in names:
            param = scope.captures.get(name) or Value(None, None, 0, name)
            param.index = len(region.params)
            region.params.append(param)
    return names


def constant_value(node: NodeProto, where: str) -> np.ndarray:
    """The array of a Constant node, whichever attribute holds it."""
    if len(node.attribute) != 1:
        raise ModelError(f"{where}: needs exactly one attribute, found {len(node.attribute)}")
    attribute = node.attribute[0]
    value = tensors.to_python(attribute, where)
    if attribute.name in ("value", "sparse_value"):
        return value
    kinds = {"value_float": np.float32, "value_int": np.int64, "value_string": object}
    kind = kinds.get(attribute.name.removesuffix("s"))
    if kind is None:
        raise ModelError(f"{where}: has no attribute {attribute.name!r}")
    return np.array(value, kind)


def _identifier(name: str) -> str:
    """A name of letters, digits and underscores that is no index name (i0, k1, ...)."""
    clean = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_")
    if re.fullmatch(r"[0-9].*|[a-z]\d+", clean):
        return "_" + clean
    return clean
