"""Integer inference: QuantizeLinear(op(DequantizeLinear(x), ...)) becomes arithmetic on integers.

The rules are those of the group "quantised" (rules/quantised.py). Constants are not folded
meanwhile: dequantised weights would no longer be recognised as integers.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphc.ir.graph import Graph
from graphc.passes.context import Context
from graphc.passes.pass_manager import register_pass
from graphc.passes.rewriter import Rewrite, apply_rules


@register_pass
@dataclass
class Integers(Rewrite):
    """Replaces dequantise, compute, quantise by integer operators where rules allow."""

    group: str = "quantised"
    name = "integers"

    def run(self, graph: Graph, ctx: Context) -> bool:
        return apply_rules(graph, self.chosen(), ctx, fold=False)
