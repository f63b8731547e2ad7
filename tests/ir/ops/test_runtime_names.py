"""ONNX Runtime's other names of ONNX's operators, and those that ONNX has removed."""

from __future__ import annotations

import numpy as np
import pytest
from runtime_compare import DOMAIN, check

RANDOM = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def ints(*values: int, dtype=np.int64) -> np.ndarray:
    return np.array(values, dtype)


@pytest.mark.suite("all")
@pytest.mark.parametrize("axis", [0, 2, -1, -3])
def test_expand_dims(axis):
    check("ExpandDims", floats(2, 3), np.array(axis, np.int32), constants={1})


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_gather_nd(dtype):
    where = np.array([[[0, 1], [1, -1]], [[-2, 2], [0, 0]]], dtype)
    check("GatherND", floats(2, 3, 4), where)
    check("GatherND", floats(2, 3, 4), where[..., :1])


@pytest.mark.suite("all")
@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
def test_pad(mode):
    pads = np.array([[0, 2, 1, 1]])
    check("Pad", floats(3, 4), pads, np.array([1.5], np.float32), constants={1}, mode=mode)
    check("Pad", floats(3, 4), pads[0], constants={1}, mode=mode)


@pytest.mark.suite("all")
@pytest.mark.parametrize("dtype", ["int16", "int32", "int64", "float32", "float64"])
def test_range(dtype):
    bounds = [np.array([2], dtype), np.array(17, dtype), np.array([5], dtype)]
    check("Range", *bounds, constants={0, 1, 2})
    check("Range", *bounds[:2], constants={0, 1})


@pytest.mark.suite("all")
@pytest.mark.parametrize("dtype", ["int64", "float32", "float64"])
def test_trilu(dtype):
    x = np.arange(24).reshape(2, 3, 4).astype(dtype)
    check("Trilu", x, np.array(-1), upper=1)
    check("Trilu", x, upper=0)


def test_unique():
    x = np.array([2, 1, 1, 3, 4, 3, -0.0, 0.0], np.float32)
    check("Unique", x, outputs=(True, True, True), compiled=True)
    check("Unique", x[:0], outputs=(True, True, True))


@pytest.mark.suite("all")
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_grid_sample(mode, padding):
    grid = RANDOM.uniform(-1.4, 1.4, (1, 4, 5, 2)).astype(np.float32)
    check("GridSample", floats(1, 2, 5, 6), grid, mode=mode, padding_mode=padding)


def test_copies():
    check("SampleOp", floats(2, 3))


# ---------------------------------------------------------------- experimental operators


@pytest.mark.suite("all")
@pytest.mark.parametrize("kind, attrs", [
    ("Affine", {"alpha": 2.5, "beta": -1.0}), ("Affine", {}), ("Scale", {"scale": 0.3}),
    ("ScaledTanh", {"alpha": 1.5, "beta": 0.7}),
    ("ParametricSoftplus", {"alpha": 2.0, "beta": 3.0}),
])  # fmt: skip
def test_experimental(kind, attrs):
    check(kind, floats(7), domain="", opset=9, compiled=True, **attrs)


def test_experimental_images():
    check("ImageScaler", floats(2, 3, 4, 5), domain="", opset=9, scale=0.5, bias=[1.0, 2.0, 3.0])
    check("Crop", floats(2, 3, 8, 9), domain="", opset=9, border=[1, 2, 3, 1])
    check("Crop", floats(2, 3, 8, 9), domain="", opset=9, border=[1, 2, 3, 1], scale=[4, 5])


def test_dynamic_slice():
    check("DynamicSlice", floats(4, 5), ints(1, -3), ints(3, 1000), ints(0, 1), domain="", opset=9,
          constants={1, 2, 3})  # fmt: skip


def test_functions_of_the_model_take_precedence():
    from onnx import TensorProto, helper

    from graphc.frontend.onnx_import import import_onnx
    from graphc.ir.interp import interpret

    body = [helper.make_node("Neg", ["x"], ["y"])]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
    function = helper.make_function(DOMAIN, "Trilu", ["x"], ["y"], body, opsets[:1])
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 2]) for n in "ab"]
    node = helper.make_node("Trilu", ["a"], ["b"], domain=DOMAIN)
    graph = helper.make_graph([node], "g", infos[:1], infos[1:])
    model = helper.make_model(graph, functions=[function], opset_imports=opsets, ir_version=10)
    x = floats(2, 2)
    (got,) = interpret(import_onnx(model), [x])
    np.testing.assert_array_equal(got, -x)
