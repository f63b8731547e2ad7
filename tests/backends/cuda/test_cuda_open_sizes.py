"""Kernels of open shape: one text for all sizes within bounds. In the simulator they give what the
interpreter gives for the static graph of each size."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path

import numpy as np
import pytest
import test_open_shapes as shapes
from cuda_programs import needs_compiler, needs_nvcc
from fake_driver import FakeDriver
from fake_gpu import environment, link, make

import graphc
from graphc.backends.cuda import emit
from graphc.backends.cuda.bundle import bundle_files, launch_plan
from graphc.backends.cuda.runtime import Model
from graphc.backends.cuda.simulator import simulate
from graphc.cli import app
from graphc.driver import configured, policy, to_program
from graphc.ir.compare import compare
from graphc.ir.graph import Graph
from graphc.ir.interp import interpret
from graphc.ir.program import Program
from graphc.passes.general import general
from graphc.passes.specialise import pin, specialise
from graphc.runtime.feeds import random_feeds

pytestmark = needs_compiler


def open_graph(text: str, where: str = shapes.WHERE) -> Graph:
    text = text.replace("{}", where, 1).replace("{{", "{").replace("}}", "}")
    return graphc.parse(f"graph @g{text} return %r }}")


def open_program(graph: Graph, **options: object) -> Program:
    target, settings = configured("cuda", None, {"simulate": True, **options})
    return to_program(general(graph, policy(target)), target, settings)


def agrees(graph: Graph, program: Program, runs: int = 5, tolerance: float = 2e-5) -> None:
    run, dice = simulate(emit(program)), random.Random(0)
    for seed in range(runs):
        dims = {
            s.name: (s.lo, s.hi)[seed] if seed < 2 else dice.randint(s.lo, s.hi)
            for s in program.sizes
        }
        feeds = random_feeds(pin(graph, dims=dims), seed)
        wanted = interpret(
            specialise(graph, {n: a.shape for n, a in feeds.items()}), [*feeds.values()]
        )
        for mine, other in zip(run(list(feeds.values())), wanted, strict=True):
            agreement = compare("output", mine, other)
            assert agreement.within(tolerance), f"{dims}: {agreement}"


@pytest.mark.parametrize("name", shapes.GRAPHS)
def test_graphs(name):
    graph = open_graph(shapes.GRAPHS[name])
    agrees(graph, open_program(graph))


LARGE = "where N: 1..3, S: 1..70, H: 5..20"
CONTRACTIONS = {
    "rows": "(%x: f32[N,S,24]) -> ? {} { const %w : f32[24,40] = random(seed=1) "
    "const %b : f32[40] = random(seed=2) %a = MatMul(%x, %w) %c = Add(%a, %b) %r = Relu(%c)",
    "both sides": "(%x: f32[N,S,32], %y: f32[N,32,S]) -> ? {} { %r = MatMul(%x, %y)",
    "heads": "(%x: f32[N,S,32], %y: f32[N,S,32]) -> ? {} { const %t : i64[4] = [0,0,2,16] "
    "%a = Reshape(%x, %t) %b = Transpose(%a) {{perm=[0,2,1,3]}} %c = Reshape(%y, %t) "
    "%d = Transpose(%c) {{perm=[0,2,3,1]}} %e = MatMul(%b, %d) %r = Softmax(%e)",
    "images": "(%x: f32[N,8,H,H]) -> ? {} { const %w : f32[24,8,3,3] = random(seed=1) "
    "%a = Conv(%x, %w) {{pads=[1,1,1,1], strides=[2,2]}} %r = Relu(%a)",
}  # fmt: skip


@pytest.mark.parametrize(
    "precision, arch", [("f32", ""), ("f16", ""), ("tf32", ""), ("f16", "sm_90a")]
)
@pytest.mark.parametrize("name", CONTRACTIONS)
def test_contractions_are_tiled(name, precision, arch):
    graph = open_graph(CONTRACTIONS[name], LARGE)
    program = open_program(graph, precision=precision, arch=arch)
    tiles = "tiles" if precision == "f32" else "cores"
    assert any(name.startswith(tiles) for name in program.kernels), list(program.kernels)
    agrees(graph, program, tolerance=2e-5 if precision == "f32" else 2e-2)


ROWS = {
    "many rows": "(%x: f32[N,S,96]) -> ? {} { const %s : f32[96] = random(seed=1) "
    "%r = LayerNormalization(%x, %s)",
    "long rows": "(%x: f32[N,L]) -> ? {} { %r = Softmax(%x)",
    "rows of even length": "(%x: f32[N,L,4]) -> ? {} { const %a : i64[2] = [1,2] "
    "%m = ReduceMean(%x, %a) {{keepdims=1}} %r = Sub(%x, %m)",
    "columns": "(%x: f32[N,L,S]) -> ? {} { %r = Softmax(%x) {{axis=1}}",
    "moments": "(%x: f32[N,3,L]) -> ? {} { const %s : f32[3] = random(seed=1) "
    "const %b : f32[3] = random(seed=2) %r = InstanceNormalization(%x, %s, %b)",
}


@pytest.mark.parametrize("high", [60, 5000])
@pytest.mark.parametrize("name", ROWS)
def test_rows_are_shared_by_threads(name, high):
    graph = open_graph(ROWS[name], f"where N: 1..3, S: 1..9, L: 1..{high}")
    program = open_program(graph)
    assert any(name.startswith("rows") for name in program.kernels), list(program.kernels)
    agrees(graph, program)


ATTENTION = {
    "masked": "(%q: f32[N,2,S,16], %k: f32[N,2,16,L], %v: f32[N,2,L,24], %m: f32[S,L]) -> ? {} { "
    "%a = MatMul(%q, %k) %b = Add(%a, %m) %c = Softmax(%b) %r = MatMul(%c, %v)",
    "by parts": "(%q: f32[N,S,16], %k: f32[N,16,L], %v: f32[N,L,16]) -> ? {} { "
    "%a = MatMul(%q, %k) %b = Softmax(%a) %r = MatMul(%b, %v)",
}


@pytest.mark.parametrize("precision", ["f32", "f16"])
@pytest.mark.parametrize("high", [20, 150])
@pytest.mark.parametrize("name", ATTENTION)
def test_attention_is_one_kernel(name, high, precision):
    graph = open_graph(ATTENTION[name], f"where N: 1..2, S: 1..{high}, L: 1..{high}")
    program = open_program(graph, precision=precision)
    assert any("attention" in name or "flash" in name for name in program.kernels), list(
        program.kernels
    )
    agrees(graph, program, tolerance=2e-5 if precision == "f32" else 5e-3)


WINDOWS = {
    "depthwise": ("H,S", "const %w : f32[8,1,3,3] = random(seed=1) "
    "%a = Conv(%x, %w) {{group=8, pads=[1,1,1,1]}} %y = Relu(%a)"),
    "strided": ("H,H", "const %w : f32[8,1,3,3] = random(seed=1) "
    "%y = Conv(%x, %w) {{group=8, strides=[2,2]}}"),
    "pooling": ("H,S", "%y = MaxPool(%x) {{kernel_shape=[3,3], pads=[1,1,1,1], strides=[2,2]}}"),
}  # fmt: skip


@pytest.mark.parametrize("name", WINDOWS)
def test_windows_are_in_patches(name):
    """Of images whose channels are last in memory."""
    sides, window = WINDOWS[name]
    text = (
        f"(%image: f32[N,{sides},8]) -> ? {{}} {{ %x = Transpose(%image) {{{{perm=[0,3,1,2]}}}} "
        f"{window} %r = Transpose(%y) {{{{perm=[0,2,3,1]}}}}"
    )
    graph = open_graph(text, LARGE)
    program = open_program(graph)
    assert any(name.startswith("window") for name in program.kernels), list(program.kernels)
    agrees(graph, program, runs=8)


def test_decoding_with_a_cache_of_open_length():
    text = (
        "(%q: f32[1,4,1,32], %k: f32[1,4,32,L], %v: f32[1,4,L,32]) -> ? {} { "
        "%a = MatMul(%q, %k) %b = Softmax(%a) %r = MatMul(%b, %v)"
    )
    graph = open_graph(text, "where L: 1..3000")
    program = open_program(graph)
    assert [name for name in program.kernels if name.startswith("attention_part")]
    agrees(graph, program)


def test_runs_of_a_gpu_take_all_sizes():
    graph = open_graph(CONTRACTIONS["heads"], LARGE)
    source = emit(open_program(graph))
    plan, weights = launch_plan(source)
    plan = json.loads(json.dumps(plan))  # as a launcher reads it
    model = Model(plan, weights, source.text.encode(), FakeDriver())
    allocated = model.driver.counts["allocate"]
    for n, s in [(1, 1), (3, 70), (2, 33), (2, 33), (2, 33), (1, 70)]:
        rng = np.random.default_rng(n * s)
        inputs = [rng.standard_normal((n, s, 32), np.float32) for _ in range(2)]
        (wanted,) = interpret(specialise(graph, {"x": (n, s, 32), "y": (n, s, 32)}), inputs)
        (on_host,) = model.run(inputs)
        np.testing.assert_allclose(on_host, wanted, 1e-4, 1e-5)
        (on_device,) = model.run([model.to_device(x) for x in inputs])
        assert on_device.shape == wanted.shape
        np.testing.assert_allclose(on_device.numpy(), wanted, 1e-4, 1e-5)
    assert model.driver.counts["replay"] > 0
    assert model.driver.counts["allocate"] - allocated < 20  # memory is that of the largest sizes
    with pytest.raises(ValueError, match=r"dimension N = 4 is not in 1..3"):
        model.run([np.zeros((4, 1, 32), np.float32)] * 2)
    with pytest.raises(ValueError, match=r"input y takes float32\[1, 5, 32\], found .*1, 6, 32"):
        model.run([np.zeros((1, 5, 32), np.float32), np.zeros((1, 6, 32), np.float32)])
    with pytest.raises(ValueError, match=r"input x has 2 dimensions or more"):
        model.run([np.zeros(3, np.float32)] * 2)


def test_one_executable_serves_every_size():
    graph = open_graph(CONTRACTIONS["rows"], LARGE)
    model = graphc.compile(graph, "cuda", simulate=True, specialise="any")
    for n, s in [(1, 9), (3, 64)]:
        x = np.random.default_rng(s).standard_normal((n, s, 24), np.float32)
        (wanted,) = interpret(specialise(graph, {"x": (n, s, 24)}), [x])
        np.testing.assert_allclose(model.run([x])[0], wanted, 1e-4, 1e-5)
    assert [info.is_general for info in model.executables()] == [True]


MAIN = """#include <cstdio>
#include <fstream>
#include "net.h"

int main()
{
    graphc::Model model(net_plan, "weights.bin");
    const int64_t sizes[][2] = {{3, 70}, {1, 1}, {2, 33}, {2, 33}, {2, 33}, {1, 70}};
    std::ifstream file("x.bin", std::ios::binary);
    for (const auto &at : sizes) {
        model.set_sizes(at);
        std::vector<char> x(model.input_bytes(0)), y(model.output_bytes(0));
        file.read(x.data(), std::streamsize(x.size()));
        const void *values[] = {x.data()};
        void *results[] = {y.data()};
        model.run(values, results);
        std::fwrite(y.data(), 1, y.size(), stdout);
        const std::vector<int64_t> shape = model.output_shape(0);
        std::fprintf(stderr, "%d,%d,%d ", int(shape[0]), int(shape[1]), int(shape[2]));
    }
    try {
        const int64_t many[] = {4, 1};
        model.set_sizes(many);
    } catch (const graphc::Error &error) {
        std::fputs(error.what(), stderr);
    }
}
"""


@needs_nvcc
def test_a_cpp_program_takes_all_sizes(tmp_path):
    graph = open_graph(CONTRACTIONS["rows"], LARGE)
    for path, contents in bundle_files(emit(open_program(graph)), (), "net").items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes(contents)
    gpu = make(tmp_path)
    (tmp_path / "main.cpp").write_text(MAIN)
    sources = [str(tmp_path / name) for name in ("main.cpp", "net.cpp")]
    link(tmp_path / "main", sources, [tmp_path / "net_kernels.cu"])
    rng = np.random.default_rng(0)
    at = [(3, 70), (1, 1), (2, 33), (2, 33), (2, 33), (1, 70)]
    inputs = [rng.standard_normal((n, s, 24), np.float32) for n, s in at]
    (tmp_path / "x.bin").write_bytes(b"".join(x.tobytes() for x in inputs))
    done = subprocess.run(
        [tmp_path / "main"], cwd=tmp_path, capture_output=True, env=environment(gpu)
    )
    assert done.returncode == 0, done.stderr
    *shapes_, problem = done.stderr.decode().split(" ", len(at))
    assert shapes_ == [f"{n},{s},40" for n, s in at]
    assert problem == "size N = 4 is not in 1..3"
    results = [interpret(specialise(graph, {"x": x.shape}), [x])[0] for x in inputs]
    flat = np.concatenate([result.reshape(-1) for result in results])
    np.testing.assert_allclose(np.frombuffer(done.stdout, np.float32), flat, 1e-4, 1e-5)


def test_the_command_line_writes_folders_of_open_shape(tmp_path, capsys):
    model = Path(__file__).parents[3] / "models" / "digits_cnn.onnx"
    folder = tmp_path / "gpu"
    options = ["--target", "cuda", "--specialise", "any", "--dim", "N=1..16", "-o", str(folder)]
    assert app.main(["compile", str(model), *options]) == 0, capsys.readouterr().err
    plan = json.loads((folder / "plan.json").read_text())
    assert [(s["name"], s["low"], s["high"]) for s in plan["sizes"]] == [("N", 1, 16)]
    assert "| sizes | N: 1..16 |" in (folder / "README.md").read_text()
