"""Gradients of maxima that several elements reach: those of PyTorch's functions of that name."""

from __future__ import annotations

import numpy as np
import pytest

import graphc
from graphc import dsl

torch = pytest.importorskip("torch")
functional = torch.nn.functional
STRIDED = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
DILATED = {"kernel_shape": [2, 2], "dilations": [2, 2]}
CASES = {
    "MaxPool": (
        lambda x: dsl.MaxPool(x, **STRIDED),
        lambda x: functional.max_pool2d(x, 3, 2, 1),
    ),
    "MaxPool, dilated": (
        lambda x: dsl.MaxPool(x, **DILATED),
        lambda x: functional.max_pool2d(x, 2, 1, dilation=2),
    ),
    "GlobalMaxPool": (dsl.GlobalMaxPool, lambda x: functional.adaptive_max_pool2d(x, 1)),
    "ReduceMax": (
        lambda x: dsl.ReduceMax(x, np.array([2, 3])),
        lambda x: x.amax((2, 3), keepdim=True),
    ),
    "ReduceMin": (
        lambda x: dsl.ReduceMin(x, np.array([1])),
        lambda x: x.amin(1, keepdim=True),
    ),
    "Max": (lambda x: dsl.Max(x, 1.0 - x), lambda x: torch.maximum(x, 1.0 - x)),
}


@pytest.mark.parametrize("name", CASES)
def test_ties_are_pytorchs(name):
    made, reference = CASES[name]
    rng = np.random.default_rng(0)
    x = rng.integers(0, 2, (2, 3, 7, 8)) * 0.5  # most windows have several maxima
    leaf = torch.tensor(x, requires_grad=True)
    result = reference(leaf)
    weights = rng.standard_normal(result.shape)
    (result * torch.tensor(weights)).sum().backward()

    def loss(x):
        return dsl.ReduceSum(made(x) * weights, keepdims=0)

    np.testing.assert_allclose(graphc.grad(loss)(x), leaf.grad.numpy(), rtol=1e-12, atol=1e-12)
    direction = rng.standard_normal(x.shape)
    _, along = graphc.jvp(loss, [x], [direction])
    np.testing.assert_allclose(along, (leaf.grad.numpy() * direction).sum(), rtol=1e-12)
