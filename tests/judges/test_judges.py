"""Definitions judged by PyTorch, scipy and numpy in float64 (judge.py).

GRAPHC_JUDGES=cpu, or another target, judges what that target computes too.
"""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch judges; it is in the extra `judges`")
pytest.importorskip("scipy", reason="scipy judges; it is in the extra `judges`")

from judge import Case, verdict  # noqa: E402

TABLES = sorted(p.stem for p in (Path(__file__).parent / "tables").glob("[a-z]*.py"))
CASES: list[Case] = [case for table in TABLES for case in import_module(f"tables.{table}").CASES]
PAIRS = [pytest.param(case, t, id=f"{case.name}-{t}") for case in CASES for t in case.types]
TARGETS = [name for name in os.environ.get("GRAPHC_JUDGES", "").split(",") if name]


@pytest.mark.parametrize("case, dtype", PAIRS)
def test_interpreter(case, dtype):
    assert verdict(case, dtype) is None


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case, dtype", PAIRS if TARGETS else [])
def test_target(case, dtype, target):
    assert verdict(case, dtype, target) is None


def test_table():
    """Names are unique, and there are enough operators."""
    names = [case.name for case in CASES]
    assert len(names) == len(set(names))
