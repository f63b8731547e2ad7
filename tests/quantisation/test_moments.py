"""What layers read, next to the layers themselves."""

from __future__ import annotations

import numpy as np
import pytest

from graphc import dsl
from graphc.ir.interp import interpret
from graphc.quantisation.layers import Choice
from graphc.quantisation.moments import Moments, rows_read
from graphc.quantisation.quantiser import prepared
from graphc.quantisation.weights import rows_of

RNG = np.random.default_rng(0)


def f32(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("attrs", [
    {}, {"pads": [1, 0, 2, 1]}, {"strides": [2, 3]}, {"dilations": [2, 1], "pads": [2, 1, 2, 1]},
    {"auto_pad": "SAME_UPPER", "strides": [2, 2]}, {"auto_pad": "SAME_LOWER"}, {"group": 2},
])  # fmt: skip
def test_windows_times_weights_are_the_convolution(attrs):
    groups = attrs.get("group", 1)
    weights = f32(6, 4 // groups, 3, 2)
    with dsl.building("conv") as g:
        x = g.input("x", dsl.f32[2, 4, 9, 8])
        g.output(y=dsl.Conv(x, weights, **attrs))
    (layer,) = Choice(prepared(g.graph)).layers
    array = f32(2, 4, 9, 8)
    (expected,) = interpret(g.graph, [array])
    rows = rows_read(layer, array, 0)
    products = rows @ rows_of(layer).reshape(groups, 6 // groups, -1).transpose(0, 2, 1)
    moved = products.reshape(groups, 2, *expected.shape[2:], -1).transpose(1, 0, 4, 2, 3)
    np.testing.assert_allclose(moved.reshape(expected.shape), expected, rtol=1e-4, atol=1e-4)


def test_moments_are_those_of_numpy():
    with dsl.building("fc") as g:
        x = g.input("x", dsl.f32[5, 7])
        g.output(y=dsl.MatMul(x, f32(7, 3)))
    (layer,) = Choice(prepared(g.graph)).layers
    arrays, moments = [f32(5, 7) + 1 for _ in range(2000)], Moments.of(layer)
    for array in arrays:
        moments.add(rows_read(layer, array, 0))
    whole = np.concatenate(arrays).astype(np.float64)
    np.testing.assert_allclose(moments.means[0], whole.mean(0), rtol=1e-5)
    covariance = moments.estimated(True)[0]
    np.testing.assert_allclose(covariance, np.cov(whole.T, bias=True), rtol=2e-3, atol=1e-3)
    lost = f32(3, 7).astype(np.float64)
    np.testing.assert_allclose(
        moments.mean_of(lost), (whole @ lost.T).mean(0), rtol=1e-2, atol=1e-3
    )


def test_little_data_is_little_trusted():
    with dsl.building("fc") as g:
        x = g.input("x", dsl.f32[1, 50])
        g.output(y=dsl.MatMul(x, f32(50, 3)))
    (layer,) = Choice(prepared(g.graph)).layers
    moments = Moments.of(layer)
    moments.add(rows_read(layer, f32(1, 50), 0))
    found = moments.estimated(False)[0]
    away = np.abs(found - np.diag(np.diagonal(found))).max()
    assert away < 0.05 * np.abs(moments.products).max()
