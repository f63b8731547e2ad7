"""The two bindings make the right calls: real bindings, on a driver library of our own."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cuda_programs import BRANCHES, graph_of, inputs_of, needs_compiler

from graphc.driver import cuda_program
from graphc.ir.interp import interpret

HERE = Path(__file__).parent
MODULES = {"pycuda": "pycuda", "cuda-python": "cuda.bindings"}


def installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(MODULES[name]) is not None
    except ModuleNotFoundError:
        return False


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    """The folder of a libcuda.so.1."""
    folder = tmp_path_factory.mktemp("driver")
    source = folder / "libcuda.cpp"
    text = (HERE / "fake_libcuda.cpp").read_text()
    absent = [name for name in wanted_by_pycuda() if f" {name}(" not in text]
    stubs = [f"EXPORT Status {name}() {{ return 801; }}  // not supported" for name in absent]
    source.write_text("\n".join([text, *stubs, ""]))
    command = ["g++", "-std=c++17", "-Wall", "-shared", "-fPIC", "-fvisibility=hidden",
               source, "-o", folder / "libcuda.so.1", "-ldl"]  # fmt: skip
    subprocess.run(command, check=True)
    return folder


def wanted_by_pycuda() -> list[str]:
    """All functions of the driver that PyCUDA needs to be loaded."""
    spec = importlib.util.find_spec("pycuda")
    if spec is None or spec.origin is None:
        return []
    (binary,) = Path(spec.origin).parent.glob("_driver.*")
    listed = subprocess.run(["nm", "-D", "-u", binary], capture_output=True, text=True).stdout
    return sorted(set(re.findall(r"\bcu[A-Z]\w*", listed)))


@needs_compiler
@pytest.mark.parametrize("name", MODULES)
def test_bindings(name, library):
    if not installed(name):
        pytest.skip(f"{name} is not installed")
    path = os.pathsep.join([str(HERE), *sys.path])
    folders = os.pathsep.join([str(library), os.environ.get("LD_LIBRARY_PATH", "")])
    environment = {**os.environ, "LD_LIBRARY_PATH": folders, "GRAPHC_CUDA_DRIVER": name,
                   "PYTHONPATH": path}  # fmt: skip
    done = subprocess.run(
        [sys.executable, HERE / "bindings_session.py"], env=environment, capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert (seen["driver"], seen["device"], seen["arch"]) == (name, "simulator", "sm_90")
    assert seen["equal"] and seen["streams"] > 1 and seen["times"] == [0.25, 0.25]
    graph = graph_of(BRANCHES)
    wanted = interpret(graph, inputs_of(cuda_program(graph_of(BRANCHES))))
    assert seen["sums"] == pytest.approx([float(y.sum()) for y in wanted], rel=1e-4, abs=1e-4)
    assert "4398046511104 bytes of device memory" in seen["memory"]
    assert "illegal memory access" in seen["broken"] and seen["broken"].startswith("kernel ")
