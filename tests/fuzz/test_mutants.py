"""Official models made wrong: they run or are refused in so many words; see fuzz_models.py."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fuzz_models import examine

FIRST, CASES, GROUPS = 1_000_000, 15, 6


@pytest.mark.parametrize("group", range(GROUPS))
def test_mutants(group):
    first = FIRST + CASES * group
    assert [line for seed in range(first, first + CASES) for line in examine(seed)] == []
