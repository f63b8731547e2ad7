"""Small quantised models: dequantise, compute, quantise, as quantisers write them."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

TYPES = {np.dtype(np.int8): TensorProto.INT8, np.dtype(np.uint8): TensorProto.UINT8}


class QuantisedModel:
    """Collects nodes; `activation` is an input, `weights` a constant, `quantise` ends an op."""

    def __init__(self, dtype=np.int8, seed: int = 0, real=np.float32, largest_weight: int = 127):
        self.dtype, self.real, self.largest_weight = np.dtype(dtype), np.dtype(real), largest_weight
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.feeds: list[np.ndarray] = []

    def constant(self, array) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def node(self, kind: str, *inputs: str, **attrs) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name=f"{kind}{name}", **attrs))
        return name

    def activation(self, shape, scale=0.04, zero=3) -> str:
        """A real value dequantised from a new input of random integers."""
        name, info = f"x{len(self.inputs)}", np.iinfo(self.dtype)
        kind = TYPES[self.dtype]
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        values = self.random.integers(info.min, info.max + 1, shape)
        self.feeds.append(values.astype(self.dtype))
        return self.dequantise(name, scale, zero)

    def dequantise(self, value: str, scale, zero) -> str:
        parameters = [np.asarray(scale, self.real), np.asarray(zero, self.dtype)]
        return self.node("DequantizeLinear", value, *map(self.constant, parameters))

    def weights(self, shape, per_channel: int | None = 0, bits=8) -> str:
        """Real weights dequantised from int8 (or biases from int32), scaled along an axis."""
        dtype, limit = (np.int8, 128) if bits == 8 else (np.int32, 4000)
        values = self.random.integers(-limit + 1, limit, shape).astype(dtype)
        if bits == 8:
            values = values.clip(-self.largest_weight, self.largest_weight)
        count = () if per_channel is None else shape[per_channel]
        scale = np.asarray(self.random.uniform(0.001, 0.01, count)).astype(self.real)
        operands = [values, scale, np.zeros(count, dtype)]
        attrs = {} if per_channel is None else {"axis": per_channel}
        return self.node("DequantizeLinear", *map(self.constant, operands), **attrs)

    def quantise(self, value: str, scale=0.1, zero=-5) -> str:
        zero = zero if self.dtype == np.int8 else zero + 128
        parameters = [np.asarray(scale, self.real), np.asarray(zero, self.dtype)]
        return self.node("QuantizeLinear", value, *map(self.constant, parameters))

    def build(self, *results: str) -> onnx.ModelProto:
        kind = TYPES[self.dtype]
        outputs = [helper.make_tensor_value_info(name, kind, None) for name in results]
        graph = helper.make_graph(self.nodes, "q", self.inputs, outputs, self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def convolution(dtype=np.int8, shape=(1, 3, 7, 6), weights=(5, 3, 3, 3), **attrs) -> QuantisedModel:
    """Conv with a bias and a Relu."""
    model = QuantisedModel(dtype)
    x = model.activation(shape)
    parameters = model.weights(weights), model.weights(weights[:1], bits=32)
    result = model.node("Relu", model.node("Conv", x, *parameters, **attrs))
    model.result = model.build(model.quantise(result))
    return model


def dense(kind: str, dtype=np.int8) -> QuantisedModel:
    """Gemm, or MatMul and Add."""
    model = QuantisedModel(dtype)
    x = model.activation((32, 9))
    bias = model.weights((7,), None, bits=32)
    if kind == "Gemm":
        result = model.node("Gemm", x, model.weights((7, 9), 0), bias, transB=1)
    else:
        result = model.node("Add", model.node("MatMul", x, model.weights((9, 7), 1)), bias)
    model.result = model.build(model.quantise(result))
    return model


def residual(dtype=np.int8) -> QuantisedModel:
    """Add, Clip, a move, and a mean over all positions."""
    model = QuantisedModel(dtype)
    a = model.activation((1, 4, 5, 5), 0.03, 7)
    b = model.activation((1, 4, 5, 5), 0.011, 0)
    limits = [model.constant(np.float32(v)) for v in (0.0, 3.0)]
    total = model.node("Clip", model.node("Add", a, b), *limits)
    again = model.dequantise(model.quantise(total, 0.02, -100), 0.02, _shifted(dtype, -100))
    turned = model.quantise(model.node("Transpose", again, perm=[0, 1, 3, 2]), 0.02, -100)
    again = model.dequantise(turned, 0.02, _shifted(dtype, -100))
    model.result = model.build(model.quantise(model.node("GlobalAveragePool", again), 0.015, -90))
    return model


def difference(dtype=np.int8) -> QuantisedModel:
    """A difference of round scales, many of which are halfway between two integers."""
    model = QuantisedModel(dtype)
    left, right = (model.activation((1, 4, 6, 7), scale, 5) for scale in (0.05, 0.07))
    model.result = model.build(model.quantise(model.node("Sub", left, right), 0.02, 3))
    return model


def _shifted(dtype, zero: int) -> int:
    return zero if np.dtype(dtype) == np.int8 else zero + 128
