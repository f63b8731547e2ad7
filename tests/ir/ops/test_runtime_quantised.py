"""ONNX Runtime's operators on quantised values: as it computes them, and in integers."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import helper, numpy_helper
from saturation import LARGEST_WEIGHT

from graphc import driver
from graphc.frontend.onnx_import import import_onnx
from graphc.ir.interp import interpret

RANDOM = np.random.default_rng(0)
DOMAIN = "com.microsoft"
PARAMETERS = {"x": (0.0317, 20), "w": (0.0523, -30), "y": (0.0671, -5)}
SOFTMAX = (1 / 256, -128)


def integers(shape, dtype) -> np.ndarray:
    info = np.iinfo(dtype)
    return RANDOM.integers(info.min, info.max + 1, shape).astype(dtype)


def parameters(name: str, dtype, given=None) -> list[np.ndarray]:
    scale, zero = given or PARAMETERS[name]
    return [np.float32(scale), np.array(zero + (128 if dtype == np.uint8 else 0), dtype)]


def model(kind: str, feeds: list, operands: list, attrs: dict):
    """A model of one node; `operands` are numbers of inputs, constants, or None if left out."""
    names, constants = [], []
    for operand in operands:
        if operand is None:
            names.append("")
            continue
        constant = not isinstance(operand, int)
        names.append(f"c{len(constants)}" if constant else f"x{operand}")
        if constant:
            constants.append(numpy_helper.from_array(np.asarray(operand), names[-1]))
    node = helper.make_node(kind, names, ["y"], domain=DOMAIN, **attrs)
    infos = [
        helper.make_tensor_value_info(f"x{n}", helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in enumerate(feeds)
    ]
    result = helper.np_dtype_to_tensor_dtype(feeds[-1].dtype)
    graph = helper.make_graph(
        [node], "g", infos, [helper.make_tensor_value_info("y", result, None)], constants
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def check(kind: str, feeds: list, operands: list, **attrs) -> None:
    proto = model(kind, feeds, operands, attrs)
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (expected,) = session.run(None, {f"x{n}": a for n, a in enumerate(feeds)})
    (plain,) = interpret(import_onnx(proto), feeds)
    graph = driver.optimise(driver.typed(proto), passes="integers, fold, dce")
    (found,) = interpret(graph, feeds)
    assert np.abs(plain.astype(int) - expected.astype(int)).max() <= 1
    np.testing.assert_array_equal(found, expected)
    floats = {op.name for op in graph.ops for v in op.outputs if v.tensor.dtype.is_float}
    assert floats <= {"Constant"}, str(graph)


@pytest.fixture(params=[np.int8, np.uint8])
def dtype(request):
    return request.param


@pytest.mark.suite("all")
@pytest.mark.parametrize("kind", ["QLinearAdd", "QLinearMul"])
@pytest.mark.parametrize("shape", [(2, 8, 6), (8, 1)])
def test_binary(kind, shape, dtype):
    feeds = [integers((2, 8, 6), dtype), integers(shape, dtype)]
    x, w, y = (parameters(n, dtype) for n in "xwy")
    check(kind, feeds, [0, *x, 1, *w, *y])


def test_sigmoid(dtype):
    target = parameters("y", dtype, SOFTMAX)
    check("QLinearSigmoid", [integers((4, 64), dtype)], [0, *parameters("x", dtype), *target])


def test_leaky_relu(dtype):
    operands = [0, *parameters("x", dtype), *parameters("y", dtype)]
    check("QLinearLeakyRelu", [integers((4, 64), dtype)], operands, alpha=0.2)


def test_where(dtype):
    feeds = [RANDOM.random((4, 8)) < 0.5, integers((4, 8), dtype), integers((4, 8), dtype)]
    x, w, y = (parameters(n, dtype) for n in "xwy")
    check("QLinearWhere", feeds, [0, 1, *x, 2, *w, *y])


def test_concat(dtype):
    feeds = [integers((2, 3, 4), dtype), integers((2, 5, 4), dtype)]
    x, w, y = (parameters(n, dtype) for n in "xwy")
    check("QLinearConcat", feeds, [*y, 0, *x, 1, *w], axis=1)


@pytest.mark.parametrize("channels_last", [0, 1])
@pytest.mark.parametrize("count", [0, 1])
def test_average_pool(dtype, count, channels_last):
    operands = [0, *parameters("x", dtype), *parameters("x", dtype)]
    geometry = {"kernel_shape": [2, 3], "pads": [0, 1, 1, 1], "strides": [2, 1]}
    shape = (1, 8, 9, 4) if channels_last else (1, 4, 8, 9)
    check("QLinearAveragePool", [integers(shape, dtype)], operands,
          count_include_pad=count, channels_last=channels_last, **geometry)  # fmt: skip


@pytest.mark.suite("all")
@pytest.mark.parametrize("channels_last", [0, 1])
def test_global_average_pool(dtype, channels_last):
    operands = [0, *parameters("x", dtype), *parameters("y", dtype)]
    shape = (1, 8, 9, 16) if channels_last else (1, 16, 8, 9)
    check("QLinearGlobalAveragePool", [integers(shape, dtype)], operands,
          channels_last=channels_last)  # fmt: skip


@pytest.mark.suite("all")
@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("channels_last", [0, 1])
def test_conv(dtype, channels_last, groups):
    w = integers((8, 4 // groups, 3, 3), np.int8).clip(-LARGEST_WEIGHT, LARGEST_WEIGHT)
    scale, zero = np.linspace(0.002, 0.004, 8, dtype=np.float32), np.zeros(8, np.int8)
    bias = RANDOM.integers(-2000, 2000, 8).astype(np.int32)
    operands = [0, *parameters("x", dtype), w, scale, zero, *parameters("y", dtype), bias]
    shape = (1, 7, 6, 4) if channels_last else (1, 4, 7, 6)
    check("QLinearConv", [integers(shape, dtype)], operands, channels_last=channels_last,
          group=groups, pads=[1, 1, 0, 1], strides=[2, 1])  # fmt: skip


@pytest.mark.suite("all")
@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("channels", [1, 5])
def test_gemm(dtype, channels, transposed):
    w = integers((5, 9) if transposed else (9, 5), np.int8).clip(-LARGEST_WEIGHT, LARGEST_WEIGHT)
    scale = RANDOM.uniform(0.001, 0.01, 5).astype(np.float32) if channels > 1 else np.float32(0.004)
    zero = np.zeros(scale.shape, np.int8)
    bias = RANDOM.integers(-2000, 2000, 5).astype(np.int32)
    operands = [0, *parameters("x", dtype), w, scale, zero, bias, *parameters("y", dtype)]
    check("QGemm", [integers((6, 9), dtype)], operands, transB=transposed)


@pytest.mark.suite("all")
@pytest.mark.parametrize("opset, axis", [(13, -1), (13, 1), (12, 1)])
def test_softmax(dtype, opset, axis):
    operands = [0, *parameters("x", dtype), *parameters("y", dtype, SOFTMAX)]
    check("QLinearSoftmax", [integers((3, 7, 5), dtype)], operands, opset=opset, axis=axis)


def test_zero_points_may_be_missing():
    x, zero = integers((4, 8), np.uint8), np.array(0, np.uint8)
    operands = [0, np.float32(0.03), zero, np.float32(0.06)]
    results = [
        interpret(import_onnx(model("QLinearSigmoid", [x], given, {})), [x])[0]
        for given in (operands, [*operands, zero])
    ]
    np.testing.assert_array_equal(*results)


def test_zero_points_may_be_left_out_in_between():
    x, y = integers((4, 8), np.uint8), integers((4, 8), np.uint8)
    zero = np.array(0, np.uint8)
    results = [
        interpret(import_onnx(model("QLinearAdd", [x, y], given, {})), [x, y])[0]
        for given in (
            [0, np.float32(0.03), None, 1, np.float32(0.02), None, np.float32(0.06)],
            [0, np.float32(0.03), zero, 1, np.float32(0.02), zero, np.float32(0.06), zero],
        )
    ]
    np.testing.assert_array_equal(*results)
