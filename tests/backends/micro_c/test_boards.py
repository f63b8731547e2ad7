"""Bundles on emulated boards: cross-compiled, run under QEMU, checked against ONNX Runtime."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest
from bundles import checked, float_model, model_of, reference
from onnx import TensorProto, helper
from quantised_models import convolution, dense, residual

from graphc import driver
from graphc.backends.micro_c import BundleOptions, write_bundle
from graphc.backends.micro_c import model_of as model_of_bundle
from graphc.backends.micro_c.boards import ARM, BOARDS, RISCV
from graphc.backends.micro_c.budget import Budget
from graphc.backends.micro_c.emulator import run_on_board
from graphc.backends.micro_c.host import HostModel
from graphc.errors import UnsupportedError
from graphc.ir.build import Builder
from graphc.ir.dtypes import i8
from graphc.ir.graph import Graph
from graphc.ir.interp import interpret
from graphc.ir.types import TensorType
from graphc.targets import micro_c as micro_c_target

needs_arm = pytest.mark.skipif(bool(ARM.missing()), reason=f"{ARM.missing()} not installed")


def float_case():
    random = np.random.default_rng(2)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Sigmoid", ["c"], ["s"]),
        helper.make_node("MaxPool", ["s"], ["y"], kernel_shape=[2, 2], strides=[2, 2]),
    ]
    model = model_of(
        nodes,
        {"x": (TensorProto.FLOAT, [1, 3, 8, 8])},
        {"y": (TensorProto.FLOAT, [1, 6, 4, 4])},
        {"w": random.standard_normal((6, 3, 3, 3)).astype(np.float32)},
    )
    return model, [random.standard_normal((1, 3, 8, 8)).astype(np.float32)], 1e-5


def integer_case(quantised):
    return quantised.result, quantised.feeds, 1.0


CASES = {
    "float": float_case,
    "int8": lambda: integer_case(
        convolution(np.int8, (1, 8, 6, 7), (6, 8, 3, 3), pads=[1, 1, 1, 1])
    ),
    "uint8": lambda: integer_case(convolution(np.uint8, (1, 11, 5, 5), (9, 11, 1, 1))),
    "depthwise of uint8": lambda: integer_case(
        convolution(np.uint8, (1, 5, 7, 7), (5, 1, 3, 3), pads=[1] * 4, group=5)
    ),
    "depthwise": lambda: integer_case(
        convolution(np.int8, (1, 8, 6, 6), (8, 1, 3, 3), pads=[1] * 4, group=8)
    ),
    "dense": lambda: integer_case(dense("Gemm")),
    "residual": lambda: integer_case(residual()),
}


def with_smallest_processor():
    """A board of a larger one, which runs the same instructions."""
    return replace(BOARDS["mps2-an386"], name="mps2-an386 as an M0+", cpu="cortex-m0plus")


EMULATED = [*BOARDS.values(), with_smallest_processor()]


@pytest.mark.parametrize("board", EMULATED, ids=lambda board: board.name)
@pytest.mark.parametrize("case", CASES)
def test_runs_on_the_board(board, case):
    if board.tools.missing():
        pytest.skip(f"{', '.join(board.tools.missing())} not installed")
    model, feeds, tolerance = CASES[case]()
    program = driver.program_for(driver.typed(model), "c", cpu=board.cpu)
    done = run_on_board(program, feeds, board, BundleOptions(cpu=board.cpu))
    for found, expected in zip(done.outputs, reference(model, feeds), strict=True):
        difference = np.abs(found.astype(np.float64) - expected.astype(np.float64))
        assert difference.max() <= tolerance
    assert 0 < done.stack <= Budget.of(model_of_bundle(program, BundleOptions())).stack


def twice_rounded():
    """Sums of products scaled as TensorFlow Lite does it, by rounded upper halves of products."""
    random = np.random.default_rng(4)
    graph = Graph()
    b = Builder(graph)
    x = graph.add_param(TensorType(i8, (4, 32)), "x")
    weights = random.integers(-127, 128, (32, 12)).astype(np.int8)
    total = b.Mul(b.MatMulInteger(x, b.constant(weights)), b.constant(np.int32(2)))
    made = b.op(
        "Rescale", total, b.constant(random.integers(1 << 30, 1 << 31, 12).astype(np.int32)),
        b.constant((1 << 32 - random.integers(7, 11, 12)).astype(np.int32)), domain="graphc",
        axis=1, doubled=1, zero_point=-3, low=-128, high=127, to=i8.onnx,
    )  # fmt: skip
    graph.set_results([made])
    return graph, [random.integers(-128, 128, (4, 32)).astype(np.int8)]


@pytest.mark.parametrize("board", EMULATED, ids=lambda board: board.name)
def test_rounded_halves_of_products_are_exact(board):
    if board.tools.missing():
        pytest.skip(f"{', '.join(board.tools.missing())} not installed")
    graph, feeds = twice_rounded()
    program = driver.program_for(driver.typed(graph), "c", cpu=board.cpu)
    done = run_on_board(program, feeds, board, BundleOptions(cpu=board.cpu))
    np.testing.assert_array_equal(done.outputs[0], interpret(graph, feeds)[0])
    assert len(np.unique(done.outputs[0])) > 8


@needs_arm
@pytest.mark.parametrize("case", ["float", "int8"])
def test_traces_are_those_of_the_host(case):
    model, feeds, _ = CASES[case]()
    program = driver.program_for(driver.typed(model), "c", cpu="cortex-m4")
    device = run_on_board(program, feeds, BOARDS["mps2-an386"], traced=True).traces
    assert device == HostModel(program, traced=True).trace(feeds)
    assert device[0].layer == -1 and len(device) > len(program.steps)


@needs_arm
def test_what_does_not_fit_is_refused():
    weights = np.ones((1100, 1000), np.float32)
    x = np.ones((1, 1100), np.float32)
    model = float_model(helper.make_node("MatMul", ["x", "w"], ["y"]), x, {"w": weights})
    program = driver.program_for(driver.typed(model), "c")
    with pytest.raises(UnsupportedError, match="mps2-an386.*not fit"):
        run_on_board(program, [x], BOARDS["mps2-an386"])


def test_the_command_line_knows_them():
    assert tuple(BOARDS) == micro_c_target.BOARDS


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_missing_tools_are_named(board, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda tool: None)
    x = np.ones((1, 4), np.float32)
    model = float_model(helper.make_node("Relu", ["x"], ["y"]), x, {})
    program = driver.program_for(driver.typed(model), "c")
    with pytest.raises(UnsupportedError, match=f"{board.name}: .*gcc and qemu.*apt install gcc-"):
        run_on_board(program, [x], board)


@pytest.mark.skipif(bool(RISCV.missing()), reason=f"{RISCV.missing()} not installed")
def test_the_makefile_of_a_bundle(tmp_path):
    model, feeds, _ = CASES["float"]()
    program = driver.program_for(driver.typed(model), "c", cpu="rv32")
    samples = (feeds, reference(model, feeds))
    options = BundleOptions("net", samples=samples, cpu="rv32", board="riscv32-virt")
    write_bundle(program, tmp_path, options)
    assert "accepted" in checked(["sh", "-c", "make run 2>&1"], tmp_path)
