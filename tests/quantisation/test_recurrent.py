"""Recurrent layers with weights of 8 bits, in graphc and in ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from saturation import exact_session

import graphc
from graphc.quantisation import rounding

RNG = np.random.default_rng(5)


@pytest.fixture(autouse=True)
def numbers():
    """Each test draws the same numbers, whichever ran before."""
    global RNG
    RNG = np.random.default_rng(5)


STEPS, INPUTS, HIDDEN = 3, 12, 8
LEAST = 18  # dB that activations of 8 bits leave of small states: 19 to 41, by the numbers drawn
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def f32(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def model(kind, direction="forward", bias=True, steps=STEPS, wanted=0, **attrs):
    """A recurrent layer and a product; its output is of `wanted`: all steps, or the last state."""
    ways, rows = 1 + (direction == "bidirectional"), GATES[kind] * HIDDEN
    arrays = {"w": f32(ways, rows, INPUTS) / 3, "r": f32(ways, rows, HIDDEN) / 4}
    if bias:
        arrays["b"] = f32(ways, 2 * rows) / 4
    arrays["v"] = f32(HIDDEN, 5)
    results = ["states", "last"]
    nodes = [
        helper.make_node(
            kind, ["x", "w", "r", "b" if bias else ""], results, "layer", direction=direction,
            hidden_size=HIDDEN, **attrs,
        ),
        helper.make_node("MatMul", [results[wanted], "v"], ["y"], "product"),
    ]  # fmt: skip
    shape = [2, steps, INPUTS] if attrs.get("layout") else [steps, 2, INPUTS]
    graph = helper.make_graph(
        nodes, "recurrent",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(a, n) for n, a in arrays.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def samples(steps=STEPS, count=8, layout=0):
    shape = (2, steps, INPUTS) if layout else (steps, 2, INPUTS)
    return [{"x": f32(*shape)} for _ in range(count)]


def ratio(want, found):
    return 10 * np.log10((want**2).sum() / ((found - want) ** 2).sum())


def judged(source, made, several):
    """The ratios in dB of both engines against the float model in ONNX Runtime, over samples."""
    onnx.checker.check_model(made)
    float_run, theirs = (exact_session(m) for m in (source, made))
    ours = graphc.compile(made)
    want = np.array([float_run.run(None, feeds)[0] for feeds in several])
    results = ([engine(feeds)[0] for feeds in several] for engine in
               (lambda feeds: theirs.run(None, feeds), ours.run))  # fmt: skip
    return [ratio(want, np.array(result)) for result in results]


@pytest.mark.parametrize(
    ("kind", "direction"),
    [("LSTM", "bidirectional"), ("LSTM", "reverse"), ("GRU", "bidirectional"), ("RNN", "forward")],
)
def test_both_engines_are_near_the_float_model(kind, direction):
    source = model(kind, direction)
    quantised = graphc.quantise(source, samples())
    layer = quantised.layers[0]
    assert (layer.name, layer.operator, layer.weight_bits) == ("layer", kind, 8)
    assert layer.activation_bits == (8 if kind == "LSTM" else 32)
    made = quantised.to_onnx()
    names = [node.op_type for node in made.graph.node]
    assert ("DynamicQuantizeLSTM" in names) == (kind == "LSTM")
    kinds = [t.data_type for t in made.graph.initializer if len(t.dims) == 3]
    assert kinds.count(TensorProto.INT8) == 2
    assert min(judged(source, made, samples())) > (LEAST if kind == "LSTM" else 30)


@pytest.mark.parametrize(
    "options",
    [dict(bias=False, wanted=1), dict(layout=1), dict(clip=1.0, steps=1)],
    ids=["no bias, last state", "batch first", "clip, one step"],
)  # fmt: skip
def test_forms_of_an_lstm(options):
    source = model("LSTM", **options)
    steps, layout = options.get("steps", STEPS), options.get("layout", 0)
    quantised = graphc.quantise(source, samples(steps, layout=layout))
    names = [node.op_type for node in quantised.to_onnx().graph.node]
    assert ("LSTM" in names) == bool(layout)  # there is no DynamicQuantizeLSTM, batch first
    several = samples(steps, layout=layout)
    if layout:  # ONNX Runtime has no such LSTM
        want = graphc.compile(source).run(several[0])[0]
        assert ratio(want, graphc.compile(quantised.graph).run(several[0])[0]) > 30
    else:
        assert min(judged(source, quantised.to_onnx(), several)) > LEAST


def test_open_sizes_have_stored_weights():
    source = model("LSTM")
    source.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "T"
    quantised = graphc.quantise(source, samples())
    made = quantised.to_onnx()
    assert "LSTM" in [node.op_type for node in made.graph.node]
    for steps in (2, 5):
        assert min(judged(source, made, samples(steps))) > LEAST


def test_error_feedback_helps():
    """Weights of correlated inputs lose less than if each is rounded on its own."""
    source = model("LSTM")
    mixing = f32(INPUTS, 3) @ f32(3, INPUTS)
    data = [{"x": feed["x"] @ mixing + f32(*feed["x"].shape) / 50} for feed in samples(count=40)]
    first = graphc.quantise(source, data).layers[0].sqnr

    nearest = lambda rows, scales, largest, moments: rounding.nearest(rows, scales, largest)  # noqa: E731
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rounding, "with_feedback", nearest)
        assert first > graphc.quantise(source, data).layers[0].sqnr


def test_layers_may_stay_float():
    source = model("LSTM")
    quantised = graphc.quantise(source, samples(), left_out=["layer"])
    assert quantised.left_out == ["layer"]
    assert "LSTM" in [node.op_type for node in quantised.to_onnx().graph.node]


def test_the_search_decides_about_them_too():
    source = model("GRU", "bidirectional")
    plain = graphc.quantise(source, samples())
    kept = graphc.quantise(source, samples(), keep_accuracy=1.0)
    assert kept.agreement == 1.0
    assert {layer.name for layer in kept.layers} <= {layer.name for layer in plain.layers}
