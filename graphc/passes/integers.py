"""Integer inference: QuantizeLinear(op(DequantizeLinear(x), ...)) becomes arithmetic on integers.

Operators that are defined as such a sequence (trait "quantised") are first replaced by it, those
that stand for ones of ONNX (trait "alias") by those; identities go, and padding goes into the
windows that read it. The rules are those of the group "quantised" (rules/quantised). Dequantised
constants are not folded meanwhile: as floats, weights would no longer be recognised as integers. On
machines with fast floats, ops other than sums of products stay computations of floats between
integers, which read and write as few bytes.
"""

from __future__ import annotations

from graphc.ir.graph import Graph
from graphc.ir.wide_graphs import expand_in_place
from graphc.passes.fold import FoldPolicy
from graphc.passes.manager.base import register_pass
from graphc.passes.manager.context import Context
from graphc.passes.rewriter import RULES, Rewrite, apply_rules
from graphc.passes.rules.quantised.kernels import WHOLE_OPERATORS
from graphc.records import dataclass

KEEP_INTEGERS = FoldPolicy(keep=frozenset({"DequantizeLinear"}))
QUANTISED = frozenset({"QLinearConv", "QLinearMatMul"})  # which have a definition of their own
REPLACED = frozenset({"quantised", "alias"})
FIRST = ("identity", "pad-into-conv", "pad-into-average-pool")


@register_pass
@dataclass
class Integers(Rewrite):
    """Replaces dequantise, compute, quantise by integer operators where rules allow."""

    group: str = "quantised"
    name = "integers"

    def run(self, graph: Graph, ctx: Context) -> bool:
        operators = [op for op in graph.walk() if op.defn.traits & REPLACED]
        whole = any(op.name in QUANTISED or "quantised" in op.defn.traits for op in graph.walk())
        ctx.options[WHOLE_OPERATORS] = whole
        changed = False
        for op in operators:
            if ctx.spend("decompose", op):
                expand_in_place(op)
                changed = True
        changed |= apply_rules(graph, [RULES[name] for name in FIRST], ctx, KEEP_INTEGERS)
        return apply_rules(graph, self.chosen(), ctx, KEEP_INTEGERS) or changed
