"""Official models whose declarations are wrong, against ONNX Runtime; see fuzz_declarations.py."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

pytest.importorskip("onnxruntime", reason="ONNX Runtime says which models are to run")

from fuzz_declarations import Refused, examine, make, runtime

FIRST, CASES, GROUPS = 16_000, 5, 4


@pytest.mark.suite(1)
@pytest.mark.parametrize("group", range(GROUPS))
def test_declarations(group):
    first = FIRST + CASES * group
    assert [line for seed in range(first, first + CASES) for line in examine(seed)] == []


def test_what_is_compared():
    """Some of what was made does run."""
    made = [m for m in map(make, range(FIRST, FIRST + CASES)) if m is not None]
    ran = 0
    for _, model, feeds in made:
        try:
            ran += len(runtime(model, feeds)) > 0
        except Refused:
            continue
    assert ran
