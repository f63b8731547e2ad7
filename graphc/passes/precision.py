"""Precision: contractions multiply in a narrower type, and add up in float32.

Every float32 factor of a sum of products is rounded to the type and converted back,

    sum(a * b)   →   sum(float32(f16(a)) * float32(f16(b)))

so that products are exact, sums are those of float32, and what lies between contractions (biases,
normalisations, softmax, reductions) stays in float32. The graph still means exactly what is
computed; for TF32, which has no type of its own, the conversion back cuts off the bits of a float32
that are zero after rounding. Rounding is moved up through ops that only move data, to where the
value is made: there fusion joins it to the producer, and what is stored is narrow. Constants are
rounded now.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from graphc.errors import ModelError
from graphc.ir import dtypes
from graphc.ir.build import Builder
from graphc.ir.dtypes import f32
from graphc.ir.expr import Call, loads
from graphc.ir.graph import Graph, Op, Value
from graphc.ir.interp import run_op
from graphc.ir.types import TensorType
from graphc.passes import structure
from graphc.passes.context import Context
from graphc.passes.pass_manager import Pass, register_pass

RULE = "precision"
PRECISIONS = ("f32", "tf32", "f16", "bf16")


@dataclass
class _Narrowing:
    """Rounds values of one graph, each once."""

    graph: Graph
    type: str
    rounded: dict[Value, Value] = field(default_factory=dict)
    widened: dict[Value, Value] = field(default_factory=dict)

    def factor(self, value: Value) -> Value:
        """The value as a float32 that the type can hold."""
        if value not in self.widened:
            narrow = self.round(value)
            if self.type == "tf32":
                wide = self.insert(narrow, "CutToTF32", domain="graphc")
            else:
                wide = self.insert(narrow, "Cast", to=f32.onnx)
            self.widened[value] = wide
        return self.widened[value]

    def round(self, value: Value) -> Value:
        """The value in the type (TF32: in float32)."""
        if value not in self.rounded:
            self.rounded[value] = self._round(value)
        return self.rounded[value]

    def _round(self, value: Value) -> Value:
        producer = value.producer
        if value.constant is None and producer is not None and structure.is_movement(producer):
            number, source = structure.moved(producer)
            return self.moved(producer, number, self.round(source))
        if self.type == "tf32":
            return self.insert(value, "RoundToTF32", domain="graphc")
        return self.insert(value, "Cast", to=dtypes.of(self.type).onnx)

    def moved(self, movement: Op, number: int, source: Value) -> Value:
        """The same movement of another value."""
        operands = list(movement.inputs)
        operands[number] = source
        new = Op(movement.defn, operands, movement.attrs, 1, (), movement.loc)
        new.output.type = movement.output.tensor.with_dtype(source.tensor.dtype)
        self.graph.insert_before(_after(self.graph, movement), new)
        return new.output

    def insert(self, value: Value, name: str, **attributes) -> Value:
        """An op on the value, right after it is made; a constant if the value is one."""
        producer = value.producer
        anchor = self.graph.ops[0] if producer is None else _after(self.graph, producer)
        loc = () if producer is None else producer.loc
        result = Builder(self.graph, anchor, loc).op(name, value, **attributes)
        assert isinstance(result, Value) and result.producer is not None
        if value.constant is None or name == "CutToTF32" or value.tensor.dtype is not f32:
            return result
        (contents,) = run_op(result.producer, [value.constant])
        constant = Builder(self.graph, anchor, loc).constant(contents)
        constant.name = value.name
        result.producer.erase()
        return constant


def _after(graph: Graph, op: Op) -> Op | None:
    position = graph.place(op) + 1
    return graph.ops[position] if position < len(graph.ops) else None


def narrow_contractions(graph: Graph, type: str, ctx: Context) -> bool:
    """Rounds the factors of all contractions in float32; whether there were any."""
    narrowing = _Narrowing(graph, type)
    changed = False
    for op in list(graph.ops):
        operands = _factors(op)
        if operands and ctx.spend(RULE, op):
            for number in operands:
                value = op.inputs[number]
                assert value is not None
                op.set_input(number, narrowing.factor(value))
            changed = True
    return changed


def _factors(op: Op) -> list[int]:
    """The operands in float32 that a contraction multiplies."""
    if op.name == "Constant" or not structure.has_body(op) or not structure.is_contraction(op):
        return []
    found: set[int] = set()
    for reduction in structure.reductions(op):
        if isinstance(reduction.body, Call) and reduction.body.op.name == "mul":
            found.update(int(x.source) for x in loads(reduction.body))
    types = {n: op.inputs[n].type for n in found}  # type: ignore[union-attr]
    return sorted(n for n, t in types.items() if isinstance(t, TensorType) and t.dtype is f32)


@register_pass
@dataclass
class Precision(Pass):
    """Lets contractions multiply in `type`: tf32, f16 or bf16 (f32 changes nothing)."""

    type: str = "f32"

    name = RULE
    requires = "typed"

    def run(self, graph: Graph, ctx: Context) -> bool:
        if self.type not in PRECISIONS:
            raise ModelError(f"precision {self.type!r} is none of {', '.join(PRECISIONS)}")
        return self.type != "f32" and narrow_contractions(graph, self.type, ctx)
