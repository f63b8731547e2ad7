"""Trained int8 models: every operator agrees with ONNX Runtime and with exact arithmetic.

The models are not in this repository: they are looked for in $GRAPHC_MODELS, then beside the
checkout. One unit at the beginning of a model can become a large difference at its end, which is
why operators are judged one by one; benchmarks/int8_exactness.py measures whole models over many
inputs.
"""

from __future__ import annotations

import copy
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from saturation import SATURATES

from graphc import driver
from graphc.ir.interp import interpret
from graphc.passes import run_pipeline

ROOT = Path(__file__).parents[1]
MODELS = Path(os.environ.get("GRAPHC_MODELS", ROOT.parent / "shared" / "models")) / "mlperf_tiny"
FOUND = sorted(MODELS.glob("*int8*.onnx"))

sys.path.insert(0, str(ROOT / "benchmarks"))
import int8_exactness  # noqa: E402

pytestmark = pytest.mark.skipif(not FOUND, reason=f"no int8 models in {MODELS}")


@pytest.mark.parametrize("path", FOUND, ids=lambda p: p.stem)
def test_operators(path):
    feeds = int8_exactness.samples(path, 3)
    reference = int8_exactness.Reference(path)
    operators = int8_exactness.compare_operators(path, reference, feeds)
    quantised = {v.name for op in driver.typed(path).ops for v in op.outputs
                 if op.name == "QuantizeLinear"}  # fmt: skip
    if SATURATES and operators.keys() != quantised:
        pytest.skip("ONNX Runtime's products of bytes saturate on this CPU: its own forms differ")
    assert operators.keys() == quantised
    for name, operator in operators.items():
        assert operator.largest <= 1, name
        assert operator.differing <= 0.001 * operator.elements, name
    total = int8_exactness.total(operators)
    assert total.differing + total.inexact <= 1e-4 * total.elements


def test_whole_models():
    equal = []
    for path in FOUND:
        graph = driver.optimise(driver.typed(path), passes="integers, fold, dce")
        session = int8_exactness.session(path)
        for sample in int8_exactness.samples(path, 6):
            found = interpret(graph, [sample[p.name] for p in graph.params])
            expected = session.run(None, sample)
            equal += [np.equal(a, b).reshape(-1) for a, b in zip(found, expected)]
    assert np.concatenate(equal).mean() >= 0.99


@pytest.mark.parametrize("path", FOUND, ids=lambda p: p.stem)
def test_constant_channels_go_without_a_trace(path):
    """Outputs are equal to the bit, for samples and for extremes of the input."""
    target, settings = driver.configured("c", None, {})
    passes = "integers, canonicalise, decompose, fold, dce"
    before = driver.optimise(driver.typed(path), settings, passes, target=target)
    after = copy.deepcopy(before)
    run_pipeline(after, "dead-channels")
    rng = np.random.default_rng(0)
    for sample in int8_exactness.samples(path, 1):
        given = [sample[p.name] for p in before.params]
        for feeds in (given, [_extremes(rng, x) for x in given]):
            for one, other in zip(interpret(before, feeds), interpret(after, feeds)):
                np.testing.assert_array_equal(one, other)
    kept, there = (sum(op.attrs["value"].nbytes for op in graph.ops if op.name == "Constant")
                   for graph in (after, before))  # fmt: skip
    assert kept < there / 4 if "vww" in path.stem else kept <= there


def _extremes(rng, like):
    """The least and the largest numbers of a type."""
    ends = (like.min(), like.max()) if like.dtype.kind == "f" else np.iinfo(like.dtype)
    low, high = ends if isinstance(ends, tuple) else (ends.min, ends.max)
    return np.where(rng.random(like.shape) < 0.5, low, high).astype(like.dtype)
