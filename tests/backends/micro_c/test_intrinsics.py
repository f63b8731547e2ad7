"""Instructions mean what their plain form says."""

from __future__ import annotations

import ctypes
import subprocess

import numpy as np
import pytest

from graphc.backends.micro_c.intrinsics import HALF_TEXT, in_plain_loops
from graphc.errors import InternalError
from graphc.ir.dtypes import i8, i16, i32
from graphc.ir.expr import Const
from graphc.ir.instructions import dot4, dot4_wide
from graphc.ir.kernel import Buffer, Kernel, KernelBuilder
from graphc.ir.kernel_interp import run_kernel


def test_dot4_in_plain_loops():
    a, w, y = Buffer("a", i8, (12,)), Buffer("w", i8, (12,)), Buffer("y", i32, (3,), "out")
    k = KernelBuilder()
    with k.loop(3) as i:
        total = k.var(i32, Const(5, i32))
        k.emit(dot4(total[()], a[i * 4], w[i * 4], -7))
        k.store(y, i, total[()])
    kernel = in_plain_loops(Kernel("dots", (a, w, y), k.body()))
    random = np.random.default_rng(3)
    left, right = (random.integers(-128, 128, 12).astype(np.int8) for _ in range(2))
    out = np.zeros(3, np.int32)
    run_kernel(kernel, {"a": left, "w": right, "y": out})
    products = (left.astype(int) + 7) * right.astype(int)
    np.testing.assert_array_equal(out, 5 + products.reshape(3, 4).sum(1))


def test_dot4_wide_in_plain_loops():
    a, w, y = Buffer("a", i16, (8,)), Buffer("w", i16, (8,)), Buffer("y", i32, (2,), "out")
    k = KernelBuilder()
    with k.loop(2) as i:
        total = k.var(i32, Const(-3, i32))
        k.emit(dot4_wide(total[()], a[i * 4], w[i * 4]))
        k.store(y, i, total[()])
    kernel = in_plain_loops(Kernel("dots", (a, w, y), k.body()))
    random = np.random.default_rng(3)
    left, right = (random.integers(-4000, 4001, 8).astype(np.int16) for _ in range(2))
    out = np.zeros(2, np.int32)
    run_kernel(kernel, {"a": left, "w": right, "y": out})
    np.testing.assert_array_equal(out, (left.astype(int) * right).reshape(2, 4).sum(1) - 3)


def test_dot4_refuses_other_types():
    wide = Buffer("a", i32, (4,))
    with pytest.raises(InternalError, match="dot4_wide"):
        dot4_wide(wide[0], wide[0], wide[0])
    with pytest.raises(InternalError, match="dot4"):
        dot4(wide[0], wide[0], wide[0], 0)


def test_upper_halves_of_products_of_halves(tmp_path):
    """As a processor without long products computes them: exact, and nothing overflows."""
    text = "#include <stdint.h>\n" + HALF_TEXT
    text += "int32_t half(int32_t a, int32_t b) { return upper_half_i32(a, b); }\n"
    (tmp_path / "half.c").write_text(text)
    trap = ["-fsanitize=signed-integer-overflow", "-fsanitize-undefined-trap-on-error"]
    command = ["gcc", "-D__thumb__", *trap, "-shared", "-fPIC", "-o", "half.so", "half.c"]
    subprocess.run(command, cwd=tmp_path, check=True)
    half = ctypes.CDLL(str(tmp_path / "half.so")).half
    ends = [-(2**31), -(2**31) + 1, -65536, -65535, -1, 0, 1, 32768, 65535, 65536, 2**31 - 1]
    drawn = np.random.default_rng(0).integers(-(2**31), 2**31, (2000, 2)).tolist()
    for a, b in [*((x, y) for x in ends for y in ends), *drawn]:
        assert half(a, b) == (a * b + 2**31) >> 32
