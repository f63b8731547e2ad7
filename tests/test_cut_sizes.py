"""Models of open sizes with operators that the host runs: what lies between is compiled once."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphc
from graphc.errors import ModelError

POOL = ["a", "b", "c"]


def of(nodes: list, inputs: list, weights: dict | None = None) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info(*spec) for spec in inputs],
        [helper.make_tensor_value_info("r", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])


def words() -> onnx.ModelProto:
    """Counts of words, times weights, added to rows."""
    nodes = [
        helper.make_node("StringNormalizer", ["s"], ["n"], case_change_action="LOWER"),
        helper.make_node(
            "TfIdfVectorizer", ["n"], ["v"], max_gram_length=1, max_skip_count=0,
            min_gram_length=1, mode="TF", ngram_counts=[0], ngram_indexes=[0, 1, 2],
            pool_strings=POOL,
        ),
        helper.make_node("MatMul", ["v", "w"], ["y"]),
        helper.make_node("Add", ["y", "x"], ["z"]),
        helper.make_node("Relu", ["z"], ["r"]),
    ]  # fmt: skip
    inputs = [("s", TensorProto.STRING, ["a"]), ("x", TensorProto.FLOAT, ["b", 4])]
    return of(nodes, inputs, {"w": np.eye(3, 4, dtype=np.float32)})


@pytest.mark.parametrize("mode", ["any", "auto"])
def test_words_of_any_number(mode):
    model = graphc.compile(words(), specialise=mode, threads=1)
    for n in (1, 5, 2, 7):
        given = np.array((["A", "b", "C"] * 3)[:n], object)
        x = np.full((n + 1, 4), -1, np.float32)
        counts = [sum(word.lower() == known for word in given) for known in POOL]
        expected = np.maximum(np.array([*counts, 0], np.float32) + x, 0)
        np.testing.assert_array_equal(model.run([given, x])[0], expected)
    (made,) = model.executables()
    assert made.is_general and "the host runs StringNormalizer" in made.why
    assert model.why_exact == ""
    with pytest.raises(ModelError, match="'x'"):
        model.run([np.array(["a"], object), np.zeros((2, 3), np.float32)])


def test_parts_on_the_host_cannot_be_saved(tmp_path):
    model = graphc.compile(words(), specialise="any", threads=1)
    model.run([np.array(["a"], object), np.zeros((1, 4), np.float32)])
    with pytest.raises(graphc.GraphcError, match="without parts on the host"):
        model.save(tmp_path / "m.gcm")


def test_members_of_a_sequence_of_open_size():
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["m"]),
        helper.make_node("SplitToSequence", ["m"], ["q"], axis=1, keepdims=1),
        helper.make_node("ConcatFromSequence", ["q"], ["c"], axis=0),
        helper.make_node("Neg", ["c"], ["r"]),
    ]
    model = graphc.compile(of(nodes, [("x", TensorProto.FLOAT, ["n", "k"])]), specialise="any")
    for n, k in [(2, 3), (1, 1), (4, 2)]:
        x = np.random.default_rng(n).standard_normal((n, k)).astype(np.float32)
        np.testing.assert_allclose(model.run([x])[0], -(x * x).T.reshape(-1, 1), rtol=1e-6)
    assert len(model.executables()) == 1 and model.executables()[0].is_general


def test_sequences_that_are_taken_apart_need_no_host():
    nodes = [
        helper.make_node("SequenceConstruct", ["x", "y"], ["q"]),
        helper.make_node("SequenceAt", ["q", "i"], ["m"]),
        helper.make_node("Neg", ["m"], ["r"]),
    ]
    inputs = [(name, TensorProto.FLOAT, [name, 2]) for name in "xy"]
    model = graphc.compile(of(nodes, inputs, {"i": np.array(1)}), specialise="any", threads=1)
    x, y = np.zeros((3, 2), np.float32), np.ones((5, 2), np.float32)
    np.testing.assert_array_equal(model.run([x, y])[0], -y)
    assert "host" not in model.executables()[0].why
