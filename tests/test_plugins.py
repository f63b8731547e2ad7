"""Plugins on every command: a target, and an operator, each in one file."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from commands import DIGITS, ROOT, graphc, ok, refused, save
from onnx import TensorProto, helper

import graphc as compiler
from graphc import plugins

PAGE = ROOT / "docs" / "writing_a_target.md"
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
OPERATOR = '''
from graphc.ir.expr import call
from graphc.ir.opdef import Float, op


@op("TanhShrink", domain="my.ops")
def tanh_shrink(i, x: Float):
    """x - tanh(x)."""
    return x[i] - call("tanh", x[i])
'''


@pytest.fixture
def js(tmp_path) -> list[str]:
    """The options that choose the target of the page."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    path = tmp_path / "js_target.py"
    path.write_text("\n\n".join(blocks))
    return ["--plugin", str(path), "--target", "js", "--dim", "N=2"]


@needs_node
def test_a_target_in_one_file(js, capsys, tmp_path):
    assert "passed: js against onnxruntime" in ok(capsys, "verify", DIGITS, *js)
    assert "logits: f32[2,10]" in ok(capsys, "run", DIGITS, *js)
    assert "compiled for js; least times of" in ok(
        capsys, "inspect", DIGITS, *js, "--machine", "1,1"
    )
    times = json.loads(ok(capsys, "bench", DIGITS, *js, "--seconds", "0", "--json"))
    assert times["target"] == "js" and times["error"] < 1e-4
    assert "right after every rewrite" in ok(capsys, "bisect", DIGITS, *js)
    assert "compiled for js" in ok(capsys, "compile", DIGITS, *js)
    ok(capsys, "compile", DIGITS, *js, "-o", tmp_path / "m.js")
    assert "exports.run" in (tmp_path / "m.js").read_text()
    assert "Math.fround" in ok(capsys, "compile", DIGITS, *js, "--emit", "js")


@needs_node
def test_numbers_of_every_type(js, capsys, tmp_path):
    """Casts, shifts and division, whose edges differ between languages."""
    nodes = [
        helper.make_node("Cast", ["x"], ["whole"], to=TensorProto.INT64),
        helper.make_node("Mul", ["whole", "whole"], ["square"]),
        helper.make_node("Cast", ["square"], ["byte"], to=TensorProto.INT8),
        helper.make_node("Cast", ["x"], ["half"], to=TensorProto.FLOAT16),
        helper.make_node("Round", ["x"], ["even"]),
        helper.make_node("Mod", ["whole", "seven"], ["rest"]),
        helper.make_node("Cast", ["x"], ["word"], to=TensorProto.UINT32),
    ]
    names = [n.output[0] for n in nodes]
    outputs = [
        helper.make_tensor_value_info(n, t, None) for n, t in zip(names, (7, 7, 3, 10, 1, 7, 12))
    ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", 1, [6])], outputs,
        [helper.make_tensor("seven", 7, [1], [-7])],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    np.save(tmp_path / "x.npy", np.array([-2.5, 0.5, 1.5, 3e9, 40000.4, 77.7], np.float32))
    argv = [save(tmp_path / "m.onnx", model), "--input", f"x={tmp_path}/x.npy"]
    assert "7 outputs agree" in ok(capsys, "verify", *argv, *js[:4], "--against", "interpreter")


@needs_node
def test_a_result_without_dimensions(js, capsys, tmp_path):
    """The kernel of Det stores its number in a buffer of shape []."""
    x, y = (helper.make_tensor_value_info(n, 1, s) for n, s in (("x", [2, 2]), ("y", [])))
    graph = helper.make_graph([helper.make_node("Det", ["x"], ["y"])], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    assert "passed: js" in ok(capsys, "verify", save(tmp_path / "det.onnx", model), *js[:4])


def test_options_of_a_target_that_is_not_there(js, capsys):
    assert "invalid choice: 'js'" in refused(capsys, "run", DIGITS, *js[2:])
    told = refused(capsys, "run", DIGITS, *js[:2], "--node", "deno")
    assert "--node: goes with --target js, found --target cpu" in told
    told = refused(capsys, "run", DIGITS, *js, "--node", "no-such-command")
    assert "no-such-command cannot be started" in told


def test_an_operator_on_every_command(capsys, tmp_path):
    (tmp_path / "shrink.py").write_text(OPERATOR)
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("TanhShrink", ["r"], ["y"], domain="my.ops"),
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 3]) for n in "xy"]
    sets = [helper.make_opsetid("", 20), helper.make_opsetid("my.ops", 1)]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:])
    model = save(tmp_path / "m.onnx", helper.make_model(graph, opset_imports=sets, ir_version=9))
    np.save(tmp_path / "x.npy", np.full((2, 3), 2, np.float32))
    assert "TanhShrink" in refused(capsys, "run", model)
    own = ["--plugin", str(tmp_path / "shrink.py")]
    ok(capsys, "run", model, *own, "--input", f"x={tmp_path}/x.npy", "-o", tmp_path / "y.npz")
    with np.load(tmp_path / "y.npz") as found:
        np.testing.assert_allclose(found["y"], 2 - np.tanh(2), rtol=1e-6)
    against = ["--against", "interpreter"]
    assert "passed" in ok(capsys, "verify", model, *own, *against)
    assert "passed" in ok(capsys, "verify", model, *own, *against, "--target", "c")
    assert "TanhShrink" in ok(capsys, "inspect", model, *own, "--machine", "1,1")
    assert "TanhShrink" in ok(capsys, "explain", model, *own, "--machine", "1,1")
    assert "compiled" in ok(capsys, "bench", model, *own, "--against", "none", "--seconds", "0")
    assert "right after every rewrite" in ok(capsys, "bisect", model, *own)
    assert "tanh" in ok(capsys, "compile", model, *own, "--emit", "kernel").lower()


def test_plugins_of_installed_packages(monkeypatch, tmp_path):
    """A module that an entry point names is imported once, before a target is looked up; one that
    fails is told of."""
    (tmp_path / "installed_plugin.py").write_text(
        "from dataclasses import dataclass\n"
        "from graphc.targets import register_target\n"
        "from graphc.targets.plain import Plain\n"
        "@register_target\n@dataclass(frozen=True)\nclass Mine(Plain):\n    name = 'mine'\n"
    )
    package = tmp_path / "mine-1.0.dist-info"
    package.mkdir()
    lines = [f"{name} = {name}" for name in ("installed_plugin", "missing_one")]
    (package / "entry_points.txt").write_text("\n".join([f"[{plugins.GROUP}]", *lines]))
    monkeypatch.syspath_prepend(tmp_path)
    plugins.load_installed.cache_clear()
    with pytest.warns(compiler.ModelWarning, match="missing_one cannot be loaded"):
        compiler.compile(DIGITS, "mine", threads=1)
    assert plugins.load_installed() == ("installed_plugin",)
    plugins.load_installed.cache_clear()


def test_files_that_are_no_plugins(capsys, tmp_path):
    for command in ("run", "inspect", "verify", "bench"):
        assert "there is no such file" in refused(capsys, command, DIGITS, "--plugin", "nowhere.py")
    Path(tmp_path / "wrong.py").write_text("1 / 0\n")
    code, _, err = graphc(capsys, "run", DIGITS, "--plugin", tmp_path / "wrong.py")
    assert code == 2 and "line 1: ZeroDivisionError" in err
