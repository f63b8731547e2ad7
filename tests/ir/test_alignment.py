"""Memory whose beginning is aligned."""

from __future__ import annotations

import mmap

import numpy as np
import pytest

from graphc.ir.alignment import ALIGNMENT, LARGE, empty_aligned, empty_to_fill


@pytest.mark.suite("all")
@pytest.mark.parametrize("allocate", [empty_aligned, empty_to_fill])
@pytest.mark.parametrize("nbytes", [0, 1, 100, LARGE - 1, LARGE, 3 * LARGE + 17])
def test_is_aligned_and_of_the_size_asked_for(allocate, nbytes) -> None:
    block = allocate(nbytes)
    assert block.dtype == np.uint8 and block.shape == (nbytes,)
    assert block.__array_interface__["data"][0] % ALIGNMENT == 0
    block[:] = 7
    assert block.sum() == 7 * nbytes


def test_memory_that_the_system_refuses_is_numpys(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise OSError("out of memory")

    monkeypatch.setattr(mmap, "mmap", refuse)
    block = empty_to_fill(LARGE)
    assert block.shape == (LARGE,)
    with pytest.raises(MemoryError):
        empty_to_fill(1 << 60)
