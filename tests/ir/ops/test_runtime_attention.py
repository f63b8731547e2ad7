"""ONNX Runtime's attention operators: as it computes them, each operand and attribute in turn."""

from __future__ import annotations

import numpy as np
import pytest
from runtime_compare import check, runtime_model

from graphc import driver
from graphc.errors import ModelError, UnsupportedError
from graphc.frontend.onnx_import import import_onnx
from graphc.ir.interp import interpret

pytestmark = pytest.mark.suite("all")

RANDOM = np.random.default_rng(0)
BATCH, ROWS, HEADS, SIZE, PAST = 2, 3, 2, 4, 5
HIDDEN = HEADS * SIZE


def floats(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def ints(*values) -> np.ndarray:
    return np.array(values, np.int32)


def key_masks(columns: int) -> dict[str, np.ndarray | None]:
    """A mask of every kind; the first sample loses keys, in the second nothing is hidden."""
    pairs = np.ones((BATCH, ROWS, columns), np.int32)
    pairs[0, :, 0] = 0
    pairs[0, 1] = 0
    keys = np.ones((BATCH, columns), np.int32)
    keys[0, :2] = 0
    return {
        "none": None,
        "pairs": pairs,
        "keys": keys,
        "ends": ints(columns - 1, columns),
        "bounds": ints(columns - 1, columns, 1, 0),
    }


KINDS = sorted(key_masks(ROWS))

# ---------------------------------------------------------------- Attention


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("past", [False, True])
@pytest.mark.parametrize("mask", KINDS)
def test_attention(mask, past, causal):
    columns = ROWS + (PAST if past else 0)
    before = floats(2, BATCH, HEADS, PAST, SIZE) if past else None
    operands = [floats(BATCH, ROWS, 6), floats(6, 3 * HIDDEN), floats(3 * HIDDEN)]
    check("Attention", *operands, key_masks(columns)[mask], before,
          outputs=(True, past), num_heads=HEADS, unidirectional=causal)  # fmt: skip


@pytest.mark.parametrize("shape", [(BATCH, HEADS), (1, HEADS), (BATCH, 1), (1, 1)])
def test_attention_with_a_bias_of_scores(shape):
    operands = [floats(BATCH, ROWS, 6), floats(6, 3 * HIDDEN), floats(3 * HIDDEN)]
    bias = floats(*shape, ROWS, ROWS)
    check("Attention", *operands, None, None, bias, num_heads=HEADS, scale=0.3)
    mask = key_masks(ROWS)["keys"]
    check("Attention", *operands, mask, None, bias, num_heads=HEADS, mask_filter_value=-2.0)


def test_attention_with_narrower_keys():
    operands = [floats(BATCH, ROWS, 6), floats(6, 8 + 8 + 12), floats(28)]
    check("Attention", *operands, num_heads=HEADS, qkv_hidden_sizes=[8, 8, 12], compiled=True)


def test_attention_refuses_what_it_does_not_do():
    operands = [floats(BATCH, ROWS, 6), floats(6, 3 * HIDDEN), floats(3 * HIDDEN)]
    for given in ({"do_rotary": 1}, {"past_present_share_buffer": 1}):
        graph = import_onnx(runtime_model("Attention", operands, {"num_heads": HEADS, **given}))
        with pytest.raises(UnsupportedError, match=f"{next(iter(given))} is not supported"):
            interpret(graph, operands)
    masked = [*operands, np.ones((BATCH, 1, 9, 9), np.int32)]
    graph = import_onnx(runtime_model("Attention", masked, {"num_heads": HEADS}))
    with pytest.raises(UnsupportedError, match=r"mask of shape \[2, 1, 9, 9\]"):
        interpret(graph, masked)


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("past", [False, True])
def test_quantised_attention(past, columns):
    codes = [RANDOM.integers(0, 256, shape).astype(np.uint8) for shape in
             ((BATCH, ROWS, 6), (6, 3 * HIDDEN))]  # fmt: skip
    steps = np.asarray(RANDOM.uniform(0.01, 0.02, 3 * HIDDEN if columns else ()), np.float32)
    zero = np.full(3 * HIDDEN if columns else (), 127, np.uint8)
    before = floats(2, BATCH, HEADS, PAST, SIZE) if past else None
    mask = key_masks(ROWS + (PAST if past else 0))["keys"]
    check("QAttention", *codes, floats(3 * HIDDEN), np.array(0.02, np.float32), steps, mask,
          np.array(120, np.uint8), zero, before, outputs=(True, past), constants={1, 4, 7},
          num_heads=HEADS, unidirectional=1)  # fmt: skip


def test_a_gpu_fuses_all_but_the_projections_and_the_mask():
    operands = [
        floats(1, 64, 128),
        floats(128, 3 * 128),
        floats(3 * 128),
        np.ones((1, 64), np.int32),
    ]
    proto = runtime_model("Attention", operands, {"num_heads": 2}, constants={1, 2})
    kernels = [call.kernel for call in driver.program_for(driver.typed(proto), "cuda").steps]
    assert [name.split("_")[0] for name in kernels if "attention" in name] == ["attention"]
    assert len(kernels) == 4


# ---------------------------------------------------------------- MultiHeadAttention


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("past", [False, True])
@pytest.mark.parametrize("mask", ["none", "pairs", "keys"])
def test_multi_head_attention(mask, past, causal):
    columns = ROWS + (PAST if past else 0)
    inputs = [floats(BATCH, ROWS, HIDDEN) for _ in range(3)]
    before = [floats(BATCH, HEADS, PAST, SIZE) for _ in range(2)] if past else [None, None]
    check("MultiHeadAttention", *inputs, floats(3 * HIDDEN), key_masks(columns)[mask], None,
          *before, outputs=(True, past, past, True), num_heads=HEADS,
          unidirectional=causal)  # fmt: skip


def test_multi_head_attention_without_padding_of_keys():
    inputs = [floats(BATCH, ROWS, HIDDEN) for _ in range(3)]
    ends = key_masks(ROWS)["ends"]
    check("MultiHeadAttention", *inputs, None, ends, num_heads=HEADS, mask_filter_value=-3.0)


@pytest.mark.parametrize("bias", [False, True])
def test_cross_attention(bias):
    query, key, value = floats(BATCH, ROWS, 8), floats(BATCH, 7, 8), floats(BATCH, 7, 12)
    added = [floats(8 + 8 + 12), None, floats(1, HEADS, ROWS, 7)] if bias else []
    check("MultiHeadAttention", query, key, value, *added, num_heads=HEADS, scale=0.2)


def test_keys_of_another_sequence():
    operands = [floats(BATCH, ROWS, HIDDEN), *(floats(BATCH, HEADS, 7, SIZE) for _ in range(2))]
    check("MultiHeadAttention", *operands, num_heads=HEADS)


def test_packed_heads():
    parts = [floats(BATCH, ROWS, HEADS, SIZE) for _ in range(3)]
    flat = [x.reshape(BATCH, ROWS, HIDDEN) for x in parts]
    bias = floats(3 * HIDDEN)
    expected = check("MultiHeadAttention", *flat, bias, num_heads=HEADS)
    check("MultiHeadAttention", np.stack(parts, 3), None, None, bias, num_heads=HEADS,
          expected=expected)  # fmt: skip
    check("MultiHeadAttention", flat[0], np.stack(parts[1:], 3), None, bias, num_heads=HEADS,
          expected=expected)  # fmt: skip


# ---------------------------------------------------------------- RotaryEmbedding


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("positions", [(1,), (BATCH, ROWS)])
@pytest.mark.parametrize("rank", [3, 4])
@pytest.mark.parametrize("partial", [False, True])
def test_rotary_embedding(partial, rank, positions, interleaved):
    size = 8
    x = floats(BATCH, ROWS, HEADS * size) if rank == 3 else floats(BATCH, HEADS, ROWS, size)
    where = RANDOM.integers(0, 6, positions).astype(np.int64)
    pairs = 2 if partial else size // 2
    given = {"num_heads": HEADS, "rotary_embedding_dim": 2 * pairs} if partial else {}
    check("RotaryEmbedding", x, where, floats(9, pairs), floats(9, pairs),
          interleaved=interleaved, **given)  # fmt: skip


# ---------------------------------------------------------------- GroupQueryAttention

GROUP = {"num_heads": 4, "kv_num_heads": 2}
WIDE = 32  # size of a head


def grouped(rows: int, batch: int = 1) -> list[np.ndarray]:
    """Queries of four heads, keys and values of two."""
    return [floats(batch, rows, heads * WIDE) for heads in (4, 2, 2)]


def cache(length: int, batch: int = 1) -> list[np.ndarray]:
    return [floats(batch, 2, length, WIDE) for _ in range(2)]


def lengths(*last: int, total: int) -> list[np.ndarray]:
    return [ints(*last), ints(total)]


ALL = (True, True, True)
TOTAL = 6  # the number of the operand whose contents must be known


@pytest.mark.parametrize("window", [-1, 1, 2, 4])
@pytest.mark.parametrize("given", [{}, {"softcap": 0.7}, {"scale": 0.2}, {"smooth_softmax": 1}])
def test_prompts(given, window):
    check("GroupQueryAttention", *grouped(5), None, None, *lengths(4, total=5), outputs=ALL,
          constants={TOTAL}, local_window_size=window, **given, **GROUP)  # fmt: skip


@pytest.mark.parametrize("held", [7, 12])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("window", [-1, 3])
def test_continued_text(window, rows, held):
    total, before = 7 + rows, cache(held)
    for x in before:
        x[:, :, 7:] = 0  # as ONNX Runtime has it, unless the caller lets it write into the cache
    check("GroupQueryAttention", *grouped(rows), *before, *lengths(total - 1, total=total),
          outputs=ALL, constants={TOTAL}, local_window_size=window, **GROUP)  # fmt: skip


def test_samples_of_different_lengths():
    operands = [*grouped(1, 3), *cache(6, 3), *lengths(6, 3, 1, total=7)]
    (_, keys, _) = check("GroupQueryAttention", *operands, outputs=ALL, constants={TOTAL},
                         expected=run_by_sample(operands), **GROUP)  # fmt: skip
    assert (keys[1, :, 3] == operands[1][1].reshape(2, WIDE)).all()


def run_by_sample(operands: list[np.ndarray]) -> list[np.ndarray]:
    """What each sample gives on its own, with the cache as long as its text, brought together."""
    results = []
    for n, last in enumerate(operands[5]):
        own = [x[n : n + 1] for x in operands[:5]]
        own[3:] = [x[:, :, :last] for x in own[3:]]
        alone = check("GroupQueryAttention", *own, *lengths(int(last), total=int(last) + 1),
                      outputs=ALL, constants={TOTAL}, **GROUP)  # fmt: skip
        for position in (1, 2):
            rest = operands[position + 2][n : n + 1, :, last + 1 :]
            more = 7 - last - 1 - rest.shape[2]
            zeros = np.zeros((1, 2, more, WIDE), np.float32)
            alone[position] = np.concatenate([alone[position], rest, zeros], 2)
        results.append(alone)
    return [np.concatenate(parts) for parts in zip(*results)]


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("pairs", [16, 8])
@pytest.mark.parametrize("past", [0, 6])
def test_rotated_queries(past, pairs, interleaved):
    before = cache(past) if past else [None, None]
    check("GroupQueryAttention", *grouped(3), *before, *lengths(past + 2, total=past + 3),
          floats(16, pairs), floats(16, pairs), outputs=ALL, constants={TOTAL}, do_rotary=1,
          rotary_interleaved=interleaved, **GROUP)  # fmt: skip


@pytest.mark.parametrize("past", [0, 6])
def test_rotated_by_given_positions(past):
    before = cache(past) if past else [None, None]
    where = RANDOM.integers(0, 9, (1, 3))
    check("GroupQueryAttention", *grouped(3), *before, *lengths(past + 2, total=past + 3),
          floats(16, 16), floats(16, 16), where, outputs=ALL, constants={TOTAL}, do_rotary=1,
          **GROUP)  # fmt: skip


def test_positions_without_an_angle_are_refused():
    with pytest.raises(ModelError, match="cos_cache has 16 rows, there are 17 positions"):
        check("GroupQueryAttention", *grouped(1), *cache(16), *lengths(16, total=17),
              floats(16, 16), floats(16, 16), constants={TOTAL}, expected=[], do_rotary=1,
              **GROUP)  # fmt: skip


def test_packed_queries():
    q, k, v = grouped(3)
    check("GroupQueryAttention", np.concatenate([q, k, v], -1), None, None, *cache(4),
          *lengths(6, total=7), floats(16, 16), floats(16, 16), outputs=ALL, constants={TOTAL},
          do_rotary=1, compiled=True, **GROUP)  # fmt: skip


@pytest.mark.parametrize("qk_output", [1, 2])
def test_scores_and_weights(qk_output):
    check("GroupQueryAttention", *grouped(1), *cache(4), *lengths(4, total=5),
          outputs=(*ALL, True), constants={TOTAL}, qk_output=qk_output, **GROUP)  # fmt: skip


@pytest.mark.parametrize("heads", [1, 4])
def test_bias_and_sink(heads):
    operands = [*grouped(3), *cache(4), *lengths(6, total=7), None, None, None]
    check("GroupQueryAttention", *operands, floats(1, heads, 3, 7), floats(4),
          outputs=ALL, constants={TOTAL}, **GROUP)  # fmt: skip


def test_a_large_sink_takes_all():
    operands = [*grouped(3), None, None, *lengths(2, total=3), *[None] * 4]
    sink = np.array([0, 500, -500, 5], np.float32)
    check("GroupQueryAttention", *operands, sink, outputs=ALL, constants={TOTAL}, **GROUP)


def test_text_in_both_directions():
    check("GroupQueryAttention", *grouped(4), None, None, *lengths(3, total=4), outputs=ALL,
          constants={TOTAL}, causal=0, **GROUP)  # fmt: skip


def test_normalised_queries():
    q, k, v = grouped(3)
    gains = floats(WIDE), floats(WIDE)

    def normal(x, gain):
        heads = x.reshape(1, 3, -1, WIDE)
        root = np.sqrt((heads * heads).mean(-1, keepdims=True) + np.float32(1e-3))
        return (heads / root * gain).reshape(x.shape)

    rest = [None, None, *lengths(2, total=3)]
    expected = check("GroupQueryAttention", normal(q, gains[0]), normal(k, gains[1]), v, *rest,
                     outputs=ALL, constants={TOTAL}, **GROUP)  # fmt: skip
    check("GroupQueryAttention", q, k, v, *rest, *[None] * 7, *gains, outputs=ALL,
          constants={TOTAL}, expected=expected, qk_norm_epsilon=1e-3, **GROUP)  # fmt: skip


def test_lengths_may_be_inputs():
    operands = [*grouped(1), *cache(4), *lengths(4, total=5)]
    check("GroupQueryAttention", *operands, outputs=ALL, constants={5, TOTAL}, **GROUP)
    with pytest.raises(ModelError, match="total_sequence_length is 1, there are 3 queries"):
        check("GroupQueryAttention", *grouped(3), None, None, *lengths(2, total=1),
              constants={TOTAL}, expected=[], **GROUP)  # fmt: skip


@pytest.mark.parametrize("given, said", [
    ({}, "a cache of i8 needs k_quant_type"),
    ({"k_quant_type": "PER_BLOCK"}, "k_quant_type 'PER_BLOCK' is not one of NONE, PER_TENSOR"),
    ({"k_quant_type": "PER_TENSOR"}, "kv_cache_bit_width is 0, supported are 8 and 4"),
    ({"k_quant_type": "PER_TENSOR", "kv_cache_bit_width": 4}, "a cache of 4 bits is of u8"),
    ({"k_quant_type": "PER_TENSOR", "kv_cache_bit_width": 8}, "k_scale is missing"),
])  # fmt: skip
def test_a_cache_that_does_not_fit_is_refused(given, said):
    operands = [*grouped(1), *(x.astype(np.int8) for x in cache(4)), *lengths(4, total=5)]
    with pytest.raises((ModelError, UnsupportedError), match=said):
        check("GroupQueryAttention", *operands, constants={TOTAL}, expected=[], **given, **GROUP)


def test_what_a_cache_holds_beyond_the_text_stays():
    """Of a prompt as well; ONNX Runtime leaves it alone if the caller shares the buffer."""
    for rows, total in ((3, 3), (2, 5)):
        before = cache(8)
        operands = [*grouped(rows), *before, *lengths(total - 1, total=total)]
        proto = runtime_model("GroupQueryAttention", operands, GROUP, ALL, {TOTAL})
        feeds = [x for n, x in enumerate(operands) if n != TOTAL]
        _, *after = interpret(import_onnx(proto), feeds)
        for old, new in zip(before, after):
            assert (new[:, :, total:] == old[:, :, total:]).all()
            assert not (new[:, :, total - rows : total] == old[:, :, total - rows : total]).any()
