"""The commands on pages of the documentation work as they are printed."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import numpy as np
import pytest

from graphc.cli import main

ROOT = Path(__file__).parents[1]
PAGES = ("profiling", "comparing", "quantising", "serving", "microcontrollers", "report", "cross")


def commands(page: str) -> list[str]:
    """The commands of a page's blocks in order."""
    text = (ROOT / "docs" / f"{page}.md").read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S)
    return [line for block in blocks for line in block.splitlines() if line.strip()]


def sources(page: str) -> list[tuple[str, str]]:
    """Names and texts of a page's programs in C, whose first lines are their names."""
    text = (ROOT / "docs" / f"{page}.md").read_text()
    return [
        (name, body)
        for body, name in re.findall(r"^```c\n(/\* (\S+) \*/\n.*?)^```", text, re.M | re.S)
    ]


@pytest.mark.parametrize("page", PAGES)
def test_commands(page, tmp_path, monkeypatch, capsys):
    """One after the other, since later ones may read what earlier ones write."""
    (tmp_path / "models").symlink_to(ROOT / "models")
    monkeypatch.chdir(tmp_path)
    with np.load(ROOT / "models" / "digits_samples.npz") as samples:
        np.savez("calib.npz", image=samples["images"][:16])
        np.save("labels.npy", samples["labels"][:16])
    for name, text in sources(page):
        (tmp_path / name).write_text(text)
    for line in commands(page):
        words = shlex.split(line, comments=True)
        if words[0] == "gcc" or words[0].startswith("./"):
            subprocess.run(words, check=True, capture_output=True, timeout=60)
            continue
        assert words[0] == "graphc"
        words, into = (words[:-2], words[-1]) if ">" in words else (words, None)
        code, printed = main(words[1:]), capsys.readouterr()
        assert code == 0, f"{line}: {printed.err}"
        if into is not None:
            (tmp_path / into).write_text(printed.out)
