"""Vector loops compute what they mean, and need no loop where there are instructions for it."""

from __future__ import annotations

import ctypes
import shutil
import subprocess

import numpy as np
import pytest
from bundles import STRICT

from graphc.backends.micro_c.intrinsics import MicroUnit
from graphc.backends.micro_c.model import DIALECT
from graphc.backends.micro_c.mve import NAMES, definitions
from graphc.backends.micro_c.vectors import with_vectors
from graphc.ir.dtypes import f32, i8, i32, i64
from graphc.ir.expr import Const, call, maximum, minimum
from graphc.ir.kernel import Buffer, Kernel, KernelBuilder
from graphc.ir.kernel_interp import run_kernel
from graphc.ir.ops import fixed_point

COUNT = 64
HALVES = (fixed_point.TO_EVEN, fixed_point.TO_ODD)
RNG = np.random.default_rng(11)
NUMBERS = Buffer("a", i32, (COUNT,))
FACTORS = Buffer("m", i32, (COUNT,))
BYTES = Buffer("b", i8, (COUNT,))
FLOATS = Buffer("f", f32, (COUNT,))
INPUTS = (NUMBERS, FACTORS, BYTES, FLOATS)


def arrays() -> dict[str, np.ndarray]:
    """Operands with many products that end in zeros, so that halves occur."""
    numbers = RNG.integers(-(1 << 23), 1 << 23, COUNT)
    numbers[::3] = RNG.integers(-512, 512, numbers[::3].size) << 14
    factors = RNG.integers(1 << 29, 1 << 30, COUNT)
    factors[::2] = RNG.integers(1 << 9, 1 << 10, factors[::2].size) << 20
    floats = RNG.standard_normal(COUNT)
    floats[:3] = np.nan, np.inf, -0.0
    return {
        "a": numbers.astype(np.int32), "m": factors.astype(np.int32),
        "b": RNG.integers(-128, 128, COUNT).astype(np.int8), "f": floats.astype(np.float32),
    }  # fmt: skip


def kernel_of(value, dtype, lanes: int = 4) -> Kernel:
    """y[i] = value(i), four at a time; the last `lanes` of four only."""
    out = Buffer("y", dtype, (COUNT,), "out")
    k = KernelBuilder()
    with k.loop(COUNT // 4) as x, k.loop(lanes, "vector", width=4) as v:
        k.store(out, x * 4 + v, value(x * 4 + v))
    return Kernel("lanes", (*INPUTS, out), k.body())


def text_of(kernel: Kernel) -> str:
    unit = MicroUnit(DIALECT)
    unit.kernel(with_vectors(kernel))
    return "#include <math.h>\n#include <stdint.h>\n#include <string.h>\n" + unit.text()


def check(value, dtype, folder, lanes: int = 4) -> str:
    """Asserts that the printed kernel agrees with the interpreter to the bit; its function."""
    kernel, data = kernel_of(value, dtype, lanes), arrays()
    found, expected = (np.zeros(COUNT, dtype.np) for _ in range(2))
    run_kernel(kernel, {**data, "y": expected})
    text = text_of(kernel)
    (folder / "k.c").write_text(text.replace("static void lanes", "void lanes"))
    flags = ["-std=c99", "-O1", "-shared", "-fPIC", *STRICT, "-fsanitize=undefined"]
    flags += ["-fno-sanitize-recover=all"]
    subprocess.run(["gcc", *flags, "k.c", "-o", "k.so"], cwd=folder, check=True)
    pointers = [x.ctypes.data_as(ctypes.c_void_p) for x in (*data.values(), found)]
    ctypes.CDLL(str(folder / "k.so")).lanes(*pointers)
    np.testing.assert_array_equal(found, expected)
    return text[text.index("static void lanes") :]


def rounded(total, shift: int, even: int):
    """total / 2**shift after one half has been added, halves as integer inference has them."""
    return fixed_point._shifted(total + Const(1 << shift - 1, i64), shift, even)


def requantised(shift: int, even: int):
    """A product scaled down."""
    return lambda i: rounded(NUMBERS[i].cast(i64) * FACTORS[i].cast(i64), shift, even)


@pytest.mark.parametrize("shift", [30, 32, 33, 37, 46])
def test_products_scaled_down(shift, tmp_path):
    assert "int64_t" not in check(requantised(shift, fixed_point.UP), i32, tmp_path)


@pytest.mark.parametrize("even", HALVES)
@pytest.mark.parametrize("shift", [33, 36, 40, 47, 48, 50])
def test_halves(shift, even, tmp_path):
    assert "int64_t" not in check(requantised(shift, even), i32, tmp_path)


@pytest.mark.parametrize("even", [fixed_point.UP, *HALVES])
@pytest.mark.parametrize("factors", [(549008783, 207566715), (1 << 29, 3 << 28), (7, 5)])
def test_sums_of_scaled_bytes(factors, even, tmp_path):
    shift = 29 if factors[0] > 100 else 4

    def value(i):
        kept = minimum(maximum(NUMBERS[i], -128), 127).cast(i8)
        total = kept.cast(i64) * factors[0] + BYTES[i].cast(i64) * factors[1]
        return rounded(total - (9 << shift), shift, even)

    assert "int64_t" not in check(value, i32, tmp_path)


def test_bytes_are_widened_and_narrowed(tmp_path):
    def value(i):
        return minimum(maximum(BYTES[i].cast(i32) * 3 - NUMBERS[i], -128), 127).cast(i8)

    text = check(value, i8, tmp_path)
    assert "vldrbq_s32" in text and "vstrbq_s32" in text


def test_limits_of_floats_pass_on_nan(tmp_path):
    zero, six = Const(0.0, f32), Const(6.0, f32)
    text = check(lambda i: call("min", call("max", FLOATS[i], zero), six), f32, tmp_path)
    assert "vpselq_f32" in text


def test_fewer_lanes_leave_the_rest_alone(tmp_path):
    text = check(lambda i: NUMBERS[i] + BYTES[i].cast(i32), i32, tmp_path, lanes=3)
    assert "vctp32q(3u)" in text and "vstrwq_p_s32" in text


def test_what_has_no_instruction_is_a_loop(tmp_path):
    text = check(lambda i: call("div", NUMBERS[i], FACTORS[i]), i32, tmp_path)
    assert "vldr" not in text


def test_registers_are_variables():
    k = KernelBuilder()
    out = Buffer("y", i32, (4,), "out")
    total = k.alloc(i32, (4,), "reg")
    with k.loop(4, "vector", width=4) as v:
        k.store(total, v, NUMBERS[v])
    with k.loop(4, "vector", width=4) as v:
        k.store(out, v, total[v] + total[v])
    text = text_of(Kernel("sum", (NUMBERS, out), k.body()))
    assert "int32x4_t a1;" in text and "vaddq_s32(a1, a1)" in text


def test_loops_over_lanes_read_copies_of_registers():
    k = KernelBuilder()
    out = Buffer("y", i32, (4,), "out")
    total = k.alloc(i32, (4,), "reg")
    with k.loop(4, "vector", width=4) as v:
        k.store(total, v, NUMBERS[v] + 1)
    with k.loop(4, "vector", width=4) as v:
        k.store(out, v, call("div", total[v], FACTORS[v]))
    kernel = Kernel("quotients", (NUMBERS, FACTORS, out), k.body())
    made = with_vectors(kernel)
    assert "int32x4_t a1;" in text_of(kernel) and "vstrwq_s32(&lanes1[0], a1)" in text_of(kernel)
    results = [np.zeros(4, np.int32) for _ in range(2)]
    for version, result in zip((kernel, made), results):
        run_kernel(version, {"a": arrays()["a"], "m": arrays()["m"], "y": result})
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("compiler", ["gcc", "g++", "arm-none-eabi-gcc"])
def test_all_definitions_compile(compiler, tmp_path):
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    (tmp_path / "all.c").write_text(f"#include <stdint.h>\n{definitions(NAMES)}")
    language = ["-x", "c++", "-std=c++17"] if compiler == "g++" else ["-std=c99"]
    flags = [*language, *STRICT, "-Wno-unused-function", "-fsyntax-only"]
    subprocess.run([compiler, *flags, "all.c"], cwd=tmp_path, check=True)
