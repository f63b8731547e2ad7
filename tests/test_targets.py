"""Other machines: the same graphs with shorter vectors, older instructions, other processors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import pytest
from programs import CONVOLUTIONS

from graphc import backend
from graphc.backends.llvm_cpu.codegen import compile_program, llvm_text
from graphc.backends.llvm_cpu.jit import assembly
from graphc.backends.llvm_cpu.machine import host_machine
from graphc.backends.llvm_cpu.runtime import NativeModel
from graphc.backends.llvm_cpu.strategies import strategies
from graphc.backends.llvm_cpu.target import CpuTarget, host_target, named_target
from graphc.driver import OPTIMISING, optimise
from graphc.frontend.onnx_import import import_onnx
from graphc.ir.compare import agreements
from graphc.ir.graph import Graph, clone_graph
from graphc.ir.interp import interpret
from graphc.ir.program import Program
from graphc.ir.text.parser import parse_graph
from graphc.passes.lower import lower
from graphc.passes.specialise import specialise
from graphc.targets import register_target
from graphc.targets.cpu import Cpu

ROOT = Path(__file__).parents[1]
VECTOR_BYTES = (64, 32, 16, 0)
REGISTERS = {64: 32, 32: 16, 16: 16, 0: 16}
LEVELS = {"avx512": 64, "avx2": 32, "sse": 16, "scalar": 0}

GRAPHS = {
    "matmul": """graph @g(%x: f32[9,19]) -> ? {
  const %w : f32[19,37] = random(seed=1)
  const %b : f32[37] = random(seed=2)
  %y = MatMul(%x, %w)
  %z = Add(%y, %b)
  %r = Gelu(%z)
  return %r
}""",
    "attention": """graph @g(%q: f32[2,7,17], %k: f32[2,11,17], %v: f32[2,11,8]) -> ? {
  %t = Transpose(%k) {perm=[0,2,1]}
  %s = MatMul(%q, %t)
  %p = Softmax(%s) {axis=-1}
  %y = MatMul(%p, %v)
  return %y
}""",
    "convolutions": CONVOLUTIONS,
    "rows": """graph @g(%x: f32[6,45]) -> ? {
  const %s : f32[45] = random(seed=1)
  const %h : f16[] = 0.5
  %n = LayerNormalization(%x, %s)
  %m = ReduceMax(%n) {keepdims=1}
  %y = Sub(%n, %m)
  %w = Cast(%y) {to=10}
  %v = Mul(%w, %h)
  %u = Cast(%v) {to=11}
  return %u
}""",
    "integers": """graph @g(%x: i8[7,30], %y: i64[7,30]) -> ? {
  %a = Cast(%x) {to=7}
  %b = Add(%a, %y)
  %c = Mul(%b, %a)
  %d = Cast(%c) {to=3}
  %e = Max(%d, %x)
  return %e, %c
}""",
}  # fmt: skip

each_graph = pytest.mark.parametrize("name", [*GRAPHS, "digits"])


def case(name: str) -> tuple[Graph, list[np.ndarray]]:
    """A static graph and inputs for it."""
    if name == "digits":
        graph = import_onnx(ROOT / "models" / "digits_cnn.onnx")
        graph = specialise(graph, dims={symbol: 3 for symbol in graph.symbols})
    else:
        graph = specialise(
            parse_graph(
                GRAPHS[name].replace("-> ?", "-> (?, ?)") if name == "integers" else GRAPHS[name]
            )
        )
    rng = np.random.default_rng(7)
    inputs = []
    for param in graph.params:
        type = param.tensor
        values = rng.standard_normal(type.static_shape) * (30 if type.dtype.is_integer else 1)
        inputs.append(values.astype(type.dtype.np))
    return graph, inputs


def program_for(graph: Graph, vector_bytes: int) -> Program:
    sizes = {"vector_bytes": vector_bytes, "registers": REGISTERS[vector_bytes]}
    made = strategies(replace(host_machine(), **sizes))
    return lower(optimise(clone_graph(graph), passes=OPTIMISING), made)


def check(name: str, vector_bytes: int, target: CpuTarget) -> None:
    graph, inputs = case(name)
    model = NativeModel(compile_program(program_for(graph, vector_bytes), target), threads=1)
    names = [f"y{n}" for n in range(len(graph.results))]
    for agreement in agreements(names, model(inputs), interpret(graph, inputs)):
        assert agreement.within(1e-5 if name != "rows" else 1e-3), agreement


@each_graph
@pytest.mark.parametrize("vector_bytes", VECTOR_BYTES)
def test_every_vector_width_on_this_machine(name, vector_bytes):
    check(name, vector_bytes, host_target())


@each_graph
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.skipif(host_target().arch != "x86_64", reason="names x86 instruction sets")
def test_instruction_sets(name, level):
    target = named_target(level)
    if not target.runs_here:
        pytest.skip(f"this processor has no {level}")
    check(name, LEVELS[level], target)


def test_code_of_an_older_machine_stays_within_it():
    graph, _ = case("matmul")
    target = named_target("avx2")
    code = assembly(llvm_text(program_for(graph, LEVELS["avx2"]), target), target)
    assert "%ymm" in code and "%zmm" not in code and "vfmadd" in code


NEON = CpuTarget("aarch64-linux-gnu", "neoverse-n1", frozenset({"neon"}), frozenset(), 128, 32)


@each_graph
def test_assembly_for_arm(name):
    """Code for another processor is made here, though it cannot run here."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    try:
        llvm.Target.from_triple(NEON.triple)
    except RuntimeError:
        pytest.skip("this LLVM knows no aarch64")
    graph, _ = case(name)
    code = assembly(llvm_text(program_for(graph, 16), NEON), NEON)
    assert "ret" in code
    if name in ("matmul", "convolutions"):
        assert "fmla" in code and ".4s" in code  # four lanes of float32, multiplied and added


def test_devices_of_onnx_are_the_registered_targets():
    """A target of a plugin is a device; a simulator is CUDA with an option."""
    assert not backend.supports_device("TWIN")

    @register_target
    @dataclass(frozen=True)
    class Twin(Cpu):
        name = "twin"

    assert all(map(backend.supports_device, ("twin:0", "CPU", "C", "CUDA:1", "SIMULATOR")))
    model = parse_graph(
        "graph @g(%x: f32[2]) -> f32[2] {\n  %y = Relu(%x) : f32[2]\n  return %y\n}"
    )
    (y,) = backend.prepare(model, "TWIN").run([np.array([-1, 2], np.float32)])
    assert y.tolist() == [0, 2]
