"""ONNX Runtime's operators that carry a state: linear attention and causal convolutions."""

from __future__ import annotations

import numpy as np
import pytest
from runtime_compare import check, runtime_model

from graphc.errors import ModelError, UnsupportedError
from graphc.frontend.onnx_import import import_onnx
from graphc.ir.interp import interpret

RULES = ["linear", "gated", "delta", "gated_delta"]
BOUNDS = np.array([0, 1, 6, 9], np.int32)


def floats(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.suite("all")
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("heads", [(4, 2, 2), (2, 2, 4), (2, 1, 2)])
@pytest.mark.parametrize("whole", [False, True])
def test_linear_attention(whole, heads, rule):
    of_q, of_k, of_v = heads
    keys, width, batch, length = 8, 6, 2, 5
    state = floats(1, batch, of_v, keys, width) if whole else None
    decay = -np.abs(floats(2, batch, length, of_v * (keys if whole else 1)))
    decay[0, 0, 0] = -200
    beta = 1 / (1 + floats(3, batch, length, of_v if whole else 1) ** 2)
    check("LinearAttention", floats(4, batch, length, of_q * keys),
          floats(5, batch, length, of_k * keys) * 0.3, floats(6, batch, length, of_v * width),
          state, decay, beta, outputs=(True, True), decomposed=False, compiled=whole and of_q == 4,
          q_num_heads=of_q, kv_num_heads=of_v, update_rule=rule,
          scale=0.4 if whole else 0.0)  # fmt: skip


@pytest.mark.suite("all")
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("gates", ["none", "softplus", "sigmoid", "each"])
@pytest.mark.parametrize("rule", RULES)
def test_gated_delta_net(rule, gates, dtype):
    tokens, keys, width = 9, 8, 6
    heads = [
        floats(n, tokens, *shape) for n, shape in enumerate([(2, keys), (2, keys), (4, width)])
    ]
    heads[1] *= 0.3
    decay, beta, raw = None, None, []
    if "gated" in rule:
        decay = -np.abs(floats(4, tokens, 4, keys) if gates == "each" else floats(4, tokens, 4))
        raw = [floats(5, 4), floats(6, 4)] if gates in ("softplus", "sigmoid") else []
    if "delta" in rule:
        beta = floats(7, tokens, 4)
    attrs = {"gate_activation": gates} if raw else {}
    check("GatedDeltaNet", *(x.astype(dtype) for x in heads), BOUNDS, decay, beta,
          floats(8, 3, 4, width, keys), *raw, outputs=(True, True), decomposed=False,
          compiled=dtype == np.float32 and gates == "none", update_rule=rule, qk_l2_norm=1,
          beta_activation="sigmoid" if beta is not None else "none",
          tolerance=4e-3 if dtype == np.float16 else 1e-5, **attrs)  # fmt: skip


@pytest.mark.parametrize("shape", [(8,), (2, 4)])
def test_packed_gated_delta_net(shape):
    rest = [None, None, None, -np.abs(floats(1, *shape, 4)), floats(2, *shape, 4) * 0.1]
    check("GatedDeltaNet", floats(0, *shape, 2 * 16 + 24) * 0.3, *rest, floats(3, 2, 4, 6, 8),
          outputs=(True, True), decomposed=False)  # fmt: skip


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("length", [5, 1])
def test_causal_convolution(length, dilation, last):
    x = floats(0, 2, length, 2, 3) if last else floats(0, 2, 6, length)
    before = 3 * dilation
    state = floats(1, 2, before, 2, 3) if last else floats(1, 2, 6, before)
    weights = [floats(2, 6, 1, 4), floats(3, 6)]
    attrs = {"channels_last": last, "dilation": dilation, "outputs": (True, True)}
    check("CausalConvWithState", x, *weights, state, activation="silu",
          compiled=dilation == 1, **attrs)  # fmt: skip
    check("CausalConvWithState", x, weights[0], **attrs)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("dilation", [1, 2])
def test_sequences_side_by_side(dilation, dtype):
    operands = [floats(0, 9, 4), floats(1, 4, 1, 3), floats(2, 4), floats(3, 3, 4, 2 * dilation)]
    x, weight, bias, state = (v.astype(dtype) for v in operands)
    near = 2e-3 if dtype == np.float16 else 1e-5
    for given in (bias, None):
        check("VarlenCausalConvWithState", x, weight, BOUNDS, given, state, outputs=(True, True),
              tolerance=near, compiled=given is None, dilation=dilation,
              activation="swish" if given is None else "none")  # fmt: skip


def test_bounds_beyond_the_tokens():
    operands = [floats(0, 9, 4), floats(1, 4, 1, 3), np.array([0, 10], np.int32), None,
                floats(3, 1, 4, 2)]  # fmt: skip
    graph = import_onnx(runtime_model("VarlenCausalConvWithState", operands, {}, (True, True)))
    with pytest.raises(ModelError, match="bound 10"):
        interpret(graph, [x for x in operands if x is not None])


@pytest.mark.suite("all")
@pytest.mark.parametrize("change, error", [
    ({"state_window": 2}, "state_window"), ({"ndim": 2}, "ndim is 2"),
    ({"activation": "relu"}, "not 'relu'"),
])  # fmt: skip
def test_refused(change, error):
    operands = [floats(0, 2, 6, 5), floats(1, 6, 1, 3)]
    graph = import_onnx(runtime_model("CausalConvWithState", operands, change, (True, True)))
    with pytest.raises((ModelError, UnsupportedError), match=error):
        interpret(graph, operands)
