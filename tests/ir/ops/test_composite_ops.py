"""Normalisations, attention, recurrent layers and losses, mostly against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest
from every_target import agree_everywhere
from ort_compare import agree

from graphc.driver import program_for
from graphc.errors import ModelError, UnsupportedError
from graphc.ir import dtypes
from graphc.ir.build import Builder, new_graph
from graphc.ir.graph import clone_graph
from graphc.ir.interp import interpret
from graphc.ir.machine import Machine
from graphc.ir.ops.attention import Band
from graphc.ir.types import type_of
from graphc.passes import Context, run_pipeline
from graphc.passes.manager.context import AnyTarget

rng = np.random.default_rng(11)


def floats(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def run(name: str, *operands, outputs: int = 1, **attrs) -> list[np.ndarray]:
    """One operator through the builder and the interpreter."""
    graph = new_graph(**{f"x{n}": type_of(x) for n, x in enumerate(operands) if x is not None})
    params = iter(graph.params)
    values = [None if x is None else next(params) for x in operands]
    result = Builder(graph).op(name, *values, outputs=outputs, **attrs)
    graph.set_results([result] if outputs == 1 else list(result))
    return interpret(graph, [x for x in operands if x is not None])


# ---------------------------------------------------------------- normalisation


def test_softmax_along_any_axis_and_of_large_numbers():
    x = floats(2, 3, 4) * 100
    for axis in (0, 1, -1):
        agree("Softmax", x, axis=axis)
        agree("LogSoftmax", x, axis=axis)


def test_batch_normalization():
    x, parameters = floats(2, 3, 4, 5), [floats(3), floats(3), floats(3), np.abs(floats(3))]
    agree("BatchNormalization", x, *parameters, epsilon=1e-2)


def test_batch_normalization_in_training_mode_moves_its_statistics():
    x, scale, bias = floats(4, 3, 5) * 3 + 7, np.ones(3, np.float32), np.zeros(3, np.float32)
    y, mean, var = run(
        "BatchNormalization", x, scale, bias, bias, scale,
        outputs=3, training_mode=1, momentum=0.8,
    )  # fmt: skip
    own_mean, own_var = x.mean((0, 2)), x.var((0, 2))
    np.testing.assert_allclose(mean, 0.2 * own_mean, rtol=1e-5)
    np.testing.assert_allclose(var, 0.8 + 0.2 * own_var, rtol=1e-5)
    np.testing.assert_allclose(y.mean((0, 2)), 0, atol=1e-5)


def test_layer_normalization_with_large_mean():
    x = floats(3, 4, 5) + 1000
    agree("LayerNormalization", x, floats(5), floats(5), outputs=3, tolerance=2e-3)
    agree("LayerNormalization", floats(3, 4, 5), floats(4, 5), axis=1)


def test_group_and_instance_normalization():
    x = floats(2, 6, 4, 3)
    agree("InstanceNormalization", x, floats(6), floats(6))
    (y,) = run("GroupNormalization", x, floats(6), floats(6) * 0, num_groups=2)
    assert np.abs(y.mean((2, 3))).max() > 0.01  # channels of a group keep their differences
    with pytest.raises(ModelError, match="6 channels do not divide into 4 groups"):
        run("GroupNormalization", x, floats(6), floats(6), num_groups=4)


def test_norms():
    x = floats(2, 7, 4)
    agree("LpNormalization", x, axis=1, p=1)
    agree("LpNormalization", x, axis=-1, p=2)
    agree("LRN", floats(2, 7, 4, 3), size=5, alpha=0.01, beta=0.6, bias=0.7)
    agree("MeanVarianceNormalization", floats(2, 3, 4, 5), tolerance=1e-4)


# ---------------------------------------------------------------- attention


def reference_attention(q, k, v, allowed, scale):
    """Plain attention over (heads, rows, size), zero where nothing is allowed."""
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    scores = np.where(allowed, q @ k.transpose(0, 1, 3, 2) * scale, -np.inf)
    weights = np.exp(scores - np.where(np.isneginf(scores.max(-1)), 0, scores.max(-1))[..., None])
    total = weights.sum(-1, keepdims=True)
    return weights / np.where(total == 0, 1, total) @ v


def test_grouped_queries_with_a_causal_cache():
    q, k, v = floats(2, 6, 3, 8), floats(2, 2, 3, 8), floats(2, 2, 3, 5)
    past_k, past_v = floats(2, 2, 4, 8), floats(2, 2, 4, 5)
    y, keys, values, scores = run(
        "Attention", q, k, v, None, past_k, past_v, outputs=4, is_causal=1, scale=0.3
    )
    all_k, all_v = np.concatenate([past_k, k], 2), np.concatenate([past_v, v], 2)
    allowed = np.arange(7) <= np.arange(3)[:, None] + 4
    np.testing.assert_allclose(
        y, reference_attention(q, all_k, all_v, allowed, 0.3), rtol=1e-4, atol=1e-5
    )
    assert np.array_equal(keys, all_k) and np.array_equal(values, all_v)
    assert scores.shape == (2, 6, 3, 7)


def test_rows_with_nothing_to_attend_give_zeros():
    q, k, v = floats(1, 2, 4, 8), floats(1, 2, 3, 8), floats(1, 2, 3, 8)
    mask = rng.random((4, 3)) > 0.5
    mask[2] = False
    (y,) = run("Attention", q, k, v, mask)
    np.testing.assert_allclose(y, reference_attention(q, k, v, mask, 8**-0.5), rtol=1e-4, atol=1e-5)
    assert not y[:, :, 2].any()


def test_window_of_keys_and_short_mask():
    q, k, v = floats(1, 1, 5, 4), floats(1, 1, 6, 4), floats(1, 1, 6, 4)
    mask = np.ones((5, 4), bool)
    (y,) = run("Attention", q, k, v, mask, left_window_size=1, right_window_size=2)
    distance = np.arange(6) - np.arange(5)[:, None]
    allowed = (distance >= -1) & (distance <= 2) & (np.arange(6) < 4)
    np.testing.assert_allclose(y, reference_attention(q, k, v, allowed, 0.5), rtol=1e-4, atol=1e-5)


def test_band_knows_its_empty_rows():
    assert not Band(4, 4, 0, True, -1, -1).has_empty_row()
    assert Band(4, 2, 0, False, 0, -1).has_empty_row()
    assert Band(3, 4, -2, True, -1, -1).has_empty_row()


def test_packed_attention_equals_split_heads():
    q = floats(2, 3, 12)

    def split(x, heads):
        return x.reshape(2, x.shape[1], heads, -1).transpose(0, 2, 1, 3)

    (packed,) = run("Attention", q, q, q, q_num_heads=6, kv_num_heads=6)
    (whole,) = run("Attention", split(q, 6), split(q, 6), split(q, 6))
    np.testing.assert_allclose(split(packed, 6), whole, rtol=1e-5, atol=1e-6)


def test_heads_must_divide():
    with pytest.raises(ModelError, match="6 query heads are no multiple of 4 key heads"):
        run("Attention", floats(1, 6, 3, 2), floats(1, 4, 3, 2), floats(1, 4, 3, 2))


@pytest.mark.suite("all")
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("dim", [0, 4])
def test_rotation_keeps_lengths_and_relative_angles(interleaved, dim):
    x = floats(1, 2, 5, 8)
    pairs = (dim or 8) // 2
    angle = np.arange(10)[:, None] * 0.3 ** np.arange(pairs)
    caches = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    where = np.arange(5)[None]
    attrs = {"interleaved": interleaved, "rotary_embedding_dim": dim}
    (y,) = run("RotaryEmbedding", x, *caches, where, **attrs)
    np.testing.assert_allclose((y**2).sum(-1), (x**2).sum(-1), rtol=1e-5)
    np.testing.assert_array_equal(y[..., pairs * 2 :], x[..., pairs * 2 :])
    (later,) = run("RotaryEmbedding", x, *caches, where + 3, **attrs)
    np.testing.assert_allclose(
        (y[:, 0, 0] * y[:, 1, 0]).sum(), (later[:, 0, 0] * later[:, 1, 0]).sum(), rtol=1e-4
    )
    with pytest.raises(ModelError, match="pairs of up to 3 features, found [34]"):
        run("RotaryEmbedding", x[..., :3], *caches, where, **attrs)


# ---------------------------------------------------------------- recurrent layers

SEQUENCE, BATCH, FEATURES, HIDDEN = 5, 3, 4, 6


def recurrent_operands(gates: int, directions: int, lengths: bool):
    lens = np.array([5, 2, 3], np.int32) if lengths else None
    return [
        floats(SEQUENCE, BATCH, FEATURES), floats(directions, gates * HIDDEN, FEATURES),
        floats(directions, gates * HIDDEN, HIDDEN), floats(directions, 2 * gates * HIDDEN), lens,
        floats(directions, BATCH, HIDDEN),
    ]  # fmt: skip


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("lengths", [False, True])
def test_recurrent_layers(direction, lengths):
    count = 2 if direction == "bidirectional" else 1
    common = {"direction": direction, "hidden_size": HIDDEN, "tolerance": 1e-4}
    agree("RNN", *recurrent_operands(1, count, lengths), outputs=2, **common)
    for after in (0, 1):
        agree("GRU", *recurrent_operands(3, count, lengths), outputs=2,
              linear_before_reset=after, **common)  # fmt: skip
    cell, peepholes = floats(count, BATCH, HIDDEN), floats(count, 3 * HIDDEN)
    operands = [*recurrent_operands(4, count, lengths), cell, peepholes]
    agree("LSTM", *operands, outputs=3, **common)


def test_recurrent_activations_and_clip():
    operands = recurrent_operands(4, 1, False)
    agree("LSTM", *operands, outputs=3, hidden_size=HIDDEN, tolerance=1e-4, clip=0.8,
          activations=["HardSigmoid", "ScaledTanh", "Softsign"],
          activation_alpha=[0.3, 1.7], activation_beta=[0.4, 0.6])  # fmt: skip
    agree("RNN", *recurrent_operands(1, 1, False), outputs=2, hidden_size=HIDDEN,
          activations=["Relu"], tolerance=1e-4)  # fmt: skip


def test_unknown_activation_is_named():
    with pytest.raises(UnsupportedError, match="activation 'Gauss'"):
        run("RNN", *recurrent_operands(1, 1, False)[:3], outputs=2, activations=("Gauss",))


def test_input_share_is_one_product_for_all_steps():
    from graphc.ir.infer import expand

    operands = recurrent_operands(4, 1, False)
    graph = new_graph(**{f"x{n}": type_of(x) for n, x in enumerate(operands) if x is not None})
    x, w, r, bias, h = graph.params
    outputs = Builder(graph).LSTM(x, w, r, bias, None, h, outputs=3)
    body, _ = expand(outputs[0].producer)
    names = [op.name for op in body.ops]
    assert names.count("Gemm") == SEQUENCE + 1 and "MatMul" not in names


@pytest.mark.suite("all")
@pytest.mark.parametrize("op, gates", [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
@pytest.mark.parametrize("steps, batch", [(0, 2), (3, 0), (0, 0)])
@pytest.mark.parametrize("direction, ways", [("forward", 1), ("bidirectional", 2)])
def test_recurrence_without_steps_or_samples(op, gates, steps, batch, direction, ways):
    """The last states of samples without steps are zero, as ONNX Runtime has them."""
    x, w, r = floats(steps, batch, 4), floats(ways, 5 * gates, 4), floats(ways, 5 * gates, 5)
    h = floats(ways, batch, 5)
    outputs = 3 if op == "LSTM" else 2
    y, last, *_ = run(op, x, w, r, None, None, h, outputs=outputs, direction=direction)
    assert y.shape == (steps, ways, batch, 5)
    np.testing.assert_array_equal(last, np.zeros_like(h))


@pytest.mark.parametrize("op, gates", [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
@pytest.mark.parametrize("lengths", [False, True])
def test_directions_may_take_their_steps_together(op, gates, lengths):
    operands = recurrent_operands(gates, 2, lengths)
    graph = new_graph(**{f"x{n}": type_of(x) for n, x in enumerate(operands) if x is not None})
    params = iter(graph.params)
    values = [None if x is None else next(params) for x in operands]
    outputs = Builder(graph).op(
        op, *values, outputs=2, direction="bidirectional", hidden_size=HIDDEN
    )  # fmt: skip
    graph.set_results(list(outputs))
    graph.phase = "typed"
    inputs = [x for x in operands if x is not None]
    wanted = interpret(graph, inputs)
    products = [len(graph.ops)]
    for seconds in (0, 1e-6):
        copy = clone_graph(graph)
        run_pipeline(copy, "decompose", Context(AnyTarget(Machine(launch_seconds=seconds))))
        products.append(sum(o.name in ("Gemm", "Einsum") for o in copy.ops))
        for found, expected in zip(interpret(copy, inputs), wanted):
            np.testing.assert_allclose(found, expected, atol=1e-6)
    steps = SEQUENCE * (2 if op == "GRU" else 1)
    assert products == [1, 2 * steps + 2, steps + 2]


# ---------------------------------------------------------------- losses


@pytest.mark.suite("all")
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignore", [None, 2, -1])
def test_losses(reduction, weighted, ignore):
    scores, labels = floats(4, 5, 3), rng.integers(0, 5, (4, 3))
    if ignore is not None:
        labels[1] = ignore
    weights = rng.uniform(0.5, 2, 5).astype(np.float32) if weighted else None
    attrs = {"reduction": reduction}
    if ignore is not None:
        attrs["ignore_index"] = ignore
    agree("NegativeLogLikelihoodLoss", scores, labels, weights, **attrs)
    agree("SoftmaxCrossEntropyLoss", scores, labels, weights, outputs=2, **attrs)


def test_labels_must_fit_scores():
    with pytest.raises(ModelError, match="labels of shape"):
        run("NegativeLogLikelihoodLoss", floats(4, 5), np.zeros((3,), np.int64))
    with pytest.raises(ModelError, match="labels .* do not fit scores"):
        run("SoftmaxCrossEntropyLoss", floats(4, 5), np.zeros((3,), np.int64))


def test_a_loss_stores_no_probabilities():
    scores, labels = floats(16, 200), rng.integers(0, 200, 16)
    graph = new_graph(x=type_of(scores), labels=type_of(labels))
    graph.set_results([Builder(graph).SoftmaxCrossEntropyLoss(*graph.params)])
    graph.phase = "typed"
    for target in ("cpu", "cuda", "c"):
        assert program_for(clone_graph(graph), target).arena_bytes < scores.nbytes / 4
    powers = np.exp(scores.astype(np.float64))
    likelihoods = powers[np.arange(16), labels] / powers.sum(axis=1)
    expected = np.asarray(-np.log(likelihoods).mean(), np.float32)
    agree_everywhere(graph, [scores, labels], [expected])


# ---------------------------------------------------------------- state-space pieces


def test_causal_convolution_in_two_calls_equals_one():
    x, w, bias = floats(2, 3, 9), floats(3, 1, 4), floats(3)
    whole, end = run("CausalConvWithState", x, w, bias, outputs=2, activation="silu")
    first, state = run("CausalConvWithState", x[..., :5], w, bias, outputs=2, activation="silu")
    rest, last = run("CausalConvWithState", x[..., 5:], w, bias, state, outputs=2,
                     activation="silu")  # fmt: skip
    np.testing.assert_allclose(np.concatenate([first, rest], 2), whole, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(last, end)


@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
def test_linear_attention_in_two_calls_equals_one(rule):
    heads, size, width = 2, 3, 5
    q, k = floats(1, 6, 4 * size), floats(1, 6, heads * size)
    v = floats(1, 6, heads * width)
    decay = -np.abs(floats(1, 6, heads)) if "gated" in rule else None
    beta = rng.random((1, 6, heads)).astype(np.float32) if "delta" in rule else None
    attrs = {"q_num_heads": 4, "kv_num_heads": heads, "update_rule": rule, "outputs": 2}

    def part(span, state):
        cut = [None if x is None else x[:, span] for x in (q, k, v, decay, beta)]
        return run("LinearAttention", *cut[:3], state, *cut[3:], **attrs)

    whole, end = part(slice(None), None)
    first, state = part(slice(0, 4), None)
    rest, last = part(slice(4, 6), state)
    np.testing.assert_allclose(np.concatenate([first, rest], 1), whole, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(last, end, rtol=1e-4, atol=1e-5)


def test_stash_type_decides_where_half_floats_are_summed():
    x = (floats(2, 300) + 60).astype(np.float16)
    ones = np.ones(300, np.float16)
    (y,) = run("LayerNormalization", x, ones, None, stash_type=dtypes.f32.onnx)
    want = x.astype(np.float64) - x.astype(np.float64).mean(-1, keepdims=True)
    want /= np.sqrt((want**2).mean(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(y.astype(np.float64), want, atol=2e-3)


# ---------------------------------------------------------------- optimisers


def test_momentum_updates_every_tensor():
    domain = "ai.onnx.preview.training"
    x, y, gx, gy, vx, vy = (floats(3) if n % 2 == 0 else floats(2, 2) for n in range(6))
    attrs = {"alpha": 0.9, "beta": 0.5, "norm_coefficient": 0.1, "mode": "standard"}
    results = run("Momentum", np.float32(0.2), np.int64(3), x, y, gx, gy, vx, vy,
                  domain=domain, outputs=4, **attrs)  # fmt: skip
    for old, gradient, average, new, moved in zip(
        (x, y), (gx, gy), (vx, vy), results[:2], results[2:]
    ):
        want = 0.9 * average + 0.5 * (0.1 * old + gradient)
        np.testing.assert_allclose(moved, want, rtol=1e-5)
        np.testing.assert_allclose(new, old - 0.2 * want, rtol=1e-5, atol=1e-6)
    with pytest.raises(ModelError, match="a multiple of 3 is required"):
        run("Momentum", np.float32(0.2), np.int64(3), x, gx, domain=domain, outputs=2, **attrs)
