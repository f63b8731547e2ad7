"""Layers that stay float, so that accuracy is kept."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphc
from graphc.ir.graph import clone_graph
from graphc.ir.interp import interpret
from graphc.quantisation.layers import Choice
from graphc.quantisation.mixtures import multiplications
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
