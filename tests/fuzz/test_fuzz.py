"""Thirty random graphs on the interpreter, the CPU and ONNX Runtime, and layers of every family on
the CPU and in the simulator; see fuzz_graphs.py."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fuzz_graphs import examine
from generator import families
from judging import ONNXRUNTIME, target_runner

FIRST, CASES = 70_000, 30


@pytest.mark.parametrize("seed", range(FIRST, FIRST + CASES))
def test_random_graph(seed):
    runners = {"cpu": target_runner("cpu")}
    if importlib.util.find_spec("onnxruntime"):
        runners["onnxruntime"] = ONNXRUNTIME
    assert examine(seed, runners, None) == []


@pytest.mark.parametrize("family", families())
def test_layers(family):
    runners = {"cpu": target_runner("cpu")}
    if importlib.util.find_spec("onnxruntime"):
        runners["onnxruntime"] = ONNXRUNTIME
    assert [line for n in range(3) for line in examine(FIRST + n, runners, None, family)] == []


@pytest.mark.parametrize("target", ["open", "tiers"])
def test_sizes_that_are_open(target):
    assert examine(FIRST, {target: target_runner(target)}, None) == []


@pytest.mark.skipif(not shutil.which("g++"), reason="the simulator needs g++")
@pytest.mark.parametrize("precision", ["f32", "tf32", "f16", "bf16"])
def test_products_of_any_precision(precision):
    runner = target_runner("cuda", precision, "any")
    assert examine(FIRST, {"cuda": runner}, None, "products") == []
