"""The benchmark of GPUs does all but the GPU without one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cuda_programs import needs_compiler
from fake_driver import FakeDriver

from graphc.backends.cuda import gpu

ROOT = Path(__file__).parents[3]
BENCH = ROOT / "benchmarks" / "bench_cuda.py"


def run(*arguments: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NVCC": "no-such-compiler",
                   "GRAPHC_CUDA_COMPILER": "nvcc"}  # fmt: skip
    return subprocess.run(
        [sys.executable, BENCH, *arguments], env=environment, capture_output=True, text=True
    )


def test_a_dry_run():
    done = run("--dry-run", "bandwidth", "gemm", "attention")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    moving = [row for row in rows if row["part"] == "bandwidth"]
    assert [row["case"] for row in moving[:3]] == ["relu f32", "gelu f32", "add f32"]
    assert len(moving) == 12 and all(row["launches"] == 1 for row in moving)
    assert rows[-1]["case"] == "growth of the arena" and rows[-1]["reached"]


def test_tensors_have_a_gigabyte(monkeypatch):
    monkeypatch.syspath_prepend(BENCH.parent)
    bench = pytest.importorskip("bench_cuda")
    moved = {case.name: case.moved for case in (*bench.bandwidth(), *bench.rows())}
    for type in ("f32", "f16"):
        assert moved[f"relu {type}"] == moved[f"softmax {type} of 1024"] == 2 << 30
        assert moved[f"add {type}"] == 3 << 30
        assert 1 << 30 < moved[f"column_sum {type} of 4096"] < 1.01 * (1 << 30)
    assert moved["cast f32"] == 3 << 29 and moved["cast f16"] == 3 << 30


@needs_compiler
def test_a_case_is_measured(monkeypatch):
    monkeypatch.syspath_prepend(BENCH.parent)
    bench = pytest.importorskip("bench_cuda")
    monkeypatch.setattr(bench, "FLUSHED", 1 << 12)
    monkeypatch.setattr(bench, "WARM_SECONDS", 0.0)
    monkeypatch.setattr(gpu, "image_for", lambda text, arch: text.encode())
    text = bench.cuda_cases.elementwise("add", "f32", 3, 100)
    peers = {"jax": lambda inputs: lambda: 0, "torch": lambda inputs: 1 // 0}
    monkeypatch.setattr(bench.cuda_peers, "timer", lambda *_: lambda: [2.0])
    case = bench.Case("latency", "add", lambda: bench.cuda_cases.parsed(text), peers,
                      moved=3600, goal=0.5)  # fmt: skip
    driver = FakeDriver()
    row = bench.measure(case, driver, 1e6)
    assert row["graphc_ms"] == 0.5 and row["jax_ms"] == 2 and not row["reached"]
    assert row["in_a_row_ms"] == 0.5 / bench.REPLAYS and row["call_ms"] > 0
    assert row["missing"]["torch"].startswith("ZeroDivisionError") and row["launches"] == 1
    case.part, case.against = "gemm", ("jax",)
    assert bench.measure(case, driver, 1e6)["ratio"] == 4
    assert bench.copy_bandwidth(driver, 100) == pytest.approx(200 / 0.5e-3)


def test_no_case_is_begun_when_time_is_over():
    rows = [json.loads(x) for x in run("--dry-run", "--seconds=-1", "gemm").stdout.splitlines()]
    assert len(rows) == 4 and all("skipped" in row for row in rows)


def test_parts_have_names():
    assert "there is no part 'speed'" in run("--dry-run", "speed").stderr


def test_models_for_a_batch(monkeypatch):
    monkeypatch.syspath_prepend(BENCH.parent)
    cases = pytest.importorskip("cuda_cases")
    onnx = pytest.importorskip("onnx")
    text = """<ir_version: 8, opset_import: ["" : 20]>
g (float[1,6,4] x) => (float[1,24] y) <int64[2] s = {1, 24}> { y = Reshape(x, s) }"""
    model = cases.rebatched(onnx.parser.parse_model(text), 5)
    from graphc.frontend.onnx_import import import_onnx
    from graphc.passes.specialise import specialise

    assert specialise(import_onnx(model)).results[0].tensor.static_shape == (5, 24)
