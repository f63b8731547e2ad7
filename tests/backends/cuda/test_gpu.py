"""The kernels that the simulator proves, on a GPU: `pytest -m gpu`. Skipped where there is none."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cuda_programs import BRANCHES, graph_of, inputs_of
from test_cuda_warp_groups import GRAPHS as PRODUCTS
from test_launchers import GRAPH as LAUNCHED
from test_launchers import WARNINGS, built, folder, run

import graphc
from graphc.backends.cuda.gpu import GpuModel, open_gpu, with_own_features
from graphc.backends.cuda.machines import machine
from graphc.backends.cuda.nvcc import find_nvcc
from graphc.backends.cuda.runtime import DeviceArray, DriverMissing, open_driver
from graphc.backends.cuda.strategies import strategies
from graphc.backends.cuda.strategies.contraction import wgmma
from graphc.backends.cuda.strategies.contraction.matrix_cores import lower_matrix_cores
from graphc.backends.cuda.strategies.contraction.warp_mma import (
    SHARED_SIDES,
    SIDES,
    SLICES,
    WarpTile,
)
from graphc.driver import optimise, program_for, typed
from graphc.ir.compare import agreements
from graphc.ir.interp import interpret
from graphc.passes.lower import lower
from graphc.runtime.feeds import random_feeds
from graphc.targets.cuda import Cuda

pytestmark = pytest.mark.gpu

HERE = Path(__file__).parent
DIGITS = HERE.parents[2] / "models" / "digits_cnn.onnx"
TOLERANCE = {"float16": 4e-3, "bfloat16": 2e-2}  # of the range of an output; else 1e-4

GRAPHS = {
    f"{path.stem}-{name}": text
    for path in sorted(HERE.glob("test_cuda_*.py"))
    for name, text in getattr(importlib.import_module(path.stem), "GRAPHS", {}).items()
}


TILES = [
    *(WarpTile(*sides, *SLICES[n % len(SLICES)]) for n, sides in enumerate(SIDES)),
    *(WarpTile(*sides, 32, 3, 4) for sides in SHARED_SIDES),
    *(wgmma.GroupTile(*sides, 32, 3 + n % 2) for n, sides in enumerate(wgmma.SIDES)),
    *(wgmma.GroupTile(*sides, 32, all[0], parts=parts[-1]) for sides, all, parts in wgmma.SPLITS),
]


def check(found, wanted) -> None:
    """Outputs agree with the interpreter's."""
    found = [np.asarray(array) for array in found]
    names = [f"output {n}" for n in range(len(found))]
    for array, agreement in zip(wanted, agreements(names, found, wanted)):
        assert agreement.within(TOLERANCE.get(array.dtype.name, 1e-4)), agreement


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs(name):
    """One by one, then captured and replayed."""
    graph = graph_of(GRAPHS[name])
    inputs = inputs_of(program_for(graph_of(GRAPHS[name]), "cuda"))
    wanted = interpret(graph, inputs)
    model = graphc.compile(graph, target="cuda")
    for _ in range(3):
        check(model.run(inputs), wanted)


@pytest.mark.parametrize("text", [PRODUCTS["f16"], PRODUCTS["across"]], ids=["f16", "across"])
@pytest.mark.parametrize("tile", TILES, ids=str)
def test_every_tile_of_matrix_cores(tile, text):
    gpu = open_gpu()
    here = machine(with_own_features(gpu.arch))
    if not tile.rate(here):
        pytest.skip(f"{gpu.arch} has no such products")
    graph = optimise(graph_of(text), target=Cuda())
    program = lower(graph, [lambda c: lower_matrix_cores(c, here, tile), *strategies(here.arch)])
    inputs = inputs_of(program)
    check(GpuModel(program, gpu)(inputs), interpret(graph_of(text), inputs))


def test_a_model_for_many_shapes():
    model = graphc.compile(str(DIGITS), target="cuda")
    for batch in (1, 3, 64):
        graph = typed(DIGITS, dims={"N": batch})
        feeds = random_feeds(graph)
        wanted = interpret(graph, list(feeds.values()))
        for _ in range(3):
            check(model.run(feeds), wanted)


@pytest.mark.parametrize("name", ["pycuda", "cuda-python"])
def test_each_of_the_bindings(name, monkeypatch):
    monkeypatch.setenv("GRAPHC_CUDA_DRIVER", name)
    try:
        driver = open_driver()
    except DriverMissing as error:
        pytest.skip(str(error))
    assert driver.name == name
    graph = graph_of(BRANCHES)
    inputs = inputs_of(program_for(graph_of(BRANCHES), "cuda"))
    wanted = interpret(graph, inputs)
    model = graphc.compile(graph, target="cuda")
    for _ in range(4):
        check(model.run(inputs), wanted)


def arrays_of_torch(array):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch has no GPU")
    return torch.from_numpy(array).cuda(), torch.from_dlpack


def arrays_of_cupy(array):
    cupy = pytest.importorskip("cupy")
    return cupy.asarray(array), cupy.from_dlpack


def arrays_of_jax(array):
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # leaves memory to others
    jax = pytest.importorskip("jax")
    return jax.device_put(array, jax.devices("gpu")[0]), jax.dlpack.from_dlpack


@pytest.mark.parametrize("library", [arrays_of_torch, arrays_of_cupy, arrays_of_jax])
def test_arrays_of_other_libraries(library):
    graph = graph_of(BRANCHES)
    (x,) = inputs_of(program_for(graph_of(BRANCHES), "cuda"))
    wanted = interpret(graph, [x])
    model = graphc.compile(graph, target="cuda")
    given, taken = library(x)
    for _ in range(4):
        found = model.run([given])
        assert all(isinstance(array, DeviceArray) for array in found)
        check(found, wanted)
        back = [taken(array) for array in found]
        host = [np.asarray(b.get() if hasattr(b, "get") else getattr(b, "cpu", lambda b=b: b)())
                for b in back]  # fmt: skip
        check(host, wanted)


FAULT = """
import sys
from dataclasses import replace
from cuda_programs import cuda_of, inputs_of
from graphc.backends.cuda.bundle import launch_plan
from graphc.backends.cuda.gpu import image_for
from graphc.backends.cuda.runtime import DriverError, Model, open_driver
source = cuda_of('graph @g(%x: f32[30]) -> ? {\\n  %y = Sqrt(%x)  loc("root")\\n  return %y\\n}')
plan, weights = launch_plan(source)
assert "out0[" in source.text
text = source.text.replace("out0[", "out0[(1ll << 40) + ")
driver = open_driver()
model = Model(plan, weights, image_for(text, driver.arch), driver)
try:
    model.run(inputs_of(source.program))
except DriverError as error:
    print(error)
"""


def test_a_fault_names_its_kernel():
    path = os.pathsep.join([str(HERE), *sys.path])
    done = subprocess.run([sys.executable, "-c", FAULT], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": path})  # fmt: skip
    assert "illegal" in done.stdout and done.stdout.startswith("kernel "), done.stderr
    assert "root" in done.stdout


def test_the_python_launcher(tmp_path):
    here = folder(tmp_path, (open_driver().arch,))
    done = run(sys.executable, "run_net.py", "--times", "5", "-o", "y.npz", cwd=here)
    assert done.returncode == 0 and " ms" in done.stdout, done.stderr
    code = "import numpy, run_net; numpy.savez('x', *run_net.feeds(run_net.load(), [], 0))"
    built(sys.executable, "-c", code, cwd=here)  # the same random inputs
    inputs = list(np.load(here / "x.npz").values())
    check(list(np.load(here / "y.npz").values()), interpret(graph_of(LAUNCHED), inputs))


@pytest.mark.skipif(find_nvcc() is None, reason="needs nvcc")
def test_the_cpp_launcher(tmp_path):
    here = folder(tmp_path)
    sources = ("net.cpp", "net_example.cpp", "net_kernels.cu")
    flags = (f"-arch={open_driver().arch}", f"-Xcompiler={','.join(WARNINGS[1:3])}")
    built(find_nvcc(), *flags, *sources, "-o", "example", cwd=here)
    done = run(here / "example", "weights.bin", cwd=here)
    assert done.returncode == 0, done.stderr
    zeros = [np.zeros((20, 37), np.float32), np.zeros(3, np.int64)]
    wanted = interpret(graph_of(LAUNCHED), zeros)
    first = done.stdout.splitlines()[0].split()[2:6]
    assert np.frombuffer(bytes.fromhex("".join(first)), np.float32)[0] == pytest.approx(
        float(wanted[0].reshape(-1)[0]), rel=1e-4
    )


BOTH = """
#include <cstdio>
#include <iterator>

#include "a/net.h"
#include "b/other.h"

// What a model makes of inputs read one after another, several times, the last results to stdout.
static void run(graphc::Model &model, const graphc::Plan &plan, const char *path)
{
    std::ifstream file(path, std::ios::binary);
    std::vector<std::vector<char>> inputs, outputs;
    std::vector<const void *> values;
    std::vector<void *> results;
    for (int n = 0; n < plan.input_count; ++n) {
        inputs.emplace_back(plan.inputs[n].bytes);
        file.read(inputs.back().data(), std::streamsize(plan.inputs[n].bytes));
        values.push_back(inputs.back().data());
    }
    for (int n = 0; n < plan.output_count; ++n) {
        outputs.emplace_back(plan.outputs[n].bytes);
        results.push_back(outputs.back().data());
    }
    model.run(values.data(), results.data());
    std::fwrite(outputs[0].data(), 1, outputs[0].size(), stdout);
}

int main()
{
    graphc::Model first(net_plan, "a/weights.bin"), second(other_plan, "b/weights.bin");
    for (int round = 0; round < 3; ++round) {
        run(first, net_plan, "a/x.bin");
        run(second, other_plan, "b/x.bin");
    }
}
"""


@pytest.mark.skipif(find_nvcc() is None, reason="needs nvcc")
def test_two_models_in_one_cpp_program(tmp_path):
    texts = {("a", "net"): LAUNCHED, ("b", "other"): BRANCHES}
    wanted = []
    for (place, name), text in texts.items():
        (tmp_path / place).mkdir()
        folder(tmp_path / place, name=name, graph=text)
        inputs = inputs_of(program_for(graph_of(text), "cuda"))
        (tmp_path / place / "x.bin").write_bytes(b"".join(x.tobytes() for x in inputs))
        wanted.append(interpret(graph_of(text), inputs)[0])
    (tmp_path / "main.cpp").write_text(BOTH)
    sources = [f"{p}/{n}{end}" for p, n in texts for end in (".cpp", "_kernels.cu")]
    built(
        find_nvcc(), f"-arch={open_driver().arch}", "main.cpp", *sources, "-o", "both", cwd=tmp_path
    )
    done = subprocess.run([tmp_path / "both"], cwd=tmp_path, capture_output=True)
    assert done.returncode == 0, done.stderr
    found = np.frombuffer(done.stdout, np.float32).reshape(3, -1)
    for results in found:
        check(np.split(results, [wanted[0].size]), [w.reshape(-1) for w in wanted])
