"""Bundles compile without a warning, as C and as C++, say what they need, and do not change."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from bundles import STRICT, checked, micro_program, model_of, run_bundle
from onnx import TensorProto, helper

from graphc.backends.micro_c import BundleOptions, bundle, write_bundle

ROOT = Path(__file__).parents[3]
RNG = np.random.default_rng(1)


@pytest.fixture(scope="module")
def model():
    """Names that C cannot have, a softmax, a pool, and a result that is used again."""
    nodes = [
        helper.make_node("Conv", ["in/put", "w"], ["c"], name='co*/nv"??/1\\', pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"], name="return"),
        helper.make_node("GlobalAveragePool", ["r"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Softmax", ["f"], ["while"], axis=-1),
        helper.make_node("Tanh", ["f"], ["2 nd"]),
    ]
    return model_of(
        nodes,
        {"in/put": (TensorProto.FLOAT, [1, 3, 8, 8])},
        {"while": (TensorProto.FLOAT, [1, 5]), "2 nd": (TensorProto.FLOAT, [1, 5])},
        {"w": RNG.standard_normal((5, 3, 3, 3)).astype(np.float32)},
    )


def test_runs_as_the_reference(model, tmp_path):
    data = RNG.standard_normal((1, 3, 8, 8)).astype(np.float32)
    assert "largest error" in run_bundle(model, [data], tmp_path, 1e-5)


@pytest.mark.parametrize("compiler", ["gcc", "clang", "g++"])
def test_no_warnings(model, compiler, tmp_path):
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    write_bundle(micro_program(model), tmp_path, BundleOptions(name="net"))
    language = ["-x", "c++", "-std=c++17"] if compiler == "g++" else ["-std=c99"]
    for source in ("net.c", "net_weights.c"):
        command = [compiler, *language, "-O2", *STRICT, "-DNET_STATIC_ARENA", "-c", source]
        checked([*command, "-o", f"{source}.o"], tmp_path)


def test_calls_no_allocator_and_no_libm(model, tmp_path):
    write_bundle(micro_program(model), tmp_path, BundleOptions(name="net"))
    checked(["gcc", "-std=c99", "-O2", "-c", "net.c"], tmp_path)
    undefined = re.findall(r"U (\w+)", checked(["nm", "net.o"], tmp_path))
    assert all(name.startswith("net_w") or name.startswith("_") for name in undefined), undefined


def test_is_the_same_every_time(model):
    assert bundle(micro_program(model)) == bundle(micro_program(model))


def test_report_and_header(model):
    files = bundle(micro_program(model), BundleOptions(name="net"))
    report = json.loads(files["report.json"])
    assert report["weights_bytes"] >= 5 * 27 * 4
    assert f"#define NET_ARENA_SIZE {report['arena_bytes']}\n" in files["net.h"]
    assert any("return" in node for layer in report["layers"] for node in layer["nodes"])
    assert "f32[1,3,8,8]" in files["net.h"]


@pytest.mark.skipif(
    not shutil.which("arm-none-eabi-gcc"), reason="arm-none-eabi-gcc is not installed"
)
@pytest.mark.parametrize("cpu", ["cortex-m0plus", "cortex-m4", "cortex-m7"])
def test_compiles_for_arm(model, cpu, tmp_path):
    write_bundle(micro_program(model), tmp_path, BundleOptions(name="net"))
    for source in ("net.c", "net_weights.c"):
        command = ["arm-none-eabi-gcc", f"-mcpu={cpu}", "-mthumb", "-std=c99", "-O2", *STRICT]
        checked([*command, "-c", source, "-o", f"{source}.o"], tmp_path)
