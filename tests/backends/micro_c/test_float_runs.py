"""Products of floats in rows: loops in assembler give what plain ones give, on the board."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace

import numpy as np
import pytest
from bundles import micro_program, model_of, reference
from differential import interpret_program
from onnx import TensorProto, helper

from graphc.backends.micro_c import BundleOptions, bundle, float_runs
from graphc.backends.micro_c.boards import ARM, BOARDS
from graphc.backends.micro_c.emulator import run_on_board
from graphc.backends.micro_c.intrinsics import in_plain_loops

CPU = "cortex-m4"
RNG = np.random.default_rng(3)
PADDED = {"pads": [1] * 4}
CASES = {  # channels of an image, weights and attributes of a convolution; functions called
    "one run": (21, (16, 21, 1, 1), {}, {"sum_2x8_f32"}),
    "runs of a row": (12, (9, 12, 3, 3), PADDED, {"run_2x5_f32", "run_1x5_f32"}),
    "strided": (8, (7, 8, 3, 3), {"strides": [2, 2], **PADDED}, {"run_2x7_f32", "run_1x7_f32"}),
}


def image(name: str):
    """A convolution between transposes: channels lie in a row."""
    channels, weights, attrs, _ = CASES[name]
    data = RNG.standard_normal((1, 6, 7, channels)).astype(np.float32)
    constants = {"w": RNG.standard_normal(weights).astype(np.float32)}
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[0, 3, 1, 2]),
        helper.make_node("Conv", ["t", "w"], ["c"], **attrs),
        helper.make_node("Transpose", ["c"], ["y"], perm=[0, 2, 3, 1]),
    ]
    inputs = {"x": (TensorProto.FLOAT, data.shape)}
    model = model_of(nodes, inputs, {"y": (TensorProto.FLOAT, None)}, constants)
    return model, [data]


@pytest.mark.skipif(bool(ARM.missing()), reason=f"{ARM.missing()} not installed")
@pytest.mark.parametrize("name", CASES)
def test_on_a_board(name):
    model, feeds = image(name)
    program = micro_program(model, CPU)
    options = BundleOptions("net", cpu=CPU)
    device = run_on_board(program, feeds, BOARDS["mps2-an386"], options)
    expected = reference(model, feeds)
    np.testing.assert_allclose(device.outputs[0], expected[0], atol=1e-4)
    called = set(re.findall(r"\b(?:run|sum)_\w+_f32", bundle(program, options)["net.c"]))
    assert called == CASES[name][3]
    kernels = {n: in_plain_loops(k) for n, k in program.kernels.items()}
    (found,) = interpret_program(replace(program, kernels=kernels), feeds)
    np.testing.assert_allclose(found, expected[0], atol=1e-4)


@pytest.mark.skipif(bool(ARM.missing()), reason=f"{ARM.missing()} not installed")
def test_functions_of_all_shapes_assemble(tmp_path):
    shapes = [(r, c) for r in range(1, 33) for c in range(1, 33) if float_runs.fits(r, c)]
    names = [f"{kind}_{r}x{c}_f32" for r, c in shapes for kind in ("sum", "run")]
    assert (8, 2) in shapes and (1, 15) in shapes and all(map(float_runs.NAME.fullmatch, names))
    source = tmp_path / "all.c"
    functions = "".join(map(float_runs.text, names)).replace("APART static", "")
    source.write_text(f"#include <stdint.h>\n{functions}")
    flags = ["-mcpu=cortex-m4", "-mfloat-abi=hard", "-mthumb", "-O2", "-fno-omit-frame-pointer"]
    command = ["arm-none-eabi-gcc", *flags, "-c", str(source), "-o", str(tmp_path / "all.o")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
