"""What report.json says is so: the stack compilers need, and what is linked; and every time."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from bundles import checked, micro_program, model_of
from onnx import TensorProto, helper
from quantised_models import convolution, residual

from graphc.backends.micro_c import BundleOptions, bundle, write_bundle
from graphc.backends.micro_c.boards import ARM as ARM_TOOLS
from graphc.backends.micro_c.boards import RISCV
from graphc.backends.micro_c.cpus import CPUS

ROOT = Path(__file__).parents[3]
DIGITS = ROOT / "models" / "digits_cnn.onnx"
ARM = "arm-none-eabi-gcc"
needs_arm = pytest.mark.skipif(not shutil.which(ARM), reason=f"{ARM} is not installed")


def attention():
    """Products of activations, a softmax, a transposition."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["q"]),
        helper.make_node("Transpose", ["q"], ["t"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["q", "t"], ["s"]),
        helper.make_node("Softmax", ["s"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "q"], ["y"]),
    ]
    weights = {"w": np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)}
    shape = (TensorProto.FLOAT, [2, 6, 8])
    return model_of(nodes, {"x": shape}, {"y": shape}, weights)


def quantised():
    return convolution(np.int8, (1, 8, 6, 7), (6, 8, 3, 3), pads=[1, 1, 1, 1]).result


MODELS = {"attention": attention, "conv": quantised, "residual": lambda: residual().result}


def call_graph(text: str) -> tuple[dict[str, int], dict[str, set[str]]]:
    """Frames in bytes, and callees, from what -fcallgraph-info=su writes."""
    frames = {
        name: int(size)
        for name, size in re.findall(r'title: "([^"]+)" label: "[^"]*?(\d+) bytes', text)
    }
    calls: dict[str, set[str]] = {name: set() for name in frames}
    for source, target in re.findall(r'sourcename: "([^"]+)" targetname: "([^"]+)"', text):
        calls.setdefault(source, set()).add(target)
    return frames, calls


def deepest(name: str, frames: dict[str, int], calls: dict[str, set[str]]) -> int:
    """Bytes of stack of a function and all below it."""
    below = [deepest(callee, frames, calls) for callee in calls.get(name, ())]
    return frames.get(name, 0) + max(below, default=0)


@needs_arm
@pytest.mark.parametrize("cpu", ["cortex-m0plus", "cortex-m4", "cortex-m55"])
@pytest.mark.parametrize("case", MODELS)
def test_stack_is_within_the_bound(case, cpu, tmp_path):
    files = write_bundle(micro_program(MODELS[case](), cpu), tmp_path, BundleOptions("net"))
    report = json.loads(files["report.json"])
    bounds = {f["function"]: f["stack_bytes_bound"] for f in report["functions"]}
    for level in ("-Os", "-O2", "-O3"):
        flags = [*CPUS[cpu].flags, "-std=c99", level, "-fcallgraph-info=su"]
        checked([ARM, *flags, "-c", "net.c"], tmp_path)
        frames, calls = call_graph((tmp_path / "net.ci").read_text())
        assert 0 < deepest("net_run", frames, calls) <= report["stack_bytes_bound"], level
        for name, frame in frames.items():
            own = bounds.get(name.split(":")[-1].split(".")[0])
            assert own is None or frame <= own or name == "net_run", (level, name)


@needs_arm
def test_nothing_is_allocated_or_printed(tmp_path):
    write_bundle(micro_program(attention()), tmp_path, BundleOptions("net"))
    checked([ARM, *CPUS["cortex-m4"].flags, "-std=c99", "-O2", "-c", "net.c"], tmp_path)
    names = checked(["arm-none-eabi-nm", "net.o"], tmp_path).split()
    undefined = checked(["arm-none-eabi-nm", "-u", "net.o"], tmp_path).split()[1::2]
    assert not [n for n in names if re.search("malloc|calloc|free|printf|puts|exit", n)]
    assert all(n.startswith("net_w") or n in ("memcpy", "memset") for n in undefined), undefined


def test_numbers_fit_each_other():
    files = bundle(micro_program(quantised()), BundleOptions("net"))
    report = json.loads(files["report.json"])
    assert report["macs"] == sum(layer["macs"] for layer in report["layers"])
    assert report["macs"] == 6 * 6 * 7 * 8 * 9
    assert report["flash_bytes"] == report["weights_bytes"] + report["code_bytes_estimated"]
    assert {f["function"] for f in report["functions"]} >= {
        layer["function"] for layer in report["layers"]
    }
    assert all(layer["nodes"] for layer in report["layers"])
    assert max(layer["arena_live"] for layer in report["layers"]) <= report["arena_bytes"]


@pytest.mark.parametrize("cpu", ["cortex-m0plus", "cortex-m4", "cortex-m55", "rv32"])
def test_code_is_estimated_within_a_factor_of_two(cpu, tmp_path):
    tools = RISCV if cpu == "rv32" else ARM_TOOLS
    if not shutil.which(tools.compiler):
        pytest.skip(f"{tools.compiler} is not installed")
    for name, model in (("float", attention()), ("int8", quantised())):
        folder = tmp_path / name
        files = write_bundle(micro_program(model, cpu), folder, BundleOptions("net", cpu=cpu))
        flags = [*CPUS[cpu].flags, *tools.options, "-std=c99", "-O2"]
        checked([tools.compiler, *flags, "-c", "net.c"], folder)
        size = tools.compiler.removesuffix("gcc") + "size"
        code = int(checked([size, "net.o"], folder).splitlines()[1].split()[0])
        assert code / 2 < json.loads(files["report.json"])["code_bytes_estimated"] < code * 2


def test_the_same_bytes_in_every_process(tmp_path):
    contents = []
    for seed in ("1", "2"):
        folder = tmp_path / seed / "digits"
        folder.parent.mkdir()
        command = [sys.executable, "-m", "graphc", "compile", str(DIGITS), "--dim", "N=1"]
        command += ["--target", "c", "-o", str(folder), "--with-test"]
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        subprocess.run(command, check=True, env=environment)
        contents.append({p.name: p.read_bytes() for p in folder.iterdir()})
    assert contents[0] == contents[1] and len(contents[0]) >= 7
