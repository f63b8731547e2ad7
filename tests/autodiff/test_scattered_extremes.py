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


@pytest.mark.parametrize("reduction", ["prod", "amax", "amin", "sum"])
@pytest.mark.parametrize("axis", [0, 1])
def test_both_modes_of_scatters_are_pytorchs(reduction, axis):
    rng = np.random.default_rng(1)
    data, updates = (rng.integers(0, 3, (4, 5)).astype(np.float64) for _ in range(2))
    indices = rng.integers(0, 4, (4, 5))
    name = {"prod": "mul", "amax": "max", "amin": "min", "sum": "add"}[reduction]

    def made(data, updates):
        return dsl.ScatterElements(data, indices, updates, axis=axis, reduction=name)

    def reference(data, updates):
        return data.scatter_reduce(axis, torch.tensor(indices), updates, reduction)

    compare(made, reference, [data, updates])


@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("exclusive", [0, 1])
def test_running_products_with_zeros(reverse, exclusive):
    x = np.random.default_rng(2).standard_normal((4, 5))
    x[1, 2] = x[2, 1] = x[2, 3] = 0

    def made(x):
        return dsl.CumProd(x, np.array(1), reverse=reverse, exclusive=exclusive)

    def reference(x):
        x = x.flip(1) if reverse else x
        ones = torch.ones(4, 1, dtype=x.dtype)
        y = torch.cumprod(torch.cat([ones, x[:, :-1]], 1) if exclusive else x, 1)
        return y.flip(1) if reverse else y

    compare(made, reference, [x])


def compare(made, reference, values):
    """Gradients are those of PyTorch's function, and tangents agree with them."""
    rng = np.random.default_rng(3)
    leaves = [torch.tensor(a, requires_grad=True) for a in values]
    result = reference(*leaves)
    weights = rng.standard_normal(result.shape)
    (result * torch.tensor(weights)).sum().backward()

    def loss(*values):
        return dsl.ReduceSum(made(*values) * weights, keepdims=0)

    for leaf, slope in zip(leaves, graphc.grad(loss, tuple(range(len(values))))(*values)):
        np.testing.assert_allclose(slope, leaf.grad.numpy(), rtol=1e-12, atol=1e-12)
    directions = [rng.standard_normal(a.shape) for a in values]
    _, along = graphc.jvp(loss, values, directions)
    wanted = sum((leaf.grad.numpy() * d).sum() for leaf, d in zip(leaves, directions))
    np.testing.assert_allclose(along, wanted, rtol=1e-12, atol=1e-12)
