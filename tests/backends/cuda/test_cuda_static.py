"""The comparison of kernels without a GPU: graphc's, and those that a folder has."""

import json
import sys
from pathlib import Path

import pytest
from cuda_programs import needs_compiler, needs_nvcc

from graphc.backends.cuda.machine_code import machine_code
from graphc.backends.cuda.prediction.sass import find_nvdisasm

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
import cuda_static

KERNEL = """extern "C" __global__ void twice(const float4 *x, float4 *y) {
  const int at = blockIdx.x * 128 + threadIdx.x;
  const float4 v = x[at];
  y[at] = make_float4(2 * v.x, 2 * v.y, 2 * v.z, 2 * v.w);
}"""
needs_nvdisasm = pytest.mark.skipif(find_nvdisasm() is None, reason="needs nvdisasm")


@needs_nvcc
@needs_compiler
@needs_nvdisasm
def test_foreign_kernels_are_run_and_predicted(tmp_path):
    for form in ("cubin", "ptx"):
        (tmp_path / f"add_80_0.{form}").write_bytes(machine_code(KERNEL, "sm_80", form))
    told = {
        "shape": "add", "how": "float4", "name": "twice", "grid": 64, "threads": 128, "shared": 0,
        "buffers": [64 * 128 * 16] * 2, "triton": "0",
    }  # fmt: skip
    (tmp_path / "add_80_0.json").write_text(json.dumps(told))
    (made,) = cuda_static.foreign(tmp_path, "add", "sm_80")
    assert made.code.registers > 0 and made.code.spills == 0
    assert made.prediction is not None and made.prediction.wide_loads == 1.0
    told["grid"], told["buffers"] = 64, [16, 16]  # too small: the fault is told
    (tmp_path / "add_80_0.json").write_text(json.dumps(told))
    (made,) = cuda_static.foreign(tmp_path, "add", "sm_80")
    assert made.prediction is None and "twice" in made.why
    assert not [*cuda_static.foreign(tmp_path, "add", "sm_90a")]


@needs_nvcc
@needs_compiler
@needs_nvdisasm
def test_a_shape_of_graphc():
    made = cuda_static.own("softmax", "sm_80")
    assert made.prediction is not None and made.prediction.bound == "memory"
    assert made.code.spills == 0 and made.prediction.wide_loads == 1.0
