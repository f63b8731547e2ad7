"""Loops over large tensors: several neighbours per thread, in accesses of 16 bytes."""

import re
from dataclasses import replace

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
from graphc.backends.cuda.simulator import SimulationError, simulate
from graphc.backends.cuda.simulator.profile import profile
from graphc.driver import program_for
from graphc.ir.interp import interpret

GRAPH = """graph @g(%x: f32[64,1,1024], %z: f32[3,1024]) -> ? {
  %a = Sigmoid(%x)
  %y = Mul(%a, %z)
  return %y
}"""
GUARDED = """graph @g(%x: f32[100,1000]) -> ? {
  const %p : i64[4] = [1,4,3,20]
  %y = Pad(%x, %p)
  return %y
}"""
WIDER = """graph @g(%x: f16[64,1024], %z: f32[1024]) -> ? {
  %a = Cast(%x) {to=1}
  %y = Add(%a, %z)
  return %y
}"""
PLAIN = """graph @g(%x: f32[64,2048]) -> ? {
  %y = Abs(%x)
  return %y
}"""
TRANSPOSED = """graph @g(%x: f32[150,512], %z: f32[512,150]) -> ? {
  %t = Transpose(%x)
  %y = Add(%t, %z)
  return %y
}"""
UPSAMPLED = """graph @g(%x: f32[1,20,16,24]) -> ? {
  const %s : f32[4] = [1.0,1.0,4.0,4.0]
  %a = Transpose(%x) {perm=[0,3,1,2]}
  %y = Resize(%a, _, %s) {mode="linear"}
  return %y
}"""
SMALL = GRAPH.replace("64,", "6,")
ODD = GRAPH.replace("1024", "1023")


@needs_compiler
@pytest.mark.parametrize(
    "text",
    [
        GRAPH,
        ODD,
        GRAPH.replace("f32", "f16"),
        GUARDED,
        WIDER,
        TRANSPOSED,
        TRANSPOSED.replace("512", "513"),
        TRANSPOSED.replace("f32", "f16"),
        UPSAMPLED,
    ],
    ids=[
        "f32",
        "odd",
        "f16",
        "guarded",
        "wider",
        "transposed",
        "transposed odd",
        "transposed f16",
        "upsampled",
    ],
)
def test_neighbours_are_computed_together(text):
    graph = graph_of(text)
    source = emit(program_for(graph, "cuda"))
    inputs = inputs_of(source.program)
    (found,) = simulate(source)(inputs)
    (wanted,) = interpret(graph, inputs)
    tolerance = 1e-6 if found.dtype == np.float32 else 2e-3
    np.testing.assert_allclose(found, wanted, tolerance, tolerance)


def test_threads_take_16_bytes_of_large_tensors():
    assert "next4 < 4; ++next4" in cuda_of(GRAPH).text
    assert "next8 < 8; ++next8" in cuda_of(GRAPH.replace("f32", "f16")).text
    for text in (SMALL, ODD):
        assert "unroll" not in cuda_of(text).text


@needs_compiler
@pytest.mark.parametrize("type", ["f32", "f16", "i8"])
def test_transpositions_access_whole_sectors(type):
    """Of 128 rows and columns, whose elements lie in sectors of their own."""
    text = f"""graph @g(%x: {type}[5,128,128]) -> ? {{
  %y = Transpose(%x) {{perm=[0,2,1]}}
  return %y
}}"""
    source = cuda_of(text)
    (found,) = profile(source, inputs_of(source.program))
    assert found.wasted == 0
    assert found.total.coalescing == (2 / 3 if type == "i8" else 1)  # reads of 16 bytes, or 32


@needs_compiler
def test_misaligned_operands_are_caught():
    source = cuda_of(GRAPH)
    (step,) = source.steps
    source.program.inputs[0] = (
        "x", source.program.inputs[0][1].__class__(step.slots[0].dtype, (65, 1024))
    )  # fmt: skip
    moved = replace(step, slots=(replace(step.slots[0], offset=4), *step.slots[1:]))
    inputs = [np.ones((65, 1024), np.float32), np.ones((3, 1024), np.float32)]
    with pytest.raises(SimulationError, match="misaligned in0"):
        simulate(replace(source, steps=[moved]))(inputs)


@needs_nvcc
@pytest.mark.parametrize("arch", chosen_architectures())
@pytest.mark.parametrize("type", ["f32", "f16", "bf16", "i8"])
def test_accesses_take_16_bytes(type, arch):
    ptx = compile_cuda(cuda_of(PLAIN.replace("f32", type)).text, arch, "ptx", strict=True)
    assert re.findall(rb"(?:ld|st)\.global[.\w]*", ptx.replace(b".nc", b"")) in (
        [b"ld.global.v4.u32", b"st.global.v4.u32"], [b"ld.global.v4.f32", b"st.global.v4.f32"],
        [b"ld.global.v4.b32", b"st.global.v4.b32"],
    )  # fmt: skip


LONG = """graph @g(%x: f16[2200000], %z: f16[2200000]) -> ? {
  %y = Add(%x, %z)
  return %y
}"""


@needs_compiler
def test_many_elements_are_several_vectors_of_each_thread():
    source = cuda_of(LONG)
    assert "step2 < 2" in source.text
    inputs = inputs_of(source.program)
    (found,) = simulate(source)(inputs)
    np.testing.assert_array_equal(found, inputs[0] + inputs[1])


def test_what_neighbours_share_is_read_once():
    text = cuda_of("""graph @g(%x: f16[4096,4096], %z: f16[4096,1]) -> ? {
  %y = Add(%x, %z)
  return %y
}""").text
    assert "= in1[block * 2 + (step4 * 256 + thread) / 512];" in text


def test_moved_halves_are_not_converted():
    text = cuda_of("""graph @g(%x: f16[8,64,16,64]) -> ? {
  %y = Transpose(%x) {perm=[0,2,1,3]}
  return %y
}""").text
    assert "load_vector" in text and "load_f16" not in text
