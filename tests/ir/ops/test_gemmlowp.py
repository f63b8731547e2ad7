"""The arithmetic of TensorFlow Lite's kernels, against the same in integers without limits."""

from __future__ import annotations

import numpy as np
import pytest

from graphc.ir import dtypes
from graphc.ir.build import Builder
from graphc.ir.dtypes import i8, i16
from graphc.ir.graph import Graph
from graphc.ir.interp import interpret
from graphc.ir.types import TensorType

DOMAIN = "graphc"


def twice_rounded(x: int, multiplier: int, exponent: int) -> int:
    """gemmlowp's product and its division, as they are written there."""
    total = x * multiplier
    total += 1 << 30 if total >= 0 else 1 - (1 << 30)
    first = total >> 31 if total >= 0 else -(-total >> 31)
    mask = (1 << exponent) - 1
    return (first >> exponent) + ((first & mask) > (mask >> 1) + (first < 0))


def applied(name: str, x: np.ndarray, *constants: np.ndarray, **attrs: object) -> np.ndarray:
    graph = Graph()
    b = Builder(graph)
    value = graph.add_param(TensorType(dtypes.of(x.dtype), x.shape), "x")
    made = b.op(name, value, *map(b.constant, constants), domain=DOMAIN, **attrs)
    graph.set_results([made])
    (result,) = interpret(graph, [x])
    return result


@pytest.mark.suite("all")
@pytest.mark.parametrize("doubled", [0, 1])
@pytest.mark.parametrize("exponents", [[0, 1, 9], [2, 7, 31], [1, 1, 1]])
def test_products_are_rounded_twice(exponents, doubled):
    rng = np.random.default_rng(sum(exponents))
    multipliers = rng.integers(1 << 30, 1 << 31, 3)
    multipliers[0] = 1 << 30  # gives many halves
    near = np.arange(-60, 60)
    far = rng.integers(-(1 << 29), 1 << 29, 120)
    x = np.stack([near, far]).reshape(2, 1, 120).repeat(3, 1)
    units = np.array([1 << 32 - e for e in exponents])
    narrow = min(exponents) >= 2
    got = applied(
        "Rescale", (x << doubled).astype(np.int32), multipliers.astype(np.int32),
        units.astype(np.int32 if narrow else np.int64), doubled=doubled, zero_point=3,
        low=-(1 << 15), high=(1 << 15) - 1, to=i16.onnx,
    )  # fmt: skip
    assert got.dtype == np.int16
    for channel, (by, e) in enumerate(zip(multipliers, exponents)):
        expected = [twice_rounded(int(v), int(by), e) + 3 for v in x[:, channel].reshape(-1)]
        limited = np.clip(expected, -(1 << 15), (1 << 15) - 1)
        np.testing.assert_array_equal(got[:, channel].reshape(-1), limited)


def test_what_is_shifted_left_has_wide_multipliers():
    x = np.array([[-3, 0, 5]], np.int32)
    by = np.array([(1 << 30) + 12345 << 2])
    got = applied(
        "Rescale", x, by, np.array([1 << 32]), zero_point=0, low=-128, high=127, to=i8.onnx
    )
    expected = [twice_rounded(int(v) * 4, (1 << 30) + 12345, 0) for v in x[0]]
    assert got.tolist() == [expected]


def test_means_leave_out_padding_and_round_halves_away_from_zero():
    x = np.array([-3, 0, -3, 2, -1, 4, 5, 6, -7], np.int8).reshape(1, 1, 3, 3)
    got = applied("RoundedMean", x, kernel_shape=(2, 2), strides=(2, 2), pads=(0, 0, 1, 1),
                  low=-128, high=127)  # fmt: skip
    assert got.reshape(-1).tolist() == [-1, 1, 6, -7]


@pytest.mark.suite("all")
@pytest.mark.parametrize("to", [i8, i16])
@pytest.mark.parametrize("scale", [0.02, 0.5])
def test_softmax_is_within_a_step_of_the_real_one(scale, to):
    x = np.random.default_rng(0).integers(-128, 128, (20, 9)).astype(np.int8)
    table = np.rint(np.exp(-np.arange(256) * scale) * (1 << 31)).clip(0, (1 << 31) - 1)
    got = applied("FixedPointSoftmax", x, table.astype(np.int32), to=to.onnx)
    power = np.exp(x * scale)
    real = power / power.sum(-1, keepdims=True) * 2.0**to.bits + int(to.min)
    assert got.dtype == to.np
    assert np.abs(got - real.clip(int(to.min), int(to.max))).max() <= (1 if to is i8 else 8)
