"""Bundles on emulated boards: cross-compiled, run under QEMU, checked against ONNX Runtime."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from graphc import driver
from graphc.backends.micro_c import BundleOptions, write_bundle
from graphc.backends.micro_c.cpus import CPUS

from bundles import checked, model_of, reference  # isort: skip
from quantised_models import convolution, dense, residual  # isort: skip

BOARD = Path(__file__).parent / "board"
MACHINES = {  # the processor, and where its memory lies
    "mps2-an386": ("cortex-m4", "mps2.ld"),
    "mps2-an500": ("cortex-m7", "mps2.ld"),
    "mps3-an547": ("cortex-m55", "mps3.ld"),
}
MISSING = [t for t in ("arm-none-eabi-gcc", "qemu-system-arm") if not shutil.which(t)]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"{', '.join(MISSING)} not installed")


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
    "depthwise": lambda: integer_case(
        convolution(np.int8, (1, 8, 6, 6), (8, 1, 3, 3), pads=[1] * 4, group=8)
    ),
    "dense": lambda: integer_case(dense("Gemm")),
    "residual": lambda: integer_case(residual()),
}


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("case", CASES)
def test_runs_on_the_board(machine, case, tmp_path):
    model, feeds, tolerance = CASES[case]()
    samples = (feeds, reference(model, feeds))
    cpu, memory = MACHINES[machine]
    program = driver.micro_program(driver.typed(model), cpu=cpu)
    options = BundleOptions("net", samples=samples, tolerance=tolerance, cpu=cpu)
    write_bundle(program, tmp_path, options)
    compiler = ["arm-none-eabi-gcc", "-O2", "-std=c99", *CPUS[cpu].flags]
    linking = [
        "--specs=rdimon.specs",
        "-nostartfiles",
        f"-L{BOARD}",
        f"-T{memory}",
        str(BOARD / "startup.c"),
    ]
    sources = ["net.c", "net_weights.c", "net_test.c"]
    checked([*compiler, *linking, *sources, "-lm", "-o", "net.elf"], tmp_path)
    command = ["qemu-system-arm", "-M", machine, "-display", "none", "-monitor", "none"]
    semihosting = ["-serial", "none", "-semihosting-config", "enable=on,target=native"]
    printed = checked([*command, *semihosting, "-kernel", "net.elf"], tmp_path, timeout=60)
    assert "largest error" in printed
