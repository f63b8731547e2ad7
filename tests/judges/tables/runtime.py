"""Operators of ONNX Runtime's domain: PyTorch, scipy and numpy in float64."""

from __future__ import annotations

import numpy as np
from judge import BETWEEN, Case
from operands import integers, nasty, normal
from scipy import special

from tables.linear import gemm
from tables.normalisations import group, layer, rms
from tables.windows import conv

RUNTIME = "com.microsoft"


def gelu(x):
    return x * special.ndtr(x)


def fast_gelu(x, bias=0.0):
    x = x + bias
    return x * special.expit(2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))


def fused_matmul(a, b, *, alpha=1.0, transA=0, transB=0):  # noqa: N803
    a, b = (m.swapaxes(-1, -2) if flag else m for m, flag in ((a, transA), (b, transB)))
    return alpha * (a @ b)


def skip_layer(x, skip, gamma, beta, bias, *, epsilon):
    total = x + skip + bias
    return layer(total, gamma, beta, epsilon=epsilon)[0], None, None, total


def skip_rms(x, skip, gamma, *, epsilon):
    return rms(x + skip, gamma, epsilon=epsilon)


def group_norm(x, gamma, beta, *, groups, epsilon, activation):
    """Of channels last; activation 1 is x * sigmoid(x)."""
    y = group(np.moveaxis(x, -1, 1), gamma, beta, num_groups=groups, epsilon=epsilon)
    return np.moveaxis(y * special.expit(y) if activation else y, 1, -1)


def embedded(ids, segments, words, places, kinds, gamma, beta, *, epsilon):
    total = words[ids] + places[: ids.shape[1]] + kinds[segments]
    return layer(total, gamma, beta, epsilon=epsilon)[0], None


def nibbles(x, packed, scales, *, K, N, bits, block_size):  # noqa: N803
    """Weights of 4 bits, two in a byte, the low one first; 8 stands for 0."""
    low, high = packed & 15, packed >> 4
    codes = np.stack([low, high], -1).reshape(N, -1, block_size).astype(float) - 8
    return x @ (codes * scales.reshape(N, -1, 1)).reshape(N, -1)[:, :K].T


def case(name: str, inputs, reference, op: str = "", outputs: int = 1, types=None, **attrs) -> Case:
    chosen = {"types": types} if types else {}
    return Case(name, op or name, inputs, reference, attrs, domain=RUNTIME, outputs=outputs,
                share=2.0, roundings=8, narrow=BETWEEN, terms=1.0, **chosen)  # fmt: skip


X, LAST = normal(2, 3, 8), normal(8)
CASES = [
    case("QuickGelu", [nasty(-100, 100)], lambda x, *, alpha: x * special.expit(alpha * x),
         alpha=1.75),
    case("Gelu_runtime", [nasty(-100, 100)], gelu, "Gelu"),
    case("FastGelu", [X, LAST], fast_gelu),
    case("BiasGelu", [X, LAST], lambda x, b: gelu(x + b)),
    case("FusedMatMul", [normal(2, 5, 3), normal(2, 4, 5)], fused_matmul, alpha=0.5, transA=1,
         transB=1),
    case("TransposeMatMul", [normal(2, 3, 5), normal(2, 4, 5)], fused_matmul, transB=1),
    case("FusedGemm", [normal(3, 5), normal(4, 5), normal(4)],
         lambda a, b, c, *, transB: np.maximum(gemm(a, b, c, transB=transB), 0), transB=1,
         activation="Relu"),
    case("FusedConv", [normal(1, 3, 6, 6), normal(2, 3, 3, 3), normal(2)],
         lambda x, w, b, *, pads: np.maximum(conv(x, w, b, pads=pads), 0), pads=[1, 1, 1, 1],
         activation="Relu"),
    case("SkipLayerNormalization", [X, X, LAST, normal(8), normal(8)], skip_layer, outputs=4,
         epsilon=0.125),
    case("SkipSimplifiedLayerNormalization", [X, normal(2, 3, 8), LAST], skip_rms, epsilon=0.125),
    case("GroupNorm", [normal(2, 4, 5, 6), *[lambda rng, _: rng.random(6).astype(np.float32)] * 2],
         group_norm, groups=3, epsilon=0.125, activation=1,
        types=("float32", "float16", "bfloat16")),
    case("EmbedLayerNormalization",
         [integers(0, 9, 2, 4, dtype=np.int32), integers(0, 2, 2, 4, dtype=np.int32),
          normal(9, 8), normal(6, 8), normal(2, 8), LAST, normal(8)], embedded, outputs=2,
         epsilon=0.125, types=("float32", "float16")),
    case("MatMulNBits", [normal(3, 40), integers(0, 256, 5, 3, 8, dtype=np.uint8), normal(15)],
         nibbles, K=40, N=5, bits=4, block_size=16, types=("float32", "float16")),
]  # fmt: skip
