"""Kernels made for a processor run everywhere, compile for it without a warning, and say so."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from bundles import STRICT, checked, micro_program, model_of, run_bundle
from onnx import TensorProto, helper
from quantised_models import convolution, dense, difference, residual

from graphc.backends.micro_c import BundleOptions, bundle, write_bundle
from graphc.backends.micro_c.cpus import CPUS, cpu_of
from graphc.errors import ModelError
from graphc.targets import micro_c as micro_c_target

RNG = np.random.default_rng(5)
RISCV = "riscv64-unknown-elf-gcc"


def floats():
    """A padded and a depthwise convolution, a matrix product."""
    constants = {
        "w": RNG.standard_normal((6, 3, 3, 3)).astype(np.float32),
        "d": RNG.standard_normal((6, 1, 3, 3)).astype(np.float32),
        "m": RNG.standard_normal((7, 11)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Conv", ["r", "d"], ["e"], pads=[1, 1, 1, 1], group=6),
        helper.make_node("MatMul", ["e", "m"], ["y"]),
    ]
    model = model_of(
        nodes,
        {"x": (TensorProto.FLOAT, [1, 3, 8, 7])},
        {"y": (TensorProto.FLOAT, [1, 6, 8, 11])},
        constants,
    )
    return model, [RNG.standard_normal((1, 3, 8, 7)).astype(np.float32)], 1e-4


def quantised(case):
    return case.result, case.feeds, 1.0


CASES = {
    "floats": floats,
    "padded": lambda: quantised(convolution(np.int8, (1, 8, 6, 7), (6, 8, 3, 3), pads=[1] * 4)),
    "unsigned": lambda: quantised(convolution(np.uint8, (1, 11, 5, 5), (9, 11, 1, 1))),
    "depthwise": lambda: quantised(
        convolution(np.int8, (1, 4, 6, 6), (4, 1, 3, 3), pads=[1] * 4, group=4)
    ),
    "dense": lambda: quantised(dense("Gemm")),
    "residual": lambda: quantised(residual()),
    "difference": lambda: quantised(difference()),
}


def test_the_command_line_knows_them():
    assert tuple(CPUS) == micro_c_target.CPUS


def test_unknown_processors_are_refused():
    with pytest.raises(ModelError, match="z80.*cortex-m4"):
        cpu_of("z80")


@pytest.mark.parametrize("cpu", ["cortex-m0plus", "cortex-m55"])
@pytest.mark.parametrize("case", CASES)
def test_runs_on_the_host(cpu, case, tmp_path):
    model, feeds, tolerance = CASES[case]()
    run_bundle(model, feeds, tmp_path, tolerance, cpu)


@pytest.mark.parametrize("cpu", [name for name, cpu in CPUS.items() if cpu.flags])
@pytest.mark.parametrize("case", CASES)
def test_compiles_without_a_warning(cpu, case, tmp_path):
    compiler = [RISCV, "--specs=picolibc.specs"] if cpu == "rv32" else ["arm-none-eabi-gcc"]
    if shutil.which(compiler[0]) is None:
        pytest.skip(f"{compiler[0]} is not installed")
    write_bundle(micro_program(CASES[case]()[0], cpu), tmp_path, BundleOptions("net", cpu=cpu))
    for language in (["-std=c99"], ["-x", "c++", "-std=c++17"]):
        command = [*compiler, *CPUS[cpu].flags, *language, "-O2", *STRICT, "-c", "net.c"]
        checked([*command, "-o", "net.o"], tmp_path)


def test_documents_name_the_processor():
    files = bundle(micro_program(floats()[0], "cortex-m7"), BundleOptions("net", cpu="cortex-m7"))
    assert json.loads(files["report.json"])["cpu"] == "cortex-m7"
    assert "`-mcpu=cortex-m7 " in files["README.md"]


@pytest.mark.parametrize("cpu", ["cortex-m52", "cortex-m85"])
def test_others_with_vectors_run_what_the_m55_does(cpu):
    """There is no emulator of these: their kernels are the M55's to the letter."""
    case, _, _ = floats()
    texts = [model_text(micro_program(case, name), name) for name in (cpu, "cortex-m55")]
    assert texts[0] == texts[1] and "vld" in texts[0]


def model_text(program, cpu):
    options = BundleOptions(name="net", cpu=cpu)
    return bundle(program, options)["net.c"]
