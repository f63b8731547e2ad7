"""The two bindings make the right calls: real bindings, on a driver library of our own."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cuda_programs import BRANCHES, graph_of, inputs_of, needs_compiler, needs_nvcc
from fake_gpu import environment, make
from test_gpu import GRAPHS

from graphc.driver import program_for
from graphc.ir.interp import interpret

HERE = Path(__file__).parent
MODULES = {"pycuda": "pycuda", "cuda-python": "cuda.bindings"}


def installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(MODULES[name]) is not None
    except ModuleNotFoundError:
        return False


@pytest.fixture(scope="module")
def gpu(tmp_path_factory) -> Path:
    """A folder with the driver and the compiler of a machine with a GPU."""
    return make(tmp_path_factory.mktemp("gpu"))


@needs_compiler
@pytest.mark.parametrize("name", MODULES)
def test_bindings(name, gpu):
    if not installed(name):
        pytest.skip(f"{name} is not installed")
    done = subprocess.run(
        [sys.executable, HERE / "bindings_session.py"], capture_output=True, text=True,
        env=environment(gpu, GRAPHC_CUDA_DRIVER=name),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert (seen["driver"], seen["device"], seen["arch"]) == (name, "simulator", "sm_90")
    assert seen["read"], "others can use the GPU while a run is captured"
    assert seen["equal"] and seen["streams"] > 1 and seen["times"] == [0.25, 0.25]
    graph = graph_of(BRANCHES)
    wanted = interpret(graph, inputs_of(program_for(graph_of(BRANCHES), "cuda")))
    assert seen["sums"] == pytest.approx([float(y.sum()) for y in wanted], rel=1e-4, abs=1e-4)
    assert "4398046511104 bytes of device memory" in seen["memory"]
    assert "illegal memory access" in seen["broken"] and seen["broken"].startswith("kernel ")


def test_what_runs_on_a_gpu_can_be_compiled():
    """As much as no other test sees without a GPU: that all are graphs."""
    assert len(GRAPHS) > 30
    for text in GRAPHS.values():
        graph_of(text)


@pytest.mark.suite
@needs_compiler
@needs_nvcc
def test_what_runs_on_a_gpu_would_run(gpu):
    """The tests marked `gpu`, but for those of kernels, which the simulator runs elsewhere."""
    if not any(map(installed, MODULES)):
        pytest.skip("neither of the bindings is installed")
    command = [
        sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider",
        "-k", "not test_graphs and not shapes and not tile", HERE / "test_gpu.py",
    ]  # fmt: skip
    done = subprocess.run(command, env=environment(gpu), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed and int(passed[1]) >= 5, done.stdout
