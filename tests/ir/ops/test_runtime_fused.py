"""ONNX Runtime's fused activations, products and normalisations: as it computes them."""

from __future__ import annotations

import numpy as np
import pytest
from runtime_compare import check, runtime_model

from graphc.errors import ModelError, UnsupportedError
from graphc.frontend.onnx_import import import_onnx
from graphc.ir.interp import interpret

pytestmark = pytest.mark.suite("all")

RANDOM = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def nasty(*shape: int) -> np.ndarray:
    """Floats among which are zeros of both signs, infinities, and large and tiny numbers."""
    x = floats(*shape) * 4
    x.flat[:8] = (0, -0.0, np.inf, -np.inf, 88, -88, 1e-30, -1e30)
    return x


# ---------------------------------------------------------------- activations


@pytest.mark.parametrize("kind", ["Gelu", "FastGelu", "QuickGelu"])
def test_activations(kind):
    check(kind, floats(3, 7, 16) * 4)
    interpret(import_onnx(runtime_model(kind, [nasty(4, 8)], {})), [nasty(4, 8)])


def test_quick_gelu_alpha():
    check("QuickGelu", floats(3, 16), alpha=0.7)


@pytest.mark.parametrize("kind", ["BiasGelu", "FastGelu"])
def test_activations_with_bias(kind):
    check(kind, floats(3, 7, 16), floats(16))


def test_diffusion_activations():
    x, bias, skip = floats(2, 5, 12), floats(12), floats(2, 5, 12)
    check("BiasAdd", x, bias, skip, expected=[x + bias + skip])
    left, right = np.split(x + bias, 2, axis=-1)
    gelu = check("Gelu", right)[0]
    check("BiasSplitGelu", x, bias, expected=[left * gelu])


@pytest.mark.parametrize("inner, shape", [(1, (2, 1, 1, 5)), (1, (2, 3, 1, 5)), (0, (3, 4, 5))])
def test_bias_softmax(inner, shape):
    x, bias = floats(2, 3, 4, 5), floats(*shape)
    total = x + bias
    powers = np.exp(total - total.max(-1, keepdims=True))
    expected = powers / powers.sum(-1, keepdims=True)
    check("BiasSoftmax", x, bias, axis=3, is_inner_broadcast=inner, expected=[expected])


# ---------------------------------------------------------------- products


@pytest.mark.parametrize("trans", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_fused_matmul(trans):
    x = floats(2, 3, 4, 5) if not trans[0] else floats(2, 3, 5, 4)
    y = floats(3, 5, 6) if not trans[1] else floats(3, 6, 5)
    check("FusedMatMul", x, y, transA=trans[0], transB=trans[1], alpha=0.125)
    check("TransposeMatMul", x, y, transA=trans[0], transB=trans[1], alpha=-2.0, expected=[
        -2 * np.matmul(x.swapaxes(2, 3) if trans[0] else x, y.swapaxes(1, 2) if trans[1] else y)
    ])  # fmt: skip


@pytest.mark.parametrize("trans", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_fused_matmul_with_batch_in_between(trans):
    x = floats(4, 2, 3, 5) if not trans[0] else floats(5, 2, 3, 4)
    y = floats(5, 2, 3, 6) if not trans[1] else floats(6, 2, 3, 5)
    check("FusedMatMul", x, y, transA=trans[0], transB=trans[1], transBatchA=1, transBatchB=1)


def test_fused_matmul_of_vectors():
    check("FusedMatMul", floats(5), floats(5), alpha=3.0)
    check("FusedMatMul", floats(3, 5), floats(5), transA=0)


@pytest.mark.parametrize("activation, given", [
    ("Relu", {}), ("Sigmoid", {}), ("Tanh", {}), ("LeakyRelu", {"activation_alpha": 0.3}),
    ("Softplus", {}), ("Softsign", {}), ("Elu", {"activation_alpha": 0.5}),
    ("HardSigmoid", {"activation_alpha": 0.3, "activation_beta": 0.4}),
    ("ThresholdedRelu", {"activation_alpha": 0.2}),
    ("Selu", {"activation_alpha": 1.5, "activation_gamma": 1.1}),
])  # fmt: skip
def test_fused_gemm(activation, given):
    operands = floats(5, 4), floats(6, 5), floats(6)
    options = {"alpha": 0.5, "beta": 2.0, "transA": 1, "transB": 1}
    check("FusedGemm", *operands, activation=activation, **given, **options)


def test_fused_gemm_without_c():
    check("FusedGemm", floats(4, 5), floats(5, 6), activation="Relu")


@pytest.mark.parametrize("activation, params", [
    ("Relu", None), ("Tanh", None), ("Sigmoid", None), ("LeakyRelu", [0.2]),
    ("Clip", [-0.3, 0.6]), ("HardSigmoid", [0.3, 0.4]),
])  # fmt: skip
@pytest.mark.parametrize("added", [False, True])
def test_fused_conv(activation, params, added):
    options = {"activation_params": params} if params else {}
    z = floats(2, 6, 4, 4) if added else None
    check(
        "FusedConv", floats(2, 4, 9, 9), floats(6, 2, 3, 3), floats(6), z, group=2,
        strides=[2, 2], pads=[0, 0, 1, 1], dilations=[1, 1], kernel_shape=[3, 3],
        activation=activation, **options,
    )  # fmt: skip


def test_convolutions_with_channels_last():
    x, w, bias, z = floats(2, 9, 9, 4), floats(6, 4, 3, 3), floats(6), floats(2, 9, 9, 6)
    inner = x.transpose(0, 3, 1, 2), w, bias, z.transpose(0, 3, 1, 2)
    (expected,) = check("FusedConv", *inner, activation="Relu", pads=[1] * 4)
    check("NhwcFusedConv", x, w, bias, z, activation="Relu", pads=[1] * 4,
          expected=[expected.transpose(0, 2, 3, 1)])  # fmt: skip
    (plain,) = check("FusedConv", inner[0], w, pads=[1] * 4)
    check("NhwcConv", x, w, pads=[1] * 4, expected=[plain.transpose(0, 2, 3, 1)])


def test_unknown_activations_are_named():
    operands = [floats(4, 5), floats(5, 6)]
    graph = import_onnx(runtime_model("FusedGemm", operands, {"activation": "Gelu"}))
    with pytest.raises(UnsupportedError, match="'Gelu'"):
        interpret(graph, operands)


# ---------------------------------------------------------------- normalisations


@pytest.mark.parametrize("count", [1, 2])
def test_simplified_layer_normalization(count):
    check("SimplifiedLayerNormalization", floats(2, 3, 8), floats(8), domain="",
          outputs=(True,) * count, epsilon=1e-3)  # fmt: skip
    check("SimplifiedLayerNormalization", floats(2, 3, 8), floats(3, 8), domain="", axis=1)


@pytest.mark.parametrize("skip", [(2, 3, 8), (1, 3, 8), (3, 8)])
@pytest.mark.parametrize("beta, bias", [(False, False), (True, False), (True, True)])
def test_skip_layer_normalization(skip, beta, bias):
    operands = [
        floats(2, 3, 8), floats(*skip), floats(8), floats(8) if beta else None,
        floats(8) if bias else None,
    ]  # fmt: skip
    check("SkipLayerNormalization", *operands, epsilon=1e-3, compiled=bias)
    check("SkipLayerNormalization", *operands, outputs=(True, False, False, True))


def test_moments_of_skip_layer_normalization():
    x, skip, gamma = floats(4, 16), floats(4, 16), floats(16)
    total = x + skip
    mean = total.mean(-1, keepdims=True)
    inverse = 1 / np.sqrt(((total - mean) ** 2).mean(-1, keepdims=True) + np.float32(1e-3))
    check("SkipLayerNormalization", x, skip, gamma, outputs=(True,) * 4, epsilon=1e-3,
          expected=[(total - mean) * inverse * gamma, mean, inverse, total])  # fmt: skip


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(2, 3, 8), (6, 8)])
def test_skip_simplified_layer_normalization(shape, bias):
    operands = [floats(*shape), floats(*shape), floats(8), floats(8) if bias else None]
    check("SkipSimplifiedLayerNormalization", *operands)
    check("SkipSimplifiedLayerNormalization", *operands, outputs=(True, False, False, True))


@pytest.mark.parametrize("segments", [False, True])
@pytest.mark.parametrize("positions", [None, 1, 2])
def test_embed_layer_normalization(segments, positions):
    words = RANDOM.integers(0, 20, (2, 5)).astype(np.int32)
    kinds = RANDOM.integers(0, 2, (2, 5)).astype(np.int32)
    mask = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32)
    where = None if positions is None else RANDOM.integers(0, 9, (positions, 5)).astype(np.int32)
    operands = [
        words, kinds if segments else None, floats(20, 8), floats(9, 8),
        floats(2, 8) if segments else None, floats(8), floats(8),
    ]  # fmt: skip
    check("EmbedLayerNormalization", *operands, mask, where, outputs=(True, True, True))
    check("EmbedLayerNormalization", *operands, None, where, outputs=(True, True), epsilon=1e-2)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("segments", [False, True])
def test_quantised_embed_layer_normalization(segments, masked):
    def bytes_of(*shape: int) -> np.ndarray:
        return RANDOM.integers(0, 256, shape).astype(np.uint8)

    words = RANDOM.integers(0, 20, (2, 5)).astype(np.int32)
    kinds = RANDOM.integers(0, 2, (2, 5)).astype(np.int32)
    tables = [bytes_of(20, 8), bytes_of(9, 8), bytes_of(2, 8), bytes_of(8), bytes_of(8)]
    steps = [np.array(x, np.float32) for x in RANDOM.uniform(0.01, 0.02, 5)]
    zeros = [np.array(x, np.uint8) for x in (120, 130, 110, 0, 128)]
    groups = [tables, steps, zeros]
    if not segments:
        groups = [[None if n == 2 else x for n, x in enumerate(group)] for group in groups]
    mask = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32) if masked else None
    operands = [words, kinds if segments else None, *groups[0], mask, *groups[1], *groups[2]]
    known = {n for n in range(8, len(operands)) if operands[n] is not None}
    check("QEmbedLayerNormalization", *operands, outputs=(True, True), constants=known)


def test_too_few_positions_are_refused():
    words = np.zeros((2, 5), np.int32)
    operands = [words, None, floats(20, 8), floats(4, 8), None, floats(8), floats(8)]
    graph = import_onnx(runtime_model("EmbedLayerNormalization", operands, {}))
    with pytest.raises(ModelError, match="has 4 rows, 5 words"):
        interpret(graph, [x for x in operands if x is not None])


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("activation", [0, 1])
def test_group_norm(activation, last):
    x, gamma, beta = floats(2, 4, 3, 8), floats(8), floats(8)
    skip, bias = floats(2, 8), floats(8)

    def expected(x: np.ndarray) -> np.ndarray:
        parts = x.reshape(2, 12, 2, 4)
        centred = parts - parts.mean((1, 3), keepdims=True)
        root = np.sqrt((centred**2).mean((1, 3), keepdims=True) + np.float32(1e-3))
        y = (centred / root).reshape(x.shape) * gamma + beta
        return y / (1 + np.exp(-y)) if activation else y

    def laid(x: np.ndarray) -> np.ndarray:
        return x if last else x.transpose(0, 3, 1, 2)

    options = {"activation": activation, "channels_last": last, "groups": 2, "epsilon": 1e-3}
    check("GroupNorm", laid(x), gamma, beta, expected=[laid(expected(x))], **options)
    total = x + skip[:, None, None] + bias
    check("SkipGroupNorm", laid(x), gamma, beta, skip, bias, outputs=(True, True),
          expected=[laid(expected(total)), laid(total)], **options)  # fmt: skip
    check("SkipGroupNorm", laid(x), gamma, beta, laid(x),
          expected=[laid(expected(x + x))], **options)  # fmt: skip


def test_products_of_16_bits():
    """Modulo 2^32, as ONNX Runtime has them."""
    x, y = (
        RANDOM.integers(-(2**15), 2**15, shape).astype(np.int16) for shape in ((2, 3, 40), (40, 5))
    )
    check("MatMulInteger16", x, y, compiled=True)
