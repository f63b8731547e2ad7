"""ONNX models become graphs.

A model is walked once, in its own order if nodes can be computed in it (`order`). Each node is
checked against the operator's schema, lifted to the newest opset (`upgrade`) and appended as an op.
An operator without a definition is replaced by its function body (`functions`). Sub-graphs become
regions isolated from above (`scope`). Values other than inputs and constants get their types later.
Whatever is wrong with a file ends in a ModelError or UnsupportedError that names the node by the
user's own name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto

from graphc.errors import GraphcError, ModelError, UnsupportedError, together, warn
from graphc.frontend import blocked, checks, tensors, upgrade
from graphc.frontend import gradients as gradients  # registers what Gradient becomes
from graphc.frontend import runtime_names as runtime_names  # registers what they mean
from graphc.frontend.external_data import DataFolder
from graphc.frontend.functions import Sizes, ValueTypes, schema_body
from graphc.frontend.loading import load
from graphc.frontend.node import Node
from graphc.frontend.order import in_order
from graphc.frontend.scope import Context, Scope, StructureError, share_captures
from graphc.ir import binding, opdef
from graphc.ir.dtypes import boolean, i64
from graphc.ir.expr import Sym
from graphc.ir.graph import Graph, Op, Region, Value, constant_op
from graphc.ir.opdef import OpDef
from graphc.ir.ops.failing import DEFERRED, fail_instead, failing
from graphc.ir.ops.onnxruntime.blocked import BLOCKED
from graphc.ir.types import Dim, TensorType, Type

MAX_OPS = 1 << 20  # after functions are expanded

NONE: Mapping[int, memoryview] = MappingProxyType({})
ANONYMOUS = ("", "?", "*", "-1", "None")  # dim_params that name nothing: each is one of its own
REGIONS = {"If": ("then_branch", "else_branch")}  # the graph attributes of other ops: "body"


def import_onnx(
    source: str | os.PathLike | bytes | ModelProto,
    *,
    base_dir: str | os.PathLike | None = None,
    keep_inputs: Collection[str] = (),
) -> Graph:
    """The graph of an ONNX model given as a path, as bytes or as a ModelProto.

    `base_dir` is the folder of external data, by default the folder of the path. Inputs that have
    an initializer become constants, except those in `keep_inputs`. Raises ModelError if the file
    or the model is wrong, UnsupportedError if an operator has neither a definition nor a body.
    """
    model, folder, contents = load(source)
    if base_dir is not None:
        folder = os.fspath(base_dir)
    return Importer(model, DataFolder(folder), keep_inputs, contents).graph()


class Importer:
    """Builds the graph of one model."""

    def __init__(
        self, model: ModelProto, folder: DataFolder, keep_inputs: Collection[str] = (),
        contents: Mapping[int, memoryview] = NONE,
    ):  # fmt: skip
        self.model, self.folder, self.keep_inputs = model, folder, frozenset(keep_inputs)
        self.contents = contents  # of initializers that the message lacks
        self.functions = {(f.domain, f.name, f.overload): f for f in model.functions}
        self.sizes = Sizes(self.functions)
        self.types = ValueTypes(model)
        self.symbols: dict[str, Sym] = {}
        self.count = 0
        self.refused: list[UnsupportedError] = []  # of nodes of the whole model

    def graph(self) -> Graph:
        """The whole model."""
        checks.check_text(self.model)
        proto = self.model.graph
        graph = Graph(identifier(proto.name) or "main")
        scope = Scope(graph, Context(self._versions(self.model.opset_import)))
        constants = {t.name for t in proto.initializer}
        constants |= {t.values.name for t in proto.sparse_initializer}
        for info in proto.input:
            if info.name not in constants or info.name in self.keep_inputs:
                self._input(scope, info)
        self._fill(scope, proto, self.keep_inputs, self.contents)
        if self.refused:
            raise together(self.refused)
        graph.output_names = [info.name for info in proto.output]
        graph.output_types = [self._output_type(info) for info in proto.output]
        graph.symbols = {symbol.name: symbol for symbol in self.symbols.values()}
        return graph

    def _versions(self, imports: Iterable[onnx.OperatorSetIdProto]) -> dict[str, int]:
        versions = {domain_of(entry.domain): entry.version for entry in imports}
        if not versions and self.model.ir_version < 3:  # from before operator sets had versions
            versions[""] = 1
        newest = onnx.defs.onnx_opset_version()
        if not 1 <= versions.get("", 1) <= newest:
            raise UnsupportedError(
                f"opset {versions['']} is not one of the known ones, 1 to {newest}"
            )
        return versions

    @cached_property
    def block(self) -> int:
        """The channels of a block of ONNX Runtime's layout, if the model holds it."""
        return blocked.block_size(self.model)

    # ------------------------------------------------------------ inputs

    def _input(self, scope: Scope, info: onnx.ValueInfoProto) -> None:
        where = f"input {info.name!r}"
        type = tensors.to_type(info.type, where, lambda d, n: self._dim(d, n, info.name))
        scope.define(info.name, scope.region.add_param(type, info.name))

    def _output_type(self, info: onnx.ValueInfoProto) -> Type | None:
        if not info.type.WhichOneof("value"):
            return None
        symbols = dict(self.symbols)
        declared = tensors.to_type(
            info.type, f"output {info.name!r}", lambda d, n: self._dim(d, n, info.name)
        )
        self.symbols = symbols  # those that only an output names are no dims of the graph
        return declared

    def _dim(self, proto: onnx.TensorShapeProto.Dimension, position: int, owner: str) -> Dim:
        """A dimension. One that is negative is not known: some exporters write -1."""
        if proto.HasField("dim_value") and proto.dim_value >= 0:
            return tensors.checked_dims([proto.dim_value], f"{owner!r}")[0]
        given = "" if proto.dim_param.strip() in ANONYMOUS else proto.dim_param
        key = given or f"{owner}.{position}"
        if key not in self.symbols:
            name = identifier(given) or f"{identifier(owner)}_dim{position}"
            taken = {symbol.name for symbol in self.symbols.values()}
            while name in taken:
                name += "_"
            self.symbols[key] = Sym(name)
        return self.symbols[key]

    # ------------------------------------------------------------ graphs

    def _fill(
        self, scope: Scope, proto: GraphProto, keep: Collection[str] = (),
        contents: Mapping[int, memoryview] = NONE,
    ) -> None:  # fmt: skip
        """Adds the constants, nodes and results of a graph whose inputs are defined."""
        for number, tensor in enumerate(proto.initializer):
            if tensor.name not in keep:
                where = f"initializer {tensor.name!r}"
                array = tensors.to_array(tensor, where, self.folder, contents.get(number))
                self._constant(scope, tensor.name, array)
        for sparse in proto.sparse_initializer:
            name = sparse.values.name
            where = f"initializer {name!r}"
            self._constant(scope, name, tensors.to_dense(sparse, where, self.folder))
        self._nodes(scope, proto.node)
        results = []
        for info in proto.output:
            try:
                results.append(scope.require(info.name))
            except ModelError as error:
                raise type(error)(f"graph output {error}") from error
        scope.region.set_results(results)

    def _constant(self, scope: Scope, name: str, array: np.ndarray, loc: tuple = ()) -> None:
        made = constant_op(array, scope.context.qualified(name), loc)
        scope.define(name, scope.region.append(made).output)

    def _nodes(self, scope: Scope, nodes: Sequence[NodeProto]) -> None:
        nodes = in_order(nodes)
        names = [frozenset(node.output) for node in nodes]
        remaining = {name: position for position, some in enumerate(names) for name in some if name}
        scope.later = remaining.keys()
        for position, proto in enumerate(nodes):
            try:
                self._node(scope, proto)
            except UnsupportedError as error:
                if scope.depth:
                    raise
                self._refuse(scope, proto, error)
            for name in names[position]:
                if remaining.get(name) == position:
                    del remaining[name]

    def _region(self, scope: Scope, proto: GraphProto) -> tuple[Scope, int]:
        inner = scope.inner(Region())
        for info in proto.input:
            name = scope.context.qualified(info.name)
            inner.define(info.name, inner.region.add_param(_element_type(info), name))
        self._fill(inner, proto)
        return inner, len(proto.input)

    # ------------------------------------------------------------ nodes

    def _node(self, scope: Scope, proto: NodeProto) -> None:
        name = proto.name or next(filter(None, proto.output), proto.op_type)
        name = scope.context.qualified(name)
        where = f'{proto.op_type} "{name}"'
        try:
            if not proto.op_type:
                raise ModelError("the node has no op_type")
            node = self._read(scope, proto, name, where)
            for key, value in zip(node.outputs, self.build(node)):
                if key:
                    value.name = scope.context.qualified(key)
                    scope.define(key, value)
        except GraphcError as error:
            if str(error).startswith(where) or error.in_function:
                raise
            made = type(error)(f"{where}: {error}")
            made.in_function = bool(scope.context.call)  # the name tells all calls around it
            raise made from error

    def _refuse(self, scope: Scope, proto: NodeProto, error: UnsupportedError) -> None:
        """Keeps the error of a node, and goes on as if it had results."""
        self.refused.append(error)
        names = [name for name in proto.output if name]
        for name, value in zip(names, failing(scope.region, error, names)):
            scope.define(name, value)

    def _read(self, scope: Scope, proto: NodeProto, name: str, where: str) -> Node:
        domain, context = domain_of(proto.domain), scope.context
        version = context.versions.get(domain)
        if version is None:
            if domain in upgrade.OPSETS:
                raise ModelError(
                    f"the model imports no opset of the domain {domain or 'ai.onnx'!r}"
                )
            version = 1
        self._check_version(proto, domain, version)
        ignored = checks.check_node(proto, domain, version)
        attrs: dict[str, Any] = {}
        graphs: dict[str, GraphProto] = {}
        for attribute in proto.attribute:
            if attribute.ref_attr_name:
                self._refer(attribute, context, attrs)
            elif tensors.kind_of(attribute) == AttributeProto.GRAPH:
                graphs[attribute.name] = attribute.g
            elif attribute.name not in ignored:
                attrs[attribute.name] = tensors.to_python(attribute, where, self.folder)
        inputs = [scope.find(key) if key else None for key in proto.input]
        if domain == BLOCKED and proto.op_type in ("Conv", "ReorderInput"):
            attrs["block"] = self.block
        outputs = list(proto.output)
        if not checks.is_variadic(proto.op_type, domain, version):  # those count all outputs
            while outputs and not outputs[-1]:
                outputs.pop()
        return Node(
            proto.op_type, domain, version, inputs, attrs, graphs, outputs, scope, self.build,
            (name,), overload=proto.overload,
        )  # fmt: skip

    def _check_version(self, proto: NodeProto, domain: str, version: int) -> None:
        newest = upgrade.OPSETS.get(domain, version)
        if version > newest:
            schema = checks.schema_of(proto.op_type, domain, version)
            if schema is not None and schema.since_version > newest:
                raise UnsupportedError(
                    f"the operator of opset {schema.since_version} is newer than {newest}"
                )

    def _refer(self, attribute: AttributeProto, context: Context, attrs: dict[str, Any]) -> None:
        if context.attributes is None:
            raise ModelError(f"attribute {attribute.name!r} refers to a function's, outside any")
        if attribute.ref_attr_name in context.attributes:
            attrs[attribute.name] = context.attributes[attribute.ref_attr_name]

    def build(self, node: Node) -> list[Value]:
        """Appends the ops of a node, at the newest opset, and returns its outputs."""
        self.count += 1
        if self.count > MAX_OPS:
            raise UnsupportedError(f"more than {MAX_OPS} operations, when functions are expanded")
        if node.domain in upgrade.OPSETS or self._function(node) is None:
            upgrade.lift(node)
        outputs = node.built if node.built is not None else self._ops(node)
        for finish in reversed(node.finish):
            outputs = finish(outputs)
        return outputs

    def _ops(self, node: Node) -> list[Value]:
        if node.op_type == "Constant" and not node.domain:
            return [
                node.scope.region.append(constant_op(constant_value(node), loc=node.loc)).output
            ]
        defn = opdef.find(node.op_type, node.domain)
        function = self._function(node)
        if function is not None and (defn is None or node.domain not in upgrade.OPSETS):
            if node.graphs:
                raise UnsupportedError("functions with graph attributes are not supported")
            return self._call(node, function, {**_function_defaults(function), **node.attrs})
        if defn is not None:
            return self._op(node, defn)
        body = schema_body(node, self.types)
        if body is None:
            raise UnsupportedError(
                f"operator {node.full_name} has neither a definition nor a function body; --plugin "
                "loads definitions (docs/writing_an_operator.md)"
            )
        return self._call(node, *body)

    def _function(self, node: Node) -> FunctionProto | None:
        """The model's own function that a node calls."""
        return self.functions.get((node.domain, node.op_type, node.overload))

    def _op(self, node: Node, defn: OpDef) -> list[Value]:
        while node.inputs and node.inputs[-1] is None:
            node.inputs.pop()
        binding.bind_attrs(defn, node.attrs)
        if defn.form == "region":
            return self._region_op(node, defn)
        if node.graphs:
            raise UnsupportedError(f"graph attributes {sorted(node.graphs)} are not supported")
        made = Op(defn, node.inputs, node.attrs, len(node.outputs), loc=node.loc)
        return node.scope.region.append(made).outputs

    # ------------------------------------------------------------ control flow

    def _region_op(self, node: Node, defn: OpDef) -> list[Value]:
        names = REGIONS.get(node.op_type, ("body",))
        missing = [name for name in names if name not in node.graphs]
        if missing:
            raise ModelError(f"attribute {missing[0]!r} is required")
        built = self._regions(node, names)
        count = self._check_regions(node, [(declared, s.region) for s, declared in built])
        if node.op_type == "Loop":
            trip, condition = built[0][0].region.params[:2]
            trip.type, condition.type = TensorType(i64, ()), TensorType(boolean, ())
        captured = share_captures([(scope.region, scope.captures) for scope, _ in built])
        if "captures" in defn.attrs:
            node.attrs["captures"] = len(captured)
        inputs = [*node.inputs, *(node.scope.require(name) for name in captured)]
        regions = [scope.region for scope, _ in built]
        made = Op(defn, inputs, node.attrs, count, regions, node.loc)
        return node.scope.region.append(made).outputs

    def _regions(self, node: Node, names: Sequence[str]) -> list[tuple[Scope, int]]:
        """The regions of a node. One branch may be wrong: that is an error where it is taken."""
        built, wrong = [], False
        for name in names:
            proto = node.graphs[name]
            try:
                built.append(self._region(node.scope, proto))
            except DEFERRED as error:
                if len(names) == 1 or wrong or isinstance(error, StructureError):
                    raise
                wrong = True
                warn(f"the {name} of {node.op_type} {node.loc[0]!r} must not be taken: {error}")
                scope = node.scope.inner(Region())
                fail_instead(scope.region, error, [info.name for info in proto.output])
                built.append((scope, 0))
        return built

    def _check_regions(self, node: Node, regions: list[tuple[int, Region]]) -> int:
        """The number of outputs, from the bodies; ModelError if they do not fit the node."""
        taken = 0 if node.op_type == "If" else len(node.inputs)
        extra = 1 if node.op_type == "Loop" else 0  # a Loop's first result is its condition
        if node.op_type == "Loop":
            node.inputs += [None] * (2 - len(node.inputs))
            taken = len(node.inputs)
        counts = {len(region.results) - extra for _, region in regions}
        for declared, _ in regions:
            if declared != taken:
                raise ModelError(f"its body must take {taken} inputs, found {declared}")
        if len(counts) > 1:
            raise ModelError(f"its branches give different numbers of outputs, {sorted(counts)}")
        count = counts.pop()
        if count < len(node.outputs):
            raise ModelError(f"has {len(node.outputs)} outputs, its body gives {count}")
        return count

    # ------------------------------------------------------------ functions

    def _call(self, node: Node, function: FunctionProto, attrs: dict[str, Any]) -> list[Value]:
        """Appends the body of a function in place of a node."""
        outer = node.scope.context
        if node.full_name in outer.functions:
            raise ModelError(f"function {node.full_name} calls itself")
        if self.count + self.sizes.of(function) > MAX_OPS:
            raise UnsupportedError(f"more than {MAX_OPS} operations, when functions are expanded")
        if len(node.inputs) > len(function.input) or len(node.outputs) > len(function.output):
            raise ModelError(
                f"function {node.full_name} takes {len(function.input)} operands and gives "
                f"{len(function.output)} outputs, found {len(node.inputs)} and {len(node.outputs)}"
            )
        versions = {**outer.versions, **self._versions(function.opset_import)}
        functions = (*outer.functions, node.full_name)
        context = Context(versions, attrs, node.loc[0], functions)
        scope = Scope(node.scope.region, context, None, node.scope.depth + 1)
        for position, name in enumerate(function.input):
            scope.define(name, node.input(position))
        self._nodes(scope, function.node)
        return [scope.require(name) for name in function.output[: len(node.outputs)]]


def _element_type(info: onnx.ValueInfoProto) -> Type | None:
    """The declared type of a parameter of a sub-graph, its shape left to be found out."""
    if not info.type.WhichOneof("value"):
        return None
    type = tensors.to_type(info.type, f"{info.name!r}")
    return TensorType(type.dtype, None) if isinstance(type, TensorType) else type


def _function_defaults(function: FunctionProto) -> dict[str, Any]:
    where = f"function {function.name}"
    return {a.name: tensors.to_python(a, where) for a in function.attribute_proto}


def constant_value(node: Node) -> np.ndarray:
    """The array of a Constant node, whichever attribute holds it."""
    if len(node.attrs) != 1:
        raise ModelError(f"needs exactly one value, found {sorted(node.attrs)}")
    ((name, value),) = node.attrs.items()
    if name in ("value", "sparse_value"):
        return value
    kinds = {"value_float": np.float32, "value_int": np.int64, "value_string": object}
    kind = kinds.get(name.removesuffix("s"))
    if kind is None:
        raise ModelError(f"has no attribute {name!r}")
    return np.array(value, kind)


def domain_of(name: str) -> str:
    """The domain by its short name: ai.onnx is the empty one."""
    return "" if name == "ai.onnx" else name


def identifier(name: str) -> str:
    """A name of letters, digits and underscores that is not that of an index (i0, k1, ...)."""
    clean = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_")
    return "_" + clean if re.fullmatch(r"\d.*|[a-z]\d+", clean) else clean
