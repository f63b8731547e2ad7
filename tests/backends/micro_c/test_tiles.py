"""Register tiles give what the reference gives, whatever the window, the padding and the sizes."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from graphc import driver
from graphc.backends.c99 import build
from graphc.ir import dtypes
from graphc.ir.build import Builder, new_graph
from graphc.ir.graph import clone_graph
from graphc.ir.interp import interpret
from graphc.ir.types import TensorType

from bundles import float_model, micro_program, run_bundle  # isort: skip

RNG = np.random.default_rng(0)


def convolution(x, w, **attrs):
    weights = {
        "w": RNG.standard_normal(w).astype(np.float32),
        "b": RNG.standard_normal(w[0]).astype(np.float32),
    }
    node = helper.make_node("Conv", ["x", "w", "b"], ["y"], **attrs)
    data = RNG.standard_normal(x).astype(np.float32)
    return float_model(node, data, weights), data


CASES = {
    "padded": ((1, 3, 9, 11), (6, 3, 3, 3), {"pads": [1, 1, 1, 1]}),
    "strided": ((1, 4, 10, 9), (8, 4, 3, 3), {"pads": [1, 0, 1, 1], "strides": [2, 2]}),
    "pointwise": ((1, 5, 6, 7), (10, 5, 1, 1), {}),
    "depthwise": ((1, 6, 8, 9), (6, 1, 3, 3), {"pads": [1, 1, 1, 1], "group": 6}),
    "grouped": ((2, 6, 7, 5), (4, 3, 3, 2), {"group": 2}),
    "dilated": ((1, 2, 12, 12), (3, 2, 3, 3), {"pads": [2, 2, 2, 2], "dilations": [2, 2]}),
    "only edges": ((1, 2, 4, 3), (4, 2, 7, 5), {"pads": [3, 2, 3, 2]}),
    "one axis": ((1, 3, 20), (5, 3, 4), {"pads": [3, 0], "strides": [3]}),
}


@pytest.mark.parametrize("name", CASES)
def test_convolutions(name, tmp_path):
    x, w, attrs = CASES[name]
    model, data = convolution(x, w, **attrs)
    program = micro_program(model)
    assert any(k.name.startswith("tiles") for k in program.kernels.values())
    run_bundle(model, [data], tmp_path, 1e-4)


def test_no_padding_is_stored(tmp_path):
    model, _ = convolution((1, 4, 8, 8), (8, 4, 3, 3), pads=[1, 1, 1, 1])
    assert micro_program(model).arena_bytes in (0, 8 * 64 * 4)


@pytest.mark.parametrize("shape", [(1, 7, 9), (3, 16, 4), (5, 33, 3)])
def test_matrix_products(shape, tmp_path):
    rows, depth, columns = shape
    weights = {"w": RNG.standard_normal((depth, columns)).astype(np.float32)}
    data = RNG.standard_normal((rows, depth)).astype(np.float32)
    model = float_model(helper.make_node("MatMul", ["x", "w"], ["y"]), data, weights)
    run_bundle(model, [data], tmp_path, 1e-4)


def test_what_multiplies_a_sum_is_an_operand():
    graph = new_graph("g", x=TensorType(dtypes.f32, (4, 9)), s=TensorType(dtypes.f32, (8,)))
    b = Builder(graph)
    weights = RNG.standard_normal((9, 8)).astype(np.float32)
    graph.set_results([b.Mul(b.MatMul(graph.params[0], weights), graph.params[1])])
    inputs = [RNG.standard_normal((4, 9)).astype(np.float32), np.arange(8, dtype=np.float32)]
    program = driver.micro_program(driver.typed(clone_graph(graph)))
    assert any(name.startswith("tiles") for name in program.kernels)
    np.testing.assert_allclose(build(program)(inputs)[0], interpret(graph, inputs)[0], rtol=1e-4)
