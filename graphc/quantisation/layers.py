"""Which operators become integer, and which values share a scale.

A layer is a contraction with constant weights: it is always quantised. Operators on values that
layers make, and that layers read, follow, so that a chain of them stays integer: sums, products,
means, functions of one element, moves. Activations that an integer kernel applies itself belong to
what makes their operand. Matrix products give floats at no cost, so what stands between them (a
softmax, a normalisation, a residual sum) stays float, unless `whole` asks for integers wherever
there is an integer form.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphc.ir import dtypes
from graphc.ir.graph import Graph, Op, Value
from graphc.passes.analysis.facts import choice, limits, negative_factor, scalar_function

CONTRACTIONS = {"Conv": 0, "ConvTranspose": 1, "Gemm": 1, "MatMul": 1}
"""With the axis of the weights that belongs to output channels."""
PRODUCTS = ("Gemm", "MatMul")
COMPUTED = ("Add", "Sub", "Mul", "AveragePool", "GlobalAveragePool", "ReduceMean")


@dataclass(eq=False)
class Layer:
    """A contraction with constant weights. `end` is its result after bias and activations; `name`
    that of its node, made distinct."""

    op: Op
    end: Value
    bias: Op | None = None  # the Add behind a MatMul
    name: str = ""

    @property
    def data(self) -> Value:
        return self.op.operand(0)

    @property
    def weights(self) -> np.ndarray:
        contents = self.op.operand(1).constant
        assert contents is not None
        return contents

    @property
    def axis(self) -> int:
        """The axis of the weights that belongs to output channels."""
        transposed = self.op.name == "Gemm" and self.op.attrs.get("transB", 0)
        return 0 if transposed else CONTRACTIONS[self.op.name]

    @property
    def channels(self) -> int:
        """How many output channels there are."""
        return self.weights.shape[self.axis]

    @property
    def groups(self) -> int:
        return self.op.attrs.get("group", 1)


class Choice:
    """The layers of a graph, all operators that become integer (`members`), and the values that are
    quantised, each with the number of the group that shares a scale."""

    def __init__(self, graph: Graph, whole: bool = False, left_out: frozenset[str] = frozenset()):
        self.graph, self.whole = graph, whole
        self.layers = [layer for layer in all_layers(graph) if layer.name not in left_out]
        self.members: dict[Op, Value] = {layer.op: layer.end for layer in self.layers}
        self.followers = {
            op: _end(op, graph) for op in graph.ops
            if op not in self.members and self._may_follow(op)
        }  # fmt: skip
        self.members.update(self.followers)
        self._settle()
        self.made = {end: op for op, end in self.members.items()}
        self.groups = self._grouped()

    def _may_follow(self, op: Op) -> bool:
        if not (op.is_typed and op.outputs and _is_float(op.outputs[0])) or len(op.outputs) != 1:
            return False
        if not operands(op):
            return False
        if op.name in COMPUTED or moves(op):
            return True
        if op.name in ("Softmax", "MatMul"):  # those of attention
            return self.whole
        return _is_function(op)

    def _settle(self) -> None:
        """Takes operators out until each has integer operands and integer readers."""
        while True:
            made = {end: op for op, end in self.members.items()}
            ends = {value for value in made}
            wrong = [
                op for op in self.followers if op in self.members
                and not (all(self._is_available(v, made) for v in operands(op))
                         and self._is_read(self.members[op], ends))
            ]  # fmt: skip
            if not wrong:
                break
            for op in wrong:
                del self.members[op]
        self.followers = {op: end for op, end in self.followers.items() if op in self.members}

    def _is_available(self, value: Value, made: dict[Value, Op]) -> bool:
        if value.producer is None:
            return True
        op = made.get(value)
        return op is not None and (self.whole or op.name not in PRODUCTS)

    def _is_read(self, end: Value, ends: set[Value]) -> bool:
        """Whether an integer operator reads a value."""
        if self.whole and any(user is self.graph.terminator for user in end.users):
            return True
        return any(user in self.members and end in operands(user) for user in end.users)

    def _grouped(self) -> dict[Value, int]:
        quantised: dict[Value, None] = {}
        for op in self.graph.ops:
            if op in self.members:
                quantised.update(dict.fromkeys(operands(op)))
        if self.whole:
            quantised.update(dict.fromkeys(v for v in self.graph.results if v in self.made))
        parents: dict[Value, Value] = {}

        def root(value: Value) -> Value:
            while parents.get(value, value) is not value:
                value = parents[value]
            return value

        for op, end in self.followers.items():
            if moves(op) and end in quantised:
                for value in operands(op):
                    parents[root(value)] = root(end)
        roots: dict[Value, int] = {}
        return {value: roots.setdefault(root(value), len(roots)) for value in quantised}

    def readers(self, value: Value) -> list[tuple[Op, int]]:
        """The operands that become the quantised value: of integer operators only where others can
        have the float that it is made from."""
        if value in self.made:
            return list(value.uses)
        return [(op, n) for op, n in value.uses if op in self.members and value in operands(op)]

    def governing(self, value: Value) -> list[Layer]:
        """The layers that read a value, or what others make of it on the way to them: while one of
        them is quantised, so is the value."""
        layers = {layer.op: layer for layer in self.layers}
        readers: dict[Layer, None] = {}
        waiting, seen = [value], set()
        while waiting:
            reached = waiting.pop()
            for user in reached.users:
                if user in layers and user.operand(0) is reached:
                    readers[layers[user]] = None
                elif user in self.followers and user not in seen:
                    seen.add(user)
                    waiting.append(self.followers[user])
        return list(readers)


def operands(op: Op) -> list[Value]:
    """The operands whose elements are quantised with the operator; constants are not among them."""
    if op.name in CONTRACTIONS and op.operand(1).constant is not None:
        return [op.operand(0)]
    known = choice(op) if op.name not in COMPUTED else None
    numbers = known.operands if known is not None else range(len(op.inputs))
    values = [op.inputs[n] for n in numbers]
    return [v for v in values if v is not None and v.constant is None and _is_float(v)]


def moves(op: Op) -> bool:
    """Whether the results are elements of operands, none of them constant, or zeros."""
    if op.defn.form in ("core", "region") or len(op.outputs) != 1 or not op.is_typed:
        return False
    known = choice(op)
    if known is None or not known.fills <= {0} or limits(op) is not None:
        return False
    return all(op.operand(n).constant is None and _is_float(op.operand(n)) for n in known.operands)


def _is_function(op: Op) -> bool:
    """Whether each element is a function of one element of the only operand that varies."""
    varying = [v for v in op.inputs if v is not None and v.constant is None]
    others = [v for v in op.inputs if v is not None and v.constant is not None]
    return (
        len(varying) == 1
        and all(v.constant is not None and v.constant.size == 1 for v in others)
        and scalar_function(op) is not None
    )


def _is_float(value: Value) -> bool:
    return value.is_ranked and value.tensor.dtype is dtypes.f32


def all_layers(graph: Graph) -> list[Layer]:
    """All layers of a graph, their names distinct."""
    layers, taken = [], set[str]()
    for op in graph.ops:
        layer = _layer(op, graph)
        if layer is None:
            continue
        layer.name = distinct(op.loc[0] if op.loc else op.output.name, taken)
        layers.append(layer)
    return layers


def distinct(name: str, taken: set[str]) -> str:
    """The name, with a number if it is taken; it is taken from then on."""
    own, number = name, 0
    while own in taken:
        number += 1
        own = f"{name}.{number}"
    taken.add(own)
    return own


def _layer(op: Op, graph: Graph) -> Layer | None:
    """The layer that an op is, if it is one."""
    if op.name not in CONTRACTIONS or op.defn.domain or not op.is_typed:
        return None
    weights = op.operand(1)
    if weights.constant is None or not _is_float(weights) or not _is_float(op.operand(0)):
        return None
    if op.operand(0).constant is not None or not np.isfinite(weights.constant).all():
        return None
    bias = op.inputs[2] if len(op.inputs) > 2 else None
    if bias is not None and bias.constant is None:
        return None
    if op.name == "MatMul" and weights.constant.ndim != 2:
        return None
    if op.name == "Gemm" and (op.attrs.get("transA") or op.attrs.get("alpha", 1) != 1):
        return None
    if op.name == "Gemm" and bias is not None and op.attrs.get("beta", 1) != 1:
        return None
    if op.name == "ConvTranspose" and op.attrs.get("group", 1) > 1:
        return None
    added = _bias_of(op, graph)
    return Layer(op, _end(op if added is None else added, graph), added)


def _bias_of(op: Op, graph: Graph) -> Op | None:
    """The Add of a constant vector that alone reads a matrix product."""
    users = op.output.users
    if op.name != "MatMul" or len(op.output.uses) != 1 or users[0].name != "Add":
        return None
    other = users[0].operand(1 if users[0].operand(0) is op.output else 0)
    if other.constant is None or other.tensor.size != op.output.tensor.dims[-1]:
        return None
    return users[0] if users[0].output.type == op.output.type else None


def _end(op: Op, graph: Graph) -> Value:
    """The result of an op after the activations that its integer kernel applies."""
    value = op.output
    if moves(op):
        return value
    while len(value.uses) == 1:
        user = value.users[0]
        if user is graph.terminator or len(user.outputs) != 1 or user.region is not graph:
            break
        if user.operand(0) is not value or user.output.type != value.type:
            break
        if not user.is_typed or (limits(user) is None and negative_factor(user) is None):
            break
        value = user.output
    return value
