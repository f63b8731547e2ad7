"""Products of rows of bytes: the loops in assembler give what the plain ones give, on the board."""

from __future__ import annotations

import re

import numpy as np
import pytest
from bundles import STRICT, checked, micro_program
from test_helium import CPU, chain

from graphc.backends.micro_c import BundleOptions, bundle, byte_rows
from graphc.backends.micro_c.boards import ARM, BOARDS
from graphc.backends.micro_c.emulator import run_on_board
from graphc.backends.micro_c.host import HostModel

PADDED = {"pads": [1] * 4}
CASES = {  # channels read, weights and attributes of a convolution, and functions called
    "a loop": (16, (9, 16, 3, 3), PADDED, {"dots_3x9x144"}),
    "unrolled": (80, (5, 80, 1, 1), {"strides": [2, 1]}, {"dots_3x5x80"}),
    "a loop of even turns": (64, (6, 64, 2, 2), {"pads": [0, 0, 1, 1]}, {"dots_3x6x256"}),
    "an end": (9, (7, 9, 3, 3), PADDED, {"dots_3x7x81"}),  # of unsigned bytes
    "a loop and an end": (15, (7, 15, 3, 3), PADDED, {"dots_3x7x135"}),
    "in registers": (3, (6, 3, 3, 3), PADDED, {"dots_3x6x27"}),  # copied
    "one column": (70, (1, 70, 1, 1), {}, set()),
    "far": (1025, (3, 1025, 2, 2), {}, {"dots_3x3x4100"}),
    "rows of eight": (8, (5, 8, 1, 1), {}, {"dots_3x5x8"}),
    "padded lines": (1, (8, 1, 2, 2), {"shape": (1, 5, 4, 4), **PADDED}, set()),
}


@pytest.mark.skipif(bool(ARM.missing()), reason=f"{ARM.missing()} not installed")
@pytest.mark.parametrize("name", CASES)
def test_on_a_board(name):
    channels, weights, attrs, functions = CASES[name]
    dtype = np.uint8 if name == "an end" else np.int8
    model, feeds = chain(dtype, channels, weights, **attrs)
    program = micro_program(model, CPU)
    options = BundleOptions("net", cpu=CPU)
    device = run_on_board(program, feeds, BOARDS["mps3-an547"], options)
    host = HostModel(program, options)(feeds)
    for result, wanted in zip(device.outputs, host, strict=True):
        np.testing.assert_array_equal(result, wanted)
    text = bundle(program, options)["net.c"]
    assert functions <= set(re.findall(r"\bdots_\w+", text))


@pytest.mark.skipif(bool(ARM.missing()), reason=f"{ARM.missing()} not installed")
@pytest.mark.parametrize("flags", ["-O2 -fno-omit-frame-pointer", "-O1 -fsanitize=undefined"])
def test_with_a_register_less(flags, tmp_path):
    """A pointer to the frame leaves twelve registers: what three rows take."""
    shapes = ["3x5x8", "3x3x33", "3x5x80", "3x4x81", "3x7x135", "1x5x64"]
    texts = [byte_rows.text(f"dots_{shape}") for shape in shapes]
    (tmp_path / "t.c").write_text(
        "\n".join(["#include <stdint.h>", "#define APART __attribute__((used))", *texts])
    )
    command = ["arm-none-eabi-gcc", "-mcpu=cortex-m55", "-mthumb", "-mfloat-abi=hard"]
    command += ["-std=c99", *STRICT, "-Wno-unused-function", *flags.split(), "-c", "t.c"]
    checked(command, tmp_path)
