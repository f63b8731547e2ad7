"""The benchmark of GPUs does all but the GPU without one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

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
    assert [row["case"] for row in rows[:3]] == ["relu", "gelu", "add"]
    assert all(row["launches"] == 1 for row in rows[:3])
    assert rows[-1]["case"] == "growth of the arena" and rows[-1]["reached"]


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
