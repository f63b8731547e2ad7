"""Layers that stay float, so that accuracy is kept."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from saturation import exact_session

import graphc
from graphc import dsl
from graphc.frontend.onnx_export import export_onnx
from graphc.ir.graph import clone_graph
from graphc.ir.interp import interpret
from graphc.quantisation.layers import Choice
from graphc.quantisation.mixtures import Step, multiplications, steps_between
from graphc.quantisation.quantiser import prepared

RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def hard():
    """A model with a layer whose inputs spread over five decades, which 8 bits cannot hold."""
    spread = (10.0 ** np.linspace(0, 5, 8)).astype(np.float32)
    weights = {
        "w1": RNG.standard_normal((6, 8)).astype(np.float32) * spread,
        "w2": RNG.standard_normal((8, 8)).astype(np.float32) / spread[:, None],
        "w3": RNG.standard_normal((8, 5)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Gemm", ["x", "w1"], ["h1"], "first"),
        helper.make_node("Relu", ["h1"], ["r1"]),
        helper.make_node("Gemm", ["r1", "w2"], ["h2"], "spread"),
        helper.make_node("Relu", ["h2"], ["r2"]),
        helper.make_node("Gemm", ["r2", "w3"], ["y"], "last"),
    ]
    graph = helper.make_graph(
        nodes, "hard",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 5])],
        [numpy_helper.from_array(a, n) for n, a in weights.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model, {"x": RNG.standard_normal((200, 6)).astype(np.float32)}


def test_the_layer_that_costs_accuracy_stays_float(hard):
    model, data = hard
    plain = graphc.quantise(model, data, equalise=False)
    assert plain.agreement < 0.9 and not plain.left_out
    kept = graphc.quantise(model, data, keep_accuracy=0.97, equalise=False)
    assert kept.agreement >= 0.97
    assert kept.left_out == ["spread"]
    assert [layer.name for layer in kept.layers] == ["first", "last"]


def test_nothing_stays_float_without_need(hard):
    model, data = hard
    plain = graphc.quantise(model, data, equalise=False)
    kept = graphc.quantise(model, data, keep_accuracy=plain.agreement, equalise=False)
    assert not kept.left_out


def test_labels_decide_where_they_are_given(hard):
    model, data = hard
    graph = graphc.import_onnx(model)
    rows = [interpret(graph, [row[None]])[0].argmax() for row in data["x"]]
    labels = np.array(rows)
    labels[::4] = (labels[::4] + 1) % 5
    kept = graphc.quantise(model, data, keep_accuracy=0.97, labels=labels, equalise=False)
    assert kept.accuracy.float_right == pytest.approx(0.75)
    assert kept.accuracy.right >= 0.97 * 0.75
    with pytest.raises(graphc.ModelError, match="labels: there are 3"):
        graphc.quantise(model, data, labels=labels[:3])
    with pytest.raises(graphc.ModelError, match="between 0 and 1"):
        graphc.quantise(model, data, keep_accuracy=99)


def test_multiplications(hard):
    layers = Choice(clone_graph(prepared(hard[0]))).layers
    assert [multiplications(layer) for layer in layers] == [48, 64, 40]
    assert isinstance(hard[0], onnx.ModelProto)


LEVELS = {"int4": (4, 32), "int8": (8, 8), "int16": (8, 16), "float16": (16, 32)}


@pytest.fixture(scope="module")
def uneven():
    """Matrix products of which one holds numbers of very different size."""
    with dsl.building("uneven") as g:
        x = g.input("x", dsl.f32[1, 64])
        spread = (10.0 ** np.linspace(0, 4, 64)).astype(np.float32)
        h = dsl.Relu(dsl.MatMul(x, f32(64, 64) * spread) + f32(64))
        h = dsl.Relu(dsl.MatMul(h, f32(64, 64) / spread[:, None]) + f32(64))
        g.output(y=dsl.MatMul(h, f32(64, 10)) + f32(10))
    return export_onnx(g.graph), {"x": f32(120, 64)}


def f32(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("bound", [0.9, 0.99, 1.0])
def test_a_mixture_keeps_its_bound(uneven, bound):
    model, data = uneven
    kept = graphc.quantise(
        model, data, keep_accuracy=bound, mixture=["int4", "int8", "int16", "float16", "float"],
        equalise=False,
    )  # fmt: skip
    assert kept.agreement >= bound
    assert all((x.weight_bits, x.activation_bits) in LEVELS.values() for x in kept.layers)
    made = kept.to_onnx()
    onnx.checker.check_model(made, full_check=True)
    session = exact_session(made)
    compiled = graphc.compile(made)
    for row in data["x"][:3]:
        feeds = {"x": row[None]}
        want, found = session.run(None, feeds)[0], compiled.run(feeds)[0]
        np.testing.assert_allclose(found, want, atol=0.02 * np.abs(want).max())


def test_a_tighter_bound_costs_more(uneven):
    model, data = uneven
    options = dict(mixture=["int4", "int8", "float16", "float"], equalise=False)
    loose = graphc.quantise(model, data, keep_accuracy=0.5, **options)
    tight = graphc.quantise(model, data, keep_accuracy=1.0, **options)

    def bits(made):
        return sum({x.name: x.weight_bits for x in made.layers}.get(n, 32) for n in names)

    names = [x.name for x in loose.layers] + loose.left_out
    assert bits(loose) < bits(tight)
    assert min(tight.outputs.values()) > min(loose.outputs.values())


def test_16_bits_are_taken_where_8_do_not_do():
    """Inputs of few large numbers and many small ones, all of which matter."""
    with dsl.building("tails") as g:
        h = dsl.Relu(dsl.MatMul(g.input("x", dsl.f32[1, 32]), f32(32, 24)) + f32(24))
        g.output(y=dsl.MatMul(h, f32(24, 5)) + f32(5))
    model = export_onnx(g.graph)
    data = {"x": f32(150, 32) * np.where(RNG.random((150, 1)) < 0.05, 400, 1).astype(np.float32)}
    plain = graphc.quantise(model, data, calibration="minmax")
    assert plain.agreement < 0.97
    kept = graphc.quantise(
        model, data, keep_accuracy=0.97, mixture=["int8", "int16", "float"], calibration="minmax"
    )
    assert kept.agreement >= 0.97 and not kept.left_out
    assert 16 in {layer.activation_bits for layer in kept.layers}


def test_steps_follow_the_lower_hull():
    costs = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0, "e": 4.5}
    noises = {"a": 10.0, "b": 9.0, "c": 2.0, "d": 3.0, "e": 0.0}
    start, steps = steps_between("layer", costs, noises)
    assert start == "a"
    assert steps == [Step("layer", "c", 4.0), Step("layer", "e", 2 / 1.5)]


def test_what_cannot_be_a_mixture_is_told(hard):
    model, data = hard
    for message, options in {
        "no level 'int7', but .*did you mean": dict(keep_accuracy=0.9, mixture=["int8", "int7"]),
        "two levels or more": dict(keep_accuracy=0.9, mixture=["int8"]),
        "give keep_accuracy": dict(mixture=["int8", "float"]),
        "int8 has to be among the levels": dict(keep_accuracy=0.9, mixture=["int4", "float"]),
        "the best mixture keeps": dict(keep_accuracy=1.0, mixture=["int8", "int4"], equalise=False),
    }.items():
        with pytest.raises(graphc.ModelError, match=message):
            graphc.quantise(model, data, **options)
