"""Loops over small values of several shapes in one launch; right in the simulator."""

import numpy as np
import pytest
from cuda_programs import (
    chosen_architectures,
    cuda_of,
    graph_of,
    inputs_of,
    needs_compiler,
    needs_nvcc,
)

from graphc.backends.cuda import emit
from graphc.backends.cuda.nvcc import compile_cuda
from graphc.backends.cuda.simulator import simulate
from graphc.driver import program_for
from graphc.ir.interp import interpret

ROUNDED = """graph @g(%a: f32[37,24], %b: f32[24,51]) -> ? {
  %y = MatMul(%a, %b)
  return %y
}"""
LARGE = """graph @g(%a: f32[300,300], %b: f32[300,3], %c: f32[300,3]) -> ? {
  %x = Exp(%a)
  %y = Tanh(%b)
  %z = Mul(%c, %b)
  %w = Einsum(%x, %y, %z) {equation="ab,bc,bc->ac"}
  return %w
}"""
ROTATED = """graph @g(%q: f32[1,8,5,6], %k: f32[1,2,5,6], %v: f32[1,2,5,6],
    %c: f32[5,3], %s: f32[5,3]) -> ? {
  const %p : i64[1,5] = [[0, 1, 2, 3, 4]]
  %a = RotaryEmbedding(%q, %c, %s, %p)
  %b = RotaryEmbedding(%k, %c, %s, %p)
  %y = Attention(%a, %b, %v) {is_causal=1}
  return %y
}"""
ONE_READ_BY_THE_OTHER = """graph @g(%a: f32[40,40], %b: f32[40,40]) -> ? {
  %x = Transpose(%a)
  %z = Exp(%x)
  %p = MatMul(%z, %b)
  %y = Tanh(%b)
  %w = MatMul(%y, %z)
  %r = Add(%w, %p)
  return %r
}"""
CASES = {
    "halves": (ROUNDED, "f16", 2),
    "large and small": (LARGE, "f32", 3),
    "rotated": (ROTATED, "f32", 2),
    "read twice": (ONE_READ_BY_THE_OTHER, "f32", 3),
}


GRAPHS = {name: text for name, (text, _, _) in CASES.items()}


@needs_compiler
@pytest.mark.parametrize("name", CASES)
def test_agrees_with_the_interpreter(name):
    text, precision, launches = CASES[name]
    source = emit(program_for(graph_of(text), "cuda", precision=precision))
    assert len(source.steps) == launches
    inputs = inputs_of(source.program)
    (found,) = simulate(source)(inputs)
    (wanted,) = interpret(graph_of(text), inputs)
    scale = np.abs(wanted).max()
    tolerance = 1e-5 if precision == "f32" else 2e-3
    np.testing.assert_allclose(found / scale, wanted / scale, atol=tolerance)


@needs_nvcc
@pytest.mark.parametrize("arch", chosen_architectures())
def test_nvcc_compiles_them(arch):
    for text in (LARGE, ROTATED):
        assert compile_cuda(cuda_of(text).text, arch, strict=True)


SLICED = """graph @g(%x: f32[1,6,12]) -> ? {
  const %start : i64[1] = [0]
  const %end : i64[1] = [8]
  const %last : i64[1] = [2]
  const %two : i64[1] = [2]
  const %starts : i64[2] = [0, 1]
  const %ends : i64[2] = [1, 12]
  const %axes : i64[2] = [1, 2]
  const %steps : i64[2] = [1, 2]
  const %most : i64[] = 3
  %b = Slice(%x, %start, %end, %last, %two)
  %s = Slice(%x, %starts, %ends, %axes, %steps)
  %y = NonMaxSuppression(%b, %s, %most)
  return %y
}"""


@needs_compiler
def test_constants_that_are_part_of_a_type_stay_known():
    source = cuda_of(SLICED)
    assert [step.function for step in source.steps if step.function.startswith("nest")] == [
        "nest_0"
    ]
    inputs = inputs_of(source.program)
    (wanted,) = interpret(graph_of(SLICED), inputs)
    found = simulate(source)(inputs)[0][: len(wanted)]
    assert len(wanted) > 0
    np.testing.assert_array_equal(found, wanted)
