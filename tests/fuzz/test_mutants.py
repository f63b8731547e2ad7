"""Official models made wrong: they run or are refused in so many words; see fuzz_models.py."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fuzz_models import examine
from hostile import leaks

FIRST, CASES, GROUPS = 1_000_000, 15, 6


@pytest.mark.parametrize("group", range(GROUPS))
def test_mutants(group):
    first = FIRST + CASES * group
    assert [line for seed in range(first, first + CASES) for line in examine(seed)] == []


@pytest.mark.parametrize("group", range(GROUPS))
def test_nothing_gets_out_of_attacks(group):
    first = FIRST + CASES * group
    seeds = range(first, first + CASES)
    assert [line for seed in seeds for line in examine(seed, "texts")] == []


def test_what_counts_as_a_leak():
    safe = 'int a; /* @ */ const char *s = "\\"@"; // @ \\\n@\n'
    assert leaks(safe) == []
    assert leaks(safe + "/* ??/\n*/ @") and leaks("int a@b;") and leaks('"\\\\"@"')
