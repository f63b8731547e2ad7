"""Gradients of RoiAlign and MaxRoiPool by images, against difference quotients: both operators are
linear between the steps, RoiAlign by means everywhere."""

from __future__ import annotations

import numpy as np
import pytest

import graphc
from graphc import dsl

X = np.random.default_rng(0).standard_normal((2, 3, 7, 9))
# inside, over an edge, over all, of one element, reversed, outside
CORNERS = np.array(
    [[1, 2, 6, 5.5], [-3, 4, 3.2, 9], [-2, -2, 12, 11], [4.2, 3.1, 4.3, 3.2], [6, 5, 2, 1],
     [20, 20, 30, 31.0]]
)  # fmt: skip
IMAGES = np.array([0, 1, 1, 0, 0, 1])


def check(made, shape: tuple[int, ...]) -> None:
    """Compares with difference quotients along each element, and with a tangent; `shape` is that of
    the result."""
    weights = np.random.default_rng(1).standard_normal(shape)

    def loss(x):
        return dsl.ReduceSum(made(x) * weights, keepdims=0)

    run, step = graphc.value_and_grad(loss), 1e-6
    value, slope = run(X)
    wanted = np.zeros_like(X)
    for place in np.ndindex(X.shape):
        moved = X.copy()
        moved[place] += step
        wanted[place] = (run(moved)[0] - value) / step
    np.testing.assert_allclose(slope, wanted, atol=1e-7)
    assert np.count_nonzero(wanted) > 30
    direction = np.random.default_rng(2).standard_normal(X.shape)
    _, along = graphc.jvp(loss, [X], [direction])
    np.testing.assert_allclose(along, (slope * direction).sum(), rtol=1e-10)


@pytest.mark.parametrize("ratio", [0, 2])
@pytest.mark.parametrize("mode", ["half_pixel", "output_half_pixel"])
def test_means_of_samples(ratio, mode):
    def made(x):
        return dsl.RoiAlign(
            x, CORNERS, IMAGES, output_height=3, output_width=2, sampling_ratio=ratio,
            coordinate_transformation_mode=mode, spatial_scale=0.8,
        )  # fmt: skip

    check(made, (6, 3, 3, 2))


def test_maxima_of_bins():
    regions = np.concatenate([IMAGES[:, None], CORNERS], 1)

    def made(x):
        return dsl.MaxRoiPool(x, regions, pooled_shape=[2, 3], spatial_scale=0.8)

    check(made, (6, 3, 2, 3))


@pytest.mark.parametrize("ratio", [0, 2])
def test_maxima_of_samples(ratio):
    def made(x):
        return dsl.RoiAlign(
            x, CORNERS, IMAGES, mode="max", output_height=3, output_width=2, sampling_ratio=ratio,
            spatial_scale=0.8,
        )  # fmt: skip

    check(made, (6, 3, 3, 2))
