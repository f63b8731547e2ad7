"""The text of constants: exact, and what `Speller` makes of each number alone."""

from __future__ import annotations

import numpy as np
import pytest

from graphc.backends.cfamily.spell import Speller
from graphc.backends.micro_c.weights import WIDTH, array_lines
from graphc.ir import dtypes

BITS = np.random.default_rng(0).integers(0, 1 << 64, 400, np.uint64)
SPECIAL = (0.0, -0.0, np.nan, np.inf, -np.inf, 1e-45, 1e16, 0.1, 3.0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.uint32])
def test_elements_are_spelt_as_one_by_one(dtype):
    array = BITS.view(dtype)
    if array.dtype.kind == "f":
        array = np.concatenate([np.array(SPECIAL, dtype), array])
    lines = array_lines(array).split("\n")
    items = "".join(lines).split(",")
    spell = Speller().constant
    assert items == [*(spell(v, dtypes.of(array.dtype)).text for v in array.tolist()), ""]
    # No line is too long, nor is there one into which the next element would fit.
    first = [len(line.split(",")[0]) + 1 for line in lines]
    assert all(len(line) <= WIDTH for line in lines)
    assert all(len(a) + more > WIDTH for a, more in zip(lines, first[1:]))
    if array.dtype.kind == "f":
        finite = np.flatnonzero(np.isfinite(array))
        back = np.array([items[place].rstrip("f") for place in finite]).astype(dtype)
        assert np.array_equal(back, array[finite])
