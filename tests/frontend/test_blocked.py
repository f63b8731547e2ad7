"""Models that ONNX Runtime has saved with all optimisations, for this CPU."""

from __future__ import annotations

import warnings

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphc
from graphc.frontend.blocked import LARGE, SMALL, block_size
from graphc.frontend.onnx_import import import_onnx
from graphc.ir.interp import interpret
from graphc.ir.ops.onnxruntime.blocked import BLOCKED

INFO = helper.make_tensor_value_info


class Net:
    """A chain of nodes with weights drawn at random."""

    def __init__(self, seed: int):
        self.random = np.random.default_rng(seed)
        self.nodes: list = []
        self.weights: list = []

    def weight(self, *shape: int) -> str:
        return self.constant(self.random.standard_normal(shape) * 0.3)

    def constant(self, values) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.array(values, np.float32), name))
        return name

    def node(self, kind: str, *inputs: str, **attrs) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], **attrs))
        return name

    def conv(self, x: str, out: int, into: int, size: int, **attrs) -> str:
        w, b = self.weight(out, into, size, size), self.weight(out)
        return self.node("Conv", x, w, b, pads=[size // 2] * 4, **attrs)

    def saved(self, y: str, path, level: int) -> tuple:
        """The model as ONNX Runtime saves it, x, and what it computes."""
        self.nodes.append(helper.make_node("Identity", [y], ["y"]))
        infos = [INFO("x", TensorProto.FLOAT, [1, 3, 32, 32]), INFO("y", TensorProto.FLOAT, None)]
        graph = helper.make_graph(self.nodes, "g", infos[:1], infos[1:], self.weights)
        opsets = [helper.make_opsetid("", 17)]
        proto = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        options = onnxruntime.SessionOptions()
        options.optimized_model_filepath = str(path)
        options.graph_optimization_level = level
        session = onnxruntime.InferenceSession(
            proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        x = self.random.standard_normal((1, 3, 32, 32)).astype(np.float32)
        return onnx.load(path), x, session.run(None, {"x": x})[0]


def residual(net: Net, width: int) -> str:
    """As ResNet begins."""
    x = net.node("Relu", net.conv("x", width, 3, 3, strides=[2, 2]))
    x = net.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    inner = net.node("Relu", net.conv(x, 32, width, 1))
    x = net.node("Relu", net.node("Add", net.conv(inner, width, 32, 3), x))
    x = net.node("Concat", net.conv(x, width, width, 1), net.conv(x, 48, width, 1), axis=1)
    x = net.node("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2])
    return net.node("Flatten", net.node("GlobalAveragePool", x))


def separable(net: Net, width: int) -> str:
    """As MobileNet begins, and ends with an image."""
    low, high = (net.constant(bound) for bound in (0.0, 6.0))
    x = net.node("Relu", net.conv("x", width, 3, 3, strides=[2, 2]))
    for out in (32, 40):
        into = width if out == 32 else 32
        x = net.node("Relu", net.conv(x, into, 1, 3, group=into))
        x = net.node("HardSigmoid", net.conv(x, out, into, 1))
        x = net.node("Clip", x, low, high) if out == 32 else x
    x = net.node("GlobalMaxPool", x)
    return net.node("Flatten", x)


@pytest.mark.parametrize("width", [24, 32])
@pytest.mark.parametrize("build", [residual, separable])
def test_saved_models(tmp_path, build, width):
    net = Net(width)
    level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    proto, x, want = net.saved(build(net, width), tmp_path / "saved.onnx", level)
    assert any(node.domain == BLOCKED for node in proto.graph.node)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = graphc.compile(proto, threads=1)
    (got,) = compiled.run({"x": x})
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())


# ---------------------------------------------------------------- blocks of any size


def in_blocks(w: np.ndarray, block: int) -> np.ndarray:
    """Weights as MLAS reorders them (OIHWBiBo, or OIHWBo of few inputs)."""
    out, into, *kernel = w.shape
    within = block if into >= block else 1
    parts = w.reshape(out // block, block, into // within, within, *kernel)
    return parts.transpose(0, 2, 4, 5, 3, 1).reshape(w.shape).copy()


def blocked_model(w: np.ndarray, x: np.ndarray, block: int, channels: int, **attrs):
    nodes = [
        helper.make_node("ReorderInput", ["x"], ["a"], domain=BLOCKED),
        helper.make_node("Conv", ["a", "w"], ["b"], domain=BLOCKED, pads=[1] * 4, **attrs),
        helper.make_node("MaxPool", ["b"], ["c"], domain=BLOCKED, kernel_shape=[2, 2]),
        helper.make_node("Upsample", ["c"], ["d"], domain=BLOCKED, scales=[1, 1, 2, 2]),
        helper.make_node("ReorderOutput", ["d"], ["y"], domain=BLOCKED, channels=channels),
    ]
    infos = [INFO("x", TensorProto.FLOAT, x.shape), INFO("y", TensorProto.FLOAT, None)]
    weights = [numpy_helper.from_array(in_blocks(w, block), "w")]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], weights)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(BLOCKED, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def plain(w: np.ndarray, x: np.ndarray, channels: int, group: int) -> np.ndarray:
    torch = pytest.importorskip("torch")
    F = torch.nn.functional
    y = F.conv2d(torch.tensor(x), torch.tensor(w), padding=1, groups=group)
    y = F.interpolate(F.max_pool2d(y, 2, 1), scale_factor=2, mode="nearest")
    return y.numpy()[:, :channels]


@pytest.mark.parametrize("block, width, channels", [(SMALL, 24, 24), (LARGE, 32, 20)])
@pytest.mark.parametrize("depthwise", [False, True])
def test_blocks_by_their_padding(block, width, channels, depthwise):
    random = np.random.default_rng(0)
    w = random.standard_normal((width, 1 if depthwise else width, 3, 3)).astype(np.float32)
    x = random.standard_normal((1, width, 6, 5)).astype(np.float32)
    group = width if depthwise else 1
    proto = blocked_model(w, x, block, channels, group=group)
    assert block_size(proto) == block
    (got,) = interpret(import_onnx(proto), [x])
    np.testing.assert_allclose(got, plain(w, x, channels, group), rtol=1e-4, atol=1e-4)


def test_blocks_of_unknown_size():
    w, x = np.ones((32, 32, 3, 3), np.float32), np.ones((1, 32, 6, 5), np.float32)
    with pytest.warns(Warning, match="for one kind of CPU"):
        assert block_size(blocked_model(w, x, LARGE, 32)) in (SMALL, LARGE)
