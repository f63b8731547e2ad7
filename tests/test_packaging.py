"""What is said of installing is what pyproject.toml declares, and nothing is left out of it."""

from __future__ import annotations

import fnmatch
import re
from pathlib import Path

import pytest

from graphc import __version__
from graphc.distribution import NAME, install

ROOT = Path(__file__).parents[1]
PROJECT = (ROOT / "pyproject.toml").read_text()
OPTIONAL = PROJECT.partition("[project.optional-dependencies]\n")[2].partition("\n[project")[0]
EXTRAS = re.findall(r"^([\w-]+) = \[", OPTIONAL, re.M)
TEXTS = [
    path
    for pattern in ("graphc/**/*.py", "docs/**/*.md", "benchmarks/**/*.md", "*.md")
    for path in ROOT.glob(pattern)
]


def test_the_name_is_that_of_the_project():
    assert re.findall(r'^name = "(.*?)"', PROJECT, re.M) == [NAME]
    assert re.fullmatch(r"\d+\.\d+\.\d+", __version__)


def test_hints_name_extras_that_there_are():
    assert {"verify", "images", "train", "ray"} <= set(EXTRAS)
    named = set()
    for path in TEXTS:
        text = path.read_text()
        assert not re.search(r"pip install '?graphc\b(?!-compiler)", text), path
        named |= set(re.findall(rf"{NAME}\[([\w-]+)\]", text))
        named |= set(re.findall(r"\binstall\('([\w-]+)'\)", text))
    assert {"verify", "images", "train", "ray"} <= named <= set(EXTRAS)
    assert install("verify") == "pip install 'graphc-compiler[verify]'"


def test_files_that_are_not_python_are_package_data():
    line = re.search(r"^graphc = \[(.*?)\]$", PROJECT, re.M | re.S)
    assert line is not None
    globs = re.findall(r'"(.*?)"', line[1])
    package = ROOT / "graphc"
    others = [
        str(path.relative_to(package))
        for path in package.rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc") and path.parent != package
    ]
    assert others
    for name in others:
        assert any(fnmatch.fnmatch(f"/{name}", f"*/{g.removeprefix('**/')}") for g in globs), name


@pytest.mark.parametrize("folder", sorted(p.name for p in ROOT.iterdir() if p.is_dir()))
def test_folders_are_in_the_source_distribution(folder):
    """Those under version control, which have sources or pages."""
    held = [*(ROOT / folder).glob("*.py"), *(ROOT / folder).glob("*.md")]
    if held and folder not in ("graphc", "build", "dist") and not folder.startswith("."):
        assert f"graft {folder}\n" in (ROOT / "MANIFEST.in").read_text()
