"""ONNX Runtime's own operators on float16, as it computes them."""

from __future__ import annotations

import numpy as np
import pytest
from runtime_compare import check

RANDOM = np.random.default_rng(0)
TOLERANCE = 4e-3  # of the largest element


def halves(*shape: int) -> np.ndarray:
    return (RANDOM.standard_normal(shape) / 2).astype(np.float16)


@pytest.mark.suite("all")
@pytest.mark.parametrize("kind", ["Gelu", "QuickGelu", "FastGelu", "BiasGelu"])
def test_activations(kind):
    bias = [halves(16)] if kind in ("FastGelu", "BiasGelu") else []
    check(kind, halves(3, 16), *bias, tolerance=TOLERANCE)


def test_products():
    check("FusedMatMul", halves(3, 8), halves(5, 8), transB=1, alpha=0.3, tolerance=TOLERANCE)
    given = {"activation": "Clip", "activation_params": [-0.1, 0.3]}
    operands = [halves(1, 2, 5, 5), halves(3, 2, 3, 3), halves(3)]
    check("FusedConv", *operands, **given, tolerance=TOLERANCE)
    codes = RANDOM.integers(0, 256, (8, 2, 16)).astype(np.uint8)
    operands = [halves(3, 64), codes, np.abs(halves(8, 2)), None, None, halves(8)]
    check("MatMulNBits", *operands, K=64, N=8, block_size=32, constants={1, 2, 5},
          tolerance=TOLERANCE, decomposed=False)  # fmt: skip


@pytest.mark.parametrize("kind", ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"])
def test_normalisations(kind):
    operands = [halves(2, 3, 16), halves(2, 3, 16), halves(16), halves(16)]
    check(kind, *operands, outputs=(True, False, False, True), tolerance=TOLERANCE)


def test_attention():
    mask = np.array([[1, 1, 0], [1, 1, 1]], np.int32)
    operands = [halves(2, 3, 6), halves(6, 24), halves(24), mask]
    check("Attention", *operands, num_heads=2, unidirectional=1, tolerance=TOLERANCE)
    operands = [*(halves(2, 3, 8) for _ in range(3)), halves(24), mask, halves(1, 2, 3, 3)]
    check("MultiHeadAttention", *operands, num_heads=2, tolerance=TOLERANCE)


def test_grouped_queries():
    operands = [halves(1, 3, heads * 16) for heads in (4, 2, 2)]
    lengths = [np.array([7], np.int32), np.array([8], np.int32)]
    cache = [halves(1, 2, 5, 16) for _ in range(2)]
    check("GroupQueryAttention", *operands, *cache, *lengths, halves(9, 8), halves(9, 8),
          outputs=(True, True, True), constants={6}, num_heads=4, kv_num_heads=2, do_rotary=1,
          tolerance=TOLERANCE)  # fmt: skip
