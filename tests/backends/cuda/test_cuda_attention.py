"""Attention in one kernel: masks, guards, shared heads, any head size; right in the simulator."""

from dataclasses import replace

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

from graphc.backends.cuda import emit
from graphc.backends.cuda.machines import Machine, fastest, machine
from graphc.backends.cuda.nvcc import compile_cuda
from graphc.backends.cuda.simulator import simulate
from graphc.backends.cuda.strategies import strategies
from graphc.backends.cuda.strategies.attention.flash_float32 import (
    SHARED_FLOATS,
    TILES,
    lower_flash_float32,
    shared_floats,
)
from graphc.driver import optimise, program_for
from graphc.ir.interp import interpret
from graphc.passes.analysis.attention import Attention, match_attention
from graphc.passes.analysis.compose import computation
from graphc.passes.lower import lower
from graphc.passes.lower.lowered import Lowered
from graphc.targets.cuda import Cuda

PRODUCTS = """graph @g(%q: f32[2,3,21,10], %k: f32[2,3,37,10], %v: f32[2,3,37,20]) -> ? {
  const %s : f32[] = 0.3
  %t = Transpose(%k) {perm=[0,1,3,2]}
  %a = MatMul(%q, %t)
  %b = Mul(%a, %s)
  %p = Softmax(%b)
  %y = MatMul(%p, %v)
  return %y
}"""
GUARDED = """graph @g(%q: f32[1,20,32], %k: f32[1,35,32], %v: f32[1,35,32],
    %m: bool[1,1,1,35]) -> ? {
  const %n : f32[] = -inf
  const %z : f32[] = 0.0
  const %h : i64[4] = [1, -1, 2, 16]
  const %o : i64[3] = [1, 20, 32]
  %q1 = Reshape(%q, %h)
  %q2 = Transpose(%q1) {perm=[0,2,1,3]}
  %k1 = Reshape(%k, %h)
  %k2 = Transpose(%k1) {perm=[0,2,3,1]}
  %v1 = Reshape(%v, %h)
  %v2 = Transpose(%v1) {perm=[0,2,1,3]}
  %a = MatMul(%q2, %k2)
  %b = Where(%m, %a, %n)
  %p = Softmax(%b)
  %i = IsNaN(%p)
  %w = Where(%i, %z, %p)
  %c = MatMul(%w, %v2)
  %d = Transpose(%c) {perm=[0,2,1,3]}
  %e = Reshape(%d, %o)
  %y = Relu(%e)
  return %y
}"""


GRAPHS = {
    "products": PRODUCTS,
    "guarded": GUARDED,
    "causal": attention_of("f32", 2, 19, 19, 8, "is_causal=1"),
    "shared heads": attention_of("f32", 6, 9, 33, 8, "is_causal=1, softcap=2.0"),
    "windows": attention_of("f32", 2, 40, 40, 8, "left_window_size=3, right_window_size=2"),
    "half floats": attention_of("f16", 2, 9, 17, 16, ""),
    "bfloats": attention_of("bf16", 4, 9, 17, 16, "is_causal=1"),
    "many keys": attention_of("f16", 2, 9, 70, 16, ""),
    "large heads": attention_of("f32", 2, 17, 18, 256, ""),
    "one key": attention_of("f32", 2, 17, 1, 8, ""),
}


@needs_compiler
@pytest.mark.parametrize("name", GRAPHS)
def test_attention_agrees_with_the_interpreter(name):
    graph = graph_of(GRAPHS[name])
    source = emit(program_for(graph, "cuda"))
    inputs = inputs_of(source.program)
    if name != "one key":
        kernels = {step.function.split("_")[0] for step in source.steps}
        assert kernels & {"attention", "flash"}  # of float32, of matrix cores
        assert source.program.arena_bytes < 2 * sum(x.nbytes for x in inputs)
    for found, wanted in zip(simulate(source)(inputs), interpret(graph, inputs)):
        tolerance = {"f": 1e-5, "e": 1e-3}.get(wanted.dtype.char, 8e-3)  # the last bit
        if name == "many keys":  # weights are not rounded
            tolerance = 4e-3
        found, wanted = found.astype(np.float32), wanted.astype(np.float32)
        np.testing.assert_allclose(found, wanted, tolerance, tolerance)


@needs_compiler
def test_rows_that_see_nothing():
    graph = graph_of(GUARDED)
    source = emit(program_for(graph, "cuda"))
    inputs = inputs_of(source.program)
    inputs[-1] = np.zeros_like(inputs[-1])
    (found,) = simulate(source)(inputs)
    assert np.array_equal(found, np.zeros_like(found))
    plain = graph_of(GUARDED.replace("MatMul(%w, %v2)", "MatMul(%p, %v2)").replace("Relu", "Abs"))
    (found,) = simulate(emit(program_for(plain, "cuda")))(inputs)
    assert np.isnan(found).all()


@needs_compiler
@pytest.mark.parametrize("tile", TILES, ids=lambda t: f"{t.rows}x{t.keys}")
def test_every_tile(tile):
    graph = optimise(graph_of(PRODUCTS), target=Cuda())
    source = emit(lower(graph, [lambda c: lower_flash_float32(c, machine(), tile), *strategies()]))
    inputs = inputs_of(source.program)
    (found,) = simulate(source, (0,))(inputs)
    (wanted,) = interpret(graph_of(PRODUCTS), inputs)
    np.testing.assert_allclose(found, wanted, 1e-5, 1e-5)


def test_tiles_fit_into_shared_memory():
    smallest, widest = TILES[-1], machine().attention_features
    assert shared_floats(smallest, widest, widest) <= SHARED_FLOATS
    assert all(shared_floats(tile, 64, 64) <= SHARED_FLOATS for tile in TILES)
    gpu = machine()
    assert fastest(TILES, gpu, 64, 4096).rows > fastest(TILES, gpu, 1, 16).rows


def test_heads_may_be_too_large():
    gpu = machine()
    text = cuda_of(attention_of("f32", 2, 9, 9, gpu.attention_features + 1, "")).text
    assert "attention" not in text
    few = replace(gpu, attention_features=16)
    assert "at most 16 products and columns" in str(refusal(24, few))
    many = replace(gpu, attention_features=4096)
    assert "a kernel may declare 49152" in str(refusal(1024, many))


def refusal(features: int, gpu: Machine) -> Lowered | str:
    """What the strategy makes of heads of so many features that were fused for some GPU."""
    target = Cuda()
    vars(target)["machine"] = replace(gpu, attention_features=features)
    graph = optimise(graph_of(attention_of("f32", 2, 9, 9, features, "")), target=target)
    groups = (computation(op) for op in graph.ops if op.region is not None)
    (attention,) = (c for c in groups if isinstance(match_attention(c), Attention))
    return lower_flash_float32(attention, gpu)


def test_scores_that_others_read_stay():
    text = PRODUCTS.replace("return %y", "return %y, %b").replace("?", "(?, ?)")
    assert not any("attention" in step.function for step in cuda_of(text).steps)


@needs_nvcc
@pytest.mark.parametrize("arch", chosen_architectures())
def test_nvcc_compiles_attention(arch):
    for name in ("guarded", "shared heads", "half floats", "large heads"):
        assert compile_cuda(cuda_of(GRAPHS[name]).text, arch, strict=True)
