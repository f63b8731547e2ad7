"""Functions of float32 made of others: rounding as numpy's rint, bit for bit; signs of zeros;
products with powers of two."""

from __future__ import annotations

import numpy as np
import pytest

from graphc.ir.dtypes import f32
from graphc.ir.expr import Index, Load
from graphc.ir.interp import evaluate
from graphc.ir.scalar.functions import IN_ORDER, POLYNOMIALS, SCALED, round_f32


def test_round_f32():
    large = 2.0**23
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, large, large - 0.5, 0.5 - large, 1e30, -0.3]
    random = np.random.default_rng(0).normal(0, 100, 2000)
    x = np.concatenate([random, np.arange(-50, 50, 0.5), special]).astype(np.float32)
    expr = round_f32(Load("x", (Index("i0", x.size),), f32))
    found = evaluate(expr, x.shape, {"x": x})
    np.testing.assert_array_equal(found.view(np.uint32), np.rint(x).view(np.uint32))


@pytest.mark.parametrize("name", ["tanh", "erf"])
def test_zeros_keep_their_sign(name):
    x = np.array([-0.0, 0.0, -1e-30, 1e-30], np.float32)
    expr = POLYNOMIALS[name](Load("x", (Index("i0", x.size),), f32))
    found = evaluate(expr, x.shape, {"x": x})
    np.testing.assert_array_equal(np.signbit(found), np.signbit(x))


@pytest.mark.parametrize("name", ["exp", "erf"])
def test_scaling_gives_the_same_bits(name):
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 88.8, -87.4, -103.9, -104.0, 1e30, -1e30]
    random = np.random.default_rng(0).uniform(-106, 90, 5000)
    x = np.concatenate([random, random / 30, special]).astype(np.float32)
    value = Load("x", (Index("i0", x.size),), f32)
    with np.errstate(all="ignore"):
        found, expected = (evaluate(f[name](value), x.shape, {"x": x}) for f in (SCALED, IN_ORDER))
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))
