"""Training some of the output channels of a layer: these alone change, and take memory for their
weights, gradients and what the optimiser keeps ("On-Device Training Under 256KB Memory", Lin et
al., 2022); all others stay constants.

A layer is computed with its weight as it is, and its chosen channels once more, by a part of the
weight that is trained; `Overlay` puts their results in place. The bias is added afterwards, so that
it is trained whole.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

from graphc.errors import ModelError
from graphc.ir.graph import Graph, Op, Value, clone_graph, constant_op
from graphc.ir.opdef import lookup

RULE = re.compile(r"(?:(?P<pattern>[^=\s]+)=)?(?P<which>all|\d+%?|\[[\d,-]*\])")
FORM = "8, 25%, [0-3,7] or all, and with NAME= before it for weights of that name"
LAYERS = ("Conv", "Gemm", "MatMul")


@dataclass(frozen=True)
class Rule:
    """Which channels are trained of the weights whose names match a pattern: so many, or such a
    percentage, of those with the largest norm; the ones that are listed; or "all"."""

    pattern: str
    which: str

    def of(self, name: str, norms: np.ndarray) -> list[int] | None:
        """The channels of a weight, given the norm of each; None for all."""
        if self.which == "all":
            return None
        if self.which.startswith("["):
            chosen = _listed(self.which)
            if not chosen or chosen[-1] >= len(norms):
                raise ModelError(
                    f"{self.which}: {name} has channels 0 to {len(norms) - 1}; name one or more"
                )
            return chosen
        number = int(self.which.rstrip("%"))
        count = -(-len(norms) * number // 100) if self.which.endswith("%") else number
        if not 0 < count <= len(norms):
            raise ModelError(
                f"{self.which} channels: {name} has {len(norms)}, of which 1 or more are trained"
            )
        largest = np.argsort(-norms, kind="stable")[:count]
        return None if count == len(norms) else sorted(map(int, largest))


def parsed(text: str) -> list[Rule]:
    """The rules of a text, with blanks between; the first that fits a weight counts."""
    rules = []
    for word in text.split():
        match = RULE.fullmatch(word)
        if match is None:
            raise ModelError(f"channels must be {FORM}; found {word!r}")
        rules.append(Rule(match["pattern"] or "*", match["which"]))
    if not rules:
        raise ModelError(f"channels must be {FORM}; found nothing")
    return rules


def with_channels(
    model: Graph, names: Sequence[str], text: str
) -> tuple[Graph, dict[str, list[int]]]:
    """A model in which weights of these names are parts of what they were, for those channels that
    a text names; and the channels, by the names of weights that are parts. Parameters of one
    dimension, and weights that no rule fits, are trained whole.

    ModelError if a weight is not that of a Conv, Gemm or MatMul, or a rule with a name fits none.
    """
    rules, graph = parsed(text), clone_graph(model)
    constants = {op.output.name: op for op in graph.ops if op.name == "Constant"}
    weights = [n for n in names if sum(d != 1 for d in constants[n].output.tensor.dims) > 1]
    for rule in rules:
        if rule.pattern != "*" and not any(fnmatchcase(name, rule.pattern) for name in weights):
            raise ModelError(
                f"channels: no weight that is trained matches {rule.pattern!r}; there are "
                f"{', '.join(weights) or 'none'}"
            )
    done: dict[str, list[int]] = {}
    for name in weights:
        fitting = [rule for rule in rules if fnmatchcase(name, rule.pattern)]
        if not fitting or fitting[0].which == "all":
            continue
        layer = _layer(constants[name])
        array = np.moveaxis(constants[name].attrs["value"], layer.axis, 0)
        norms = np.linalg.norm(array.reshape(len(array), -1).astype(np.float64), axis=1)
        chosen = fitting[0].of(name, norms)
        if chosen is not None:
            layer.split(graph, chosen)
            done[name] = chosen
    return graph, done


def text_of(channels: Sequence[int]) -> str:
    """Channels as they may be listed: [0-3,7]."""
    runs: list[list[int]] = []
    for channel in channels:
        if runs and runs[-1][-1] == channel - 1:
            runs[-1][1:] = [channel]
        else:
            runs.append([channel])
    return f"[{','.join('-'.join(map(str, run)) for run in runs)}]"


def _listed(text: str) -> list[int]:
    """The channels of a list such as [0-3,7], in order."""
    chosen: set[int] = set()
    for part in filter(None, text[1:-1].split(",")):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if match is None:
            raise ModelError(f"a list of channels must be as [0-3,7], found {text}")
        first, last = int(match[1]), int(match[2] or match[1])
        if last - first >= 1 << 20:
            raise ModelError(f"a list of channels must be as [0-3,7], found {text}")
        chosen.update(range(first, last + 1))
    return sorted(chosen)


@dataclass(frozen=True)
class _Layer:
    """An op with a constant weight; `axis` of the weight, and `out` of the result, are those of
    output channels."""

    op: Op
    weight: Op
    axis: int
    out: int

    def split(self, graph: Graph, chosen: list[int]) -> None:
        """Has a part of the weight be a constant of its own."""
        op, name = self.op, self.weight.output.name
        value = self.weight.attrs["value"]
        part = constant_op(np.ascontiguousarray(value.take(chosen, self.axis)), name, op.loc)
        graph.insert_before(self.weight, part)
        self.weight.output.name = f"{name}, fixed"
        attrs = {k: v for k, v in op.attrs.items() if k != "beta"}
        given = op.operand(0)
        whole = self._made(graph, op.name, [given, self.weight.output], attrs)
        groups = op.attrs.get("group", 1) if op.name == "Conv" else 1
        if groups > 1:
            per_group = len(value) // groups
            taken = np.array([c // per_group for c in chosen])[:, None] * value.shape[1]
            channels = (taken + np.arange(value.shape[1])).reshape(-1)
            index = self._constant(graph, channels.astype(np.int64))
            given = self._made(graph, "Gather", [given, index], {"axis": 1})
            attrs = {**attrs, "group": len(chosen)}
        own = self._made(graph, op.name, [given, part.output], attrs)
        where = {"axis": self.out, "positions": tuple(chosen)}
        result = self._made(graph, "Overlay", [whole, own], where, "graphc")
        op.output.replace_uses(self._biased(graph, result))
        op.erase()

    def _biased(self, graph: Graph, result: Value) -> Value:
        """The result with the bias of the layer."""
        bias = self.op.inputs[2] if len(self.op.inputs) > 2 else None
        if bias is None:
            return result
        beta, rank = self.op.attrs.get("beta", 1.0), len(self.weight.output.tensor.dims)
        if self.op.name == "Conv":
            axes = self._constant(graph, np.arange(1, rank - 1))
            bias = self._made(graph, "Unsqueeze", [bias, axes], {})
        elif beta != 1.0:
            factor = self._constant(graph, np.array(beta, self.weight.attrs["value"].dtype))
            bias = self._made(graph, "Mul", [bias, factor], {})
        return self._made(graph, "Add", [result, bias], {})

    def _made(
        self, graph: Graph, name: str, inputs: list[Value | None], attrs: dict, domain: str = ""
    ) -> Value:
        """The result of an op of this layer."""
        made = Op(lookup(name, domain), inputs, attrs, 1, (), self.op.loc)
        return graph.insert_before(self.op, made).output

    def _constant(self, graph: Graph, array: np.ndarray) -> Value:
        return graph.insert_before(self.op, constant_op(array, "", self.op.loc)).output


def _layer(weight: Op) -> _Layer:
    """The layer that a weight is of."""
    value, rank = weight.output, len(weight.output.tensor.dims)
    ((op, position), *others) = [*value.uses, (None, None)]
    is_weight = op is not None and op.name in LAYERS and position == 1 and len(others) == 1
    if is_weight and op.name == "Conv":
        return _Layer(op, weight, 0, 1)
    if is_weight and rank == 2:
        is_turned = op.name == "Gemm" and bool(op.attrs.get("transB", 0))
        return _Layer(op, weight, 0 if is_turned else 1, 1 if op.name == "Gemm" else -1)
    raise ModelError(
        f"channels: {value.name} is not the weight of one Conv, Gemm or MatMul: "
        f"train it whole, by '{value.name}=all' before the other rules"
    )
