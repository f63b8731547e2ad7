"""Rules that rewrite graphs of open shape as they do static ones."""

from __future__ import annotations

import random

import pytest
from test_open_shapes import agrees_at

import graphc
from graphc.driver import Settings, configured, optimise, to_program
from graphc.ir.graph import Graph, clone_graph
from graphc.ir.program import Program
from graphc.passes.general import general

WHERE = "where N: 1..3, H: 3..9, W: 2..7"
SIZES_OF_IMAGE = """const %zero : i64[1] = [0] const %one : i64[1] = [1] const %two : i64[1] = [2]
  const %end : i64[1] = [4] %d = Shape(%x) %n = Slice(%d, %zero, %one)
  %space = Slice(%d, %two, %end)
"""
CASES = {
    "conv-before-resize": f"""(%x: f32[N,16,H,W], %y: f32[N,20,2,3]) -> ? {WHERE} {{
  {SIZES_OF_IMAGE} const %w : f32[8,36,1,1] = random(seed=1) const %c : i64[1] = [20]
  %s = Concat(%n, %c, %space) {{axis=0}} %u = Resize(%y, _, _, %s) {{mode="linear"}}
  %j = Concat(%u, %x) {{axis=1}} %r = Conv(%j, %w)""",
    "conv-of-tokens": f"""(%x: f32[N,20,H,W]) -> ? {WHERE} {{
  {SIZES_OF_IMAGE} const %w : f32[16,12,1,1] = random(seed=1) const %v : f32[20,12] = random(seed=2)
  const %a : i64[3] = [0, 20, -1] %t = Reshape(%x, %a) %m = Transpose(%t) {{perm=[0,2,1]}}
  %k = MatMul(%m, %v) %b = Transpose(%k) {{perm=[0,2,1]}} const %c : i64[1] = [12]
  %s = Concat(%n, %c, %space) {{axis=0}} %i = Reshape(%b, %s) %r = Conv(%i, %w)""",
    "copy": f"""(%x: f32[N,5,H,W]) -> ? {WHERE} {{
  %d = Shape(%x) %u = Resize(%x, _, _, %d) {{mode="linear"}} %r = Neg(%u)""",
    "conv-transpose-to-conv": f"""(%x: f32[N,4,H,W]) -> ? {WHERE} {{
  const %w : f32[4,3,3,2] = random(seed=1) const %b : f32[3] = random(seed=2)
  %r = ConvTranspose(%x, %w, %b) {{strides=[2,2], pads=[0,0,1,0]}}""",
    "conv-after-pool": f"""(%x: f32[N,4,H,W]) -> ? {WHERE} {{
  const %w : f32[9,4,1,1] = random(seed=1) %c = Conv(%x, %w)
  %r = AveragePool(%c) {{kernel_shape=[2,2], strides=[2,2]}}""",
    "mixed-maps": f"""(%x: f32[N,4,H,W]) -> ? {WHERE} {{
  const %w : f32[4,6] = random(seed=1) %a = Transpose(%x) {{perm=[0,2,3,1]}}
  %b = MatMul(%a, %w) %r = Transpose(%b) {{perm=[0,3,1,2]}}""",
}
"""A graph by the rule that fires on it."""


def lowered(graph: Graph) -> tuple[Program, set[str]]:
    """The program of a typed graph, and the rules that fired."""
    target, settings = configured("cpu", None, {})
    made = clone_graph(graph)
    optimise(made, settings, target=target)
    fired = {rewrite.rule for rewrite in settings.context.diagnostics.log}
    return to_program(graph, target, Settings(threads=1)), fired


@pytest.mark.parametrize("rule", CASES)
def test_rules(rule):
    graph = graphc.parse(f"graph @g{CASES[rule]} return %r }}")
    program, fired = lowered(general(graph))
    assert rule in fired
    for kernel in program.kernels.values():
        assert any(b.access == "in" for b in kernel.params), "dimensions alone are stored"
    dice = random.Random(rule)
    for seed in range(6):
        ends = [(s.lo, s.hi) for s in program.sizes]
        dims = {
            s.name: end[seed] if seed < 2 else dice.randint(*end)
            for s, end in zip(program.sizes, ends)
        }
        agrees_at(program, graph, dims, seed)
