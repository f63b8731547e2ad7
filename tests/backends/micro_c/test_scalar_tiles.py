"""Register tiles give what the reference gives, whatever the window, the padding and the sizes."""

from __future__ import annotations

import numpy as np
import pytest
from bundles import float_model, micro_program, run_bundle
from onnx import helper

from graphc import driver
from graphc.ir import dtypes
from graphc.ir.build import Builder, new_graph
from graphc.ir.types import TensorType
from graphc.ir.verify.kernels import verify_kernel

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
    """Of a product with the sum nothing is left if the sum is taken to be 0."""
    graph = new_graph("g", x=TensorType(dtypes.u8, (6, 5)))
    quarter, zero = np.float32(0.25), np.uint8(0)
    weights = RNG.integers(-9, 9, (5, 5)).astype(np.int8)
    scales = np.array([0.25, 0.3, 0.125, 0.2, 0.5], np.float32)
    operands = (quarter, zero, weights, scales, np.zeros(5, np.int8), np.float32(8), zero)
    graph.set_results([Builder(graph).QLinearMatMul(graph.params[0], *operands)])
    graph.output_names = ["y"]
    program = driver.program_for(driver.typed(graph), "c")
    (kernel,) = (k for name, k in program.kernels.items() if name.startswith("tiles"))
    assert len(kernel.params) == 4  # x, the multipliers, the weights, the result
    verify_kernel(kernel)
