"""Thirty random graphs on the interpreter, the CPU and ONNX Runtime; see fuzz_graphs.py."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fuzz_graphs import examine
from judging import run_onnxruntime, target_runner

FIRST, CASES = 70_000, 30


@pytest.mark.parametrize("seed", range(FIRST, FIRST + CASES))
def test_random_graph(seed):
    runners = {"cpu": target_runner("cpu")}
    if importlib.util.find_spec("onnxruntime"):
        runners["onnxruntime"] = run_onnxruntime
    assert examine(seed, runners, None) == []
