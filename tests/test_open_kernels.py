"""Operators that are kernels, or read tables, over open sizes: what they give at sizes, and on the
CPU."""

from __future__ import annotations

import random

import numpy as np
import pytest
from open_shapes import ONE_SHAPE, agrees_on_the_cpu
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
    "determinants of any size": "(%x: f32[N,P,P]) -> ? {} { %r = Det(%x)",
    "large determinants": "(%x: f32[N,S,S]) -> ? {} { %r = Det(%x)",
    "unpooled": "(%x: f32[N,P,S,2], %i: i64[N,P,S,2]) -> ? {} { const %n : i64[] = 8 "
    "%j = Mod(%i, %n) %r = MaxUnpool(%x, %j) {{kernel_shape=[2,2], strides=[2,2]}}",
    "parts of unequal length": "(%x: f32[N,S]) -> ? {} "
    "{ %a, %b, %c, %r = Split(%x) {{axis=1, num_outputs=4}}",
    "two of three parts": "(%x: f32[N,S]) -> ? {} "
    "{ %a, %b, %c = Split(%x) {{axis=1, num_outputs=3}} %r = Add(%a, %b)",
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
    graph = graphc.parse(f"graph @g(%x: f32[N,S]) -> ? {WHERE} {{ %r = {ONE_SHAPE}(%x) "
                         "return %r }")  # fmt: skip
    with pytest.raises(NotOpen, match="Longest"):
        general(graph)
    found = graphc.compile(graph, specialise="any").run([np.ones((2, 3), "f4")])[0]
    np.testing.assert_array_equal(found, np.full((2, 3), 2))


@pytest.mark.parametrize("length", [0, 1, 70])
@pytest.mark.parametrize("attrs", ["", "{axis=0}", "{sorted=0}", "{axis=1, sorted=0}"])
def test_distinct_elements_and_slices(attrs, length):
    graph = graphc.parse("graph @g(%x: f32[S,3]) -> (?, ?, ?, ?) where S: 0..80 { "
                         f"%y, %i, %v, %c = Unique(%x) {attrs} "
                         "return %y, %i, %v, %c }")  # fmt: skip
    x = np.random.default_rng(0).integers(0, 4, (length, 3)).astype(np.float32)
    model = graphc.compile(graph, specialise="any", threads=1)
    exact = graphc.compile(graph, specialise="exact", threads=1)
    for found, expected in zip(model.run([x]), exact.run([x])):
        np.testing.assert_array_equal(found, expected)
    assert model.why_exact == ""
