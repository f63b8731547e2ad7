"""Compilation stopped after a phase, printed, and taken up again from the text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from commands import ok, refused

from graphc.cli import main
from graphc.cli.resume import PHASES

ROOT = Path(__file__).parent.parent
DIGITS = str(ROOT / "models" / "digits_cnn.onnx")
RELU = "graph @relu(%x: f32[3]) -> f32[3] {\n  %y = Relu(%x) : f32[3]\n  return %y\n}\n"


@pytest.fixture(scope="module")
def stages(tmp_path_factory) -> Path:
    """A folder with the sample model printed after every phase, for a batch of two."""
    folder = tmp_path_factory.mktemp("stages")
    for phase in PHASES:
        arguments = ["--dim", "N=2", "--stop-after", phase, "-o", str(folder / f"{phase}.gir")]
        assert main(["compile", DIGITS, *arguments]) == 0
    return folder


@pytest.mark.parametrize("phase", PHASES)
def test_the_same_code_comes_out(capsys, stages, phase):
    wanted = ok(capsys, "compile", DIGITS, "--dim", "N=2", "--emit", "llvm")
    text = stages / f"{phase}.gir"
    assert ok(capsys, "compile", text, "--start-from", phase, "--emit", "llvm") == wanted
    if phase != "planned":  # the text names its phase
        assert ok(capsys, "compile", text, "--emit", "llvm") == wanted


@pytest.mark.parametrize("phase", ["typed", "canonical", "laid_out", "fused"])
def test_stopping_again(capsys, stages, phase):
    text = stages / f"{phase}.gir"
    assert ok(capsys, "compile", text, "--stop-after", phase) == text.read_text()


def test_other_commands_go_on_too(capsys, stages, tmp_path):
    image = np.random.default_rng(0).standard_normal((2, 1, 8, 8)).astype(np.float32)
    np.save(tmp_path / "image.npy", image)
    found = []
    for source in ([DIGITS, "--dim", "N=2", "--specialise", "exact"], [stages / "fused.gir"]):
        out = tmp_path / "out.npz"
        ok(capsys, "run", *source, "--input", f"image={tmp_path / 'image.npy'}", "-o", out)
        found.append(np.load(out)["logits"])
    assert np.array_equal(*found)


def test_what_a_planned_program_becomes(capsys, stages, tmp_path):
    planned = [stages / "planned.gir", "--start-from", "planned"]
    ok(capsys, "compile", *planned, "-o", tmp_path / "again.so")
    assert (tmp_path / "again.h").exists()
    assert "steps of" in ok(capsys, "compile", *planned)
    ok(capsys, "compile", *planned, "--emit", "program", "-o", tmp_path / "again.gir")
    assert (tmp_path / "again.gir").read_text() == (stages / "planned.gir").read_text()
    told = refused(capsys, "compile", *planned, "-o", tmp_path / "x.gcm")
    assert "becomes one of .so, .wasm, .o, .obj, .a" in told
    assert "no graph is left" in refused(capsys, "compile", *planned, "--emit", "ir")
    assert "are fixed" in refused(capsys, "compile", *planned, "--dim", "N=3")
    assert "--start-from planned" in refused(capsys, "compile", stages / "planned.gir")


def test_a_graph_written_by_hand(capsys, tmp_path):
    path = tmp_path / "relu.gir"
    path.write_text(RELU)
    printed = ok(capsys, "compile", path, "--start-from", "fused", "--stop-after", "fused")
    assert printed == RELU.replace(" {\n", " phase fused {\n", 1)


def test_mistakes(capsys, stages, tmp_path):
    fused = stages / "fused.gir"
    assert "is not text" in refused(capsys, "compile", DIGITS, "--start-from", "fused")
    message = refused(capsys, "compile", fused, "--start-from", "typed")
    assert "--start-from typed" in message and "holds no fused ops" in message
    message = refused(capsys, "compile", fused, "--stop-after", "canonical")
    assert "is already fused" in message
    message = refused(capsys, "compile", fused, "--start-from", "planned")
    assert "expected `program`" in message
    path = tmp_path / "open.gir"
    path.write_text(RELU.replace("f32[3]", "f32[N]").replace(" {\n", " where N: 1..8 {\n", 1))
    assert "dimension N is open" in refused(capsys, "compile", path, "--start-from", "typed")
    path.write_text(RELU.replace("[3]", "[4]").replace("x: f32[4]", "x: f32[3]"))
    message = refused(capsys, "compile", path, "--start-from", "typed")
    assert "--start-from typed: Relu" in message
