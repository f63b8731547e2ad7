"""Definitions judged by PyTorch, scipy and numpy in float64 (judge.py).

GRAPHC_JUDGES=cpu, or another target, judges what that target computes too.
"""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch judges; it is in the extra `judges`")
pytest.importorskip("scipy", reason="scipy judges; it is in the extra `judges`")

from judge import Case, disagreement, verdict  # noqa: E402

TABLES = sorted(p.stem for p in (Path(__file__).parent / "tables").glob("[a-z]*.py"))
CASES: list[Case] = [case for table in TABLES for case in import_module(f"tables.{table}").CASES]
PAIRS = [pytest.param(case, t, id=f"{case.name}-{t}") for case in CASES for t in case.types]
TARGETS = [name for name in os.environ.get("GRAPHC_JUDGES", "").split(",") if name]


@pytest.mark.suite(200)
@pytest.mark.parametrize("case, dtype", PAIRS)
def test_interpreter(case, dtype):
    assert verdict(case, dtype) is None


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case, dtype", PAIRS if TARGETS else [])
def test_target(case, dtype, target):
    assert verdict(case, dtype, target) is None


def test_table():
    """Names are unique, and at least 200 operators on types are judged."""
    names = [case.name for case in CASES]
    assert len(names) == len(set(names))
    assert len({(case.domain, case.op, dtype) for case in CASES for dtype in case.types}) >= 600


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_wrong_results_are_found(dtype):
    """A judge that lets everything pass is none."""
    want = np.array([1.0, -2.0, 0.0, np.nan, np.inf, 1e4])
    case = Case("any", "Any", [], np.abs, roundings=1, signed=True)
    assert disagreement(case, want.astype(dtype), want) is None
    for place, wrong in ((0, 1.01), (1, 2), (2, -0.0), (2, 1e-3), (3, 0), (4, 6e4), (5, np.inf)):
        got = want.copy()
        got[place] = wrong
        assert f"first at [{place}]" in (disagreement(case, got.astype(dtype), want) or "")
    assert "shape" in (disagreement(case, want[:5].astype(dtype), want) or "")
    assert "differ" in (disagreement(case, np.array([3, 4]), np.array([3, 5])) or "")
