"""Mixed precision: contractions multiply in a narrower type, and accumulate in float32.

Every float32 factor of a sum of products is rounded to the type and converted back,

    sum(a * b)   →   sum(float32(f16(a)) * float32(f16(b)))

so that products are exact and sums are those of float32. Everything between contractions (biases,
normalisations, softmax, reductions) stays in float32. The graph still means exactly what is
computed. TF32 has no type of its own: there the conversion back clears the bits of a float32 that
are zero after rounding. The pass serves matrix cores. Depthwise sums, which do not use them, stay
in float32. A value is rounded at the place where rounding costs least:

* constants are rounded at compile time;
* a value that only contractions read is rounded where it is made: rounding moves up through ops
  that only move data, and (f16 and bf16) through those that choose elements, of several tensors or
  the largest in a window; fusion joins it to the producer, and the narrow value is stored;
* TF32 takes no less memory, so a value that is stored in float32 anyhow (inputs, outputs, values
  with other readers) is rounded by the contraction, which `Rounded` says;
* an input that only one contraction multiplies, with constants, is rounded by it as well. Other
  inputs are rounded once for all readers: f16 and bf16 then halve the bytes of each read;
* a value that a kernel makes for contractions and for others that compute with it (the branches of
  a residual addition) is stored as f16 alone. bf16 has three bits less, which such sums would miss:
  these values are stored in both forms.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any

from graphc.errors import ModelError
from graphc.ir import dtypes
from graphc.ir.build import Builder
from graphc.ir.dtypes import f32
from graphc.ir.expr import Call, loads, walk
from graphc.ir.graph import Graph, Op, Value
from graphc.ir.infer import op_body
from graphc.ir.interp import run_op
from graphc.ir.machine import PRECISIONS
from graphc.ir.types import TensorType
from graphc.passes.analysis import facts, structure
from graphc.passes.manager.base import Pass, register_pass
from graphc.passes.manager.context import Context
from graphc.passes.reasons import Reason
from graphc.records import dataclass

RULE = "precision"


@dataclass
class _Narrowing:
    """Rounds values of one graph, each once."""

    graph: Graph
    type: str
    readers: Readers
    rounded: dict[Value, Value] = field(default_factory=dict)
    widened: dict[Value, Value] = field(default_factory=dict)

    def factor(self, value: Value) -> Value:
        """The value as a float32 that the type can hold."""
        if value not in self.widened:
            self.widened[value] = self._factor(value)
        return self.widened[value]

    def _factor(self, value: Value) -> Value:
        if value in self.readers.rounding:
            return self.insert(value, "Rounded", domain="graphc", type=self.type)
        narrow = self.round(value)
        if self.type == "tf32":
            return self.insert(narrow, "CutToTF32", stored=True, domain="graphc")
        return self.insert(narrow, "Cast", to=f32.onnx)

    def round(self, value: Value) -> Value:
        """The value in the type (TF32: in float32)."""
        if value not in self.rounded:
            self.rounded[value] = self._round(value)
        return self.rounded[value]

    def _round(self, value: Value) -> Value:
        producer = value.producer
        if value.constant is None and producer is not None and structure.is_movement(producer):
            return self.again(producer, [structure.moved(producer)[0]])
        if producer is not None and value in self.readers.chosen:
            return self.again(producer, facts.chosen(producer))
        if self.type == "tf32":
            return self.insert(value, "RoundToTF32", domain="graphc")
        return self.insert(value, "Cast", to=dtypes.of(self.type).onnx)

    def again(self, op: Op, numbers: list[int]) -> Value:
        """What an op that moves or chooses elements of some operands makes of rounded ones."""
        operands = list(op.inputs)
        for number in numbers:
            operands[number] = self.round(op.inputs[number])  # type: ignore[arg-type]
        dtype = operands[numbers[0]].tensor.dtype  # type: ignore[union-attr]
        new = Op(op.defn, operands, op.attrs, 1, (), op.loc)
        new.output.type = op.output.tensor.with_dtype(dtype)
        self.graph.insert_before(self.graph.after(op), new)
        return new.output

    def share(self) -> None:
        """Lets ops that compute with what contractions multiply read it as those do, so that it is
        stored once, unless it is moved or is a result."""
        for value, narrow in list(self.rounded.items()):
            cast = narrow.producer
            if cast is None or value not in cast.inputs or _is_given(value):
                continue
            for user, number in list(value.uses):
                if user is not cast and _computes(user):
                    user.set_input(number, self.factor(value))

    def insert(self, value: Value, name: str, stored: bool = False, **attributes: Any) -> Value:
        """An op on the value, right after it is made; a constant if the value is one, unless it is
        `stored` before."""
        producer = value.producer
        anchor = self.graph.ops[0] if producer is None else self.graph.after(producer)
        loc = () if producer is None else producer.loc
        result = Builder(self.graph, anchor, loc).op(name, value, **attributes)
        assert isinstance(result, Value) and result.producer is not None
        if value.constant is None or stored or value.tensor.dtype is not f32:
            return result
        (contents,) = run_op(result.producer, [value.constant])
        constant = Builder(self.graph, anchor, loc).constant(contents)
        constant.name = value.name
        result.producer.erase()
        return constant


class Readers:
    """Who reads the values of a graph before anything is rounded: the `factors` of contractions by
    op, values that those who read them round to the type (`rounding`), not their producers, and
    values that ops choose of others which had better be rounded before (`chosen`)."""

    def __init__(self, graph: Graph, type: str, ctx: Context):
        self.results = set(graph.results)
        self.factors: dict[Op, list[int]] = {}
        for op in graph.ops:
            positions = _factors(op, type)
            if isinstance(positions, Reason):
                ctx.decline(RULE, op, positions)
            elif positions:
                self.factors[op] = positions
        values = dict.fromkeys(
            op.inputs[n] for op, positions in self.factors.items() for n in positions
        )
        self.rounding = {v for v in values if v is not None and self._round(_source(v), type)}
        outputs = (v for op in graph.ops for v in op.outputs if type != "tf32")
        self.chosen = {v for v in outputs if v not in self.results and self._is_chosen(v)}

    def _is_chosen(self, value: Value) -> bool:
        op = value.producer
        if op is None or op.name == "Constant" or structure.is_movement(op):
            return False
        sources = [_source(op.inputs[n]) for n in facts.chosen(op)]  # type: ignore[arg-type]
        return (
            value.tensor.dtype is f32
            and bool(sources)
            and None not in self._uses(value, choosing=True)
            and all(self._vanishes(source) for source in sources)
        )

    def _vanishes(self, source: Value) -> bool:
        """Whether the kernel that makes a value could make it narrow, and only so."""
        op = source.producer
        is_made = op is not None and not _is_given(source) and len(op.outputs) == 1
        return (
            is_made and source not in self.results and None not in self._uses(source, choosing=True)
        )

    def _round(self, source: Value, type: str) -> bool:
        if source.constant is not None:
            return False
        is_given, uses = _is_given(source), self._uses(source)
        if type == "tf32":
            return is_given or source in self.results or None in uses
        products = [use for use in uses if use is not None]
        return is_given and len(products) == 1 and self._by_constants(*products[0])

    def _uses(self, value: Value, choosing: bool = False) -> list[tuple[Op, int] | None]:
        """Where contractions multiply a value, as it is or moved (or `choosing` among others); None
        for every other use."""
        uses: list[tuple[Op, int] | None] = []
        waiting = list(value.uses)
        while waiting:
            user, number = waiting.pop()
            if number in self.factors.get(user, ()):
                uses.append((user, number))
            elif _passes_on(user, choosing) and user.output not in self.results:
                waiting += user.output.uses
            else:
                uses.append(None)
        return uses

    def _by_constants(self, op: Op, number: int) -> bool:
        others = [op.inputs[n] for n in self.factors[op] if n != number]
        return all(v is not None and _source(v).constant is not None for v in others)


def _passes_on(op: Op, choosing: bool) -> bool:
    return structure.is_movement(op) or (choosing and bool(facts.chosen(op)))


def _computes(user: Op) -> bool:
    """Whether an op does more than move or choose elements, or look for those that are equal, as
    the gradient of a maximum does: these must all be rounded, or none."""
    if not structure.has_body(user) or _passes_on(user, choosing=True):
        return False
    nodes = (node for n in range(len(user.outputs)) for node in walk(op_body(user, n)))
    return not any(
        isinstance(node, Call) and node.op.name in ("eq", "ne") and node.args[0].dtype.is_float
        for node in nodes
    )


def _is_given(source: Value) -> bool:
    """Whether no kernel that could round it makes a value."""
    return source.producer is None or not structure.has_body(source.producer)


def _source(value: Value) -> Value:
    """What ops that only move data make a value of."""
    while value.constant is None and value.producer and structure.is_movement(value.producer):
        _, value = structure.moved(value.producer)
    return value


def narrow_contractions(graph: Graph, type: str, ctx: Context) -> bool:
    """Rounds the factors of all contractions in float32; whether there were any."""
    readers = Readers(graph, type, ctx)
    narrowing = _Narrowing(graph, type, readers)
    changed = False
    for op, operands in readers.factors.items():
        if ctx.spend(RULE, op):
            for number in operands:
                value = op.inputs[number]
                assert value is not None
                op.set_input(number, narrowing.factor(value))
            changed = True
    if type == "f16":
        narrowing.share()
    return changed


def _factors(op: Op, type: str) -> list[int] | Reason:
    """The operands in float32 that a contraction multiplies, or a window that slides over one of
    them (which is for float32 if matrix cores alone are to gain); none if an op sums no products, a
    reason if it sums such that stay as they are."""
    if op.name == "Constant" or not structure.has_body(op):
        return []
    contracts = structure.is_contraction(op)
    sums = [r for r in structure.reductions(op) if r.factors is not None]
    narrow = [r for r in sums if contracts or type != "tf32" and structure.slides(r)]
    if not narrow:
        text = "{} has no sums of products that matrix cores could take"
        return Reason(text, op) if sums else []
    positions = {int(x.source) for r in narrow for x in loads(r.body)}
    types = {n: op.inputs[n].type for n in positions}  # type: ignore[union-attr]
    wide = sorted(n for n, t in types.items() if isinstance(t, TensorType) and t.dtype is f32)
    return wide or Reason("{} multiplies no values of float32", op)


@register_pass
@dataclass
class Precision(Pass):
    """Lets contractions multiply in `type`: tf32, f16 or bf16 (f32 changes nothing)."""

    type: str = "f32"

    name = RULE
    requires = ("typed", "unfused")
    destroys = ("original", "canonical")

    def run(self, graph: Graph, ctx: Context) -> bool:
        if self.type not in PRECISIONS:
            raise ModelError(f"precision {self.type!r} is not one of {', '.join(PRECISIONS)}")
        return self.type != "f32" and narrow_contractions(graph, self.type, ctx)
