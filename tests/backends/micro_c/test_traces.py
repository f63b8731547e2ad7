"""Traces: what a log says, and which differences of two are rounding and which are faults."""

from __future__ import annotations

import numpy as np
import pytest
from test_boards import CASES

from graphc import driver
from graphc.backends.micro_c import BundleOptions
from graphc.backends.micro_c.boards import ARM, BOARDS
from graphc.backends.micro_c.emulator import run_on_board
from graphc.backends.micro_c.host import HostModel
from graphc.backends.micro_c.traces import Trace, compared, read_traces
from graphc.errors import ModelError

LOG = """boot
[12] trace -1 0000abcd x y
trace 0 12345678 conv
> summary 0 -1.5 0x40000000 nan conv
summary 1 1 2 3 of another layer
trace 1 zzz
trace 1 ffffffff
"""


def test_logs():
    assert read_traces(LOG) == [
        Trace(-1, 0xABCD, "x y"), Trace(0, 0x12345678, "conv"), Trace(1, 0xFFFFFFFF, ""),
    ]  # fmt: skip
    first, second, third = (trace.summary for trace in read_traces(LOG))
    assert first is None and third is None and second[:2] == (-1.5, 2.0) and np.isnan(second[2])


HOST = [
    Trace(-1, 1, "x"), Trace(0, 2, "conv", (-1.0, 4.0, 0.5), True), Trace(1, 3, "top", (0, 9, 4)),
]  # fmt: skip


@pytest.mark.parametrize(
    "device, problem",
    [
        (HOST, ""),
        ([Trace(-1, 9, "x")], "input x: the device has CRC 00000009"),
        (HOST[:1], "the log ends before layer 0, conv"),
        ([HOST[0], Trace(0, 9, "conv")], "conv.*NAME_SUMMARY"),
        ([HOST[0], Trace(0, 9, "conv", (-1.0, 4.002, 0.5)), HOST[2]], ""),
        ([HOST[0], Trace(0, 9, "conv", (-1.0, 4.01, 0.5))], "conv: the device has -1 to 4.01"),
        ([HOST[0], Trace(0, 9, "conv", (-1.0, 4.0, float("nan")))], "mean nan"),
        ([*HOST[:2], Trace(1, 9, "top", (0, 9, 4))], "layer 1, top: .* CRC"),
        ([HOST[0], Trace(0, 9, "conv", (-1, 4, 0.5)), Trace(1, 9, "top", (0, 8, 4))], ""),
        ([HOST[0], Trace(0, 9, "conv", (-1, 4, 0)), Trace(1, 9, "top", (0, 7, 4))], "conv.*mean 0"),
        ([HOST[0], Trace(0, 9, "c", (-1, 4, 0.5)), Trace(1, 9, "top", (0, 7, 4))], "top.*0 to 7"),
    ],
)
def test_comparisons(device, problem):
    import re

    found = compared(HOST, device, 1e-3)
    assert bool(found.problem) == bool(problem) and re.search(problem, found.problem)


def test_other_layers():
    with pytest.raises(ModelError, match="layer 1 where 0 is expected"):
        compared(HOST, [HOST[0], HOST[2]], 1e-3)


@pytest.mark.skipif(bool(ARM.missing()), reason=f"{ARM.missing()} not installed")
@pytest.mark.parametrize("case", ["float", "int8"])
def test_a_processor_that_rounds_otherwise(case):
    """Helium multiplies and adds without rounding between; integers are the same everywhere."""
    model, feeds, _ = CASES[case]()
    program = driver.program_for(driver.typed(model), "c", cpu="cortex-m55")
    options = BundleOptions(cpu="cortex-m55")
    device = run_on_board(program, feeds, BOARDS["mps3-an547"], options, traced=True).traces
    found = compared(HostModel(program, options, traced=True).trace(feeds), device, 1e-4)
    assert not found.problem and bool(found.rounded) == (case == "float")
