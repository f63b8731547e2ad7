"""How samples are run: few programs for many questions, and any shapes."""

from __future__ import annotations

import numpy as np
import pytest

import graphc
from graphc import dsl
from graphc.quantisation import running


@pytest.fixture
def compiled(monkeypatch):
    """How models are specialised that are compiled for samples, in order."""
    modes: list[str] = []

    def compile(graph, *, specialise, **options):
        modes.append(specialise)
        return graphc.compile(graph, specialise=specialise, **options)

    monkeypatch.setattr(running, "compile", compile)
    return modes


def model():
    """h = x + 1 and y = 2 h, of open length."""
    with dsl.building("m") as g:
        x = g.input("x", dsl.f32["N", 3])
        h = x + np.float32(1)
        g.output(h=h, y=h * np.float32(2))
    return g.graph


def samples(*lengths):
    rng = np.random.default_rng(0)
    return [{"x": rng.standard_normal((n, 3)).astype(np.float32)} for n in lengths]


def test_one_program_answers_all_that_was_announced(compiled):
    observed = running.Observed(model(), {})
    observed.announce(["h", "y"])
    for names in (["y"], ["h"], ["y", "h"]):
        for sample, seen in zip(samples(2, 2), observed.values(names, samples(2, 2)), strict=True):
            wanted = {"h": sample["x"] + 1, "y": 2 * (sample["x"] + 1)}
            assert list(seen) == names
            for name in names:
                np.testing.assert_array_equal(seen[name], wanted[name])
    assert compiled == ["exact"]
    list(observed.values(["x"], samples(2)))  # was not announced
    assert compiled == ["exact", "exact"]


def test_samples_may_differ_in_shape(compiled):
    runner = running.Runner(model(), {})
    for sample in samples(2, 5, 2, 0, 1):
        np.testing.assert_array_equal(runner.run(sample)[0], sample["x"] + 1)
    assert compiled == ["exact", "auto"]
