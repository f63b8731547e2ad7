"""Attention on matrix cores: every narrow type, any layout and size, masks; and faults caught."""

import re
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from cuda_programs import (
    attention_of,
    chosen_architectures,
    cuda_of,
    graph_of,
    inputs_of,
    needs_compiler,
    needs_nvcc,
)

from graphc.backends.cuda import CudaSource, emit
from graphc.backends.cuda.machines import machine
from graphc.backends.cuda.nvcc import compile_cuda
from graphc.backends.cuda.simulator import SimulationError, simulate
from graphc.backends.cuda.strategies import strategies
from graphc.backends.cuda.strategies.attention.flash_matrix_cores import CORE_TILES
from graphc.backends.cuda.strategies.attention.flash_tiles import lower_flash_matrix_cores
from graphc.driver import optimise, program_for
from graphc.ir.interp import interpret
from graphc.passes.lower import lower
from graphc.targets.cuda import Cuda

KERNEL = "flash_matrix_cores"
MASKED = """graph @g(%q: f16[1,4,ROWS,16], %k: f16[1,4,KEYS,16], %v: f16[1,4,KEYS,24],
    %m: bool[ROWS,KEYS]) -> ? {
  %y = Attention(%q, %k, %v, %m)
  return %y
}"""
BIASED = MASKED.replace("%m: bool[ROWS,KEYS]", "%m: f16[1,1,ROWS,KEYS]")
PAST = """graph @g(%q: f16[1,2,5,16], %k: f16[1,2,5,16], %v: f16[1,2,5,16],
    %p: f16[1,2,70,16], %r: f16[1,2,70,16]) -> (?, ?, ?) {
  %y, %a, %b = Attention(%q, %k, %v, _, %p, %r) {is_causal=1}
  return %y, %a, %b
}"""
ADDED = """graph @g(%q: f16[1,20,32], %k: f16[1,70,32], %v: f16[1,70,32], %b: f16[96]) -> ? {
  %y = com.microsoft.MultiHeadAttention(%q, %k, %v, %b) {num_heads=2}
  return %y
}"""
WIDE = """graph @g(%q: f16[1,2,20,16], %k: f16[1,2,70,16], %v: f16[1,2,70,16]) -> ? {
  %a = Cast(%q) {to=1}
  %b = Cast(%k) {to=1}
  %c = Cast(%v) {to=1}
  %y = Attention(%a, %b, %c)
  return %y
}"""
PLAIN = """graph @g(%q: f32[2,2,21,20], %k: f32[2,2,77,20], %v: f32[2,2,77,36]) -> ? {
  const %s : f32[] = 0.3
  %t = Transpose(%k) {perm=[0,1,3,2]}
  %a = MatMul(%q, %t)
  %b = Mul(%a, %s)
  %p = Softmax(%b)
  %y = MatMul(%p, %v)
  return %y
}"""


def sized(text: str, rows: int, keys: int) -> str:
    return text.replace("ROWS", str(rows)).replace("KEYS", str(keys))


GRAPHS = {
    "whole fragments": attention_of("f16", 2, 64, 128, 64),
    "copied keys and values": attention_of("f16", 2, 33, 72, 16),
    "odd sizes": attention_of("f16", 2, 9, 71, 10),
    "one tile": attention_of("f16", 2, 20, 30, 24),
    "few rows": attention_of("f16", 2, 2, 100, 32),
    "causal": attention_of("f16", 2, 90, 90, 8, "is_causal=1"),
    "causal by position": attention_of("f16", 4, 130, 136, 8, "is_causal=1"),
    "windows by position": attention_of("f16", 2, 136, 130, 8, "left_window_size=3, is_causal=1"),
    "shared heads": attention_of("bf16", 6, 40, 80, 16, "is_causal=1, softcap=2.0"),
    "windows": attention_of("bf16", 2, 70, 70, 8, "left_window_size=3, right_window_size=2"),
    "large heads": attention_of("f16", 2, 20, 40, 256),
    "biased": sized(BIASED, 20, 72),
    "masked": sized(MASKED, 21, 67),
    "past keys": PAST,
    "queries that are sums": ADDED,
}


def compared(source: CudaSource, text: str, inputs: list[np.ndarray], tolerance: float) -> None:
    """The simulator's results are the interpreter's, up to a tolerance."""
    for found, wanted in zip(simulate(source)(inputs), interpret(graph_of(text), inputs)):
        found, wanted = found.astype(np.float32), wanted.astype(np.float32)
        np.testing.assert_allclose(found, wanted, tolerance, tolerance)


def has_kernel(source: CudaSource) -> bool:
    return any(step.function.startswith(KERNEL) for step in source.steps)


@needs_compiler
@pytest.mark.parametrize("name", GRAPHS)
def test_attention_agrees_with_the_interpreter(name):
    source = cuda_of(GRAPHS[name])
    assert has_kernel(source)
    inputs = inputs_of(source.program)
    is_bfloat = inputs[0].dtype == ml_dtypes.bfloat16
    compared(source, GRAPHS[name], inputs, 2e-2 if is_bfloat else 4e-3)  # weights are rounded


def test_exponents_are_one_multiplication():
    """log2(e) / 8 times a score, less as much times the largest one, but where a mask is added."""
    plain = emit(program_for(graph_of(attention_of("f16", 2, 20, 70, 64)), "cuda")).text
    masked = BIASED.replace("ROWS", "20").replace("KEYS", "70")
    assert KERNEL in plain and "* 0.18033688f + -(" in plain
    assert "f + -(" not in emit(program_for(graph_of(masked), "cuda")).text


def test_tiles_that_no_row_sees_are_left_out():
    """Positions are compared, not read, and a block stops at the last key that it sees."""
    for name in ("causal by position", "windows by position"):
        text = cuda_of(GRAPHS[name]).text
        assert re.search(r"if \(\(int32_t\)\(tile \* 64\) <= v\d+\)", text)
        assert "int64_t *__restrict__" not in text
    text = cuda_of(GRAPHS["masked"]).text
    assert not re.search(r"if \(\(int32_t\)\(tile", text)


@needs_compiler
@pytest.mark.parametrize("keys", [16, 30, 77])
@pytest.mark.parametrize("precision", ["f16", "bf16", "tf32"])
def test_narrowed_attention(precision, keys):
    text = PLAIN.replace("77", str(keys))
    source = emit(program_for(graph_of(text), "cuda", precision=precision))
    assert has_kernel(source)
    tolerance = {"f16": 2e-3, "bf16": 2e-2, "tf32": 2e-3}[precision]
    compared(source, text, inputs_of(source.program), tolerance)


@needs_compiler
@pytest.mark.parametrize("keys", [30, 67])
def test_rows_that_see_nothing(keys):
    text = sized(MASKED, 21, keys)
    source = cuda_of(text)
    assert has_kernel(source)
    inputs = inputs_of(source.program)
    inputs[-1] = np.zeros_like(inputs[-1])
    inputs[-1][3] = True
    (found,) = simulate(source)(inputs)
    assert np.abs(found[:, :, 3]).min() > 0
    assert not np.delete(found, 3, axis=2).any()


@needs_compiler
def test_rows_whose_bias_is_minus_infinity():
    text = sized(BIASED, 21, 67)
    source = cuda_of(text)
    inputs = inputs_of(source.program)
    inputs[-1][..., 5, :] = -np.inf
    inputs[-1][..., 6, 40:] = -np.inf
    compared(source, text, inputs, 4e-3)


@needs_compiler
@pytest.mark.parametrize("tile", CORE_TILES, ids=lambda t: f"{t.warps}x{t.fragments}x{t.keys}")
def test_every_tile(tile):
    text = attention_of("f16", 2, 70, 83, 24)
    graph = optimise(graph_of(text), target=Cuda())
    strategy = [lambda c: lower_flash_matrix_cores(c, machine(), tile), *strategies()]
    source = emit(lower(graph, strategy))
    inputs = inputs_of(source.program)
    (found,), (wanted,) = simulate(source, (0,))(inputs), interpret(graph_of(text), inputs)
    np.testing.assert_allclose(found, wanted, 4e-3, 4e-3)


@needs_compiler
@pytest.mark.parametrize("missing", ["__syncthreads();", "wait_copies<0>();"])
def test_a_missing_wait_is_caught(missing):
    source = cuda_of(GRAPHS["whole fragments"])
    inputs = inputs_of(source.program)
    before, _, after = source.text.rpartition(missing)
    assert before
    with pytest.raises(SimulationError, match="no barrier between|unwritten element"):
        simulate(replace(source, text=before + after))(inputs)


@needs_compiler
def test_rows_of_matrices_must_be_aligned():
    source = cuda_of(GRAPHS["whole fragments"])
    call = source.text.rindex("load_matrices_transposed(a")
    end = source.text.index("]);", call)
    text = f"{source.text[:end]} + 1{source.text[end:]}"
    with pytest.raises(SimulationError, match="not aligned"):
        simulate(replace(source, text=text))(inputs_of(source.program))


def test_wide_results_are_left_to_others():
    """Their weights have more digits than the narrow values that they multiply."""
    assert not has_kernel(cuda_of(WIDE))


def test_wide_factors_are_left_to_others():
    assert not has_kernel(cuda_of(PLAIN))
    settings = dict(precision="f16", arch="sm_70")  # which has no such matrix cores
    assert not has_kernel(emit(program_for(graph_of(PLAIN), "cuda", **settings)))


@needs_nvcc
@pytest.mark.parametrize("arch", chosen_architectures())
def test_nvcc_compiles_attention(arch):
    for text in (attention_of("f16", 4, 512, 512, 64, "is_causal=1"), GRAPHS["shared heads"]):
        source = emit(program_for(graph_of(text), "cuda", arch=arch))
        assert has_kernel(source) == (arch != "sm_75" or "bf16" not in text)
        assert compile_cuda(source.text, arch, strict=True)
