"""Intermediate values by name, next to the interpreter and ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest

import graphc
from graphc import dsl
from graphc.frontend.onnx_export import export_onnx
from graphc.ir.interp import interpret
from graphc.observing import named_values, observe, with_outputs


@pytest.fixture
def graph():
    with dsl.building("small") as g:
        x = g.input("x", dsl.f32[2, 3])
        total = dsl.Add(x, np.ones(3, np.float32))
        g.output(y=dsl.Relu(total), z=dsl.ReduceSum(total, np.array([1])))
    return graphc.import_onnx(export_onnx(g.graph))


def samples(count):
    rng = np.random.default_rng(0)
    return [{"x": rng.standard_normal((2, 3)).astype(np.float32)} for _ in range(count)]


def test_every_value_is_that_of_the_interpreter(graph):
    names = list(named_values(graph))
    assert names[0] == "x" and {"y", "z"} <= set(names) and len(names) == 4
    for sample, seen in zip(samples(3), observe(graph, None, samples(3)), strict=True):
        assert list(seen) == names
        expected = interpret(with_outputs(graph, names), [sample["x"]])
        for name, value in zip(names, expected):
            np.testing.assert_allclose(seen[name], value, rtol=1e-6, err_msg=name)


def test_one_sample_is_asked_for_at_a_time(graph):
    taken = []

    def stream():
        for sample in samples(3):
            taken.append(sample)
            yield sample

    seen = observe(graph, ["y"], stream())
    assert list(next(seen)) == ["y"] and len(taken) == 1


def test_the_model_keeps_its_outputs(graph):
    before = str(graph)
    list(observe(graph, ["x"], samples(1)))
    assert str(graph) == before


def test_an_unknown_name_is_an_error_that_names_one_like_it(graph):
    name = next(n for n in named_values(graph) if n not in "xyz")
    with pytest.raises(graphc.ModelError, match=f"did you mean .*{name}"):
        list(observe(graph, [name + "s"], samples(1)))
