"""What ONNX Runtime's quantisers write over types, formats and opsets: as ONNX Runtime runs it.

Weights keep to 7 bits where they are of 8 (`reduce_range`): ONNX Runtime's sums of products
saturate on processors without VNNI. It runs the models as they are, without fusing them.
"""

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

from graphc import driver
from graphc.frontend.onnx_import import import_onnx
from graphc.ir.interp import interpret

pytest.importorskip("onnx_ir", reason="ONNX Runtime's quantiser of blocks needs it")
from onnxruntime.quantization.matmul_nbits_quantizer import (
    DefaultWeightOnlyQuantConfig,
    MatMulNBitsQuantizer,
)


@pytest.fixture(autouse=True)
def quiet():
    logging.disable(logging.WARNING)  # the quantiser recommends steps that do not matter here
    yield
    logging.disable(logging.NOTSET)


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * 0.4).astype(np.float32)


def network(opset: int, shape: tuple, nodes: list, weights: dict) -> onnx.ModelProto:
    """A model of nodes (kind, operands, result, attributes) from x to y."""
    graph = helper.make_graph(
        [helper.make_node(kind, read.split(), [out], **attrs) for kind, read, out, attrs in nodes],
        "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)],
                             ir_version=8 if opset < 21 else 10)  # fmt: skip


def images(opset: int) -> onnx.ModelProto:
    pads = {"pads": [1, 1, 1, 1]}
    return network(opset, (1, 3, 8, 8), [
        ("Conv", "x w b", "a", pads), ("Relu", "a", "r", {}),
        ("MaxPool", "r", "p", {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ("Conv", "p d", "c", {**pads, "group": 8}), ("Sigmoid", "c", "s", {}),
        ("Add", "s p", "t", {}), ("ConvTranspose", "t u", "v", {"strides": [2, 2]}),
        ("GlobalAveragePool", "v", "g", {}), ("Flatten", "g", "f", {}),
        ("Gemm", "f e h", "y", {"transB": 1}),
    ], {"w": floats(8, 3, 3, 3), "b": floats(8), "d": floats(8, 1, 3, 3), "u": floats(8, 6, 3, 3),
        "e": floats(5, 6), "h": floats(5)})  # fmt: skip


def rows(opset: int) -> onnx.ModelProto:
    return network(opset, (4, 32), [
        ("MatMul", "x w", "a", {}), ("Add", "a b", "c", {}), ("LeakyRelu", "c", "r", {}),
        ("MatMul", "r v", "m", {}), ("Concat", "m m", "j", {"axis": -1}), ("Mul", "j j", "n", {}),
        ("Transpose", "n", "y", {"perm": [1, 0]}),
    ], {"w": floats(32, 32), "b": floats(32), "v": floats(32, 6)})  # fmt: skip


def sequence(opset: int, direction: str = "forward") -> onnx.ModelProto:
    ways = 2 if direction == "bidirectional" else 1
    attrs = {"hidden_size": 8, "direction": direction}
    return network(opset, (5, 2, 6), [("LSTM", "x w r b", "y", attrs)], {
        "w": floats(ways, 32, 6), "r": floats(ways, 32, 8), "b": floats(ways, 64),
    })  # fmt: skip


class Samples(CalibrationDataReader):
    def __init__(self, shape: tuple):
        self.left = [{"x": floats(*shape, seed=n)} for n in range(1, 3)]

    def get_next(self):
        return self.left.pop() if self.left else None


def check(path: Path, tolerance: float, compiled: bool = True) -> None:
    """Asserts that the interpreter, and what is compiled for this CPU, give what ONNX Runtime
    gives."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    x = floats(*session.get_inputs()[0].shape, seed=7)
    (expected,) = session.run(None, {"x": x})
    graph = import_onnx(onnx.load(path))
    results = [interpret(graph, [x])]
    if compiled:
        results.append(driver.compile(graph, threads=1).run([x]))
    for found in results:
        assert found[0].shape == expected.shape
        assert np.abs(found[0] - expected).max() <= tolerance * np.abs(expected).max()


TYPES = [("QUInt8", "QInt8"), ("QInt8", "QInt8"), ("QInt16", "QInt8"), ("QUInt16", "QUInt16"),
         ("QUInt8", "QInt4"), ("QUInt16", "QUInt4")]  # fmt: skip


@pytest.mark.parametrize("make", [images, rows])
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("activations, weights", TYPES)
def test_static(activations, weights, per_channel, make, tmp_path):
    """Results are a few steps of 8 bits apart at most; of 16 bits, they are nearly equal."""
    model, path = make(21), tmp_path / "q.onnx"
    onnx.save(model, tmp_path / "f.onnx")
    shape = tuple(d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim)
    quantize_static(
        tmp_path / "f.onnx", path, Samples(shape), quant_format=QuantFormat.QDQ,
        per_channel=per_channel, activation_type=QuantType[activations],
        weight_type=QuantType[weights], reduce_range=weights == "QInt8",
    )  # fmt: skip
    check(path, 1e-3 if "16" in activations else 3e-2, compiled=make is rows)


@pytest.mark.parametrize("make", [images, rows])
@pytest.mark.parametrize("opset", [11, 13, 17])
def test_operators_of_integers(opset, make, tmp_path):
    model, path = make(opset), tmp_path / "q.onnx"
    onnx.save(model, tmp_path / "f.onnx")
    shape = tuple(d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim)
    quantize_static(tmp_path / "f.onnx", path, Samples(shape), quant_format=QuantFormat.QOperator,
                    weight_type=QuantType.QInt8, reduce_range=True)  # fmt: skip
    check(path, 3e-2, compiled=make is rows or opset == 17)


@pytest.mark.parametrize("weights", ["QInt8", "QUInt8"])
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("direction", [None, "forward", "bidirectional"])
def test_dynamic(direction, per_channel, weights, tmp_path):
    """Steps that data decides are the same to the last bits: so are the results."""
    onnx.save(rows(17) if direction is None else sequence(17, direction), tmp_path / "f.onnx")
    quantize_dynamic(
        tmp_path / "f.onnx", tmp_path / "q.onnx", weight_type=QuantType[weights],
        per_channel=per_channel, reduce_range=True, op_types_to_quantize=["MatMul", "LSTM"],
    )  # fmt: skip
    check(tmp_path / "q.onnx", 1e-4)


@pytest.mark.parametrize("form", [QuantFormat.QOperator, QuantFormat.QDQ])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("symmetric", [False, True])
def test_weights_in_blocks(symmetric, bits, form, tmp_path):
    if form is QuantFormat.QDQ and bits != 4:
        pytest.skip("the quantiser writes this form of 4 bits only")
    config = DefaultWeightOnlyQuantConfig(block_size=32, is_symmetric=symmetric, quant_format=form,
                                          bits=bits)  # fmt: skip
    quantizer = MatMulNBitsQuantizer(rows(21), algo_config=config)
    quantizer.process()
    onnx.save(quantizer.model.model, tmp_path / "q.onnx")
    check(tmp_path / "q.onnx", 1e-4)
