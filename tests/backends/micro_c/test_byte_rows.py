"""Products of rows of bytes: the loops in assembler give what the plain ones give, on the board."""

from __future__ import annotations

import numpy as np
import pytest
from bundles import micro_program
from test_helium import CPU, chain

from graphc.backends.micro_c import BundleOptions, bundle
from graphc.backends.micro_c.boards import ARM, BOARDS
from graphc.backends.micro_c.emulator import run_on_board
from graphc.backends.micro_c.host import HostModel

PADDED = {"pads": [1] * 4}
CASES = {  # channels read, weights and attributes of a convolution
    "three at a time": (16, (9, 16, 3, 3), PADDED),  # 144 bytes
    "sixteen": (80, (5, 80, 1, 1), {"strides": [2, 1]}),  # 80 bytes
    "thirty-two": (64, (6, 64, 2, 2), {"pads": [0, 0, 1, 1]}),  # 256 bytes
    "an end": (9, (7, 9, 3, 3), PADDED),  # 81 bytes
    "short": (3, (6, 3, 3, 3), PADDED),  # 27 bytes, copied
    "one column": (70, (1, 70, 1, 1), {}),
}


@pytest.mark.skipif(bool(ARM.missing()), reason=f"{ARM.missing()} not installed")
@pytest.mark.parametrize("name", CASES)
def test_on_a_board(name):
    channels, weights, attrs = CASES[name]
    dtype = np.uint8 if name == "an end" else np.int8
    model, feeds = chain(dtype, channels, weights, **attrs)
    program = micro_program(model, CPU)
    options = BundleOptions("net", cpu=CPU)
    device = run_on_board(program, feeds, BOARDS["mps3-an547"], options)
    host = HostModel(program, options)(feeds)
    for result, wanted in zip(device.outputs, host, strict=True):
        np.testing.assert_array_equal(result, wanted)
    text = bundle(program, options)["net.c"]
    assert name in ("short", "one column") or "dots_3(" in text
