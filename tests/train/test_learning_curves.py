"""benchmarks/learning_curves.py, of few steps: graphc learns as PyTorch does, in f16 too."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))


@pytest.mark.parametrize("name", ["digits", "tagger", "transformer"])
def test_losses_are_pytorchs(name):
    from learning_curves import Race

    race = Race(name, steps=12)
    exact, ours, half = race.theirs("f32"), race.ours("f32"), race.ours("f16")
    assert np.mean(exact.losses[-3:]) < 0.97 * np.mean(exact.losses[:3])
    assert ours.apart(exact) < 1e-4
    assert ours.accuracy == pytest.approx(exact.accuracy, abs=0.005)
    assert 0 < half.apart(exact) < 0.02  # f16 has 11 bits: 40 roundings of losses of about 1
