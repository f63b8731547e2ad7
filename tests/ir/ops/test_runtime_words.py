"""ONNX Runtime's operators on n-grams, words, positions and sparse matrices."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper
from runtime_compare import DOMAIN, check, runtime_model

from graphc.errors import ModelError
from graphc.frontend.onnx_import import import_onnx
from graphc.ir.interp import interpret

RANDOM = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


@pytest.mark.suite("all")
@pytest.mark.parametrize("size", [1, 2, 3, 8, 9])
def test_repeated_ngrams(size):
    scores = floats(3, 6)
    scores[0, :2] = np.nan, -np.inf
    tokens = RANDOM.integers(0, 3, (3, 8))
    check("NGramRepeatBlock", tokens, scores, ngram_size=size, compiled=size == 2)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("seed", range(8))
def test_hashes_of_ngrams(seed, dtype):
    random = np.random.default_rng(seed)
    size, heads, length = int(random.integers(2, 5)), int(random.integers(1, 3)), 7
    count = (size - 1) * heads

    def some(*shape: int, high: int = 5):
        return random.integers(0, high, shape).astype(dtype) if random.random() < 0.6 else None

    factors = random.integers(-(2**30), 2**30, size).astype(dtype)
    sizes = random.integers(1, 90, count).astype(dtype)
    segments = np.sort(random.integers(0, 3, (2, length)), axis=1).astype(np.int32)
    operands = [random.integers(0, 5, (2, length)).astype(dtype), factors, sizes,
                some(2, size - 1), some(count, high=50), some(),
                segments if random.random() < 0.5 else None]  # fmt: skip
    check("NGramHashMapping", *operands, outputs=(True, True), max_ngram_size=size, pad_id=1,
          n_head_per_ngram=heads, reset_on_eos=int(random.integers(0, 2)),
          compiled=seed == 0)  # fmt: skip


def test_heads_without_a_size():
    ids, one = np.zeros((1, 3), np.int64), np.ones(2, np.int64)
    operands = [ids, one, np.zeros(1, np.int64)]
    attrs = {"max_ngram_size": 2, "n_head_per_ngram": 1, "pad_id": 0}
    with pytest.raises(ModelError, match="size of a head 0"):
        interpret(import_onnx(runtime_model("NGramHashMapping", operands, attrs)), operands)


def test_words():
    words = RANDOM.integers(1, 9, (6, 7)).astype(np.int32)
    for word, length in zip(words, (7, 3, 1, 5, 2, 7)):
        word[length:] = 0
    check("WordConvEmbedding", words, floats(5, 1, 3, 4), floats(5), floats(9, 4), compiled=True)
    words[2] = 0
    proto = [words, floats(5, 1, 3, 4), floats(5), floats(9, 4)]
    (y,) = interpret(import_onnx(runtime_model("WordConvEmbedding", proto, {})), proto)
    assert not y[2].any()  # undefined in ONNX Runtime


@pytest.mark.parametrize("layout, section", [
    (0, (2, 3, 3)), (1, (4, 2, 2)), (1, (2, 3, 3)), (0, (8, 0, 0)),
])  # fmt: skip
@pytest.mark.parametrize("interleaved", [0, 1])
def test_three_positions(interleaved, layout, section):
    x, where = floats(2, 5, 4 * 16), RANDOM.integers(0, 20, (3, 2, 5))
    attrs = {"mrope_section": section, "mrope_layout": layout, "interleaved": interleaved}
    tables = [floats(20, 8), floats(20, 8)]
    check("MRotaryEmbedding", x, where, *tables, num_heads=4, **attrs)
    apart = x.reshape(2, 5, 4, 16).transpose(0, 2, 1, 3).copy()
    check("MRotaryEmbedding", apart, where, *tables, compiled=layout == 1, **attrs)


def test_three_positions_of_a_part():
    where = RANDOM.integers(0, 20, (3, 2, 5))
    check("MRotaryEmbedding", floats(2, 5, 64), where, floats(20, 6), floats(20, 6), num_heads=4,
          mrope_section=(2, 2, 2), rotary_embedding_dim=12)  # fmt: skip


@pytest.mark.suite("all")
@pytest.mark.parametrize("turned", [(0, 0), (1, 0), (1, 1)])
def test_sparse_matrices(turned):
    dense = np.where(RANDOM.random((4, 5)) < 0.3, RANDOM.integers(1, 9, (4, 5)), 0)
    dense = dense.astype(np.float32)
    where = np.flatnonzero(dense)
    values = helper.make_tensor("a", TensorProto.FLOAT, [len(where)], dense.flat[where])
    places = helper.make_tensor("a_indices", TensorProto.INT64, [len(where)], where)
    sparse = helper.make_sparse_tensor(values, places, [4, 5])
    left = dense.T if turned[0] else dense
    b = floats(*(3, left.shape[1]) if turned[1] else (left.shape[1], 3))
    infos = [helper.make_tensor_value_info("b", TensorProto.FLOAT, b.shape),
             helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]  # fmt: skip
    node = helper.make_node("SparseToDenseMatMul", ["a", "b"], ["y"], domain=DOMAIN, alpha=2.0,
                            transA=turned[0], transB=turned[1])  # fmt: skip
    graph = helper.make_graph([node], "g", infos[:1], infos[1:], sparse_initializer=[sparse])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    (got,) = interpret(import_onnx(model), [b])
    want = 2 * left @ (b.T if turned[1] else b)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
