"""Gradients of scatters that take extremes, and of MaxUnpool."""

from __future__ import annotations

import numpy as np
import pytest

import graphc
from graphc import dsl

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("reduction", ["max", "min"])
@pytest.mark.parametrize("axis", [0, 1])
def test_extremes_of_elements_are_pytorchs(reduction, axis):
    rng = np.random.default_rng(0)
    data = rng.integers(0, 3, (4, 5)).astype(np.float32)  # so that there are ties
    updates = rng.integers(0, 3, (4, 5)).astype(np.float32)
    indices = rng.integers(0, 4, (4, 5))
    weights = rng.standard_normal((4, 5)).astype(np.float32)

    def loss(data, updates):
        made = dsl.ScatterElements(data, indices, updates, axis=axis, reduction=reduction)
        return dsl.ReduceSum(made * weights, keepdims=0)

    leaves = [torch.tensor(a, requires_grad=True) for a in (data, updates)]
    made = leaves[0].scatter_reduce(axis, torch.tensor(indices), leaves[1], f"a{reduction}")
    (made * torch.tensor(weights)).sum().backward()
    found = graphc.grad(loss, argnums=(0, 1))(data, updates)
    for leaf, slope in zip(leaves, found):
        np.testing.assert_allclose(slope, leaf.grad.numpy(), rtol=1e-5, atol=1e-6)


def test_extremes_of_slices():
    data = np.array([[1.0, 5.0], [2.0, 2.0], [0.0, 3.0]], np.float32)
    updates = np.array([[4.0, 1.0], [2.0, 2.0], [4.0, 0.0]], np.float32)
    indices = np.array([[0], [1], [0]])
    weights = np.arange(1, 7, dtype=np.float32).reshape(3, 2)

    def loss(data, updates):
        made = dsl.ScatterND(data, indices, updates, reduction="max")
        return dsl.ReduceSum(made * weights, keepdims=0)

    by_data, by_updates = graphc.grad(loss, argnums=(0, 1))(data, updates)
    np.testing.assert_allclose(by_data, [[0, 2], [1.5, 2], [5, 6]])
    np.testing.assert_allclose(by_updates, [[0.5, 0], [1.5, 2], [0.5, 0]])


def test_unpooled_maxima_take_what_is_at_their_places():
    x = np.array([[[[1, 2], [3, 4]]]], np.float32)
    places = np.array([[[[5, 7], [13, 15]]]])
    weights = np.random.default_rng(0).standard_normal((1, 1, 4, 4)).astype(np.float32)

    def loss(x):
        made = dsl.MaxUnpool(x, places, kernel_shape=[2, 2], strides=[2, 2])
        return dsl.ReduceSum(made * weights, keepdims=0)

    np.testing.assert_array_equal(graphc.grad(loss)(x), weights.reshape(-1)[places])
