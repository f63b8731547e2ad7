"""The driver and the commands treat all targets alike: they name none."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from graphc.targets import TARGETS

ROOT = Path(__file__).parents[1] / "graphc"
FILES = [ROOT / "driver.py", *sorted((ROOT / "cli").glob("*.py"))]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_target_is_named(path):
    texts = [n.value for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Constant)]
    assert not {t for t in texts if isinstance(t, str)} & set(TARGETS)


def test_registering_targets_loads_no_backend():
    import subprocess
    import sys

    code = (
        "import sys, graphc.targets\n"
        "heavy = ('llvmlite', 'numpy', 'onnx', 'graphc.backends', 'graphc.passes')\n"
        "print([name for name in sys.modules if name.startswith(heavy)])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
