"""ONNX Runtime's operators on residual streams, gates and norms: as its CPU kernels do them."""

from __future__ import annotations

import numpy as np
import pytest
from runtime_compare import check

RANDOM = np.random.default_rng(0)
TYPES = [np.float32, np.float16]


def floats(*shape: int, dtype=np.float32) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(dtype)


def tolerance(*types) -> float:
    return 4e-3 if np.float16 in types else 1e-5


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("gates", TYPES)
@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 1), (2, 3, 8)])
def test_streams_are_mixed(shape, gates, dtype):
    x, mix = floats(2, 3, 8, dtype=dtype), floats(*shape, dtype=gates)
    near = tolerance(dtype, gates)
    check("HyperConnectionPreMix", x, mix, reduction_scale=0.7, tolerance=near)
    check("HyperConnectionPreMix", x.reshape(2, 24), mix, num_branches=3, tolerance=near)
    block, square = floats(2, 8, dtype=dtype), floats(2, 3, 3, dtype=gates)
    check("HyperConnectionPostMix", x, block, mix, square, tolerance=near,
          compiled=dtype == np.float32)  # fmt: skip
    check("HyperConnectionPostMix", x.reshape(2, 24), block, mix, num_branches=3, tolerance=near)


def test_flat_gates():
    check("HyperConnectionPreMix", floats(2, 24), floats(2, 24), num_branches=3)


@pytest.mark.suite("all")
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("scale", [None, (8,), (3, 8), (24,)])
def test_branchwise_norm(scale, dtype):
    given = None if scale is None else floats(*scale, dtype=np.float32)
    x = floats(2, 5, 3, 8, dtype=dtype) * dtype(30)
    near = tolerance(dtype)
    check("BranchwiseRMSNorm", x, given, tolerance=near, epsilon=1e-3)
    check("BranchwiseRMSNorm", x.reshape(2, 5, 24), given, num_branches=3, tolerance=near)


@pytest.mark.suite("all")
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("activation", ["silu", "swish", "sigmoid"])
def test_gated_norm(activation, dtype):
    x, gate = floats(2, 3, 24, dtype=dtype), floats(2, 3, 24, dtype=dtype)
    gate[0, 0, :2] = 90, -90
    check("GatedRMSNorm", x, floats(8, dtype=dtype), gate, activation=activation,
          tolerance=tolerance(dtype), compiled=dtype == np.float32)  # fmt: skip


@pytest.mark.parametrize("dtype", TYPES)
def test_gated_add(dtype):
    x, y, gate = (floats(2, 3, n, dtype=dtype) for n in (8, 8, 1))
    (found,) = check("GatedAdd", x, y, gate, tolerance=1e-3 if dtype == np.float16 else 1e-6)
    np.testing.assert_array_equal(found, x + y * gate)  # each rounded


@pytest.mark.suite("all")
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("scale", [None, np.float32, np.float16])
def test_scaled_silu(scale, dtype):
    given = None if scale is None else np.array(0.37, scale)
    x = floats(4, 7, dtype=dtype)
    x[0, :3] = 100, -100, 0
    check("ScaledSiLU", x, given, alpha=1.3, tolerance=1e-3 if dtype == np.float16 else 1e-5)


@pytest.mark.parametrize("dtype", TYPES)
def test_linear_attention_gate(dtype):
    a, beta = (floats(2, 3, 4, dtype=dtype) for _ in range(2))
    a[0, 0, :2] = 60, -60
    near = tolerance(dtype)
    check("LinearAttentionGate", a, floats(4), -np.abs(floats(4)), beta, outputs=(True, True),
          tolerance=near)  # fmt: skip
    check("LinearAttentionGate", a, floats(4), floats(4), tolerance=near)


@pytest.mark.parametrize("dtype", TYPES)
def test_engram_gate(dtype):
    key, query = (floats(2, 3, 2, 16, dtype=dtype) for _ in range(2))
    value = floats(2, 3, 16, dtype=dtype)
    query[0, 0] = 0
    scales = [floats(2, 16, dtype=dtype) for _ in range(3)]
    near = tolerance(dtype)
    check("EngramGate", key, query, value, *scales, outputs=(True, True), tolerance=near)
    check("EngramGate", key, query, value, *scales[:2], tolerance=near, epsilon=1e-2)
