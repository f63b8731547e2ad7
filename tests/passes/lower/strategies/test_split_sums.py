"""Sums in two steps: parts that caches hold, then the sum of the parts."""

from __future__ import annotations

import numpy as np
import pytest
from differential import build, check, floats, program_of

from graphc.autodiff.reverse import gradients
from graphc.backends.llvm_cpu import strategies
from graphc.passes.lower.strategies.split_sums import lower_split_sums

LITTLE = 1 << 10  # bytes of a second level of cache that holds little


@pytest.fixture
def little_cache(monkeypatch):
    def lowered(computation, options, l2_bytes):
        return lower_split_sums(computation, options, LITTLE)

    monkeypatch.setattr(strategies, "lower_split_sums", lowered)


def filter_gradient(channels: int, side: int, value: float = 0.5, **options):
    """The gradient of the taps of a depthwise convolution, and its inputs."""
    r = np.random.default_rng(channels)
    x, taps = floats(r, 2, 16, side, side), floats(r, channels, 1, 3, 3)
    before, after = floats(r, channels, 16, 1, 1), floats(r, 16, channels, 1, 1)
    x[0, 3, 1, 2] = value

    def make(b, image, filters):
        wide = b.Conv(image, before)
        y = b.Conv(b.Conv(wide, filters, group=channels, pads=[1, 1, 1, 1], **options), after)
        total = b.ReduceSum(b.Mul(y, y), keepdims=0)
        return gradients(b.region, {total: b.constant(np.float32(1))}, [filters])

    return build(make, x=x, filters=taps)


def two_steps(graph, vector_bytes: int = 32) -> bool:
    kernels = program_of(graph, vector_bytes).kernels.values()
    return any(kernel.comment.startswith("parts of sums") for kernel in kernels)


@pytest.mark.parametrize("channels, options", [(24, {}), (21, {}), (40, {"strides": [2, 2]})])
def test_parts_add_up(channels, options, little_cache):
    graph, inputs = filter_gradient(channels, 10, **options)
    assert two_steps(graph)
    check(graph, inputs, (64, 32, 16), interpreted=(32,))


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_what_is_not_finite_stays_so(value, little_cache):
    graph, inputs = filter_gradient(24, 10, value)
    with np.errstate(all="ignore"):
        check(graph, inputs, (32,), interpreted=())


def test_what_caches_hold_is_summed_at_once():
    graph, _ = filter_gradient(24, 10)
    assert not two_steps(graph)
