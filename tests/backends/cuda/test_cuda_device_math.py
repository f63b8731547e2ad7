"""Exponentials, quotients, activations: right at the ends of the types, cheap on GPUs, and with few
digits only where no more are seen."""

import re

import ml_dtypes
import numpy as np
import pytest
from cuda_programs import chosen_architectures, cuda_of, graph_of, needs_compiler, needs_nvcc

from graphc.backends.cuda.device_math import shorten
from graphc.backends.cuda.nvcc import compile_cuda
from graphc.backends.cuda.simulator import simulate
from graphc.ir.dtypes import bf16, f16, f32, i64
from graphc.ir.expr import Const, Expr, cast, erf, exp, select, tanh
from graphc.ir.interp import interpret
from graphc.ir.kernel import Buffer, Kernel, Store

TYPES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}
TEXT = """graph @g(%x: TYPE[65536], %z: TYPE[65536]) -> (?, ?) {
  %q = Div(%x, %z)
  %e = Exp(%x)
  return %q, %e
}"""


ACTIVATIONS = """graph @g(%x: TYPE[65536]) -> (?, ?, ?, ?, ?, ?) {
  %a = Gelu(%x)
  %b = Gelu(%x) {approximate="tanh"}
  %c = Swish(%x)
  %d = Sigmoid(%x)
  %e = Tanh(%x)
  %f = Erf(%x)
  return %a, %b, %c, %d, %e, %f
}"""


def every(dtype: str) -> np.ndarray:
    """All numbers of a type."""
    return np.arange(1 << 16, dtype=np.uint16).view(TYPES[dtype])


@needs_compiler
@pytest.mark.parametrize("dtype", TYPES)
def test_all_numbers(dtype):
    text = TEXT.replace("TYPE", dtype)
    x = every(dtype)
    inputs = [x, np.random.default_rng(0).permutation(x)]
    for found, wanted in zip(simulate(cuda_of(text))(inputs), interpret(graph_of(text), inputs)):
        np.testing.assert_allclose(found.astype(np.float32), wanted.astype(np.float32), 1e-2)


def quotient(dtype: str, a: np.ndarray, b: np.ndarray, off: float) -> np.ndarray:
    """What a GPU computes, if the last digit of reciprocals is off."""
    one, two = np.float32(1), np.float32(2)
    size, far = np.abs(b), two**64
    scale = np.where(size > far, 1 / far, np.where(size < 1 / far, far, one))
    scale = scale if dtype == "bf16" else one
    inverse = (one / (b * scale).astype(np.float32)) * np.float32(1 + off * 2.0**-23)
    inverse = np.where(np.abs(inverse) < two**-126, inverse * 0, inverse)  # rcp.approx.ftz
    return (a * inverse * scale).astype(TYPES[dtype])


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("off", [-1, 0, 1])
def test_quotients_are_rounded_rightly(dtype, off):
    b = every(dtype).astype(np.float32)
    wrong = 0
    with np.errstate(all="ignore"):
        for seed in range(8):
            a = np.random.default_rng(seed).permutation(b)
            found, wanted = quotient(dtype, a, b, off), (a / b).astype(TYPES[dtype])
            nan = np.isnan(found) & np.isnan(wanted)
            apart = found.view(np.uint16).astype(int) - wanted.view(np.uint16).astype(int)
            apart[nan] = 0
            assert np.abs(apart).max() <= 1
            wrong += np.count_nonzero(apart)
    assert wrong < 100e-6 * 8 * b.size


@needs_nvcc
@pytest.mark.parametrize("arch", chosen_architectures())
def test_gpus_have_instructions_for_them(arch):
    text = compile_cuda(cuda_of(TEXT.replace("TYPE", "f16")).text, arch, "ptx").decode()
    assert re.search(r"rcp\.approx\.ftz\.f32", text) and re.search(r"ex2\.approx\.ftz\.f32", text)
    assert "div.rn.f32" not in text


@needs_compiler
@pytest.mark.parametrize("dtype", TYPES)
def test_activations_of_all_numbers(dtype):
    """Within one unit of the last digit, beside what 1 + erf(x) loses in float32 itself."""
    text, x = ACTIVATIONS.replace("TYPE", dtype), every(dtype)
    digits = {"f16": 2.0**-10, "bf16": 2.0**-7}[dtype]
    lost = 2.0**-25 * np.abs(np.nan_to_num(x.astype(np.float32), posinf=0, neginf=0))
    smallest = float(ml_dtypes.finfo(TYPES[dtype]).smallest_subnormal)
    zeros = x.view(np.uint16) & 0x7FFF == 0
    for found, wanted in zip(simulate(cuda_of(text))([x]), interpret(graph_of(text), [x])):
        found, wanted = found.astype(np.float32), wanted.astype(np.float32)
        finite = np.isfinite(wanted)
        np.testing.assert_array_equal(found[~finite], wanted[~finite])
        assert np.array_equal(np.signbit(found[zeros]), np.signbit(wanted[zeros]))
        apart = np.abs(found[finite] - wanted[finite])
        assert (apart <= np.abs(wanted)[finite] * digits + lost[finite] + smallest).all()


@needs_compiler
def test_activations_of_float32():
    text, ends = ACTIVATIONS.replace("TYPE", "f32"), [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40]
    x = np.linspace(-110, 110, 65536, dtype=np.float32)
    x[::2] /= 16
    x[: len(ends)] = ends
    for found, wanted in zip(simulate(cuda_of(text))([x]), interpret(graph_of(text), [x])):
        np.testing.assert_allclose(found, wanted, 5e-7, 2.0**-22, equal_nan=True)
        smallest = (np.abs(wanted) < 2.0**-24) & (x < -20)
        np.testing.assert_allclose(found[smallest], wanted[smallest], 2e-6, 3e-45)


def names_in(value: Expr) -> list[str]:
    """The functions that a value is computed by."""
    out = Buffer("out", value.dtype, (1,), "out")
    operands = [Buffer(n, f32, (1,), "in") for n in "xz"]
    kernel = shorten(Kernel("k", (*operands, out), (Store("out", (Const(0),), value),)))
    (store,) = kernel.body
    return sorted(set(re.findall(r"[a-z]\w*(?=\()", str(store.value))))


X, Z = (Buffer(n, f32, (1,))[Const(0)] for n in "xz")


@pytest.mark.parametrize(
    ("value", "names"),
    [
        (cast(erf(X) * Z, f16), ["erf_narrow"]),
        (cast(erf(X) - Z, f16), ["erf"]),  # the difference may be small
        (cast(exp(erf(X)), bf16), ["erf", "exp_bf16"]),
        (erf(X) * Z, ["erf"]),
        (cast(select(erf(X) < Z, tanh(X), Z), f16), ["erf", "select", "tanh_narrow"]),
        (cast(erf(X), f16) + cast(erf(X) + Z, f16), ["erf"]),  # all digits are seen once
        ((erf(X) + 1) * Z, ["erf_plus_1_f32"]),
        (cast((1 + erf(X)) * Z, bf16), ["erf_plus_1_narrow"]),
        (cast(Z / (exp(-X) + 1), f16), ["logistic_f16"]),
        (Z / (exp(-X) + 2), ["exp"]),
        (cast(X / Z, f16), ["div_bf16"]),  # float32 divides by all numbers
        (cast(cast(erf(X), i64) * 2, f32), ["erf"]),
    ],
)
def test_where_digits_are_seen(value, names):
    assert names_in(value) == names


@needs_nvcc
@pytest.mark.parametrize("arch", chosen_architectures())
@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_activations_do_not_branch(arch, dtype):
    first = ACTIVATIONS.replace("TYPE", dtype).split("  %e")[0] + "  return %a, %b, %c, %d\n}"
    text = first.replace("(?, ?, ?, ?, ?, ?)", "(?, ?, ?, ?)")
    ptx = compile_cuda(cuda_of(text).text, arch, "ptx", strict=True).decode()
    assert "ex2.approx.ftz.f32" in ptx and "div.rn" not in ptx and "bra" not in ptx
