"""Exponentials and quotients of f16 and bf16: right at the ends of the types, cheap on GPUs."""

import re

import ml_dtypes
import numpy as np
import pytest
from cuda_programs import chosen_architectures, cuda_of, graph_of, needs_compiler, needs_nvcc

from graphc.backends.cuda.nvcc import compile_cuda
from graphc.backends.cuda.simulator import simulate
from graphc.ir.interp import interpret

TYPES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}
TEXT = """graph @g(%x: TYPE[65536], %z: TYPE[65536]) -> (?, ?) {
  %q = Div(%x, %z)
  %e = Exp(%x)
  return %q, %e
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
