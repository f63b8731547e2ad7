"""Host operators: strings, label encoders, sequences, optionals; and their type rules."""

import numpy as np
import pytest

from graphc.errors import ModelError, NeedsValue
from graphc.ir import dtypes
from graphc.ir.build import Builder, new_graph
from graphc.ir.graph import Op, Value
from graphc.ir.interp import run_op
from graphc.ir.opdef import lookup
from graphc.ir.types import OptionalType, SequenceType, TensorType, type_of

T = TensorType(dtypes.f32, (2,))


def run(name, *arguments, outputs=1, domain="", **attrs):
    inputs = [None if a is None else Value(type_of(a)) for a in arguments]
    found = run_op(Op(lookup(name, domain), inputs, attrs, outputs), arguments)
    return found[0] if outputs == 1 else found


def words(*items):
    return np.array(items, object)


def test_string_concat_broadcasts():
    assert run("StringConcat", words("a", "é"), words("x")).tolist() == ["ax", "éx"]


def test_string_split():
    parts, counts = run("StringSplit", words("a b  c", ""), outputs=2)
    assert parts.tolist() == [["a", "b", "c"], ["", "", ""]] and counts.tolist() == [3, 0]
    parts, counts = run("StringSplit", words("a,,b"), outputs=2, delimiter=",", maxsplit=1)
    assert parts.tolist() == [["a", ",b"]] and counts.tolist() == [2]
    parts, counts = run("StringSplit", np.zeros((2, 0), object), outputs=2)
    assert parts.shape == (2, 0, 0) and counts.shape == (2, 0)


def test_string_normalizer():
    days = words("Monday", "tuesday", "Wédnesday")
    assert run("StringNormalizer", days, stopwords=("MONDAY",)).tolist() == ["tuesday", "Wednesday"]
    cased = run("StringNormalizer", days, stopwords=("Monday",), is_case_sensitive=1,
                case_change_action="UPPER")  # fmt: skip
    assert cased.tolist() == ["TUESDAY", "WEDNESDAY"]
    assert run("StringNormalizer", days[None, :1], stopwords=("monday",)).tolist() == [[""]]
    with pytest.raises(ModelError, match="case_change_action 'Title'"):
        run("StringNormalizer", days, case_change_action="Title")


def test_regex_full_match():
    matches = run("RegexFullMatch", words("abc", "xabc"), pattern="[a-c]+")
    assert matches.tolist() == [True, False] and matches.dtype == np.bool_
    with pytest.raises(ModelError, match="is not a regular expression"):
        run("RegexFullMatch", words("a"), pattern="(")


def test_string_tensors_in_scalar_bodies():
    a, b = words("x", "y"), words("x", "z")
    assert run("Equal", a, b).tolist() == [True, False]
    assert run("Where", np.array([True, False]), a, b).tolist() == ["x", "z"]
    assert run("Identity", a).tolist() == ["x", "y"]
    assert run("Concat", a, b, axis=0).tolist() == ["x", "y", "x", "z"]
    assert run("Reshape", a, np.array([2, 1])).tolist() == [["x"], ["y"]]
    assert run("Gather", a, np.array([1, -2])).tolist() == ["y", "x"]


def test_label_encoder():
    def encode(x, **attrs):
        return run("LabelEncoder", x, domain="ai.onnx.ml", **attrs)

    found = encode(words("a", "q"), keys_strings=("a",), values_int64s=(5,), default_int64=9)
    assert found.tolist() == [5, 9] and found.dtype == np.int64
    assert encode(np.array([1, 2]), keys_int64s=(2,), values_strings=("two",)).tolist() == [
        "_Unused", "two",
    ]  # fmt: skip
    keys = (float("nan"), 0.1)
    found = encode(np.float32([np.nan, 0.1]), keys_floats=keys, values_floats=(1.0, 2.0))
    assert found.tolist() == [1, 2] and found.dtype == np.float32
    tables = {"keys_tensor": np.array([1, 2]), "values_tensor": np.array([7, 8], np.int16)}
    assert encode(np.array([2, 3]), **tables).tolist() == [8, -1]
    with pytest.raises(ModelError, match="exactly one keys"):
        encode(words("a"), values_int64s=(5,))


def test_category_mapper():
    table = {"cats_strings": ("cat", "dog"), "cats_int64s": (3, 4)}
    found = run("CategoryMapper", words("dog", "cow"), domain="ai.onnx.ml", **table)
    assert found.tolist() == [4, -1]
    found = run("CategoryMapper", np.array([3, 9]), domain="ai.onnx.ml", **table)
    assert found.tolist() == ["cat", "_Unused"]


def test_tf_idf_vectorizer():
    attrs = dict(
        min_gram_length=1, max_gram_length=2, max_skip_count=1, mode="TFIDF",
        ngram_counts=(0, 2), ngram_indexes=(0, 3, 1), pool_int64s=(2, 3, 5, 4),
        weights=(1.0, 10.0, 1.0, 2.0),
    )  # fmt: skip
    x = np.array([[2, 5, 3, 4, 2], [5, 4, 5, 5, 4]])
    assert run("TfIdfVectorizer", x, **attrs).tolist() == [[2, 10, 0, 2], [0, 30, 0, 0]]
    assert run("TfIdfVectorizer", x[0], **{**attrs, "mode": "IDF"}).tolist() == [1, 10, 0, 2]
    strings = {**attrs, "pool_int64s": None, "pool_strings": ("a", "b", "b", "a"), "mode": "TF"}
    del strings["pool_int64s"]
    assert run("TfIdfVectorizer", words("b", "a", "b"), **strings).tolist() == [1, 1, 0, 2]


# ---------------------------------------------------------------- sequences and optionals


def test_sequences():
    a, b, c = (np.float32([n, n]) for n in range(3))
    items = run("SequenceConstruct", a, b)
    assert run("SequenceLength", items) == 2
    longer = run("SequenceInsert", items, c, np.int64(-2))
    assert [x[0] for x in longer] == [2, 0, 1] and len(items) == 2
    assert [x[0] for x in run("SequenceErase", longer, np.int64(-1))] == [2, 0]
    assert run("SequenceAt", longer, np.int64(-1))[0] == 1
    assert run("SequenceEmpty") == []
    with pytest.raises(ModelError, match="position 2 is out of range for a sequence of length 2"):
        run("SequenceAt", items, np.int64(2))


def test_split_to_sequence():
    x = np.arange(10).reshape(2, 5)
    assert [p.shape for p in run("SplitToSequence", x, np.int64(2), axis=1)] == [
        (2, 2),
        (2, 2),
        (2, 1),
    ]
    assert [p.shape for p in run("SplitToSequence", x, np.array([4, 1]), axis=-1)] == [
        (2, 4),
        (2, 1),
    ]
    assert [p.shape for p in run("SplitToSequence", x, keepdims=0)] == [(5,), (5,)]
    with pytest.raises(ModelError, match="does not add up"):
        run("SplitToSequence", x, np.array([4, 4]), axis=1)


def test_concat_from_sequence():
    x = np.arange(4).reshape(2, 2)
    np.testing.assert_array_equal(run("ConcatFromSequence", [x, x], axis=1), np.hstack([x, x]))
    assert run("ConcatFromSequence", [x, x, x], axis=-1, new_axis=1).shape == (2, 2, 3)


def test_optionals():
    x = np.float32([1, 2])
    assert run("OptionalHasElement", run("Optional", x)) and not run("OptionalHasElement", None)
    assert run("OptionalGetElement", x) is x
    assert run("OptionalHasElement", [])


def test_type_rules():
    graph = new_graph(x=T, y=TensorType(dtypes.f32, (3,)))
    graph.add_param(OptionalType(SequenceType(T)), "o")
    b = Builder(graph)
    x, y, o = graph.params
    same, mixed = b.SequenceConstruct(x, x), b.SequenceConstruct(x, y)
    assert str(same.type) == "seq<f32[2]>" and str(mixed.type) == "seq<f32[*]>"
    assert b.SequenceAt(same, np.int64(0)).type == T
    assert b.SequenceLength(mixed).type == TensorType(dtypes.i64, ())
    assert str(b.SequenceInsert(b.SequenceEmpty(), x).type) == "seq<f32[*]>"
    assert str(b.OptionalGetElement(o).type) == "seq<f32[2]>"
    assert str(b.Optional(x).type) == "opt<f32[2]>"
    with pytest.raises(NeedsValue, match="shapes of the sequence's elements"):
        b.SequenceAt(mixed, np.int64(0))
    with pytest.raises(ModelError, match="cannot hold both"):
        b.SequenceConstruct(x, b.constant(np.int64([1])))


def test_splitting_that_would_fill_the_memory():
    x = np.array(["a " * 20_000, *[""] * 20_000], object)
    with pytest.raises(ModelError, match="20001 strings of up to 20000 parts are more than"):
        run("StringSplit", x, outputs=2)
