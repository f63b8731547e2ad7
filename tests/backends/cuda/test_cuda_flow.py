"""Control flow and sizes that data decides, on a GPU: in the simulator, by the runtime and in C++,
against the target for the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import test_counts as counts
import test_program_flow as flow
from cuda_programs import needs_compiler, needs_nvcc
from fake_driver import FakeDriver
from fake_gpu import environment, link, make, toolkit

import graphc
from graphc.backends.cuda import CudaSource, emit
from graphc.backends.cuda.bundle import bundle_files, launch_plan
from graphc.backends.cuda.runtime import Model
from graphc.backends.cuda.simulator import simulate
from graphc.backends.cuda.simulator.build import SimulationError
from graphc.backends.cuda.simulator.profile import profile
from graphc.backends.cuda.steps import MAX_CAPTURED
from graphc.cli import app
from graphc.driver import configured
from graphc.ir.program import Program

sys.path.insert(0, str(Path(__file__).parents[2] / "frontend"))

from onnx_models import model

pytestmark = needs_compiler
RNG = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def sparse(*shape: int) -> np.ndarray:
    """Floats, most of them zero."""
    return floats(*shape) * (RNG.random(shape) < 0.4)


KEPT_OF_KEPT = """g (float[400] x) => (y, c) {
    i = NonZero(x)
    axis = Constant<value_ints = [0]>()
    j = Squeeze(i, axis)
    v = Gather(x, j)
    least = Constant<value_float = 0.5>()
    m = Greater(v, least)
    y = Compress(v, m)
    zero = Constant<value_int = 0>()
    c = CumSum(v, zero)
}"""
PUT_BACK = """g (float[12,17] x) => (y) {
    i = NonZero(x)
    j = Transpose<perm = [1, 0]>(i)
    v = GatherND(x, j)
    n = Neg(v)
    y = ScatterND(x, j, n)
}"""
FEW_BOXES = """g (float[1,40,4] b, float[1,3,40] s, float[40] x) => (k) {
    i = NonZero(x)
    axis = Constant<value_ints = [0]>()
    j = Squeeze(i, axis)
    c = Gather<axis = 1>(b, j)
    t = Gather<axis = 2>(s, j)
    most = Constant<value_ints = [9]>()
    over = Constant<value_floats = [0.4]>()
    k = NonMaxSuppression(c, t, most, over)
}"""
BOTH_SIDES = """g (float[6,8] x, bool[6] c, float[8,1] w) => (y) {
    v = Compress<axis = 0>(x, c)
    m = MatMul(v, w)
    t = Transpose(m)
    y = Mul(m, t)
}"""
SUMS = """g (float[3] s, float[T,3] x) => (y, a) {
    w = Exp(s)
    y, a = Scan<num_scan_inputs = 1, body = l (float[3] p, float[3] row)
            => (float[3] t, float[3] u) {
        t0 = Add(p, row)
        t = Tanh(t0)
        u = Sub(t, w)
    }>(s, x)
}"""


OPEN_PLACES = """g (float[T,3] x) => (y) {
    i = NonZero(x)
    j = Transpose<perm = [1, 0]>(i)
    v = GatherND(x, j)
    y = Tanh(v)
}"""
FLOW = {
    "condition": (flow.HALVING, [floats(4) + 3, np.float32(0.5)]),
    "trips": (flow.COUNTING.replace("600", "150"), [floats(4)]),
    "asked": (flow.ASKED, [floats(3), np.array(True)]),
    "not asked": (flow.ASKED, [floats(3), np.array(False)]),
    "rotated": (flow.ROTATING, [floats(3), floats(3), floats(3)]),
    "nested": (flow.NESTED, [floats(3), floats(3)]),
    "then": (flow.BRANCHES, [floats(3), np.array(True)]),
    "else": (flow.BRANCHES, [floats(3), np.array(False)]),
    "branch in a loop": (flow.BRANCH_IN_LOOP, [floats(3), floats(3)]),
    "scan": (flow.SCAN % (0, 1, 1, 0), [floats(3), floats(700, 3), floats(700)]),
}
COUNTED = {
    "places": (counts.PLACES, [sparse(12, 17)]),
    "no places": (counts.PLACES, [np.zeros((12, 17), np.float32)]),
    "shape": (counts.SHAPE, [sparse(12, 17)]),
    "values": (counts.VALUES, [sparse(12, 17)]),
    "rows": (counts.ROWS, [sparse(40), floats(40, 24)]),
    "no rows": (counts.ROWS, [np.zeros(40, np.float32), floats(40, 24)]),
    "columns": (counts.COLUMNS, [sparse(40), floats(6, 40)]),
    "two": (counts.TWO, [sparse(12), sparse(17)]),
    "range": (counts.COUNTED, [sparse(12, 17)]),
    "boxes": (counts.BOXES, [floats(1, 40, 4), RNG.random((1, 3, 40), np.float32)]),
    "distinct": (counts.DISTINCT % (1, ""), [np.round(floats(12, 17))]),
    "kept of kept": (KEPT_OF_KEPT, [sparse(400)]),
    "none kept of none": (KEPT_OF_KEPT, [np.zeros(400, np.float32)]),
    "put back": (PUT_BACK, [sparse(12, 17)]),
    "few boxes": (FEW_BOXES, [floats(1, 40, 4), RNG.random((1, 3, 40), np.float32), sparse(40)]),
    "both sides": (BOTH_SIDES, [floats(6, 8), RNG.random(6) < 0.7, floats(8, 1)]),
    "kept": (counts.KEPT % (12, "<axis = 0>"), [floats(12, 17), RNG.random(12) < 0.5]),
}


def compiled(
    text: str, monkeypatch: Any, load: Any = None, **options: Any
) -> tuple[Any, list[CudaSource]]:
    """A model in the simulator, and the sources of what is compiled of it."""
    made: list[CudaSource] = []
    target, _ = configured("cuda", None, {"simulate": True})

    def loaded(self: Any, program: Program) -> Any:
        made.append(emit(program))
        return (load or simulate)(made[-1])

    monkeypatch.setattr(type(target), "load", loaded)
    return graphc.compile(model(text), target="cuda", simulate=True, **options), made


def expected(text: str, inputs: list) -> list[np.ndarray]:
    return graphc.compile(model(text), target="cpu").run(inputs)


def same(found: list, wanted: list) -> None:
    for mine, other in zip(found, wanted, strict=True):
        assert mine.shape == other.shape and mine.dtype == other.dtype
        np.testing.assert_allclose(mine, other, 1e-5, 1e-6)


@pytest.mark.parametrize("name", [*FLOW, *COUNTED])
def test_one_program_has_it_all(name, monkeypatch):
    text, inputs = (FLOW | COUNTED)[name]
    run, made = compiled(text, monkeypatch)
    same(run.run(inputs), expected(text, inputs))
    (source,) = made
    assert source.flow is not None
    assert bool(source.program.counts) == (name in COUNTED)


def on_gpu(source: CudaSource) -> Model:
    """The runtime, on a plan as a launcher reads it."""
    plan, weights = launch_plan(source)
    return Model(json.loads(json.dumps(plan)), weights, source.text.encode(), FakeDriver())


READS = {"condition": 6, "trips": 0, "else": 1, "rows": 1, "two": 2}
"""How often a run waits for what data decides."""


@pytest.mark.parametrize("name", READS)
def test_the_runtime_does_the_steps(name, monkeypatch):
    """Where nothing is read back, from the second run on as a graph."""
    text, inputs = (FLOW | COUNTED)[name]
    gpus: list[Model] = []
    run, _ = compiled(text, monkeypatch, lambda s: gpus.append(on_gpu(s)) or gpus[-1].run)
    wanted = expected(text, inputs)
    for _ in range(3):
        same(run.run(inputs), wanted)
    (gpu,) = gpus
    assert gpu.driver.counts["download"] == (2 if name == "trips" else 3 * (READS[name] + 1))
    assert (gpu.driver.counts["replay"] == 2) == gpu.plan["captured"] == (READS[name] == 0)
    on_device = gpu.run([gpu.to_device(np.asarray(x)) for x in inputs])
    same([x.numpy() for x in on_device], wanted)


CHAIN = """g (float[5,5] x, float[5,5] w, float most) => (y) {
    n = Constant<value_int = 600>()
    yes = Constant<value = bool {1}>()
    y = Loop(n, yes, x) <body = b (int64 i, bool go, float[5,5] s) => (bool on, float[5,5] t) {
        a = MatMul(s, w)
        b0 = MatMul(a, w)
        c = MatMul(b0, w)
        t = Softmax(c)
        top = ReduceMax<keepdims = 0>(t)
        on = Greater(top, most)
    }>
}"""


def test_launches_of_a_body_are_a_graph(monkeypatch):
    """From the second trip on, where a condition keeps the whole run from being one."""
    gpus: list[Model] = []
    run, _ = compiled(CHAIN, monkeypatch, lambda s: gpus.append(on_gpu(s)) or gpus[-1].run)
    chain = [floats(5, 5), floats(5, 5)]
    once, often = [*chain, np.float32(9)], [*chain, np.float32(0)]
    run.run(once)  # which is waited for
    same(run.run(once), expected(CHAIN, once))
    (gpu,), driver = gpus, gpus[0].driver
    assert (driver.counts["replay"], driver.counts["capture"]) == (0, 0)
    launched = driver.counts["launch"]
    same(run.run(often), expected(CHAIN, often))
    assert (driver.counts["replay"], driver.counts["capture"]) == (600, 1)
    assert driver.counts["launch"] - launched < 20
    kept = []
    for _ in range(20):  # other places, of which the last are remembered
        kept.append([gpu.to_device(np.asarray(x)) for x in once])
        gpu.run(kept[-1])
    assert driver.counts["free_graph"] == 1
    assert gpu.plan["streams"] == 1 and not any(x["awaited"] for x in gpu.plan["launches"])


def test_long_loops_are_launched_one_by_one(monkeypatch):
    text = flow.COUNTING.replace("600", str(MAX_CAPTURED))
    _, made = compiled(flow.COUNTING, monkeypatch)
    assert made[0].plan()["captured"]
    _, made = compiled(text, monkeypatch)
    assert not made[0].plan()["captured"]


def test_steps_that_nothing_has_written_are_refused(monkeypatch):
    _, made = compiled(flow.BRANCHES, monkeypatch)
    (source,) = made
    branch = next(step["if"] for step in source.flow if "if" in step)
    branch["condition"] = {"space": "output", "index": 0, "offset": 0}
    with pytest.raises(SimulationError, match="decides what is done before it is written"):
        simulate(source)([floats(3), np.array(True)])
    branch["condition"] = {"space": "arena", "index": 0, "offset": 1 << 20}
    with pytest.raises(SimulationError, match="are not in arena 0"):
        simulate(source)([floats(3), np.array(True)])


MAIN = """#include <cstdio>
#include <cstdlib>
#include <fstream>
#include "net.h"

int main(int count, char **texts)
{
    const graphc::Plan &plan = net_plan;
    graphc::Model model(plan, "weights.bin");
    std::ifstream file("in.bin", std::ios::binary);
    for (int run = 1; run < count; ++run) {
        const int64_t size = std::atoi(texts[run]);
        model.set_sizes(&size);
        std::vector<std::vector<char>> values, results;
        std::vector<const void *> given;
        std::vector<void *> found;
        for (int n = 0; n < plan.input_count; ++n) {
            values.emplace_back(model.input_bytes(n));
            file.read(values[n].data(), std::streamsize(values[n].size()));
            given.push_back(values[n].data());
        }
        for (int n = 0; n < plan.output_count; ++n) {
            results.emplace_back(plan.outputs[n].bytes);
            found.push_back(results[n].data());
        }
        for (int round = 0; round < 3; ++round) {
            model.run(given.data(), found.data());
        }
        for (int n = 0; n < plan.output_count; ++n) {
            std::fwrite(found[n], 1, model.output_bytes(n), stdout);
            for (int64_t extent : model.output_shape(n)) {
                std::fprintf(stderr, "%d ", int(extent));
            }
        }
    }
}
"""
EVERYTHING = flow.BRANCH_IN_LOOP.replace("sum = ReduceSum<keepdims = 0>(s)", """
        f = Cast<to = 1>(i)
        wave = Sin(f)
        higher = Add(s, wave)
        sum = ReduceSum<keepdims = 0>(higher)""").replace("on = Identity(go)", """
        last = Constant<value_int = 70>()
        on = Less(i, last)""")  # fmt: skip
CPP = {
    "everything": (EVERYTHING, [[floats(3), floats(3)], [floats(3), floats(3)]]),
    "open places": (OPEN_PLACES, [[sparse(n, 3)] for n in (40, 1, 7)]),
}


@needs_nvcc
@pytest.mark.parametrize("name", CPP)
def test_a_cpp_program_does_the_steps(name, tmp_path, monkeypatch):
    """At one size after another, where it has sizes."""
    text, runs = CPP[name]
    options = {"specialise": "any", "dims": {"T": (1, 40)}} if text is OPEN_PLACES else {}
    run, made = compiled(text, monkeypatch, **options)
    run.run(runs[0])
    for path, contents in bundle_files(made[0], (), "net").items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes(contents)
    gpu = make(tmp_path)
    (tmp_path / "main.cpp").write_text(MAIN)
    strict = ("-std=c++11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only")
    include = f"-I{toolkit() / 'include'}"
    subprocess.run(["g++", *strict, include, tmp_path / "net.cpp"], check=True)
    sources = [str(tmp_path / file) for file in ("main.cpp", "net.cpp")]
    link(tmp_path / "main", sources, [tmp_path / "net_kernels.cu"])
    given = [np.asarray(x).tobytes() for inputs in runs for x in inputs]
    (tmp_path / "in.bin").write_bytes(b"".join(given))
    sizes = [str(inputs[0].shape[0]) for inputs in runs]
    done = subprocess.run(
        [tmp_path / "main", *sizes], cwd=tmp_path, capture_output=True, env=environment(gpu)
    )
    assert done.returncode == 0, done.stderr
    start, shapes = 0, []
    for wanted in (x for inputs in runs for x in expected(text, inputs)):
        found = np.frombuffer(done.stdout, wanted.dtype, wanted.size, start).reshape(wanted.shape)
        np.testing.assert_allclose(found, wanted, 1e-5, 1e-6)
        start += wanted.nbytes
        shapes += wanted.shape
    assert start == len(done.stdout)
    assert done.stderr.split() == [str(x).encode() for x in shapes]


def test_accesses_are_counted_at_the_largest_sizes(monkeypatch):
    text, inputs = COUNTED["rows"]
    _, made = compiled(text, monkeypatch)
    found = {launch.steps[0].function: launch.steps[0] for launch in profile(made[0], inputs)}
    assert [step.sizes for name, step in found.items() if name.startswith("nest")] == [(40,)]


@pytest.mark.parametrize("text, is_graph", [(SUMS, True), (OPEN_PLACES, False)])
def test_a_program_of_open_shape(text, is_graph, monkeypatch):
    """As many trips as an input has rows; a count within sizes."""
    gpus: list[Model] = []
    run, _ = compiled(
        text, monkeypatch, lambda s: gpus.append(on_gpu(s)) or gpus[-1].run,
        specialise="any", dims={"T": (1, 40)},
    )  # fmt: skip
    for rows in (1, 40, 7, 7, 7):
        inputs = [floats(3), floats(rows, 3)] if is_graph else [sparse(rows, 3)]
        same(run.run(inputs), expected(text, inputs))
    assert len(gpus) == 1 and gpus[0].plan["captured"] == is_graph
    assert gpus[0].driver.counts["replay"] == (2 if is_graph else 0)


def test_folders_tell_of_sizes_that_data_decides(tmp_path, capsys):
    onnx.save(model(COUNTED["rows"][0]), tmp_path / "rows.onnx")
    asked = ["compile", str(tmp_path / "rows.onnx"), "--target", "cuda", "--arch", "sm_80"]
    assert app.main([*asked, "-o", str(tmp_path / "gpu")]) == 0, capsys.readouterr().err
    readme = (tmp_path / "gpu" / "README.md").read_text()
    assert "| outputs | y: f32[count0,40] |" in readme
    assert "| sizes | count0: 0..40, which data decides |" in readme
    assert (
        "//     size  count0: 0..40, which data decides"
        in (tmp_path / "gpu" / "rows.h").read_text()
    )
