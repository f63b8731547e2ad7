"""What README.md tells the reader to do works: its commands and its Python run as they are."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from graphc.cli import main

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", TEXT, re.M | re.S)
COMMANDS = [
    line for kind, block in BLOCKS if kind == "sh" for line in block.splitlines() if line.strip()
]
PYTHON = [block for kind, block in BLOCKS if kind == "python"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the models, and the files that the README shows."""
    (tmp_path / "models").symlink_to(ROOT / "models")
    for block in PYTHON:
        named = re.match(r"# (\w+\.py)\n", block)
        if named:
            (tmp_path / named[1]).write_text(block)
    with np.load(ROOT / "models" / "digits_samples.npz") as samples:
        images, labels = samples["images"][:32], samples["labels"][:32]
    np.savez(tmp_path / "calib.npz", image=images)
    np.savez(tmp_path / "train.npz", image=images, label=labels)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("line", COMMANDS)
def test_command(folder, capsys, line):
    words = shlex.split(line, comments=True)
    assert words[0] == "graphc"
    for earlier in COMMANDS[: COMMANDS.index(line)]:
        if f"-o {words[2]}" in earlier:  # writes the file that this one reads
            assert main(shlex.split(earlier, comments=True)[1:]) == 0
    assert main(words[1:]) == 0, capsys.readouterr().err


CONSOLE = [block.splitlines() for kind, block in BLOCKS if kind == "console"]
TOOLS = ("make", "arm-none-eabi-gcc", "qemu-system-arm")
MISSING = [tool for tool in TOOLS if not shutil.which(tool)]


@pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")
@pytest.mark.parametrize("lines", CONSOLE)
def test_from_a_model_to_firmware_in_an_emulator(folder, capsys, lines):
    assert len(lines) < 10
    printed = ""
    for words in map(shlex.split, lines):
        if words[0] == "graphc":
            assert main(words[1:]) == 0, capsys.readouterr().err
        else:
            printed = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    error = r"logits: largest error ([\d.e-]+)"
    said, measured = (float(re.search(error, text)[1]) for text in (TEXT, printed))
    assert printed.rstrip().endswith("accepted")
    assert said / 10 < measured < said * 10  # the reference rounds as the host's CPU does


@pytest.mark.parametrize("code", PYTHON)
def test_python(folder, capsys, code):
    namespace: dict = {"__name__": "readme"}
    exec(compile(code, str(ROOT / "README.md"), "exec"), namespace)
    printed = capsys.readouterr().out.splitlines()
    for shown in re.findall(r"^print\(.*\) +# (.*)$", code, re.M):
        assert shown in printed


def test_targets_are_those_there_are():
    from graphc.targets import TARGETS

    own = [name for name, cls in TARGETS.items() if cls.__module__.startswith("graphc.")]
    assert re.findall(r"^\| `(\w+)` \|", TEXT, re.M) == own
