"""Operators that are kernels, or read tables, over open sizes: what they give at sizes, and on the
CPU."""

from __future__ import annotations

import random

import numpy as np
import pytest
from open_shapes import agrees_on_the_cpu
from test_open_shapes import agrees_at, program_of

import graphc
from graphc.passes.general import NotOpen, general

WHERE = "where N: 1..4, S: 2..40, P: 1..5"
GRAPHS = {
    "running sum": "(%x: f32[N,S,3]) -> ? {} { const %a : i64[] = 1 %r = CumSum(%x, %a) "
    "{{reverse=1}}",
    "running product of all before": "(%x: f32[S,N]) -> ? {} { const %a : i64[] = -1 "
    "%r = CumProd(%x, %a) {{exclusive=1}}",
    "updates of elements": "(%x: f32[N,S], %i: i64[N,P], %u: f32[N,P]) -> ? {} { "
    'const %two : i64[] = 2 %j = Mod(%i, %two) %r = ScatterElements(%x, %j, %u) {{axis=1, '
    'reduction="add"}}',
    "updates of rows": "(%x: f32[S,N], %i: i64[P,1], %u: f32[P,N]) -> ? {} { "
    "const %two : i64[] = 2 %j = Mod(%i, %two) %r = ScatterND(%x, %j, %u)",
    "the two best": "(%x: f32[N,S,3]) -> ? {} { const %k : i64[1] = [2] "
    "%r, %i = TopK(%x, %k) {{axis=1}}",
    "the worst of rows": "(%x: f32[S,P,3]) -> ? {} { const %k : i64[1] = [2] "
    "%v, %r = TopK(%x, %k) {{axis=2, largest=0}}",
    "constant places in images of open channels": "(%x: f32[2,N,3,4]) -> ? {} { "
    "const %g : f32[2,3,5,2] = random(seed=1) %r = GridSample(%x, %g) "
    '{{mode="nearest", align_corners=1}}',
    "determinants": "(%x: f32[N,P,3,3]) -> ? {} { %r = Det(%x)",
}  # fmt: skip


def graph_of(name: str):
    text = GRAPHS[name].replace("{}", WHERE, 1).replace("{{", "{").replace("}}", "}")
    return graphc.parse(f"graph @g{text} return %r }}")


@pytest.mark.parametrize("name", [n for n in GRAPHS if n != "updates of rows"])
def test_plain_kernels(name):
    graph = graph_of(name)
    program = program_of(graph)
    dice = random.Random(name)
    for seed in range(5):
        ends = [(s.lo, s.hi) for s in program.sizes]
        sizes = [end[seed] if seed < 2 else dice.randint(*end) for end in ends]
        agrees_at(program, graph, {s.name: n for s, n in zip(program.sizes, sizes)}, seed)


@pytest.mark.parametrize("name", GRAPHS)
def test_on_the_cpu(name):
    agrees_on_the_cpu(graph_of(name), name)


def test_kernels_that_need_a_number_are_refused():
    graph = graphc.parse(f"graph @g(%x: f32[N,S,S]) -> ? {WHERE} {{ %r = Det(%x) return %r }}")
    with pytest.raises(NotOpen, match="Det"):
        general(graph)
    assert not np.isnan(
        graphc.compile(graph, specialise="any").run([np.ones((2, 3, 3), "f4")])[0]
    ).any()
