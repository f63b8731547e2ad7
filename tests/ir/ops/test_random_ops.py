"""Random numbers: moments, repeatability, and independence of how a tensor is cut."""

import numpy as np
import pytest

from graphc.errors import ModelError
from graphc.ir.graph import Op, Value
from graphc.ir.interp import run_op
from graphc.ir.opdef import lookup
from graphc.ir.types import type_of


def run(name, *arguments, **attrs):
    inputs = [Value(type_of(a)) for a in arguments]
    return run_op(Op(lookup(name), inputs, attrs, 1), arguments)[0]


def test_uniform():
    x = run("RandomUniform", shape=(100, 100), low=-1.0, high=3.0, seed=5.0)
    assert x.dtype == np.float32 and x.min() >= -1 and x.max() < 3
    assert abs(x.mean() - 1) < 0.05 and abs(x.var() - 16 / 12) < 0.05
    assert len(np.unique(x)) > 9900
    np.testing.assert_array_equal(
        x, run("RandomUniform", shape=(100, 100), low=-1.0, high=3.0, seed=5.0)
    )
    other = run("RandomUniform", shape=(100, 100), low=-1.0, high=3.0, seed=6.0)
    assert abs(np.corrcoef(x.reshape(-1), other.reshape(-1))[0, 1]) < 0.05


def test_a_number_depends_on_its_position_alone():
    long, short = run("RandomUniform", shape=(10,)), run("RandomUniform", shape=(4,))
    np.testing.assert_array_equal(long[:4], short)


def test_the_generator_is_fixed():
    """splitmix64 of the seed's stream, recomputed in Python integers."""
    mask = (1 << 64) - 1

    def mix(z):
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & mask
        z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
        return z ^ z >> 31

    golden = 0x9E3779B97F4A7C15
    key = mix(int(np.float64(2.0).view(np.uint64)) + golden & mask)
    expected = [(mix(key + n * golden & mask) >> 40) * 2.0**-24 for n in range(5)]
    np.testing.assert_array_equal(run("RandomUniform", shape=(5,), seed=2.0), np.float32(expected))


def test_normal():
    x = run("RandomNormalLike", np.zeros((100, 100)), mean=2.0, scale=0.5)
    assert x.dtype == np.float64
    assert abs(x.mean() - 2) < 0.02 and abs(x.std() - 0.5) < 0.02
    assert 0.66 < (abs(x - 2) < 0.5).mean() < 0.71


def test_bernoulli():
    p = np.repeat(np.float32([[0.0], [0.3], [1.0]]), 4000, 1)
    x = run("Bernoulli", p, dtype=9)
    assert x.dtype == np.bool_
    assert x[0].sum() == 0 and x[2].all() and abs(x[1].mean() - 0.3) < 0.03


def test_multinomial():
    weights = np.float32([0.1, 0.6, 0.3])
    x = run("Multinomial", np.log(weights)[None], sample_size=4000, dtype=7)
    assert x.shape == (1, 4000) and x.dtype == np.int64
    np.testing.assert_allclose(np.bincount(x[0]) / 4000, weights, atol=0.03)


def test_dtype_must_be_a_float():
    with pytest.raises(ModelError, match="i64 is not a float type"):
        run("RandomUniform", shape=(2,), dtype=7)
