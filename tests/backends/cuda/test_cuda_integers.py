"""Sums of products of bytes: on matrix cores whatever their signs and zero points, bit by bit."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from cuda_programs import (
    chosen_architectures,
    cuda_of,
    graph_of,
    inputs_of,
    needs_compiler,
    needs_nvcc,
)

from graphc.backends.cuda import CudaSource, emit
from graphc.backends.cuda.nvcc import compile_cuda
from graphc.backends.cuda.simulator import simulate
from graphc.driver import program_for, typed
from graphc.ir.interp import interpret
from graphc.ir.text.parser import parse_graph

TINY = Path(__file__).parents[4] / "shared" / "models" / "mlperf_tiny"
MODELS = sorted(TINY.glob("*int8_qdq.onnx")) or [TINY / "resnet8_cifar10_int8_qdq.onnx"]
CONVOLUTION = """graph @g(%x: {a}[1,16,13,11]) -> ? {{
  const %w : {b}[24,16,3,3] = random(seed=1)
  const %z : {a}[] = 5
  %y = ConvInteger(%x, %w, %z) {{pads=[1,1,1,1], strides=[2,1]}}
  return %y
}}"""
ODD_CONVOLUTION = """graph @g(%x: {a}[2,3,9,14]) -> ? {{
  const %w : {b}[10,3,3,2] = random(seed=1)
  const %z : {a}[] = 3
  %y = ConvInteger(%x, %w, %z) {{pads=[1,0,1,1]}}
  return %y
}}"""
PADDED = """graph @g(%x: {a}[1,16,9,11], %z: {a}[]) -> ? {{
  const %w : {b}[24,16,3,3] = random(seed=1)
  %y = ConvInteger(%x, %w, %z) {{pads=[1,1,1,1]}}
  return %y
}}"""
PRODUCT = """graph @g(%x: {a}[3,20,37], %w: {b}[3,37,30], %u: {a}[], %v: {b}[]) -> ? {{
  %y = MatMulInteger(%x, %w, %u, %v)
  return %y
}}"""
CONSTANT = """graph @g(%x: {a}[20,37]) -> ? {{
  const %w : {b}[37,30] = random(seed=1)
  const %u : {a}[] = 7
  const %v : {b}[] = 3
  %y = MatMulInteger(%x, %w, %u, %v)
  return %y
}}"""
OPERATORS = {
    "convolution": CONVOLUTION, "odd_convolution": ODD_CONVOLUTION, "product": PRODUCT,
    "constant": CONSTANT, "padded": PADDED,
}  # fmt: skip
GRAPHS = {
    f"{name}-{a}-{b}": text.format(a=a, b=b)
    for name, text in OPERATORS.items()
    for a in ("i8", "u8")
    for b in ("i8", "u8")
}
NETWORK = """graph @g(%x: i8[1,16,10,9]) -> ? {
  const %w : i8[32,16,3,3] = random(seed=1)
  const %v : i8[16,32,3,3] = random(seed=2)
  const %s : f32[] = 0.05
  const %t : f32[] = 0.006
  const %u : f32[] = 0.0371
  const %z : i8[] = -7
  const %0 : i8[] = 0
  %a = DequantizeLinear(%x, %s, %z)
  %b = DequantizeLinear(%w, %t, %0)
  %c = Conv(%a, %b) {pads=[1,1,1,1]}
  %d = Relu(%c)
  %e = QuantizeLinear(%d, %u, %z)
  %f = DequantizeLinear(%e, %u, %z)
  %g = DequantizeLinear(%v, %t, %0)
  %h = Conv(%f, %g) {pads=[1,1,1,1]}
  %m = QuantizeLinear(%h, %u, %z)
  %n = DequantizeLinear(%m, %u, %z)
  %i = Add(%n, %a)
  %j = QuantizeLinear(%i, %u, %z)
  %k = DequantizeLinear(%j, %u, %z)
  %l = AveragePool(%k) {kernel_shape=[2,3], strides=[2,2]}
  %y = QuantizeLinear(%l, %u, %z)
  return %y
}"""


@needs_compiler
@pytest.mark.parametrize("name", GRAPHS)
def test_products_of_bytes(name):
    text = GRAPHS[name]
    source = cuda_of(text)
    assert any(step.function.startswith("cores") for step in source.steps)
    inputs = inputs_of(source.program)
    for found, wanted in zip(simulate(source, (0, 1))(inputs), interpret(graph_of(text), inputs)):
        np.testing.assert_array_equal(found, wanted)


def network() -> CudaSource:
    return emit(program_for(typed(parse_graph(NETWORK)), "cuda"))


@needs_compiler
def test_a_quantised_network_stays_in_bytes():
    """Products on matrix cores, rescaled before they are stored; the rest floats on the way."""
    source = network()
    stored = {x.dtype.name for step in source.steps for x in step.slots if x.space == "arena"}
    assert stored == {"i8"}
    strategies = [step.function.split("_")[0] for step in source.steps]
    assert strategies == ["cores", "cores", "window", "nest"]
    inputs = inputs_of(source.program)
    (found,) = simulate(source, (0, 1))(inputs)
    (wanted,) = interpret(graph_of(NETWORK), inputs)
    assert np.unique(wanted).size > 10
    assert np.abs(found.astype(int) - wanted.astype(int)).max() <= 1
    assert (found == wanted).mean() > 0.95


@needs_compiler
@pytest.mark.parametrize("path", MODELS, ids=lambda p: p.stem)
def test_models_agree_with_onnxruntime(path):
    if not path.exists():
        pytest.skip(f"no {path.name} beside this checkout")
    source = emit(program_for(typed(path), "cuda"))
    stored = {x.dtype.name for step in source.steps for x in step.slots if x.space == "arena"}
    assert stored <= {"i8", "i32"}
    inputs = inputs_of(source.program)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    wanted = session.run(None, {i.name: x for i, x in zip(session.get_inputs(), inputs)})
    for ours, theirs in zip(simulate(source, (0,))(inputs), wanted):
        assert np.abs(ours.astype(int) - theirs.astype(int)).max() <= 1


@needs_compiler
def test_padding_without_the_zero_point_is_caught():
    source = network()
    inputs = inputs_of(source.program)
    padding = str(int.from_bytes(np.full(4, -7, np.int8).tobytes(), "little"))
    broken = replace(source, text=source.text.replace(padding, "0"))
    assert broken.text != source.text
    right, wrong = (simulate(x, (0,))(inputs)[0] for x in (source, broken))
    assert (right != wrong).any()


@needs_nvcc
@pytest.mark.parametrize("arch", chosen_architectures())
def test_nvcc_compiles_products_of_bytes(arch):
    for a, b in (("i8", "i8"), ("u8", "i8"), ("i8", "u8"), ("u8", "u8")):
        assert compile_cuda(cuda_of(CONVOLUTION.format(a=a, b=b)).text, arch, strict=True)
    assert compile_cuda(network().text, arch, strict=True)
