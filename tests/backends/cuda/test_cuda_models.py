"""CUDA kernels of graphs and of a model: right in the simulator, and nvcc takes them."""

from pathlib import Path

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
from programs import CONVOLUTIONS

from graphc.backends.cuda import emit
from graphc.backends.cuda.machines import machine
from graphc.backends.cuda.nvcc import compile_cuda
from graphc.backends.cuda.simulator import simulate
from graphc.driver import program_for, typed
from graphc.errors import ModelError
from graphc.ir.interp import interpret

ROOT = Path(__file__).parents[3]
DIGITS = ROOT / "models" / "digits_cnn.onnx"

GRAPHS = {
    "bias": """graph @g(%x: f32[50,37]) -> ? {
  const %w : f32[37,70] = random(seed=1)
  const %b : f32[70] = random(seed=2)
  %n = MatMul(%x, %w)
  %m = Add(%n, %b)
  %y = Relu(%m)
  return %y
}""",
    "batch": """graph @g(%x: f32[2,3,20,37], %w: f32[2,3,30,37]) -> ? {
  %t = Transpose(%w) {perm=[0,1,3,2]}
  %y = MatMul(%x, %t)
  return %y
}""",
    "doubles": """graph @g(%x: f64[9,19]) -> ? {
  const %w : f64[19,37] = random(seed=1)
  %y = MatMul(%x, %w)
  return %y
}""",
    "convolutions": CONVOLUTIONS,
    "short_rows": """graph @g(%x: f32[6,45]) -> ? {
  const %s : f32[45] = random(seed=1)
  %n = LayerNormalization(%x, %s)
  %y = Softmax(%n)
  return %y
}""",
    "long_rows": """graph @g(%x: f32[3,2000]) -> ? {
  %y = Softmax(%x)
  return %y
}""",
    "columns": """graph @g(%x: f32[6,45,7]) -> ? {
  %y = Softmax(%x) {axis=1}
  return %y
}""",
    "everything": """graph @g(%x: f32[6,45,7]) -> ? {
  %y = ReduceMean(%x) {keepdims=0}
  return %y
}""",
    "pooled": """graph @g(%x: f16[2,5,9,9]) -> ? {
  %y = GlobalAveragePool(%x)
  return %y
}""",
    "largest_integer": """graph @g(%x: i64[3,1500]) -> ? {
  const %a : i64[1] = [1]
  %y = ReduceMax(%x, %a)
  return %y
}""",
    "all_true": """graph @g(%x: bool[3,1500]) -> ? {
  const %a : i64[1] = [1]
  %y = ReduceMin(%x, %a)
  return %y
}""",
    "largest_byte": """graph @g(%x: u8[3,1500]) -> ? {
  const %a : i64[1] = [1]
  %y = ReduceMax(%x, %a)
  return %y
}""",
    "sum_of_doubles": """graph @g(%x: f64[3,1500]) -> ? {
  const %a : i64[1] = [1]
  %y = ReduceSum(%x, %a)
  return %y
}""",
}
STRATEGY = {
    "bias": "tiles", "batch": "tiles", "doubles": "tiles", "short_rows": "rows",
    "long_rows": "rows", "everything": "rows", "pooled": "rows",
    "largest_integer": "rows", "all_true": "rows", "largest_byte": "rows", "sum_of_doubles": "rows",
}  # fmt: skip


@needs_compiler
@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_agree_with_the_interpreter(name):
    graph = graph_of(GRAPHS[name])
    source = emit(program_for(graph, "cuda"))
    if name in STRATEGY:
        assert source.steps[-1].function.startswith(STRATEGY[name])
    inputs = inputs_of(source.program)
    for found, wanted in zip(simulate(source, (0, 1, 2))(inputs), interpret(graph, inputs)):
        tolerance = 2e-3 if wanted.dtype == np.float16 else 1e-5
        np.testing.assert_allclose(found, wanted, tolerance, tolerance)


def test_gpus_are_known_by_their_architecture():
    assert machine("sm_90a").multiprocessors == machine("sm_90").multiprocessors == 132
    assert machine("sm_87") == machine("sm_86") and machine("sm_130") == machine("sm_120")
    assert machine("sm_75").has("mma_f16")
    assert machine("sm_80").instructions - machine("sm_75").instructions == {"mma_bf16", "mma_tf32"}
    with pytest.raises(ModelError, match="too old"):
        machine("sm_60")
    with pytest.raises(ModelError, match="written sm_80"):
        machine("ampere")


def test_kernels_are_planned_for_an_architecture():
    for arch, strategy in (("sm_75", "tiles"), ("sm_80", "cores")):
        settings = dict(arch=arch, precision="bf16")
        source = emit(program_for(graph_of(GRAPHS["bias"]), "cuda", **settings))
        assert source.steps[-1].function.startswith(strategy)


@needs_compiler
def test_a_model_runs_in_the_simulator():
    graph = typed(DIGITS, dims={"N": 3})
    source = emit(program_for(graph, "cuda"))
    inputs = inputs_of(source.program)
    (found,) = simulate(source)(inputs)
    (wanted,) = interpret(graph, inputs)
    np.testing.assert_allclose(found, wanted, 1e-4, 1e-4)


@needs_nvcc
@pytest.mark.parametrize("arch", chosen_architectures())
def test_nvcc_compiles_a_model(arch):
    source = emit(program_for(typed(DIGITS, dims={"N": 3}), "cuda"))
    assert compile_cuda(source.text, arch, strict=True)


@needs_nvcc
@pytest.mark.parametrize("name", GRAPHS)
def test_nvcc_compiles_graphs(name):
    assert compile_cuda(cuda_of(GRAPHS[name]).text, chosen_architectures()[-1], strict=True)
