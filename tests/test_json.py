"""--json gives one line of JSON, and files that are written are told of."""

from __future__ import annotations

import argparse
import json
import re

import numpy as np
import pytest
from commands import DIGITS, graphc, ok, refused

from graphc.cli.app import parser

PINNED = (DIGITS, "--dim", "N=2")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def data(capsys, *argv, code: int = 0) -> dict:
    found, out, err = graphc(capsys, *argv, "--json")
    assert found == code, err
    assert out.count("\n") == 1
    return json.loads(out)


def test_compile(capsys, tmp_path):
    told = data(capsys, "compile", *PINNED)
    assert told["target"] == "cpu" and told["programs"][0]["constant_bytes"] > 60000
    for output, count in (("m.gcm", 1), ("m.gir", 1), ("m.c", 1)):
        told = data(capsys, "compile", *PINNED, "-o", output)
        assert told["bytes"] == (tmp_path / output).stat().st_size and told["files"] == count
    told = data(capsys, "compile", *PINNED, "--target", "c", "-o", "folder")
    held = list((tmp_path / "folder").iterdir())
    assert told["files"] == len(held) and told["bytes"] == sum(f.stat().st_size for f in held)
    assert "--json" in refused(capsys, "compile", *PINNED, "--emit", "ir", "--json")


def test_run(capsys):
    (logits,) = data(capsys, "run", *PINNED)["outputs"].values()
    assert logits["type"] == "f32" and logits["shape"] == [2, 10]
    ok(capsys, "run", *PINNED, "-o", "y.npz")
    expected = np.load("y.npz")["logits"].reshape(-1)
    np.testing.assert_array_equal(np.array(logits["values"], np.float32), expected)
    assert data(capsys, "run", *PINNED, "-o", "y.npz")["files"] == 1


def test_verify(capsys):
    told = data(capsys, "verify", *PINNED)
    assert told["passed"] is True and told["outputs"][0]["agrees"] is True
    told = data(capsys, "verify", *PINNED, "--rtol", "0", code=1)
    assert told["passed"] is False and told["outputs"][0]["error"] > 0


def test_opt_and_bisect(capsys):
    told = data(capsys, "opt", *PINNED, "-o", "small.onnx", "--verify")
    assert told["passed"] and told["after"]["Conv"] == 3 and told["bytes"] > 60000
    assert data(capsys, "bisect", *PINNED)["culprit"] is None


def test_train(capsys):
    samples = np.load(f"{DIGITS[: -len('cnn.onnx')]}samples.npz")
    np.savez("d.npz", image=samples["images"][:32], labels=samples["labels"][:32].astype(np.int64))
    told = data(capsys, "train", DIGITS, "--data", "d.npz", "-o", "t.onnx")
    assert told["steps"] == 1 and told["epochs"][0]["training"]["loss"] > 0 and told["bytes"]


def test_replay(capsys, tmp_path):
    recorded = {"argv": ["run", *PINNED], "environment": {}}
    (tmp_path / "command.json").write_text(json.dumps(recorded))
    told = data(capsys, "replay", str(tmp_path))
    assert told["command"] == recorded["argv"] and told["exit_code"] == 0
    assert "logits" in told["output"] and told["error"] is None


def test_replay_of_an_internal_error(capsys, tmp_path, monkeypatch):
    def broken(args):
        raise RuntimeError("broken")

    monkeypatch.setattr("graphc.cli.run.run", broken)
    (tmp_path / "command.json").write_text(json.dumps({"argv": ["run", DIGITS], "environment": {}}))
    told = data(capsys, "replay", str(tmp_path), code=70)
    assert told["error"] == "broken" and "RuntimeError: broken" in told["traceback"]


def test_completion(capsys):
    pytest.importorskip("shtab")
    told = data(capsys, "completion", "bash")
    assert told["shell"] == "bash" and told["script"] == ok(capsys, "completion", "bash")[:-1]


def test_every_command_takes_it():
    (commands,) = (a for a in parser([])._actions if isinstance(a, argparse._SubParsersAction))
    without = [
        name for name, own in commands.choices.items() if "--json" not in own._option_string_actions
    ]  # fmt: skip
    assert len(commands.choices) > 10 and not without


@pytest.mark.parametrize(
    "argv",
    [
        ("explain", DIGITS), ("run", DIGITS), ("verify", DIGITS), ("compare", DIGITS),
        ("report", DIGITS, "-o", "r.html", "--seconds", "0"),
    ],
    ids=lambda argv: argv[0],
)  # fmt: skip
def test_sizes_that_are_taken_are_told(capsys, argv):
    code, _, err = graphc(capsys, *argv)
    assert code == 0 and "taking --dim N=1 (not given)" in err and "model is used with" in err


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (("compile", *PINNED, "-o", "m.gcm"), r"wrote m\.gcm \(\d+\.\d\d? KiB\)"),
        (("compile", *PINNED, "--target", "c", "-o", "f"), r"wrote f \(6 files, \d+\.\d\d? KiB\)"),
        (("run", *PINNED, "-o", "y.npz"), r"wrote y\.npz \(\d+ B\)"),
        (("opt", *PINNED, "-o", "s.onnx"), r"wrote s\.onnx \(\d+\.\d\d? KiB\)"),
    ],
    ids=lambda x: x[0] if isinstance(x, tuple) else "",
)
def test_files_are_told_of(capsys, argv, told):
    assert re.search(f"^{told}$", ok(capsys, *argv), re.M)
    assert re.search(f"^{told}$", ok(capsys, *argv), re.M)  # and written again


def test_pipes_hold_nothing_else(capsys):
    assert "wrote" not in ok(capsys, "compile", *PINNED, "-o", "/dev/null", "--emit", "ir")
