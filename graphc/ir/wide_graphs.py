"""Composite operators in narrow floats: values between operands and results are kept in float32.

The graph of a composite is built in the types of its operands, as if each of its ops rounded its
result. `unrounded` then makes a *twin* in float32 of every op that reads what others have rounded:

    f16:  Div(p, ReduceSum(p)) of p = Exp(x - max)
      →   Cast(Div(p', ReduceSum(p'))) of p' = Exp(f32(x) - f32(max))

so that the composite's results alone are rounded (as wide_bodies.py has it for bodies). Only ops
that need one have a twin: an op that reads operands of the composite rounds once by itself, and
what moves or chooses elements has a twin if somebody reads it in float32. Matrix units multiply
narrow floats, so a composite does well to multiply operands as they are, and scale the product.

Imperative operators whose kernels add or multiply in a narrow type (into their outputs, say) are
such composites too: conversions, the operator in float32, and a conversion back (`in_float32`).
"""

from __future__ import annotations

from collections.abc import Iterable

from graphc.errors import GraphcError
from graphc.ir import opdef
from graphc.ir.dtypes import DType, f32
from graphc.ir.expr import Call, Expr, reduces, walk
from graphc.ir.graph import Graph, Op, Value, constant_op, copy_ops
from graphc.ir.imperative.lowering import imperative_kernel, is_bounded
from graphc.ir.infer import expand, infer_op, op_body
from graphc.ir.kernel import exprs, walk_stmts
from graphc.ir.types import TensorType
from graphc.ir.wide_bodies import EXACT, KEPT, is_narrow, roundings

BODIES = ("elementwise", "indexed")


def narrow(value: Value | None) -> bool:
    """Whether a value is a tensor of narrow floats."""
    return value is not None and isinstance(value.type, TensorType) and is_narrow(value.type.dtype)


def unrounded(graph: Graph, rounded: Iterable[Value] = ()) -> None:
    """Rounds what the graph of a composite computes at its results alone, in place, and what the
    composite has rounded (Builder.rounded)."""
    if any(narrow(v) for op in graph.ops for v in op.outputs):
        _Twins(graph, rounded).replace_all()


class _Twins:
    """The float32 forms of the values of one graph."""

    def __init__(self, graph: Graph, rounded: Iterable[Value] = ()):
        self.graph = graph
        self.operands = set(rounded)  # which are read as they are, like operands of the composite
        self.twins: dict[Op, list[Value] | None] = {}
        self.wide: dict[Value, Value] = {}

    def replace_all(self) -> None:
        for op in list(self.graph.ops):
            if op.name == "Constant" or not any(map(narrow, op.inputs)) or _is_exact(op):
                continue
            if any(map(self.is_rounded, op.inputs)):
                self.replace(op)
        self.remove_unused()

    def replace(self, op: Op) -> None:
        """Lets the twin of an op, rounded, be read instead of it."""
        for value, twin in zip(op.outputs, self.twin(op) or ()):
            if twin.type == value.type:
                value.replace_uses(twin)
            elif twin.tensor.dtype is f32 and narrow(value):
                rounded = self.cast(twin, value.tensor.dtype, twin.producer)
                rounded.name = value.name
                if value in self.operands:
                    self.operands.add(rounded)
                else:
                    self.wide[rounded] = twin
                value.replace_uses(rounded)

    def is_rounded(self, value: Value | None) -> bool:
        """Whether a narrow value has been rounded by an op of the graph."""
        stack, seen = [value], set()
        while stack:
            node = stack.pop()
            if node is None or node in seen or not narrow(node) or node.producer is None:
                continue
            seen.add(node)
            if node.producer.name == "Constant" or node in self.operands:
                continue
            if not _is_exact(node.producer):
                return True
            stack.extend(node.producer.inputs)
        return False

    def widened(self, value: Value) -> Value:
        """A narrow value in float32, before it is rounded."""
        if value not in self.wide:
            self.wide[value] = self._widened(value)
        return self.wide[value]

    def _widened(self, value: Value) -> Value:
        op = value.producer
        if op is not None and (self.is_rounded(value) or _reduces(op)):
            if op.name == "Cast":
                source = op.inputs[0]
                assert source is not None
                if narrow(source):
                    return self.widened(source)
                return source if source.tensor.dtype is f32 else self.cast(source, f32, op)
            twins = self.twin(op)
            if twins is not None and twins[value.index].tensor.dtype is f32:
                return twins[value.index]
        return self.cast(value, f32, op)

    def twin(self, op: Op) -> list[Value] | None:
        """The outputs of an op on float32s; None if it takes none."""
        if op not in self.twins:
            self.twins[op] = self._twin(op)
        return self.twins[op]

    def _twin(self, op: Op) -> list[Value] | None:
        if op.regions or op.defn.form not in (*BODIES, "composite", "imperative"):
            return None
        inputs = [v if v is None or not narrow(v) else self.widened(v) for v in op.inputs]
        twin = Op(op.defn, inputs, op.attrs, len(op.outputs), (), op.loc)
        try:
            infer_op(twin)
        except GraphcError:  # an operator that takes narrow floats alone
            twin.drop_inputs()
            return None
        self.insert(twin, op)
        return list(twin.outputs)

    def cast(self, value: Value, dtype: DType, after: Op | None) -> Value:
        """A value in another type, made right after an op; None: first of all."""
        if value.constant is not None:
            op = constant_op(value.constant.astype(dtype.np))
        else:
            op = Op(
                opdef.lookup("Cast"), [value], {"to": dtype.onnx}, 1, (), after.loc if after else ()
            )
            infer_op(op)
        self.insert(op, after)
        return op.output

    def insert(self, op: Op, after: Op | None) -> None:
        first = next(iter(self.graph.ops), None)
        self.graph.insert_before(first if after is None else self.graph.after(after), op)

    def remove_unused(self) -> None:
        for op in reversed(list(self.graph.ops)):
            if not any(v.uses for v in op.outputs):
                op.erase()


def _is_exact(op: Op) -> bool:
    """Whether the narrow floats that an op gives, of which there are some, are elements of its
    operands, or as exact."""
    if "exact" not in op.memo:
        op.memo["exact"] = any(map(narrow, op.outputs)) and _keeps(op)
    return op.memo["exact"]


def _keeps(op: Op) -> bool:
    if op.defn.form in BODIES:
        outputs = [n for n, v in enumerate(op.outputs) if narrow(v)]
        return not any(roundings(op_body(op, n)) for n in outputs)
    if op.defn.form == "composite":
        return all(_is_exact(inner) or inner.name == "Constant" for inner in expand(op)[0].ops)
    return op.defn.form == "imperative" and not any(map(_rounds, _expressions(op)))


def _reduces(op: Op) -> bool:
    """Whether an op picks elements (the largest) by a reduction, which is best done on what others
    read in float32 anyway."""
    return op.defn.form in BODIES and bool(reduces(op_body(op)))


# ---------------------------------------------------------------- imperative operators


def accumulates(op: Op) -> bool:
    """Whether an imperative op, typed, computes with narrow floats, so that it may round what it
    has rounded before."""
    if op.defn.form != "imperative" or not any(map(narrow, op.inputs)) or is_bounded(op):
        return False
    if "accumulates" not in op.memo:
        op.memo["accumulates"] = any(_rounds(x) and not _casts(x) for x in _expressions(op))
    return op.memo["accumulates"]


def is_made_of_others(op: Op) -> bool:
    """Whether an op is computed as a graph of others: a composite, or one that `accumulates`."""
    return op.defn.form == "composite" or accumulates(op)


def in_float32(op: Op) -> Graph:
    """An imperative op on float32s, with its operands converted to these and its results back, as a
    graph whose parameters stand for its operands."""
    graph = Graph(op.name)
    twins = _Twins(graph)
    inputs: list[Value | None] = []
    for value in op.inputs:
        param = graph.add_param(None if value is None else value.type)
        contents = None if value is None else value.constant
        if narrow(value):
            inputs.append(twins.cast(param, f32, None))
        elif contents is not None:
            inputs.append(graph.append(constant_op(contents)).output)
        else:
            inputs.append(None if value is None else param)
    wide = graph.append(Op(op.defn, inputs, op.attrs, len(op.outputs), (), op.loc))
    infer_op(wide)
    graph.set_results(
        [
            twins.cast(new, old.tensor.dtype, wide) if narrow(old) else new
            for old, new in zip(op.outputs, wide.outputs)
        ]
    )
    return graph


def expand_in_place(op: Op, batched: bool = False) -> list[Value]:
    """Replaces a composite op, whose types are known, by its body; `batched` as for Builder. One
    that accumulates narrow floats becomes one of float32s. Gives the values that are in place of
    its results."""
    graph = in_float32(op) if op.defn.form == "imperative" else expand(op, batched)[0]
    region = op.region
    assert region is not None
    mapping: dict[Value, Value] = dict(zip(graph.params, op.inputs))  # type: ignore[arg-type]
    copy_ops(graph, region, mapping, before=op)
    for old, result in zip(op.outputs, graph.results):
        new = mapping[result]
        if new.producer is not None and not new.name:
            new.name = old.name
        old.replace_uses(new)
    op.erase()
    return [mapping[result] for result in graph.results]


def _expressions(op: Op) -> list[Expr]:
    """All nodes of the expressions of an imperative op's kernel."""
    body = imperative_kernel(op).body
    return [node for stmt in walk_stmts(body) for e in exprs(stmt) for node in walk(e)]


def _casts(node: Expr) -> bool:
    return isinstance(node, Call) and node.op.name == "cast"


def _rounds(node: Expr) -> bool:
    is_call = isinstance(node, Call) and node.op.name not in EXACT | KEPT
    return is_call and is_narrow(node.dtype)
