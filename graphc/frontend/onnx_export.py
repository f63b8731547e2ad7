"""Graphs become ONNX models.

Every value gets a name that is unique in the whole model, its own where it is free: ONNX does not
let sub-graphs reuse names from outside. Captures turn back into references to outer names, fused
regions into their ops, copies to another layout into nothing (ONNX has none). Operators of ONNX
Runtime's domain stay nodes of that domain, unless a pass has decomposed them. The model is stamped
with the lowest opset that gives every node its present meaning (`opsets`), so that runtimes which
lag behind can read it, and goes through onnx.checker before it is returned.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TypeProto, ValueInfoProto, helper

from graphc import __version__
from graphc.errors import InternalError, ModelError, UnsupportedError
from graphc.files import check_folder, write_bytes, writing
from graphc.frontend import opsets
from graphc.frontend.admitted import Conversions, conversions
from graphc.frontend.functions import without_weights
from graphc.frontend.onnx_import import REGIONS
from graphc.frontend.proto import attribute_proto, tensor_proto, type_proto
from graphc.frontend.scalar_graphs import as_graph, has_scalar_bodies
from graphc.ir.dtypes import DType
from graphc.ir.graph import Graph, Op, Region, Value
from graphc.ir.infer import expand
from graphc.ir.ops.helpers import RUNTIME
from graphc.ir.ops.in_range import is_check, own_results
from graphc.ir.ops.relayout import is_relayout
from graphc.ir.types import TensorType, Type

EXTERNAL = 3 << 29  # bytes of constants above which they go to a file beside the model
EXTERNAL_FIELD = 1024  # bytes of the largest constant that stays in the model then


def export_onnx(
    graph: Graph, path: str | os.PathLike | None = None, oldest: int = opsets.FLOOR
) -> ModelProto:
    """The graph as a model that onnx.checker accepts; written to `path` if one is given. `oldest`
    is the oldest opset that it may be stamped with.

    Constants of more than 1.5 GB together are written to `path` + ".data". UnsupportedError names
    an op that has neither a counterpart in ONNX nor a body of such ops, or that makes elements of a
    type that ONNX lacks. ModelError if a graph that has not been typed, or not all of it, turns out
    to be wrong.
    """
    model = _Exporter(graph).model(oldest)
    if path is not None:
        _write(model, Path(path))
    return model


class _Names:
    """Unique names."""

    def __init__(self) -> None:
        self.taken: set[str] = set()
        self.last: dict[str, int] = {}  # numbers given, so that none is tried again

    def reserve(self, name: str) -> str:
        self.taken.add(name)
        return name

    def fresh(self, wish: str) -> str:
        """`wish` if it is free, otherwise with a number behind."""
        name = wish = wish or "value"
        while name in self.taken:
            self.last[wish] = self.last.get(wish, 0) + 1
            name = f"{wish}.{self.last[wish]}"
        return self.reserve(name)


class _Exporter:
    def __init__(self, graph: Graph):
        self.graph = graph
        self.names, self.node_names = _Names(), _Names()
        self.name_of: dict[Value, str] = {}
        self.nodes: list[NodeProto] = []
        self.arrays: list[np.ndarray] = []  # kept alive, since constants are known by id

    def model(self, oldest: int) -> ModelProto:
        graph = self.graph
        for param in graph.params:
            if isinstance(param.type, TensorType) and param.type.shape is None:
                raise UnsupportedError(f"the rank of input {param.name!r} is not known; fix it")
        inputs = [self._info(p, self._claim(p, p.name or f"input{p.index}")) for p in graph.params]
        results = [value for _, value in own_results(graph)]
        outputs = self._name_outputs()
        model = ModelProto(producer_name="graphc", producer_version=__version__)
        model.graph.name = graph.name
        proto = self._fill(graph, model.graph, {})
        taken = {info.name for info in inputs}
        for value, name in zip(results, outputs):
            if self._resolved(value) != name:
                identity = helper.make_node("Identity", [self._resolved(value)], [name])
                proto.node.append(identity)
        proto.input.extend(inputs)
        proto.output.extend(self._info(v, n) for v, n in zip(results, outputs))
        proto.value_info.extend(self._infos(graph, {*taken, *outputs}))
        _stamp(model, self.nodes, graph, oldest)
        return model

    # ------------------------------------------------------------ names

    def _claim(self, value: Value, wish: str) -> str:
        self.name_of[value] = self.names.fresh(wish)
        return self.name_of[value]

    def _name_outputs(self) -> list[str]:
        """The names of the outputs, each given to the value where it has none yet."""
        graph = self.graph
        names = []
        for wish, value in own_results(graph):
            if self.name_of.get(value) == wish and wish not in names:
                names.append(wish)  # an input that is an output
                continue
            name = self.names.fresh(wish)
            if value not in self.name_of and value.producer is not None and not _transparent(value):
                self.name_of[value] = name
            names.append(name)
        return names

    def _resolved(self, value: Value) -> str:
        return self.name_of[value]

    # ------------------------------------------------------------ graphs

    def _fill(self, region: Region, proto: GraphProto, arrays: dict[int, str]) -> GraphProto:
        """Adds the ops of a region. `arrays` names the constants of the enclosing graphs by id."""
        arrays = dict(arrays)
        for op in region.ops:
            self._op(op, proto, arrays)
        return proto

    def _op(self, op: Op, proto: GraphProto, arrays: dict[int, str]) -> None:
        if op.name == "Constant":
            self._constant(op.output, proto, arrays)
        elif op.name == "fused":
            self._inline(op, op.regions[0], op.inputs, proto, arrays)
        elif is_relayout(op):
            assert op.inputs[0] is not None
            self.name_of[op.output] = self.name_of[op.inputs[0]]
        elif is_check(op):
            return  # ONNX has no operator that fails
        elif "body" in op.defn.traits:
            self._expand(op, proto, arrays)
        elif opsets.schema(op) is not None:
            self._known(op, proto, arrays)
        elif op.defn.domain == RUNTIME:
            self._node(op, proto, arrays)
        elif op.defn.form == "composite":
            self._expand(op, proto, arrays)
        elif has_scalar_bodies(op):
            self._inline(op, as_graph(op), op.inputs, proto, arrays)
        else:
            raise UnsupportedError(f"{op.where()}: {op.defn.full_name} has no counterpart in ONNX")

    def _known(self, op: Op, proto: GraphProto, arrays: dict[int, str]) -> None:
        """An op that ONNX has: as it is, or, if it has types that ONNX does not take, as its body
        or between conversions."""
        try:
            between = conversions(op, _split(op)[0])
        except UnsupportedError:
            if op.defn.form != "composite":
                raise
            self._expand(op, proto, arrays)
            return
        if between is None:
            self._node(op, proto, arrays)
        elif op.defn.form == "composite":
            self._expand(op, proto, arrays)
        else:
            self._converted(op, between, proto, arrays)

    def _expand(self, op: Op, proto: GraphProto, arrays: dict[int, str]) -> None:
        scratch, _ = expand(op)
        self._inline(op, scratch, op.inputs, proto, arrays)

    def _converted(
        self, op: Op, between: Conversions, proto: GraphProto, arrays: dict[int, str]
    ) -> None:
        """An op between conversions of its operands and results."""
        operands = []
        for value, dtype in zip(op.inputs, between.operands):
            name = "" if value is None else self.name_of[value]
            operands.append(self._cast(name, name, dtype, proto) if value and dtype else name)
        node = self._node(op, proto, arrays)
        node.input[:] = operands
        for number, (value, dtype) in enumerate(zip(op.outputs, between.results)):
            if dtype is not None and node.output[number]:
                assert isinstance(value.type, TensorType)
                final = node.output[number]
                node.output[number] = self.names.fresh(f"{final}.{dtype}")
                self._cast(node.output[number], final, value.type.dtype, proto, exactly=True)

    def _cast(
        self, source: str, wish: str, dtype: DType, proto: GraphProto, exactly: bool = False
    ) -> str:
        """The name of a value converted to a type: `wish`, if need be with a number behind."""
        name = wish if exactly else self.names.fresh(f"{wish}.{dtype}")
        node = helper.make_node("Cast", [source], [name], to=dtype.onnx)
        node.name = self.node_names.fresh(f"{name}.cast")
        self.nodes.append(node)
        proto.node.append(node)
        return name

    def _constant(self, value: Value, proto: GraphProto, arrays: dict[int, str]) -> None:
        array = value.constant
        assert array is not None
        if id(array) in arrays:
            self.name_of[value] = arrays[id(array)]
            return
        name = self._claim(value, value.name or "constant")
        arrays[id(array)] = name
        self.arrays.append(array)
        proto.initializer.append(tensor_proto(array, name))

    def _inline(
        self, op: Op, body: Region, operands: Sequence[Value | None], proto: GraphProto,
        arrays: dict[int, str],
    ) -> None:  # fmt: skip
        for param, operand in zip(body.params, operands):
            if operand is not None:
                self.name_of[param] = self.name_of[operand]
        for result, output in zip(body.results, op.outputs):
            producer = result.producer
            free = producer is not None and result not in self.name_of and not _transparent(result)
            if free:
                wish = output.name or result.name
                self.name_of[result] = self.name_of.get(output) or self.names.fresh(wish)
        for inner in body.ops:
            self._op(inner, proto, arrays)
        for result, output in zip(body.results, op.outputs):
            name = self.name_of.setdefault(output, self.name_of[result])
            if name != self.name_of[result]:
                proto.node.append(helper.make_node("Identity", [self.name_of[result]], [name]))

    # ------------------------------------------------------------ nodes

    def _node(self, op: Op, proto: GraphProto, arrays: dict[int, str]) -> NodeProto:
        declared, captured = _split(op)
        node = NodeProto(op_type=op.name, domain=op.defn.domain)
        node.name = self.node_names.fresh(op.loc[0] if op.loc else op.name)
        node.input.extend("" if v is None else self.name_of[v] for v in declared)
        optional = opsets.optional_outputs(op)
        node.output.extend(self._output(v, v.index in optional) for v in op.outputs)
        missing = range(len(op.outputs), opsets.least_outputs(op))
        node.output.extend(self.names.fresh(f"{op.output.name}.{n}") for n in missing)
        kinds = opsets.attribute_kinds(op)
        for name, value in {**opsets.body_defaults(op), **op.attrs}.items():
            if value is not None and name != "captures":
                node.attribute.append(attribute_proto(name, value, kinds, op.where()))
        names = REGIONS.get(op.name, ("body",))
        for name, region in zip(names, op.regions):
            body = self._body(region, captured, name, arrays)
            node.attribute.append(helper.make_attribute(name, body))
        self.nodes.append(node)
        proto.node.append(node)
        return proto.node[-1]

    def _output(self, value: Value, optional: bool) -> str:
        if value in self.name_of:
            return self.name_of[value]
        if optional and not value.uses and not value.name:
            return ""
        return self._claim(value, value.name)

    def _body(
        self, region: Region, captured: list[Value], name: str, arrays: dict[int, str]
    ) -> GraphProto:
        """A region as a sub-graph; its last parameters are the captured values."""
        proto = GraphProto(name=name)
        cut = len(region.params) - len(captured)
        for param, value in zip(region.params[cut:], captured):
            self.name_of[param] = self.name_of[value]
        for param in region.params[:cut]:
            info = ValueInfoProto(name=self._claim(param, param.name or f"{name}.{param.index}"))
            if param.type is not None:
                info.type.CopyFrom(type_proto(param.type))
            proto.input.append(info)
        self._fill(region, proto, arrays)
        made = {output for node in proto.node for output in node.output}
        for result in region.results:
            output = self.name_of[result]
            if output not in made:  # a parameter, a constant, or one returned twice
                source, output = output, self.names.fresh(f"{output}.out")
                proto.node.append(helper.make_node("Identity", [source], [output]))
            made.discard(output)
            proto.output.append(ValueInfoProto(name=output))
        return proto

    # ------------------------------------------------------------ types

    def _info(self, value: Value, name: str) -> ValueInfoProto:
        info = ValueInfoProto(name=name)
        if value.type is not None:
            info.type.CopyFrom(type_proto(value.type))
        return info

    def _infos(self, graph: Graph, known: set[str]) -> Iterable[ValueInfoProto]:
        for op in graph.ops:
            for value in op.outputs:
                name = self.name_of.get(value)
                if name and value.type is not None and name not in known:
                    known.add(name)
                    yield self._info(value, name)


def _transparent(value: Value) -> bool:
    """Whether a value is exported under the name of another (a constant, or an alias)."""
    producer = value.producer
    return producer is not None and (producer.name == "Constant" or is_relayout(producer))


def _split(op: Op) -> tuple[list[Value | None], list[Value]]:
    """The operands that ONNX declares, and the captured ones."""
    if not op.regions:
        return op.inputs, []
    count = len(op.inputs) - 1 if op.name == "If" else op.attrs.get("captures", 0)
    cut = len(op.inputs) - count
    return op.inputs[:cut], op.inputs[cut:]  # type: ignore[return-value]


# ---------------------------------------------------------------- the model around the graph


def _stamp(model: ModelProto, nodes: list[NodeProto], graph: Graph, oldest: int) -> None:
    """Sets the lowest opset with which onnx.checker accepts the model, and types its outputs."""
    domains = {node.domain for node in nodes if node.domain}
    others = [helper.make_opsetid(d, opsets.stamp(d, nodes)) for d in sorted(domains)]
    error: Exception | None = None
    usual = opsets.lowest(nodes)
    for version in dict.fromkeys((opsets.lowest(nodes, oldest), usual, opsets.newest(""))):
        del model.opset_import[:]
        model.opset_import.extend([helper.make_opsetid("", version), *others])
        model.ir_version = helper.find_min_ir_version_for(model.opset_import, True)
        try:
            _check(model, graph.output_types)
            return
        except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as refusal:
            error = error or refusal
    kind: type[Exception] = InternalError
    if not _is_checked(graph):
        kind = ModelError
    elif "unsupported type" in str(error):  # an element type that even Cast does not take
        kind = UnsupportedError
    raise kind(f"the exported model is not valid ONNX: {error}")


def _is_checked(graph: Graph) -> bool:
    """Whether what the graph says has been checked: open dimensions leave types unknown."""
    known = (v.type is not None for op in graph.walk() for v in op.outputs)
    return graph.phase != "imported" and all(known)


def _check(model: ModelProto, declared: list[Type | None]) -> None:
    light = without_weights(model)
    if not all(output.HasField("type") for output in model.graph.output):
        inferred = onnx.shape_inference.infer_shapes(light)
        known = [*declared, *[None] * len(model.graph.output)]
        for output, info, type in zip(model.graph.output, inferred.graph.output, known):
            if not output.HasField("type"):
                output.type.CopyFrom(_output_type(info, type))
        light.graph.ClearField("output")
        light.graph.output.extend(model.graph.output)
        _type_bodies(model.graph, inferred.graph)
    onnx.checker.check_model(light, full_check=True)


def _type_bodies(graph: GraphProto, inferred: GraphProto) -> None:
    """Gives the outputs of sub-graphs the types that ONNX infers; some runtimes need them."""
    for node, other_node in zip(graph.node, inferred.node):
        for attribute, other in zip(node.attribute, other_node.attribute):
            if attribute.HasField("g"):
                for output, typed in zip(attribute.g.output, other.g.output):
                    output.type.CopyFrom(typed.type)
                _type_bodies(attribute.g, other.g)


def _output_type(info: ValueInfoProto, declared: Type | None) -> TypeProto:
    """The type that ONNX infers, or where it has no rank the declared one."""
    kind = info.type.WhichOneof("value")
    ranked = kind and (kind != "tensor_type" or info.type.tensor_type.HasField("shape"))
    if ranked:
        return info.type
    if declared is None or (isinstance(declared, TensorType) and declared.shape is None):
        raise UnsupportedError(f"the rank of output {info.name!r} is not known; fix the shapes")
    return type_proto(declared)


def _write(model: ModelProto, path: Path) -> None:
    """Writes a model so that no partial file is ever seen under its name."""
    size = sum(len(t.raw_data) for t in model.graph.initializer)
    if size <= EXTERNAL:
        write_bytes(path, model.SerializeToString())
        return
    location = f"{path.name}.data"
    stored = ModelProto()
    stored.CopyFrom(model)
    check_folder(path)
    with writing(path), tempfile.TemporaryDirectory(prefix=".graphc-", dir=path.parent) as folder:
        draft = Path(folder, path.name)
        onnx.save_model(
            stored, draft, save_as_external_data=True, location=location,
            size_threshold=EXTERNAL_FIELD,
        )  # fmt: skip
        os.replace(f"{draft}.data", f"{path}.data")
        os.replace(draft, path)
