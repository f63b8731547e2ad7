"""Quantised models, in graphc and in ONNX Runtime, next to the float ones."""

from __future__ import annotations

import re

import numpy as np
import onnx
import pytest
from commands import DIGITS
from onnx import TensorProto, helper, numpy_helper
from saturation import exact_session

import graphc
from graphc import driver
from graphc.errors import ModelError
from graphc.quantisation.measuring import Comparison

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def numbers():
    """Each test draws the same numbers, whichever ran before, so that equal models are compiled
    once."""
    global RNG
    RNG = np.random.default_rng(0)


def model(nodes, weights, inputs, outputs=("y",), opset=17):
    """A model with float inputs of these shapes."""
    graph = helper.make_graph(
        nodes, "m",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in weights.items()],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return onnx.shape_inference.infer_shapes(made)


def f32(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def convolutions(batch=1):
    """Convolution, residual sum, pools, concatenation, depthwise and transposed convolution."""
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["c1"], "conv1", pads=[1, 1, 1, 1]),
        node("Relu", ["c1"], ["r1"]),
        node("Conv", ["r1", "w2"], ["c2"], "conv2", pads=[1, 1, 1, 1], group=8),
        node("Add", ["c2", "r1"], ["s"]),
        node("LeakyRelu", ["s"], ["r2"], alpha=0.1),
        node("MaxPool", ["r2"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        node("ConvTranspose", ["p", "w3"], ["c3"], "up", kernel_shape=[2, 2], strides=[2, 2]),
        node("Concat", ["c3", "r2"], ["k"], axis=1),
        node("Sigmoid", ["k"], ["g"]),
        node("Conv", ["g", "w4"], ["c4"], "conv4"),
        node("GlobalAveragePool", ["c4"], ["m"]),
        node("Flatten", ["m"], ["f"]),
        node("Gemm", ["f", "w5", "b5"], ["y"], "dense", transB=1),
    ]
    weights = {
        "w1": f32(8, 3, 3, 3), "b1": f32(8), "w2": f32(8, 1, 3, 3), "w3": f32(8, 6, 2, 2),
        "w4": f32(10, 14, 1, 1), "w5": f32(5, 10), "b5": f32(5),
    }  # fmt: skip
    return model(nodes, weights, {"x": [batch, 3, 8, 8]}), {"x": f32(12, 3, 8, 8)}


def perceptron():
    """Matrix products of three dimensions, with a normalisation and a softmax between them."""
    node = helper.make_node
    nodes = [
        node("MatMul", ["x", "w1"], ["h"], "fc1"),
        node("Add", ["h", "b1"], ["a"]),
        node("LayerNormalization", ["a", "s"], ["n"], axis=-1),
        node("MatMul", ["n", "w2"], ["z"], "fc2"),
        node("Softmax", ["z"], ["y"], axis=-1),
    ]
    weights = {"w1": f32(6, 16), "b1": f32(16), "s": f32(16), "w2": f32(16, 4)}
    return model(nodes, weights, {"x": [1, 5, 6]}), {"x": f32(12, 5, 6)}


def engines(quantised):
    """Both engines, as functions from inputs to outputs."""
    made = quantised.to_onnx()
    onnx.checker.check_model(made, full_check=True)
    session = exact_session(made)
    return {"onnxruntime": lambda x: session.run(None, x), "graphc": graphc.compile(made).run}


def ratios(source, quantised, data, size=1):
    """The SQNR of all outputs by engine."""
    reference = exact_session(source)
    names = [output.name for output in reference.get_outputs()]
    found = {}
    for engine, run in engines(quantised).items():
        comparison = Comparison()
        for start in range(0, len(next(iter(data.values()))), size):
            sample = {n: a[start : start + size] for n, a in data.items()}
            outputs = dict(zip(names, run(sample)))
            comparison.add(dict(zip(names, reference.run(None, sample))), outputs)
        found[engine] = comparison.decibels()
    return found


@pytest.mark.parametrize("calibration", ["minmax", "mse", "percentile", "entropy"])
@pytest.mark.parametrize("make", [convolutions, perceptron])
def test_both_engines_are_near_the_float_model(make, calibration):
    source, data = make()
    quantised = graphc.quantise(source, data, calibration=calibration)
    found = ratios(source, quantised, data)
    assert min(found.values()) > 24, found
    assert abs(found["graphc"] - found["onnxruntime"]) < 1
    assert min(layer.sqnr for layer in quantised.layers) > 20
    assert quantised.samples == 12


@pytest.mark.parametrize("activations", ["uint8", "int16"])
def test_other_types_of_activations(activations):
    source, data = convolutions()
    found = ratios(source, graphc.quantise(source, data, activations=activations), data)
    assert min(found.values()) > 24


def test_operators_between_convolutions_are_integer():
    source, data = convolutions()
    graph = graphc.quantise(source, data).graph
    assert [op.name for op in graph.ops].count("QuantizeLinear") >= 9
    for op in graph.ops:
        if op.name in ("Conv", "ConvTranspose", "Gemm", "MaxPool", "Add", "Concat"):
            producers = [v.producer for v in op.inputs if v is not None]
            assert all(p is not None and p.name == "DequantizeLinear" for p in producers), op


def test_moves_share_the_scale_of_what_they_move():
    source, data = convolutions()
    graph = graphc.quantise(source, data).graph
    (pool,) = (op for op in graph.ops if op.name == "MaxPool")
    before, after = pool.operand(0).producer, pool.output.users[0]
    assert before.operand(1).constant == after.operand(1).constant


def test_whole_models_have_integer_inputs_and_outputs():
    source, data = perceptron()
    quantised = graphc.quantise(source, data, whole=True)
    made = quantised.to_onnx()
    onnx.checker.check_model(made, full_check=True)
    for value in (*made.graph.input, *made.graph.output):
        assert value.type.tensor_type.elem_type == TensorProto.INT8
    session = exact_session(made)
    x = RNG.integers(-100, 100, (1, 5, 6)).astype(np.int8)
    want, have = session.run(None, {"x": x})[0], graphc.compile(made).run({"x": x})[0]
    assert np.abs(want.astype(int) - have).max() <= 1


def test_the_same_twice_gives_the_same_bytes():
    source, data = convolutions()
    once, again = (graphc.quantise(source, data).to_onnx().SerializeToString() for _ in range(2))
    assert once == again


def test_open_batches_stay_open():
    source = onnx.load(DIGITS)
    name = source.graph.input[0].name
    shape = [d.dim_value for d in source.graph.input[0].type.tensor_type.shape.dim[1:]]
    data = {name: RNG.random((16, *shape)).astype(np.float32)}
    quantised = graphc.quantise(source, data)
    assert quantised.graph.symbols
    found = ratios(source, quantised, data, 4)
    assert min(found.values()) > 20, found


def test_a_layer_may_stay_float():
    source, data = convolutions()
    quantised = graphc.quantise(source, data, left_out=["conv4"])
    assert "conv4" not in [layer.name for layer in quantised.layers]
    with pytest.raises(graphc.ModelError, match="no layer 'conv5'"):
        graphc.quantise(source, data, left_out=["conv5"])


def test_samples_may_be_a_file_a_folder_a_list_or_a_function(tmp_path):
    source, data = perceptron()
    (tmp_path / "parts").mkdir()
    np.savez(tmp_path / "all.npz", **data, label=np.zeros(12))
    for part in range(3):
        np.savez(tmp_path / "parts" / f"{part}.npz", x=data["x"][4 * part : 4 * part + 4])
    single = [{"x": row[None]} for row in data["x"]]
    given = [data, tmp_path / "all.npz", tmp_path / "parts", single, lambda: iter(single)]
    made = [graphc.quantise(source, samples).to_onnx().SerializeToString() for samples in given]
    assert len(set(made)) == 1


def refused(match, source, data, **options):
    with pytest.raises(graphc.ModelError, match=match):
        graphc.quantise(source, data, **options)


def test_mistakes_are_told():
    source, data = perceptron()
    refused("hold.*NaN", source, {"x": np.full((3, 5, 6), np.nan, np.float32)})
    refused("there are no samples", source, {"x": np.zeros((0, 5, 6), np.float32)})
    refused("there are no samples", source, [])
    refused("no array 'x'", source, {"y": data["x"]})
    refused("must be samples of", source, {"x": data["x"][:, :4]})
    refused("must be of type", source, {"x": data["x"].astype(int)})
    refused("calibration must be one of", source, data, calibration="best")
    refused("activations must be one of", source, data, activations="int4")
    refused("found generator", source, (row for row in []))
    quantised = graphc.quantise(source, data).to_onnx()
    refused("quantised already", quantised, data)
    nothing = model([helper.make_node("Relu", ["x"], ["y"])], {}, {"x": [1, 4]})
    refused("no layer to quantise", nothing, {"x": f32(2, 4)})


def test_values_that_are_not_finite_are_told():
    nodes = [
        helper.make_node("Log", ["x"], ["l"]),
        helper.make_node("MatMul", ["l", "w"], ["y"], "fc"),
    ]
    source = model(nodes, {"w": f32(4, 2)}, {"x": [1, 4]})
    refused("value 'l' holds numbers that are not finite", source, {"x": np.zeros((3, 4), "f4")})


def test_a_large_bias_beside_small_weights_fits_its_type():
    weights, bias = f32(4, 3, 1, 1), np.array([0, 1, 100, -3], np.float32)
    weights[2:] *= 1e-12
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], "conv"),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    source = model(nodes, {"w": weights, "b": bias}, {"x": [1, 3, 4, 4]})
    data = {"x": f32(8, 3, 4, 4)}
    quantised = graphc.quantise(source, data, whole=True)
    (integers,) = (
        numpy_helper.to_array(t) for t in quantised.to_onnx().graph.initializer
        if t.data_type == TensorProto.INT32 and numpy_helper.to_array(t).any()
    )  # fmt: skip
    assert np.abs(integers).max() <= 1 << 30
    assert min(ratios(source, graphc.quantise(source, data), data).values()) > 40


def test_a_product_may_have_one_scale_for_all_channels():
    rng = np.random.default_rng(12)
    weights = rng.standard_normal((24, 6)).astype(np.float32) * (1, 2, 3, 4, 5, 60)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], "product")], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 24])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 6])],
        [numpy_helper.from_array(weights.astype(np.float32), "w")],
    )  # fmt: skip
    source = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    data = [{"x": rng.standard_normal((3, 24), np.float32)} for _ in range(8)]
    ratios = {}
    for scales, count in (("channel", 6), ("tensor", 1)):
        quantised = graphc.quantise(source, data, scales=scales)
        made = quantised.to_onnx()
        integers = next(
            t
            for t in made.graph.initializer
            if t.data_type == TensorProto.INT8 and t.dims[:1] == [24]
        )
        (node,) = (n for n in made.graph.node if n.input[0] == integers.name)
        scale = next(t for t in made.graph.initializer if t.name == node.input[1])
        assert numpy_helper.to_array(scale).size == count
        feeds = data[0]
        (theirs,), (own,) = exact_session(made).run(None, feeds), graphc.compile(made).run(feeds)
        assert np.allclose(theirs, own, rtol=1e-5, atol=1e-5 * np.abs(theirs).max())
        ratios[scales] = quantised.outputs["y"]
    assert ratios["tensor"] > 30  # the largest column has as many digits as before
    with pytest.raises(ModelError, match="channel, tensor"):
        graphc.quantise(source, data, scales="block")


def test_faint_channels_are_requantised_by_a_high_word():
    """As the others, so that kernels of microcontrollers are alike; it costs no accuracy."""
    weights = f32(16, 8)
    weights[:, :2] *= 1e-3
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], "dense")]
    source = model(nodes, {"w": weights}, {"x": ["N", 16]})
    quantised = graphc.quantise(source, {"x": f32(32, 16)}, whole=True, dims={"N": 1})
    kernels = driver.program_for(quantised.graph, "c").kernels.values()
    assert set(re.findall(r">> (\d+)", "".join(map(str, kernels)))) == {"32"}
    assert quantised.outputs["y"] > 35
