"""Products scaled down by 32 bits or more: the high half gives what all 64 bits give."""

from __future__ import annotations

import numpy as np
import pytest

from graphc.ir.kernel_interp import run_kernel
from graphc.ir.text.kernel_parser import parse_kernel
from graphc.passes.kernel.high_half import use_high_halves

TEXT = """
kernel @scale(in a: i32[{n}], in b: i32[{n}], out y: i32[{n}]) {{
  for i < {n} {{
    y[i] = cast<i32>(cast<i64>(a[i]) * cast<i64>(b[i]) + {constant} >> {distance})
  }}
}}
"""
EXTREMES = [-(1 << 31), 1 - (1 << 31), -65537, -2, -1, 0, 1, 3, 65536, (1 << 31) - 1]


@pytest.mark.suite("all")
@pytest.mark.parametrize("distance", [32, 33, 40, 63])
def test_same_numbers(distance):
    a, b = (x.ravel().astype(np.int32) for x in np.meshgrid(EXTREMES, EXTREMES))
    half = 1 << (distance - 1) if distance > 32 else 0
    kernel = parse_kernel(TEXT.format(n=a.size, constant=half, distance=distance))
    changed = use_high_halves(kernel)
    assert (changed == kernel) == (distance == 63), "2^62 and half of 2^63 might overflow"
    results = []
    for version in (kernel, changed):
        y = np.empty_like(a)
        run_kernel(version, {"a": a, "b": b, "y": y})
        results.append(y)
    np.testing.assert_array_equal(*results)


@pytest.mark.suite("all")
@pytest.mark.parametrize(("constant", "distance"), [(1 << 30, 31), (1 << 31, 33), (1, 40)])
def test_what_needs_the_low_half_stays(constant, distance):
    kernel = parse_kernel(TEXT.format(n=4, constant=constant, distance=distance))
    assert use_high_halves(kernel) == kernel
