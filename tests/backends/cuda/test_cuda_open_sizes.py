"""Kernels of open shape: one text for all sizes within bounds. In the simulator they give what the
interpreter gives for the static graph of each size."""

from __future__ import annotations

import random

import numpy as np
import pytest
import test_open_shapes as shapes
from cuda_programs import needs_compiler

import graphc
from graphc.backends.cuda import emit
from graphc.backends.cuda.simulator import simulate
from graphc.driver import configured, policy, to_program
from graphc.ir.compare import compare
from graphc.ir.graph import Graph
from graphc.ir.interp import interpret
from graphc.ir.program import Program
from graphc.passes.general import general
from graphc.passes.specialise import pin, specialise
from graphc.runtime.feeds import random_feeds

pytestmark = needs_compiler


def open_graph(text: str, where: str = shapes.WHERE) -> Graph:
    text = text.replace("{}", where, 1).replace("{{", "{").replace("}}", "}")
    return graphc.parse(f"graph @g{text} return %r }}")


def open_program(graph: Graph, **options: object) -> Program:
    target, settings = configured("cuda", None, {"simulate": True, **options})
    return to_program(general(graph, policy(target)), target, settings)


def agrees(graph: Graph, program: Program, runs: int = 5, tolerance: float = 2e-5) -> None:
    run, dice = simulate(emit(program)), random.Random(0)
    for seed in range(runs):
        dims = {
            s.name: (s.lo, s.hi)[seed] if seed < 2 else dice.randint(s.lo, s.hi)
            for s in program.sizes
        }
        feeds = random_feeds(pin(graph, dims=dims), seed)
        wanted = interpret(specialise(graph, {n: a.shape for n, a in feeds.items()}), [*feeds.values()])
        for mine, other in zip(run(list(feeds.values())), wanted, strict=True):
            agreement = compare("output", mine, other)
            assert agreement.within(tolerance), f"{dims}: {agreement}"


@pytest.mark.parametrize("name", shapes.GRAPHS)
def test_graphs(name):
    graph = open_graph(shapes.GRAPHS[name])
    agrees(graph, open_program(graph))


LARGE = "where N: 1..3, S: 1..70, H: 5..20"
CONTRACTIONS = {
    "rows": "(%x: f32[N,S,24]) -> ? {} { const %w : f32[24,40] = random(seed=1) "
    "const %b : f32[40] = random(seed=2) %a = MatMul(%x, %w) %c = Add(%a, %b) %r = Relu(%c)",
    "both sides": "(%x: f32[N,S,32], %y: f32[N,32,S]) -> ? {} { %r = MatMul(%x, %y)",
    "heads": "(%x: f32[N,S,32], %y: f32[N,S,32]) -> ? {} { const %t : i64[4] = [0,0,2,16] "
    "%a = Reshape(%x, %t) %b = Transpose(%a) {{perm=[0,2,1,3]}} %c = Reshape(%y, %t) "
    "%d = Transpose(%c) {{perm=[0,2,3,1]}} %e = MatMul(%b, %d) %r = Softmax(%e)",
    "images": "(%x: f32[N,8,H,H]) -> ? {} { const %w : f32[24,8,3,3] = random(seed=1) "
    "%a = Conv(%x, %w) {{pads=[1,1,1,1], strides=[2,2]}} %r = Relu(%a)",
}  # fmt: skip


@pytest.mark.parametrize("precision", ["f32", "f16", "tf32"])
@pytest.mark.parametrize("name", CONTRACTIONS)
def test_contractions_are_tiled(name, precision):
    graph = open_graph(CONTRACTIONS[name], LARGE)
    program = open_program(graph, precision=precision)
    tiles = "tiles" if precision == "f32" else "cores"
    assert any(name.startswith(tiles) for name in program.kernels), list(program.kernels)
    agrees(graph, program, tolerance=2e-5 if precision == "f32" else 2e-2)


ROWS = {
    "many rows": "(%x: f32[N,S,96]) -> ? {} { const %s : f32[96] = random(seed=1) "
    "%r = LayerNormalization(%x, %s)",
    "long rows": "(%x: f32[N,L]) -> ? {} { %r = Softmax(%x)",
    "rows of even length": "(%x: f32[N,L,4]) -> ? {} { const %a : i64[2] = [1,2] "
    "%m = ReduceMean(%x, %a) {{keepdims=1}} %r = Sub(%x, %m)",
    "columns": "(%x: f32[N,L,S]) -> ? {} { %r = Softmax(%x) {{axis=1}}",
    "moments": "(%x: f32[N,3,L]) -> ? {} { const %s : f32[3] = random(seed=1) "
    "const %b : f32[3] = random(seed=2) %r = InstanceNormalization(%x, %s, %b)",
}


@pytest.mark.parametrize("high", [60, 5000])
@pytest.mark.parametrize("name", ROWS)
def test_rows_are_shared_by_threads(name, high):
    graph = open_graph(ROWS[name], f"where N: 1..3, S: 1..9, L: 1..{high}")
    program = open_program(graph)
    assert any(name.startswith("rows") for name in program.kernels), list(program.kernels)
    agrees(graph, program)


ATTENTION = {
    "masked": "(%q: f32[N,2,S,16], %k: f32[N,2,16,L], %v: f32[N,2,L,24], %m: f32[S,L]) -> ? {} { "
    "%a = MatMul(%q, %k) %b = Add(%a, %m) %c = Softmax(%b) %r = MatMul(%c, %v)",
    "by parts": "(%q: f32[N,S,16], %k: f32[N,16,L], %v: f32[N,L,16]) -> ? {} { "
    "%a = MatMul(%q, %k) %b = Softmax(%a) %r = MatMul(%b, %v)",
}


@pytest.mark.parametrize("precision", ["f32", "f16"])
@pytest.mark.parametrize("high", [20, 150])
@pytest.mark.parametrize("name", ATTENTION)
def test_attention_is_one_kernel(name, high, precision):
    graph = open_graph(ATTENTION[name], f"where N: 1..2, S: 1..{high}, L: 1..{high}")
    program = open_program(graph, precision=precision)
    assert any("attention" in name or "flash" in name for name in program.kernels), list(program.kernels)
    agrees(graph, program, tolerance=2e-5 if precision == "f32" else 5e-3)
