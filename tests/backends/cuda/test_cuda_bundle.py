"""The files of a compiled model hold all that a launcher needs."""

import json

import numpy as np
import pytest
from cuda_programs import cuda_of, needs_nvcc

from graphc.backends.cuda.bundle import ALIGNMENT, bundle_files
from graphc.backends.cuda.nvcc import architectures, compile_cuda
from graphc.errors import InternalError, ModelError, UnsupportedError

GRAPH = """graph @g(%x: f32[20,37]) -> ? {
  const %w : f32[37,70] = random(seed=1)
  const %b : f32[70] = random(seed=2)
  %n = MatMul(%x, %w)
  %y = Add(%n, %b)
  return %y
}"""


def test_weights_lie_where_the_plan_says():
    source = cuda_of(GRAPH)
    files = bundle_files(source)
    plan = json.loads(files["plan.json"])
    assert plan["weights_bytes"] == len(files["weights.bin"])
    for entry, array in zip(plan["constants"], source.program.constants, strict=True):
        assert entry["offset"] % ALIGNMENT == 0
        found = np.frombuffer(files["weights.bin"], array.dtype, array.size, entry["offset"])
        assert np.array_equal(found, array.reshape(-1))


def test_what_a_folder_holds():
    files = sorted(bundle_files(cuda_of(GRAPH), name="net"))
    assert [name for name in files if "/" not in name] == [
        "CMakeLists.txt", "README.md", "graphc_model.h", "kernels.cu", "net.cpp", "net.h",
        "net_example.cpp", "net_kernels.cu", "plan.json", "run_net.py", "weights.bin",
    ]  # fmt: skip
    assert "graphc_cuda/model.py" in files


def test_files_are_the_same_every_time():
    assert bundle_files(cuda_of(GRAPH)) == bundle_files(cuda_of(GRAPH))


@needs_nvcc
def test_code_for_an_architecture():
    arch = architectures()[0]
    files = bundle_files(cuda_of(GRAPH), [arch])
    assert files[f"kernels.{arch}.cubin"].startswith(b"\x7fELF")
    assert f".target {arch}".encode() in files[f"kernels.{arch}.ptx"]


@needs_nvcc
def test_what_nvcc_says_is_told():
    arch = architectures()[0]
    with pytest.raises(InternalError, match="expected a"):
        compile_cuda("extern int", arch)
    with pytest.raises(ModelError, match="no code for sm_1"):
        compile_cuda("", "sm_1")


def test_without_nvcc(monkeypatch):
    monkeypatch.setenv("NVCC", "no-such-compiler")
    assert architectures() == []
    with pytest.raises(UnsupportedError, match="nvcc was not found"):
        compile_cuda("", "sm_80")
