"""The command line: every class of mistake, with its exit code and message."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from commands import DIGITS, make, ok, refused, relu, save
from onnx import TensorProto, helper, numpy_helper

from graphc.cli.app import parser
from graphc.passes.manager.base import PASSES
from graphc.passes.rewriter import RULES

pytestmark = pytest.mark.usefixtures("elsewhere")


def external(location: str) -> onnx.ModelProto:
    """A model whose one weight lies in another file."""
    weight = numpy_helper.from_array(np.arange(3, dtype=np.float32), "w")
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value=location)
    return make([helper.make_node("Add", ["x", "w"], ["y"])], constants=[weight])


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["nonsense"],
        ["compile"],
        ["compile", DIGITS, "--target", "abacus"],
        ["compile", DIGITS, "--shape", "image"],
        ["compile", DIGITS, "--shape", "image=1,-2"],
        ["compile", DIGITS, "--shape", "image=1,two"],
        ["compile", DIGITS, "--dim", "N=-1"],
        ["compile", DIGITS, "--dim", "N=4..2"],
        ["compile", DIGITS, "--threads", "0"],
        ["compile", DIGITS, "--set", "image"],
        ["compile", DIGITS, "--stop-after", "never"],
        ["compile", DIGITS, "-o", ""],
        ["verify", DIGITS, "--rtol", "-1"],
        ["run", DIGITS, "--seed", "-1"],
        ["bench", DIGITS, "--seconds", "-1"],
        ["bench", DIGITS, "--seconds", "inf"],
        ["opt", DIGITS],
    ],
)
def test_options_that_cannot_be_read(capsys, argv):
    assert "error:" in refused(capsys, *argv)


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (["compile", "--shape", "picture=1,1,8,8"], "no input 'picture'"),
        (["compile", "--shape", "image=1,2,8,8"], "f32[N,1,8,8]"),
        (["compile", "--shape", "image=8,8"], "rank 4"),
        (["compile", "--dim", "M=4"], "no dimension 'M'"),
        (["compile", "--dim", "M=1..4"], "no dimension 'M'"),
        (["compile", "--dim", "N=99999999999999999999"], "from 0 to 2^46"),
        (["compile", "--dim", "N=1", "--dim", "N=2"], "--dim N: is both 1 and 2"),
        (["compile", "--shape", "image=1,2", "--shape", "image=1"], "is both (1, 2) and (1,)"),
        (["compile", "--set", "sr=16000"], "no such input"),
        (["compile", "--set", "image=@missing.npy"], "missing.npy"),
        (["compile", "--set", "image=word"], "cannot be"),
        (["compile", "--emit", "ir"], "dimension N is open"),
        (["compile", "--dim", "N=1..30", "--emit", "llvm"], "--specialise any --dim N=1..30"),
        (["compile", "--target", "c", "-o", "out"], "--specialise any --dim N="),
        (["compile", "--emit", "ir", "--passes", "nonsense", "--dim", "N=1"], "nonsense"),
        (["compile", "--emit", "c", "--stop-after", "fused"], "does not go with"),
        (["compile", "--emit", "asm", "--target", "c", "--dim", "N=1"], "--target cpu"),
        (["compile", "--explain", "no-such-rule"], "no-such-rule"),
        (["compile", "--plugin", "missing.py"], "missing.py"),
        (["compile", "-o", "model.xyz"], "model.xyz"),
        (["compile", "-o", "m.so"], "dimension N is open: pin it with --dim N=1"),
        (["compile", "-o", "m.so"], "--specialise any --dim N=1..8"),
        (["run", "--input", "picture=x.npy"], "no such input"),
        (["run", "--input", "image=missing.npy"], "missing.npy"),
        (["run", "--input", "missing.npz"], "missing.npz"),
        (["run", "--input", "image=text.npy"], "text.npy: is no .npy file"),
        (["run", "--input", "image=arrays.npz"], "arrays.npz: is an archive of arrays"),
        (["inspect", "--machine", "fast"], "GFLOPS"),
        (["profile", "--seconds", "-1"], "at least 0"),
    ],
)
def test_options_that_do_not_fit_the_model(capsys, argv, part):
    Path("text.npy").write_text("no array")
    np.savez("arrays.npz", image=np.zeros((1, 1, 8, 8), np.float32))
    message = refused(capsys, argv[0], DIGITS, *argv[1:])
    assert part in message and "pickle" not in message


def test_code_for_other_programs_is_no_model(capsys):
    Path("m.so").write_bytes(b"\x7fELF")
    assert "m.so: is native code" in refused(capsys, "run", "m.so")
    assert "m.gcm: cannot be read: No such file" in refused(capsys, "run", "m.gcm")


def test_what_cannot_be_written_is_named(capsys, monkeypatch):
    renamed = os.replace

    def replace(source, target):
        if Path(target).suffix == ".so":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        renamed(source, target)

    monkeypatch.setattr(os, "replace", replace)
    message = refused(capsys, "compile", DIGITS, "--dim", "N=1", "-o", "m.so")
    assert "graphc: m.so: cannot be written: No space left on device" in message


def test_the_list_of_commands_has_a_line_for_each(capsys):
    """No summary is longer than two lines of a narrow terminal."""
    commands = parser([])._subparsers._group_actions[0]._choices_actions
    assert commands and all(len(command.help) <= 100 for command in commands)


@pytest.mark.parametrize(
    "command", ["compile", "run", "verify", "bench", "opt", "inspect", "bisect"]
)
def test_bad_files(capsys, tmp_path, command):
    target = tmp_path / "out.onnx"
    extra = ["-o", target] if command == "opt" else []
    contents = Path(DIGITS).read_bytes()
    files = {"bytes": b"no model", "empty": b"", "half": contents[: len(contents) // 2]}
    for name, data in files.items():
        (tmp_path / f"{name}.onnx").write_bytes(data)
        assert f"{name}.onnx" in refused(capsys, command, tmp_path / f"{name}.onnx", *extra)
    assert "no such file" in refused(capsys, command, tmp_path / "missing.onnx", *extra)
    refused(capsys, command, tmp_path, *extra)
    assert not target.exists()


def bad_models() -> dict[str, tuple[onnx.ModelProto, str]]:
    node = helper.make_node
    cycle = [node("Add", ["x", "b"], ["a"]), node("Relu", ["a"], ["b"]), node("Relu", ["b"], ["y"])]
    return {
        "unknown-op": (make([node("Nonsense", ["x"], ["y"], name="n1")]), "Nonsense"),
        "unknown-domain": (make([node("Relu", ["x"], ["y"], domain="com.example")]), "com.example"),
        "undefined": (make([node("Relu", ["z"], ["y"])]), "'z'"),
        "twice": (make([node("Relu", ["x"], ["y"]), node("Abs", ["x"], ["y"])]), "twice"),
        "cycle": (make(cycle), "cycle"),
        "no-output": (make([node("Relu", ["x"], ["z"])]), "'y'"),
        "channels": (
            make(
                [node("MatMul", ["x", "w"], ["y"], name="m1")],
                constants=[numpy_helper.from_array(np.ones((4, 5), np.float32), "w")],
            ),
            "m1",
        ),
        "overflow": (make([node("Relu", ["x"], ["y"])], [("x", 1, (1 << 40, 1 << 40))]), "x"),
        "attribute": (make([node("Relu", ["x"], ["y"], slope=1.0)]), "slope"),
        "operands": (make([node("Relu", ["x", "x"], ["y"])]), "operands"),
        "missing-data": (external("weights.bin"), "weights.bin"),
        "absolute-data": (external("/etc/hostname"), "outside"),
        "parent-data": (external("../weights.bin"), "outside"),
    }


def test_extents_that_do_not_fit_together(capsys, tmp_path):
    """Open dimensions are taken as 1 each, which a model may not be made for."""
    second = numpy_helper.from_array(np.array([1]), "second")
    node = helper.make_node("Gather", ["x", "second"], ["y"])
    model = save(tmp_path / "m.onnx", make([node], [("x", 1, ("N",))], constants=[second]))
    assert "with --dim" in refused(capsys, "verify", model)
    assert "passed" in ok(capsys, "verify", model, "--dim", "N=2")


@pytest.mark.parametrize("name", bad_models())
def test_bad_models(capsys, tmp_path, name):
    model, part = bad_models()[name]
    folder = tmp_path / "models"
    folder.mkdir()
    (tmp_path / "weights.bin").write_bytes(bytes(12))
    path = save(folder / "m.onnx", model)
    for argv in (["compile", path, "-o", f"{folder}/m.gir"], ["run", path, "-o", f"{folder}/y.npz"],
                 ["opt", path, "-o", f"{folder}/o.onnx"]):  # fmt: skip
        assert part in refused(capsys, *argv)
    assert [p.name for p in folder.iterdir()] == ["m.onnx"]


def test_external_data_behind_a_link(capsys, tmp_path):
    folder = tmp_path / "models"
    folder.mkdir()
    (tmp_path / "weights.bin").write_bytes(bytes(12))
    (folder / "link.bin").symlink_to(tmp_path / "weights.bin")
    path = save(folder / "m.onnx", external("link.bin"))
    assert "link" in refused(capsys, "run", path)


def test_external_data_inside_the_folder(capsys, tmp_path):
    (tmp_path / "w.bin").write_bytes(np.ones(3, np.float32).tobytes())
    assert "passed" in ok(capsys, "verify", save(tmp_path / "m.onnx", external("w.bin")))


def test_bad_inputs(capsys, tmp_path):
    model = save(tmp_path / "m.onnx", relu())
    np.save(tmp_path / "shape.npy", np.zeros((3, 3), np.float32))
    np.save(tmp_path / "dtype.npy", np.zeros((2, 3), np.int64))
    np.savez(tmp_path / "name.npz", z=np.zeros((2, 3), np.float32))
    (tmp_path / "text.npy").write_text("no array")
    assert "f32[2,3]" in refused(capsys, "run", model, "--input", f"x={tmp_path}/shape.npy")
    assert "float32" in refused(capsys, "run", model, "--input", f"x={tmp_path}/dtype.npy")
    assert "'z'" in refused(capsys, "run", model, "--input", f"{tmp_path}/name.npz")
    assert "text.npy" in refused(capsys, "run", model, "--input", f"x={tmp_path}/text.npy")


def test_compiled_models_are_for_run(capsys, tmp_path):
    saved = tmp_path / "m.gcm"
    ok(capsys, "compile", DIGITS, "--dim", "N=1", "-o", saved)
    assert "graphc run and inspect take it" in refused(capsys, "verify", saved)


def test_bad_text(capsys, tmp_path):
    path = tmp_path / "m.gir"
    for text in (
        b"graph @g(%x: f32[2]) -> f32[2] {\n  return %y\n}",
        b"kernel @k() {\n}",
        b"\xff\xfe",
    ):
        path.write_bytes(text)
        assert "m.gir" in refused(capsys, "run", path)


def test_plugins_with_mistakes(capsys, tmp_path):
    plugin = tmp_path / "plugin.py"
    plugin.write_text("import graphc\n1 / 0\n")
    message = refused(capsys, "compile", DIGITS, "--plugin", plugin)
    assert "plugin.py line 2: ZeroDivisionError" in message


PASS_WITH_A_MISTAKE = """
from graphc.passes import Pass, register_pass

@register_pass
class Mistaken(Pass):
    name = "mistaken{0}"

    def run(self, graph, ctx):
        {1}
"""


@pytest.mark.parametrize(
    ("number", "body", "told"),
    [
        (1, "return {}['x']", "pass mistaken1 fails: KeyError: 'x' (plugin.py, line 9)"),
        (2, "graph.ops.reverse()", "by Mistaken of plugin.py: "),
        (3, "graph.ops[-1].output.type = graph.params[0].type", "is f32[1,10]"),
    ],
)
def test_passes_with_mistakes(capsys, tmp_path, number, body, told):
    """What they leave is verified, and the message names the pass."""
    plugin = tmp_path / "plugin.py"
    plugin.write_text(PASS_WITH_A_MISTAKE.replace("{0}", str(number)).replace("{1}", body))
    try:
        message = refused(capsys, "compile", DIGITS, "--dim", "N=1", "--plugin", plugin)
        assert f"pass mistaken{number}" in message and told in message
    finally:
        PASSES.pop(f"mistaken{number}", None)


RULE_WITH_A_MISTAKE = """
from graphc.passes import P, rule, var

@rule("mistaken", P.Relu(var("x")))
def bend(rw, relu, x):
    return {0}
"""


@pytest.mark.parametrize(
    ("made", "told"),
    [
        ("rw.Greater(x, 0)", "by bool["),
        ("rw.Add(x, relu)", "not 'Op'"),
        ("3", "gave 3 for a value"),
        ("[]", "replaced too few results"),
        ("x.no_such_thing", "AttributeError"),
        ("rw.Relu(x)", "rewriting does not end"),
    ],
)
def test_rules_with_mistakes(capsys, tmp_path, made, told):
    """The message names the rule, its function and the file they are in."""
    plugin = tmp_path / "plugin.py"
    plugin.write_text(RULE_WITH_A_MISTAKE.replace("{0}", made))
    try:
        message = refused(capsys, "compile", DIGITS, "--dim", "N=1", "--plugin", plugin)
        assert "rule mistaken" in message and told in message
        assert "by bend of plugin.py" in message
    finally:
        RULES.pop("mistaken", None)


def test_outputs_that_cannot_be_written(capsys, tmp_path):
    refused(capsys, "compile", DIGITS, "--dim", "N=1", "-o", tmp_path / "missing" / "m.ll")
    (tmp_path / "m.ll").mkdir()
    refused(capsys, "compile", DIGITS, "--dim", "N=1", "-o", tmp_path / "m.ll")


@pytest.mark.parametrize("output", ["m.so", "m.gcm", "m.ll", "m.cu", "gpu"])
def test_what_needs_a_host_is_named(capsys, tmp_path, output):
    words = make(
        [helper.make_node("StringConcat", ["x", "x"], ["y"], name="twice")],
        inputs=[("x", TensorProto.STRING, (2,))],
        outputs=[("y", TensorProto.STRING, (2,))],
    )
    argv = [save(tmp_path / "m.onnx", words), "-o", tmp_path / output]
    target = ["--target", "cuda"] if output == "gpu" else []
    told = refused(capsys, "compile", *argv, *target)
    assert "'x' is string[2]: compiled code has no strings" in told
