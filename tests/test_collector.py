"""The garbage collector while something is compiled, and after."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from graphc import collector
from graphc.collector import RARELY, collecting_rarely


@pytest.fixture(autouse=True)
def usual() -> Iterator[tuple[int, int, int]]:
    """The thresholds before a test, which it leaves as they were."""
    before = gc.get_threshold()
    yield before
    gc.set_threshold(*before)


def test_blocks_may_overlap(usual: tuple[int, int, int]) -> None:
    first, second = collecting_rarely(), collecting_rarely()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert gc.get_threshold() == (RARELY, *usual[1:])
    second.__exit__(None, None, None)
    assert gc.get_threshold() == usual


def test_ends_with_an_error(usual: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="inside"), collecting_rarely():
        raise ValueError("inside")
    assert gc.get_threshold() == usual


@pytest.mark.parametrize("first", [0, RARELY * 2])
def test_leaves_what_is_rarer_still(first: int) -> None:
    gc.set_threshold(first, 5, 5)
    with collecting_rarely():
        assert gc.get_threshold() == (first, 5, 5)
    assert gc.get_threshold() == (first, 5, 5)


def test_makes_old_what_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "MOST", 3 * RARELY)
    monkeypatch.setattr(collector, "_unseen", 0)
    collections: list[int] = []

    def note(phase: str, about: dict[str, int]) -> None:
        if phase == "start":
            collections.append(about["generation"])

    made: list[list[list[int]]] = []
    gc.collect()
    gc.callbacks.append(note)
    try:
        for _ in range(4):
            with collecting_rarely():
                made.append([[i] for i in range(RARELY - 1000)])
            assert len(gc.get_objects(generation=0)) < 1000 < len(made[-1])
    finally:
        gc.callbacks.remove(note)
    assert [g for g in collections if g == 2] == [2]  # all objects once, for the limit
