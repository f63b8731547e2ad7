"""Models as ONNX Runtime's quantiser writes them, in both of its formats: integers end to end."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from saturation import SATURATES

from graphc import driver
from graphc.ir.interp import interpret

SHAPE = (1, 3, 16, 16)


class Network:
    """A small network of floats with every operator that the quantiser knows."""

    def __init__(self):
        self.random = np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, array: np.ndarray) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def weights(self, *shape: int) -> str:
        return self.constant(self.random.normal(0, 0.3, shape).astype(np.float32))

    def node(self, kind: str, *inputs: str, **attrs) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name=f"{kind}_{name}", **attrs))
        return name

    def model(self) -> onnx.ModelProto:
        first = self.node("Conv", "x", self.weights(8, 3, 3, 3), self.weights(8), pads=[1] * 4)
        first = self.node("Relu", first)
        deep = self.node("Conv", first, self.weights(8, 1, 3, 3), pads=[1] * 4, group=8)
        left = self.node("Mul", deep, self.node("Sigmoid", deep))
        wide = self.node("Conv", first, self.weights(8, 8, 1, 1))
        right = self.node("LeakyRelu", wide, alpha=0.1)
        joined = self.node("Concat", self.node("Add", left, right), first, axis=1)
        pool = {"kernel_shape": [2, 2], "strides": [2, 2]}
        pooled = self.node("MaxPool", self.node("AveragePool", joined, **pool), **pool)
        flat = self.node("Flatten", self.node("GlobalAveragePool", pooled))
        dense = self.node("Gemm", flat, self.weights(16, 10), self.weights(10))
        result = self.node("Softmax", self.node("MatMul", dense, self.weights(10, 10)))
        graph = helper.make_graph(
            self.nodes, "network", [helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)],
            [helper.make_tensor_value_info(result, TensorProto.FLOAT, None)], self.constants,
        )  # fmt: skip
        opsets = [helper.make_opsetid("", 17)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9)


class Samples(CalibrationDataReader):
    def __init__(self):
        random = np.random.default_rng(1)
        self.samples = [{"x": random.normal(0, 1, SHAPE).astype(np.float32)} for _ in range(2)]

    def get_next(self):
        return self.samples.pop() if self.samples else None


@pytest.fixture(scope="module")
def floats(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("quantiser") / "floats.onnx"
    onnx.save(Network().model(), path)
    logging.disable(logging.WARNING)  # the quantiser recommends steps that do not matter here
    yield path
    logging.disable(logging.NOTSET)


def reference(path: Path) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("dtype", ["QInt8", "QUInt8"])
@pytest.mark.parametrize("form", ["QOperator", "QDQ"])
def test_static(floats, form, dtype):
    path = floats.with_name("static.onnx")
    quantize_static(
        floats, path, Samples(), quant_format=QuantFormat[form], per_channel=dtype == "QInt8",
        activation_type=QuantType[dtype], weight_type=QuantType.QInt8, reduce_range=SATURATES,
    )  # fmt: skip
    graph = driver.optimise(driver.typed(path), passes="integers, fold, dce")
    kinds = {op.name for op in graph.ops for v in op.outputs if v.tensor.dtype.is_float}
    assert kinds <= {"Constant", "DequantizeLinear"}, str(graph)  # of the results
    session, random, equal = reference(path), np.random.default_rng(2), []
    for _ in range(3):
        x = random.normal(0, 1, SHAPE).astype(np.float32)
        (found,), (expected,) = interpret(graph, [x]), session.run(None, {"x": x})
        assert np.abs(found - expected).max() < 1.01 / 256
        equal.append(found == expected)
    assert np.mean(equal) >= 0.99


def test_dynamic(floats):
    """Scales that data decides: products in integers, scales in floats."""
    path = floats.with_name("dynamic.onnx")
    quantize_dynamic(floats, path, op_types_to_quantize=["MatMul"], reduce_range=SATURATES)
    graph = driver.optimise(driver.typed(path), passes="integers, fold, dce")
    assert any(op.name == "MatMulInteger" for op in graph.ops)
    x = np.random.default_rng(2).normal(0, 1, SHAPE).astype(np.float32)
    (found,), (expected,) = interpret(graph, [x]), reference(path).run(None, {"x": x})
    np.testing.assert_allclose(found, expected, atol=1e-4)
