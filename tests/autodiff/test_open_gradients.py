"""Gradients over sizes: those of the same graph at each size."""

from __future__ import annotations

import numpy as np
import pytest

import graphc
from graphc import dsl
from graphc.autodiff.reverse import gradients
from graphc.errors import ModelError
from graphc.ir.graph import Graph
from graphc.ir.text.parser import parse_graph
from graphc.passes.general import general
from graphc.passes.specialise import pin, specialise

RNG = np.random.default_rng(0)


def model() -> Graph:
    """Movements, windows, scatters and reductions along an axis of open size."""
    with dsl.building("model") as g:
        x, v = g.input("x", dsl.f32["N", 4, 6]), g.input("v", dsl.f32[6, 3])
        places = g.input("places", dsl.i64["N", 2])
        flat = dsl.Reshape(x, np.array([-1, 6])) @ v  # [N * 4, 3]
        rows = dsl.Reshape(flat, np.array([-1, 4, 3]))
        near = dsl.MaxPool(x, kernel_shape=[3], strides=[2], pads=[1, 0])
        picked = dsl.GatherElements(dsl.Reshape(x, np.array([-1, 24])), places, axis=1)
        top, _ = dsl.TopK(x, np.array([2]), axis=1, outputs=2)
        sums = dsl.CumSum(rows, np.array(1))
        largest = dsl.ReduceMax(x, np.array([0]), keepdims=1)
        parts = [dsl.ReduceMean(y * y, keepdims=0) for y in (sums, near, picked, top, x - largest)]
        g.output(y=sum(parts[1:], parts[0]))
    return g.graph


def differentiated(graph: Graph) -> Graph:
    by = [p for p in graph.params if p.name in "xv"]
    one = np.ones((), np.float32)
    from graphc.ir.build import Builder

    slopes = gradients(graph, {graph.results[0]: Builder(graph).constant(one)}, by)
    graph.set_results(slopes)
    graph.output_names, graph.output_types = [], []
    return graph


def test_gradients_over_a_size_are_those_at_each():
    source = model()
    made = differentiated(general(pin(source, dims={"N": (1, 5)})))
    assert any("s0" in op.attrs.get("body", "") for op in made.ops)
    text = str(made)
    assert str(parse_graph(text)) == text
    compiled = graphc.compile(made, specialise="any", threads=1)
    for n in (1, 2, 5):
        feeds = {
            "x": RNG.standard_normal((n, 4, 6)).astype(np.float32),
            "v": RNG.standard_normal((6, 3)).astype(np.float32),
            "places": RNG.integers(0, 24, (n, 2)),
        }
        shapes = {name: array.shape for name, array in feeds.items()}
        wanted = graphc.interpret(differentiated(specialise(source, shapes)), list(feeds.values()))
        for one, other in zip(compiled.run(feeds), wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)
    assert [info.bounds for info in compiled.executables()] == [{"N": (1, 5)}]


def test_sizes_without_bounds_are_refused():
    graph = model()
    with pytest.raises(ModelError, match="static shapes, or bounds of all sizes"):
        differentiated(graph)
