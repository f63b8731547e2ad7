"""--quick and --cases run some cases of each function, always the same; without them all run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

TESTS = """
import pytest

@pytest.mark.suite(5)
@pytest.mark.parametrize("n", range(25))
def test_sampled(n): pass

@pytest.mark.suite("all")
@pytest.mark.parametrize("n", range(6))
def test_short(n): pass

@pytest.mark.suite
def test_long(): pass

@pytest.mark.parametrize("n", range(4))
def test_usual(n): pass

def test_plain(): pass
"""


NAMES = re.findall(r"def (\w+)", TESTS)
QUICK = 2


def collected(folder: Path, *options: str) -> list[str]:
    """The names of the tests that would run, whatever options the caller's own pytest has."""
    own = ("PYTEST_ADDOPTS", "PYTEST_PLUGINS", "PYTEST_DISABLE_PLUGIN_AUTOLOAD")
    environment = {name: value for name, value in os.environ.items() if name not in own}
    command = [
        sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:xdist",
        "-p", "no:cacheprovider", *options, ".",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return re.findall(r"::(\S+)", done.stdout)


def test_a_sample_of_each_function(tmp_path):
    shutil.copy(Path(__file__).with_name("conftest.py"), tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = suite: of tests\n")
    (tmp_path / "test_all.py").write_text(TESTS)
    assert len(collected(tmp_path)) == 25 + 6 + 1 + 4 + 1
    quick = collected(tmp_path, "--quick")
    count = {name: sum(test.startswith(name) for test in quick) for name in NAMES}
    of_whole = {"test_short": 6, "test_plain": 1}
    assert count == {"test_sampled": 5, "test_long": 0, "test_usual": QUICK, **of_whole}
    assert collected(tmp_path, "--quick") == quick
    more = collected(tmp_path, "--cases", "3")
    count = {name: sum(test.startswith(name) for test in more) for name in NAMES}
    assert count == {"test_sampled": 8, "test_long": 1, "test_usual": 3, **of_whole}
    assert set(quick) < set(more)
