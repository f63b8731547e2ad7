"""Verifies graphs: every rule of the IR, checked from scratch, each violation an InternalError.

Regions: a value is used only after its definition, in its own region; use lists are exact; ops
know their region, and regions their op. Ops: operands, results, regions and attributes fit the
definition. From the phase `typed` on: each op's types are those that inference finds again, unless
they depend on data; from `laid_out` on values may have layouts, from `fused` on ops may be fused.
Kernels and programs are verified by kernels.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import numpy as np

from graphc.errors import GraphcError, InternalError, NeedsValue, UnsupportedError
from graphc.ir import dtypes
from graphc.ir.binding import bind_attrs
from graphc.ir.expr import Expr
from graphc.ir.graph import Graph, Op, Region, Value
from graphc.ir.infer import output_types
from graphc.ir.opdef import YIELD
from graphc.ir.phases import PHASES
from graphc.ir.simplify import simplify
from graphc.ir.types import Dim, MapType, OptionalType, SequenceType, TensorType, Type


def verify(graph: Graph) -> None:
    """Raises InternalError, naming the op and the rule, if the graph breaks a rule of its phase."""
    if graph.phase not in PHASES:
        raise InternalError(f"graph @{graph.name}: unknown phase {graph.phase!r}")
    _Verifier(graph).run()


class _Verifier:
    def __init__(self, graph: Graph):
        self.graph = graph
        self.uses: dict[Value, dict[tuple[Op, int], None]] = {}
        self.regions: dict[Value, Region] = {}

    def run(self) -> None:
        graph = self.graph
        if graph.output_names and len(graph.output_names) != len(graph.results):
            self.fail_graph(
                f"{len(graph.output_names)} output names for {len(graph.results)} results"
            )
        if len(set(graph.output_names)) != len(graph.output_names):
            self.fail_graph(f"output names are not distinct: {graph.output_names}")
        names = [v.name for v in graph.params]
        if len(set(names)) != len(names):
            self.fail_graph(f"input names are not distinct: {names}")
        self.collect(graph)
        self.region(graph)
        self.check_uses()

    def fail_graph(self, message: str) -> NoReturn:
        raise InternalError(f"graph @{self.graph.name}: {message}")

    def fail(self, op: Op, message: str) -> NoReturn:
        raise InternalError(f"{op.where()}: {message}, in `{op}`")

    # ------------------------------------------------------------ regions

    def collect(self, region: Region) -> None:
        """Notes the region of every value."""
        for value in region.values():
            if value in self.regions:
                self.fail_graph(f"%{value.name} is defined twice")
            self.regions[value] = region
            self.uses[value] = {}
        for op in region.ops:
            for inner in op.regions:
                self.collect(inner)

    def region(self, region: Region) -> None:
        for position, param in enumerate(region.params):
            if param.producer is not None or param.index != position:
                self.fail_graph(f"parameter {position}, %{param.name}, is numbered {param.index}")
        if len(set(region.ops)) != len(region.ops):
            self.fail_graph("a region holds an op twice")
        visible = set(region.params)
        for op in region.ops:
            self.operands(op, region, visible)
            self.op(op)
            visible.update(op.outputs)
        if region.terminator.defn is not YIELD:
            self.fail_graph(f"a region ends in {region.terminator.name}, not in yield")
        self.operands(region.terminator, region, visible)

    def operands(self, op: Op, region: Region, visible: set[Value]) -> None:
        if op.region is not region:
            self.fail(op, "its region is not the one that holds it")
        for position, value in enumerate(op.inputs):
            if value is None:
                if op is region.terminator:
                    self.fail(op, f"result {position} is missing")
                continue
            self.uses.setdefault(value, {})[op, position] = None
            if value in visible:
                continue
            owner = self.regions.get(value)
            if owner is None:
                self.fail(op, f"operand {position}, %{value.name}, is not in the graph")
            if owner is region:
                self.fail(op, f"operand {position}, %{value.name}, is used before its definition")
            self.fail(op, f"operand {position}, %{value.name}, is of another region")

    def check_uses(self) -> None:
        for value, uses in self.uses.items():
            if value.uses.keys() != uses.keys():
                extra = [use for use in value.uses if use not in uses]
                missing = [use for use in uses if use not in value.uses]
                op, position = (extra or missing)[0]
                listed = "lists" if extra else "lacks"
                self.fail_graph(
                    f"the use list of %{value.name} {listed} operand {position} of `{op}`"
                )

    # ------------------------------------------------------------ ops

    def op(self, op: Op) -> None:
        for position, value in enumerate(op.outputs):
            if value.producer is not op or value.index != position:
                self.fail(op, f"result {position} does not point back at it")
        self.arity(op)
        self.attributes(op)
        for region in op.regions:
            if region.owner is not op:
                self.fail(op, "one of its regions has another owner")
            self.region(region)
        self.region_signature(op)
        self.layouts(op)
        if self.graph.reached("typed"):
            self.types(op)

    def arity(self, op: Op) -> None:
        params, count = op.defn.params, len(op.inputs)
        if op.defn.form != "core":
            variadic = bool(params) and params[-1].kind == "variadic"
            if count > len(params) and not variadic:
                self.fail(op, f"takes at most {len(params)} operands, found {count}")
            for position, param in enumerate(params):
                given = position < count and op.inputs[position] is not None
                if param.kind == "required" and not given:
                    self.fail(op, f"operand {position} ({param.name}) is missing")
        if op.defn.outputs is not None and not 1 <= len(op.outputs) <= op.defn.outputs:
            self.fail(op, f"has {op.defn.outputs} results, found {len(op.outputs)}")
        has_body = op.defn.form == "region" or "body" in op.defn.traits
        expected = {"If": 2, "fused": 1}.get(op.name, int(has_body))
        if len(op.regions) != expected:
            self.fail(op, f"takes {expected} regions, found {len(op.regions)}")

    def attributes(self, op: Op) -> None:
        try:
            bind_attrs(op.defn, op.attrs)
        except GraphcError as error:
            self.fail(op, str(error))
        if op.name == "Constant":
            self.constant(op)
        if op.name == "fused" and not self.graph.reached("fused"):
            self.fail(op, f"a graph of phase {self.graph.phase} holds no fused ops")

    def constant(self, op: Op) -> None:
        array, type = op.attrs.get("value"), op.output.type
        if op.inputs:
            self.fail(op, "a constant has no operands")
        if not isinstance(array, np.ndarray) or not isinstance(type, TensorType):
            self.fail(op, "a constant holds a numpy array and has a tensor type")
        if dtypes.of(array.dtype) is not type.dtype or array.shape != type.shape:
            self.fail(op, f"holds {array.dtype}{list(array.shape)}, but has type {type}")

    def region_signature(self, op: Op) -> None:
        if op.name == "If":
            captures, results = op.inputs[1:], len(op.outputs)
        elif op.name == "fused":
            captures, results = op.inputs, len(op.outputs)
        elif op.name == "Loop":
            captures, results = op.inputs, len(op.outputs) + 1  # trip count, condition, state
        else:
            captures, results = op.inputs, len(op.outputs)
        for region in op.regions:
            if len(region.params) != len(captures):
                self.fail(op, f"its region has {len(region.params)} parameters for "
                              f"{len(captures)} operands")  # fmt: skip
            if len(region.results) != results and "body" not in op.defn.traits:
                self.fail(op, f"its region has {len(region.results)} results, needs {results}")

    # ------------------------------------------------------------ types

    def layouts(self, op: Op) -> None:
        if self.graph.reached("laid_out"):
            return
        for value in op.outputs:
            if value.layout is not None:
                self.fail(op, f"%{value.name} has a layout in phase {self.graph.phase}")

    def types(self, op: Op) -> None:
        if op.name == "Constant":
            return
        if op.name == "fused":
            self.same_types(op, "parameter", op.inputs, op.regions[0].params, layouts=True)
            self.same_types(op, "result", op.outputs, op.regions[0].results, layouts=True)
            return
        if op.defn.form == "region":
            self.region_types(op)
            return
        expected = self.inferred(op)
        if expected is None:
            return
        for position, (value, type) in enumerate(zip(op.outputs, expected)):
            if not same_type(value.type, type):
                self.fail(op, f"result {position} has type {value.type}, but is {type}")

    def region_types(self, op: Op) -> None:
        if op.name != "If":
            return
        for region in op.regions:
            self.same_types(op, "parameter", op.inputs[1:], region.params, layouts=False)
            self.same_types(op, "result", op.outputs, region.results, layouts=False)

    def inferred(self, op: Op) -> Sequence[Type] | None:
        """The types inference finds, or None if they depend on data."""
        try:
            return output_types(op)
        except NeedsValue:
            return None
        except UnsupportedError:
            raise
        except GraphcError as error:
            raise InternalError(f"{error}, in `{op}`") from error

    def same_types(
        self, op: Op, what: str, outer: Sequence[Value | None], inner: Sequence[Value],
        layouts: bool,
    ) -> None:  # fmt: skip
        for position, (a, b) in enumerate(zip(outer, inner)):
            if a is None or a.type is None or b.type is None:
                continue
            same = same_type(a.type, b.type) and (not layouts or a.layout == b.layout)
            if not same:
                self.fail(op, f"{what} {position} of its region has type {b.type}, not {a.type}")


def same_type(a: Type | None, b: Type | None) -> bool:
    """Equal but for layouts; dimensions are compared in normal form."""
    if isinstance(a, TensorType) and isinstance(b, TensorType):
        if a.dtype is not b.dtype or (a.shape is None) != (b.shape is None):
            return False
        return len(a.shape or ()) == len(b.shape or ()) and all(
            _normal(x) == _normal(y) for x, y in zip(a.shape or (), b.shape or ())
        )
    if isinstance(a, (SequenceType, OptionalType)) and isinstance(b, (SequenceType, OptionalType)):
        return type(a) is type(b) and same_type(a.element, b.element)
    if isinstance(a, MapType) and isinstance(b, MapType):
        return a == b
    return a is b


def _normal(dim: Dim) -> Dim:
    return simplify(dim) if isinstance(dim, Expr) else dim
