"""Small output layers stay float where that brings the outputs nearer to the float model's."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from saturation import exact_session

import graphc
from graphc.quantisation.output_layers import small_output_layers
from graphc.quantisation.quantiser import prepared


def model(classes: int = 4, hidden: int = 256, layers: int = 2, heads: int = 1):
    """Products of `hidden` columns, then small ones of `classes`, one for each output. The large
    ones are of integers of 8 bits, so that their errors are small ones."""
    rng = np.random.default_rng(7)
    arrays, nodes, value = {}, [], "x"
    for n in range(layers):
        whole = rng.integers(-3, 4, (hidden, hidden))
        whole[0] = 127  # the largest of each column: its scale is 1 / 128
        arrays[f"w{n}"] = whole / 128
        nodes.append(helper.make_node("MatMul", [value, f"w{n}"], [f"p{n}"], f"inner{n}"))
        nodes.append(helper.make_node("Tanh", [f"p{n}"], [f"t{n}"]))
        value = f"t{n}"
    for n in range(heads):
        arrays[f"v{n}"] = rng.standard_normal((hidden, classes))
        nodes.append(helper.make_node("MatMul", [value, f"v{n}"], [f"y{n}"], f"head{n}"))
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, hidden])],
        [helper.make_tensor_value_info(f"y{n}", TensorProto.FLOAT, None) for n in range(heads)],
        [numpy_helper.from_array(a.astype(np.float32), n) for n, a in arrays.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def samples(hidden: int = 256):
    rng = np.random.default_rng(8)
    return [{"x": rng.standard_normal((4, hidden), np.float32)} for _ in range(8)]


def ratios(source, quantised):
    """The ratio in dB of both engines."""
    feeds = samples()[0]
    want = exact_session(source).run(None, feeds)[0]
    runs = (
        exact_session(quantised.to_onnx()).run(None, feeds),
        graphc.compile(quantised.graph).run(feeds),
    )
    return [10 * np.log10((want**2).sum() / ((found[0] - want) ** 2).sum()) for found in runs]


def test_a_small_output_layer_stays_float_where_that_helps():
    source = model(classes=1)
    quantised = graphc.quantise(source, samples())
    assert quantised.left_out == ["head0"]
    assert [layer.name for layer in quantised.layers] == ["inner0", "inner1"]
    every = graphc.quantise(source, samples(), every_layer=True)
    assert not every.left_out and every.layers[-1].name == "head0"
    for float_head, whole in zip(ratios(source, quantised), ratios(source, every)):
        assert float_head > whole + 0.5


def test_a_layer_that_is_not_small_becomes_integer():
    assert not graphc.quantise(model(classes=8), samples()).left_out  # 1.5 % of the weights


def test_output_layers_have_to_be_small_together():
    graph = prepared(model(classes=4, heads=3))
    assert small_output_layers(graph) == ["head2"]  # two would be 1.5 % of the weights
    assert small_output_layers(prepared(model(classes=2, heads=3))) == ["head2", "head1"]


@pytest.mark.parametrize("options", [{"whole": True}, {"keep_accuracy": 0.5}])
def test_other_choices_come_first(options):
    assert not graphc.quantise(model(classes=1), samples(), **options).left_out


def test_a_float_layer_that_brings_nothing_becomes_integer():
    """All that its inputs lose is lost before it: they are signs of large sums."""
    source = model(classes=1)
    loud = numpy_helper.to_array(source.graph.initializer[0]) * 1000
    source.graph.initializer[0].CopyFrom(numpy_helper.from_array(loud.astype(np.float32), "w0"))
    assert not graphc.quantise(source, samples()).left_out
