"""Ops that are alike are composed once, and others are not taken for them."""

from __future__ import annotations

import numpy as np

from graphc.driver import optimise
from graphc.ir import dtypes
from graphc.ir.build import Builder, new_graph
from graphc.ir.graph import Graph
from graphc.ir.types import TensorType
from graphc.passes.analysis.compose import computation, computations


def layers() -> Graph:
    """Layers that are alike, and some that differ in a number, a place, an operand or a type."""
    graph = new_graph("main", x=TensorType(dtypes.f32, (4, 8)), n=TensorType(dtypes.i64, (4, 8)))
    b, (x, n) = Builder(graph), graph.params
    weight = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    results = [
        b.Add(b.Mul(n, b.constant(np.arange(8))), b.constant(np.arange(8) * k)) for k in (1, 2)
    ]
    for scale in (0.5, 0.5, 0.25):
        x = b.Relu(b.Add(b.MatMul(x, b.constant(weight * scale)), b.constant(np.float32(scale))))
    twice = b.Tanh(b.Add(x, x))
    results += [x, twice, b.Tanh(b.Add(x, twice)), b.Tanh(b.Sub(x, twice)), b.Tanh(b.Sub(twice, x))]
    results += [b.Slice(x, np.array([k]), np.array([k + 2]), np.array([1])) for k in (0, 3)]
    results.append(b.Cast(b.Tanh(b.Cast(twice, to=11)), to=1))
    graph.set_results(results)
    graph.output_names = [f"y{k}" for k in range(len(results))]
    graph.phase = "typed"
    return graph


def test_all_are_as_if_composed_apart():
    for graph in (layers(), optimise(layers())):
        ops = [op for op in graph.ops if op.name != "Constant"]
        shared, apart = computations(ops), [*map(computation, ops)]
        assert shared == apart and [c.label for c in shared] == [c.label for c in apart]
        assert len({id(c) for c in shared}) < len(ops)


def test_numbers_tell_ops_apart():
    ops = [op for op in layers().ops if op.name in ("Add", "Slice")]
    made = computations(ops)
    assert len({id(c) for c in made}) == len(set(made)) < len(ops)
