"""ONNX Runtime's mixtures of experts and their routers: as its CPU kernels compute them."""

from __future__ import annotations

import numpy as np
import pytest
from runtime_compare import check, runtime_model

from graphc.errors import ModelError, UnsupportedError
from graphc.frontend.onnx_import import import_onnx
from graphc.ir.interp import interpret

EXPERTS, INNER, HIDDEN, TOKENS = 4, 32, 64, 5


class Draw:
    def __init__(self, seed: int):
        self.random = np.random.default_rng(seed)

    def pick(self, *options):
        return options[self.random.integers(len(options))]

    def floats(self, *shape: int) -> np.ndarray:
        return self.random.standard_normal(shape).astype(np.float32)

    def codes(self, *shape: int) -> np.ndarray:
        return self.random.integers(0, 256, shape).astype(np.uint8)

    def steps(self, *shape: int) -> np.ndarray:
        return self.random.uniform(0.01, 0.1, shape).astype(np.float32)

    def routing(self) -> dict:
        """Attributes of both operators."""
        kind = self.pick("relu", "gelu", "silu", "identity", "swiglu")
        attrs = {
            "activation_type": kind, "k": self.pick(1, 2, EXPERTS),
            "normalize_routing_weights": self.pick(0, 1),
        }  # fmt: skip
        if kind == "swiglu":
            attrs |= {"swiglu_fusion": 1, "activation_alpha": self.pick(1.0, 1.702),
                      "activation_beta": self.pick(0.0, 1.0)}  # fmt: skip
            attrs |= self.pick({}, {"swiglu_limit": 0.5})
        return attrs


@pytest.mark.parametrize("seed", range(16))
def test_experts(seed):
    draw = Draw(seed)
    attrs = draw.routing()
    rows = INNER * (1 + (attrs["activation_type"] == "swiglu"))
    router = draw.floats(TOKENS, EXPERTS)
    router[0] = 1.0  # all alike
    router[1, 1:3] = 7.0
    biases = draw.pick((draw.floats(EXPERTS, rows), draw.floats(EXPERTS, HIDDEN)), (None, None))
    x = draw.floats(*draw.pick((TOKENS,), (1, TOKENS)), HIDDEN)
    check("MoE", x, router, draw.floats(EXPERTS, rows, HIDDEN), biases[0],
          draw.floats(EXPERTS, HIDDEN, INNER), biases[1], constants={2, 3, 4, 5},
          compiled=seed % 4 == 0, decomposed=False, tolerance=1e-4, **attrs)  # fmt: skip


@pytest.mark.parametrize("seed", range(24))
def test_experts_of_codes(seed):
    draw = Draw(seed)
    attrs = draw.routing()
    rows = INNER * (1 + (attrs["activation_type"] == "swiglu"))
    bits, block = draw.pick(2, 4, 8), draw.pick(0, 16, 32)
    if bits == 8:
        block = 0  # whose kernel rounds activations to 8 bits where there are blocks
    attrs |= {"expert_weight_bits": bits} | ({"block_size": block} if block else {})

    def layer(rows: int, columns: int) -> tuple:
        weights = draw.codes(EXPERTS, rows, columns * bits // 8)
        if not block:
            return weights, draw.steps(EXPERTS, rows), draw.codes(EXPERTS, -(-rows * bits // 8))
        zeros = draw.codes(EXPERTS, rows, -(-(columns // block) * bits // 8))
        return weights, draw.steps(EXPERTS, rows, columns // block), zeros

    (w1, s1, z1), (w2, s2, z2) = layer(rows, HIDDEN), layer(HIDDEN, INNER)
    zeros = draw.pick((z1, z2), (None, None))
    shares = draw.pick(None, np.abs(draw.floats(TOKENS, EXPERTS)))
    operands = [draw.floats(TOKENS, HIDDEN), draw.floats(TOKENS, EXPERTS), w1, s1,
                draw.floats(EXPERTS, rows), w2, s2, draw.floats(EXPERTS, HIDDEN), None, None, None,
                *zeros, None, shares]  # fmt: skip
    near = 1e-4
    if draw.pick(0, 0, 1):
        near = 2e-3
        operands = [x.astype(np.float16) if x is not None and x.dtype == np.float32 else x
                    for x in operands]  # fmt: skip
    constants = {2, 3, 4, 5, 6, 7} | ({11, 12} if zeros[0] is not None else set())
    check("QMoE", *operands, constants=constants, compiled=seed % 6 == 0, decomposed=False,
          tolerance=near, **attrs)  # fmt: skip


def test_three_layers():
    """SwiGLU of separate layers, and of two halves, is that of pairs; ONNX Runtime has none."""
    draw = Draw(0)
    gate, linear = (draw.floats(EXPERTS, INNER, HIDDEN) for _ in range(2))
    back, x, router = (draw.floats(EXPERTS, HIDDEN, INNER), draw.floats(TOKENS, HIDDEN),
                       draw.floats(TOKENS, EXPERTS))  # fmt: skip
    attrs = {"activation_type": "swiglu", "k": 2}

    def run(operands: list, fusion: int) -> np.ndarray:
        given = {**attrs, "swiglu_fusion": fusion}
        proto = runtime_model("MoE", [x, router, *operands], given)
        (y,) = interpret(import_onnx(proto), [v for v in (x, router, *operands) if v is not None])
        return y

    pairs = np.stack([gate, linear], axis=2).reshape(EXPERTS, 2 * INNER, HIDDEN)
    halves = np.concatenate([gate, linear], axis=1)
    expected = run([pairs, None, back], 1)
    np.testing.assert_allclose(run([halves, None, back], 2), expected, rtol=1e-4, atol=1e-4)
    apart = run([gate, None, back, None, linear], 0)
    np.testing.assert_allclose(apart, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.suite("all")
@pytest.mark.parametrize("change, error", [
    ({"use_sparse_mixer": 1, "k": 2}, "use_sparse_mixer"), ({"k": 5}, "5 of 4 experts"),
    ({"activation_type": "relu2"}, "relu2"), ({"quant_type": "fp4"}, "fp4"),
    ({"expert_weight_bits": 3}, "3 bits"),
])  # fmt: skip
def test_refused(change, error):
    draw = Draw(0)
    operands = [draw.floats(TOKENS, HIDDEN), draw.floats(TOKENS, EXPERTS),
                draw.codes(EXPERTS, INNER, HIDDEN // 2), draw.steps(EXPERTS, INNER), None,
                draw.codes(EXPERTS, HIDDEN, INNER // 2), draw.steps(EXPERTS, HIDDEN)]  # fmt: skip
    graph = import_onnx(runtime_model("QMoE", operands, change))
    with pytest.raises((ModelError, UnsupportedError), match=error):
        interpret(graph, [x for x in operands if x is not None])


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("attrs", [
    {"top_k": 2}, {"top_k": 3, "n_group": 4, "topk_group": 2},
    {"top_k": 2, "n_group": 2, "group_topk": 3, "router_sentinel": -5.0},
])  # fmt: skip
def test_group_router(attrs, dtype):
    draw = Draw(1)
    logits = draw.floats(2, 3, 8).astype(dtype)
    logits[0, 0] = 0
    logits[0, 1, :2] = -200, 200
    check("MoEGroupRouter", logits, draw.floats(8), tolerance=2e-3 if dtype == np.float16 else 1e-5,
          compiled=dtype == np.float32, **attrs)  # fmt: skip
    check("MoEGroupRouter", logits * 0, np.zeros(8, np.float32), **attrs)


def test_scores_of_a_router():
    draw = Draw(2)
    check("MoEGroupRouter", draw.floats(6, 8), draw.floats(8), outputs=(False, True, True), top_k=2)
