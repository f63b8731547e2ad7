"""Elements picked by a condition, in vectors of which some have nothing to keep."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import graphc

sys.path.insert(0, str(Path(__file__).parent / "frontend"))

from onnx_models import model


@pytest.mark.parametrize("shape", [(129,), (2, 70), (3, 2, 33), (3, 0)])
def test_compacting_at_every_length(shape: tuple[int, ...]) -> None:
    """Whole vectors, and what is left of a row."""
    dims = ",".join(map(str, shape))
    compiled = graphc.compile(model(f"g (float[{dims}] x) => (int64[r,n] y) {{ y = NonZero(x) }}"))
    random = np.random.default_rng(0)
    for share in (0, 0.02, 0.5, 1):
        x = (random.random(shape) < share).astype(np.float32)
        (y,) = compiled.run({"x": x})
        np.testing.assert_array_equal(y, np.stack(np.nonzero(x)))


def test_groups_by_occurrence() -> None:
    text = "g (int64[40] x) => (int64[n] y, int64[n] i, int64[40] v, int64[n] c) {\n"
    compiled = graphc.compile(model(text + "    y, i, v, c = Unique<sorted = 0>(x)\n}"))
    x = np.random.default_rng(0).integers(0, 9, 40)
    y, first, inverse, number = compiled.run({"x": x})
    np.testing.assert_array_equal(y[inverse], x)
    np.testing.assert_array_equal(x[first], y)
    assert (np.diff(first) > 0).all() and number.sum() == 40
