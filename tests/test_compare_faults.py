"""graphc compare names the layer in which a fault was planted, in one command."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache

import numpy as np
import onnx
import pytest
from commands import graphc, make, save
from onnx import TensorProto, helper, numpy_helper


def constants(rng, **shapes) -> dict[str, np.ndarray]:
    return {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}


def node(op: str, inputs: str, output: str, **attrs) -> onnx.NodeProto:
    """A node named after its output."""
    return helper.make_node(op, inputs.split(), [output], output, **attrs)


def model_of(nodes, shape, arrays) -> onnx.ModelProto:
    tensors = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    return make(nodes, [("x", TensorProto.FLOAT, shape)], constants=tensors)


@cache
def network() -> onnx.ModelProto:
    """Convolutions with everything that stands between them."""
    rng = np.random.default_rng(0)
    arrays = constants(rng, w1=(8, 3, 3, 3), b1=(8,), w2=(8, 8, 3, 3), w3=(8, 8, 3, 3), scale=(8,),
                       bias=(8,), mean=(8,), wf=(5, 32), bf=(5,))  # fmt: skip
    arrays |= {"var": rng.random(8).astype(np.float32) * 0.1 + 0.01}
    arrays |= {"low": np.float32(0), "high": np.float32(6)}
    arrays |= {"zoom": np.array([1, 1, 2, 2], np.float32)}
    nodes = [
        node("Conv", "x w1 b1", "conv1", pads=[1, 1, 1, 1]),
        node("BatchNormalization", "conv1 scale bias mean var", "bn1", epsilon=1e-5),
        node("LeakyRelu", "bn1", "leaky1", alpha=0.1),
        node("Conv", "leaky1 w2", "conv2", pads=[1, 1, 1, 1]),
        node("Clip", "conv2 low high", "clip2"),
        node("Conv", "clip2 w3", "conv3", pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Resize", ["conv3", "", "zoom"], ["resize3"], "resize3", mode="nearest"),
        node("AveragePool", "resize3", "pool3", kernel_shape=[3, 3], pads=[1, 1, 1, 1],
             strides=[2, 2], count_include_pad=1),
        node("MaxPool", "pool3", "max3", kernel_shape=[2, 2], strides=[2, 2]),
        node("Flatten", "max3", "flat"),
        node("Gemm", "flat wf bf", "y", transB=1, alpha=1.0),
    ]  # fmt: skip
    return model_of(nodes, (2, 3, 8, 8), arrays)


@cache
def block() -> onnx.ModelProto:
    """Attention between a normalisation and a residual sum."""
    rng = np.random.default_rng(1)
    arrays = constants(rng, wq=(16, 16), wk=(16, 16), wv=(16, 16), g=(16,), b=(16,), u=(16, 16))
    arrays |= {"size": np.float32(4)}
    nodes = [
        node("LayerNormalization", "x g b", "norm", epsilon=1e-5, axis=-1),
        node("MatMul", "norm wq", "q"),
        node("MatMul", "norm wk", "k"),
        node("MatMul", "norm wv", "v"),
        node("Transpose", "k", "kt", perm=[1, 0]),
        node("MatMul", "q kt", "scores"),
        node("Div", "scores size", "scaled"),
        node("Softmax", "scaled", "weights", axis=-1),
        node("MatMul", "weights v", "mixed"),
        node("Add", "mixed x", "residual"),
        node("Sub", "residual mixed", "undone"),
        node("Concat", "residual undone", "joined", axis=1),
        node("Tanh", "joined", "squashed"),
        node("ReduceMean", "squashed", "y", keepdims=0),
    ]
    return model_of(nodes, (5, 16), arrays)


@cache
def quantised() -> onnx.ModelProto:
    """Two quantised layers as QDQ."""
    rng = np.random.default_rng(2)
    weights = {n: rng.integers(-127, 128, (8, 8)).astype(np.int8) for n in ("w1", "w2")}
    arrays = {**weights, "s_x": np.float32(0.03), "s_w": np.full(8, 0.01, np.float32),
              "s1": np.float32(0.08), "s2": np.float32(0.3), "z": np.int8(0),
              "z1": np.int8(3), "zw": np.zeros(8, np.int8)}  # fmt: skip
    nodes = [
        node("QuantizeLinear", "x s_x z", "x_q"),
        node("DequantizeLinear", "x_q s_x z", "x_dq"),
        node("DequantizeLinear", "w1 s_w zw", "w1_dq", axis=1),
        node("MatMul", "x_dq w1_dq", "h"),
        node("QuantizeLinear", "h s1 z1", "h_q"),
        node("DequantizeLinear", "h_q s1 z1", "h_dq"),
        node("DequantizeLinear", "w2 s_w zw", "w2_dq", axis=1),
        node("MatMul", "h_dq w2_dq", "m"),
        node("Relu", "m", "r"),
        node("QuantizeLinear", "r s2 z", "r_q"),
        node("DequantizeLinear", "r_q s2 z", "y"),
    ]
    return model_of(nodes, (4, 8), arrays)


# ---------------------------------------------------------------- faults

Fault = Callable[[onnx.ModelProto], None]


def named(model: onnx.ModelProto, name: str) -> onnx.NodeProto:
    return next(n for n in model.graph.node if n.name == name)


def attribute(name: str, attr: str, value) -> Fault:
    """A node with another attribute."""

    def plant(model):
        found = named(model, name)
        kept = [a for a in found.attribute if a.name != attr]
        del found.attribute[:]
        found.attribute.extend([*kept, helper.make_attribute(attr, value)])

    return plant


def array(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Fault:
    """A constant with other contents."""

    def plant(model):
        tensor = next(t for t in model.graph.initializer if t.name == name)
        value = numpy_helper.to_array(tensor)
        changed = np.asarray(change(value)).astype(value.dtype)
        tensor.CopyFrom(numpy_helper.from_array(changed, name))

    return plant


def swapped(one: str, other: str, position: int = 1) -> Fault:
    """Two nodes, each of which reads what the other should."""

    def plant(model):
        a, b = named(model, one).input, named(model, other).input
        a[position], b[position] = b[position], a[position]

    return plant


def exchanged(name: str) -> Fault:
    """The first two operands in another order."""

    def plant(model):
        operands = named(model, name).input
        operands[0], operands[1] = operands[1], operands[0]

    return plant


def operator(name: str, other: str) -> Fault:
    """Another operator."""

    def plant(model):
        found = named(model, name)
        found.op_type = other
        del found.attribute[:]

    return plant


def four_bits(w):
    step = np.abs(w).max() / 7
    return np.round(w / step) * step


def one_channel(w):
    return w * np.eye(len(w))[3].reshape(-1, 1, 1, 1)


FAULTS = {
    "swapped weights": (network, swapped("conv2", "conv3"), "conv2"),
    "epsilon of a batch norm": (network, attribute("bn1", "epsilon", 1e-3), "bn1"),
    "clipped range": (network, array("high", lambda x: x / 2), "clip2"),
    "slope": (network, attribute("leaky1", "alpha", 0.2), "leaky1"),
    "bias left out": (network, array("b1", np.zeros_like), "conv1"),
    "sign of a mean": (network, array("mean", np.negative), "bn1"),
    "padding": (network, attribute("conv2", "pads", [2, 2, 0, 0]), "conv2"),
    "one channel's weights": (network, array("w3", one_channel), "conv3"),
    "weights of 4 bits": (network, array("w2", four_bits), "conv2"),
    "resize": (network, attribute("resize3", "mode", "linear"), "resize3"),
    "padding is counted": (network, attribute("pool3", "count_include_pad", 0), "pool3"),
    "kernel flipped": (network, array("w1", lambda w: w[:, :, ::-1]), "conv1"),
    "factor of a product": (network, attribute("y", "alpha", 1.01), "y"),
    "epsilon of a layer norm": (block, attribute("norm", "epsilon", 1e-2), "norm"),
    "transposed weights": (block, array("wk", np.transpose), "k"),
    "swapped projections": (block, swapped("q", "k"), "q"),
    "axis of a softmax": (block, attribute("weights", "axis", 0), "weights"),
    "temperature": (block, array("size", lambda s: s * 1.01), "scaled"),
    "operands in another order": (block, exchanged("joined"), "joined"),
    "another operator": (block, operator("squashed", "Sigmoid"), "squashed"),
    "scale of an activation": (quantised, array("s1", lambda s: s * 1.3), "h_q"),
    "scale of one channel": (quantised, array("s_w", lambda s: s * [1, 1, 1, 2, 1, 1, 1, 1]), "h"),
    "zero point": (quantised, array("z1", lambda z: z + 5), "h_q"),
    "range cut by a scale": (quantised, array("s2", lambda s: s / 4), "r_q"),
    "integer weights swapped": (quantised, swapped("w1_dq", "w2_dq", 0), "h"),
}  # fmt: skip


@pytest.fixture
def planted(tmp_path):
    """Writes a model and its copy with a fault; their files."""

    def write(source, fault):
        whole = source()
        copy = onnx.ModelProto()
        copy.CopyFrom(whole)
        fault(copy)
        return save(tmp_path / "model.onnx", whole), save(tmp_path / "copy.onnx", copy)

    return write


@pytest.mark.parametrize("name", FAULTS)
def test_the_layer_of_a_fault_is_named(planted, capsys, name):
    source, fault, layer = FAULTS[name]
    model, copy = planted(source, fault)
    code, out, err = graphc(capsys, "compare", model, "--with", copy, "--threads", "1")
    assert code == 1, err
    (line,) = [x for x in out.splitlines() if x.startswith("first layer that departs")]
    assert f'"{layer}"' in line, line


@pytest.mark.parametrize("source", [network, block, quantised])
def test_a_copy_without_a_fault_agrees(planted, capsys, source):
    model, copy = planted(source, lambda model: None)
    code, out, _ = graphc(capsys, "compare", model, "--with", copy, "--threads", "1", "--json")
    data = json.loads(out)
    assert code == 0 and data["agrees"] and data["first"] is None and not data["departing"]
    assert all(layer["own"] is None or layer["own"]["relative"] < 1e-6 for layer in data["layers"])
