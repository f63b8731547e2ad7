"""Broken and malicious models: one clear error, of our own kind, without much memory or time."""

import random
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from onnx import AttributeProto, TensorProto, helper, numpy_helper
from onnx_models import model, run, single

import graphc
from graphc.errors import GraphcError, ModelError, UnsupportedError
from graphc.frontend.onnx_import import import_onnx

X = np.zeros((3, 4), np.float32)
DIGITS = Path(__file__).parents[2] / "models" / "digits_cnn.onnx"


def refuse(made, message, kind=ModelError):
    with pytest.raises(kind, match=message):
        import_onnx(made)


@pytest.mark.suite("all")
@pytest.mark.parametrize("data", [b"", b"hello", b"\x00" * 100, b"\x08\x07", b"PK\x03\x04"])
def test_not_a_model(data):
    refuse(data, "not an ONNX model")


def test_use_before_definition():
    refuse(model("g (float[2] x) => (y) { y = Add(x, y) }"), r"Add .y.: .y. is used before")
    refuse(model("g (float[2] x) => (y) { y = Add(x, z) }"), r".z. is used but never defined")
    refuse(model("g (float[2] x) => (z) { y = Neg(x) }"), "graph output .z. is used but never")


def test_use_before_definition_from_a_branch():
    text = """g (bool c, float[2] x) => (y) {
        y = If(c) <
            then_branch = a () => (l) { l = Neg(t) },
            else_branch = b () => (r) { r = Abs(x) }
        >
        t = Abs(y)
    }"""
    refuse(model(text), "If .y.: Neg .l.: .t. is used before")


def test_names_defined_twice():
    refuse(
        model("g (float[2] x) => (y) { y = Neg(x) y = Abs(x) }"), r"Abs .y.: .y. is defined twice"
    )
    refuse(model("g (float[2] x) => (x) { x = Neg(x) }"), r".x. is defined twice")
    refuse(model("g (float[2] x, float[2] x) => (x) { }"), r".x. is defined twice")


def test_operands_and_attributes_must_fit_the_schema():
    refuse(model("g (float[2] x) => (y) { y = Neg(x, x) }"), "takes 1 operands, found 2")
    refuse(model("g (float[2] x) => (y) { y = Add(x) }"), "takes 2 operands, found 1")
    refuse(model("g (float[2] x) => (y, z) { y, z = Neg(x) }"), "takes 1 outputs, found 2")
    refuse(single("Neg", {"x": X}, colour=1), "Neg .node.: has no attribute 'colour'")
    refuse(single("Concat", {"x": X}), "attribute 'axis' is required")
    refuse(single("Concat", {"x": X}, axis=1.5), "'axis' must be int, found float")
    made = single("Concat", {"x": X}, axis=1)
    made.graph.node[0].attribute.add(name="axis", i=2, type=AttributeProto.INT)
    refuse(made, "'axis' is given twice")


def test_an_attribute_without_its_field():
    made = single("Concat", {"x": X}, axis=1)
    made.graph.node[0].attribute[0].ClearField("i")
    refuse(made, "field 'i', which is missing")


def test_a_reference_outside_functions():
    made = single("LeakyRelu", {"x": X})
    made.graph.node[0].attribute.add(name="alpha", ref_attr_name="a", type=AttributeProto.FLOAT)
    refuse(made, "refers to a function's")


def test_dimensions():
    refuse(model("g (float[2] x) => (y) { y = Neg(x) }").SerializeToString()[:-3], "ONNX model")
    for dims, message in (
        ([1 << 40, 1 << 40], "more than 2.46"),
        ([1] * 64, "65 dimensions, at most 64"),
    ):
        info = helper.make_tensor_value_info("x", 1, [1])
        for dim in dims:
            info.type.tensor_type.shape.dim.add(dim_value=dim)
        error = UnsupportedError if len(dims) > 2 else ModelError
        refuse(helper.make_model(helper.make_graph([], "g", [info], [])), message, error)


def test_declared_element_types_of_outputs():
    made = model("g (float[2] x) => (int64[2] y) { y = Neg(x) }")
    with pytest.raises(ModelError, match=r"output 'y' is declared as i64\[2\], but is f32\[2\]"):
        graphc.compile(made)


def test_operands_of_two_types():
    made = single("MatMul", {"x": np.ones((2, 2), np.float32), "y": np.ones((2, 2))})
    with pytest.raises(ModelError, match=r"does not take \(f32\[2,2\], f64\[2,2\]\): mul takes eq"):
        run(made, np.ones((2, 2), np.float32), np.ones((2, 2)))


def test_a_result_without_a_name():
    """Nothing is left of an operator that gives nothing, wherever it would run."""
    made = model("g (string[2] x) => () { = StringNormalizer(x) }")
    made.graph.node[0].output[:] = [""]
    assert graphc.compile(made).run([np.array(["a", "b"], object)]) == []


@pytest.mark.suite("all")
@pytest.mark.parametrize(
    "fields,message",
    [
        ({"dims": [3], "data_type": 1, "raw_data": b"\0" * 11}, "needs 12 bytes, found 11"),
        ({"dims": [1 << 60], "data_type": 1, "raw_data": b""}, "more than 2.46"),
        ({"dims": [1 << 40], "data_type": 1, "float_data": [1.0]}, "items of float_data, found 1"),
        ({"dims": [-1], "data_type": 1}, "negative dimension"),
        ({"dims": [1], "data_type": 0}, "0 is not an ONNX element type"),
        ({"dims": [1], "data_type": 99, "raw_data": b"\0"}, "99 is not an ONNX element type"),
        ({"dims": [1], "data_type": 8, "raw_data": b"a"}, "strings cannot be stored as raw"),
        ({"dims": [1], "data_type": 8, "string_data": [b"\xff"]}, "cannot be read"),
        ({"dims": [3], "data_type": 21, "raw_data": b"\0"}, "needs 2 bytes, found 1"),
    ],
)
def test_initializers_that_do_not_fit(fields, message):
    made = model("g () => (w) { }")
    made.graph.initializer.add(name="w", **fields)
    refuse(made, f"initializer 'w': .*{message}")


def test_a_huge_sparse_tensor():
    values = TensorProto(name="w", dims=[0], data_type=1)
    indices = TensorProto(dims=[0], data_type=7)
    made = model("g () => (w) { }")
    made.graph.sparse_initializer.add(values=values, indices=indices, dims=[1 << 20, 1 << 20])
    refuse(made, "too large", UnsupportedError)


def test_a_tiny_file_cannot_ask_for_huge_memory():
    huge = np.array([1 << 30, 1 << 30], np.int64)
    made = single("ConstantOfShape", {"const": huge})
    tracemalloc.start()
    with pytest.raises(ModelError, match=r"ConstantOfShape .node.*more than 2\^46 elements"):
        run(made)
    assert tracemalloc.get_traced_memory()[1] < 1 << 24
    tracemalloc.stop()


def test_text_that_is_not_utf8():
    data = model("g (float[2] x) => (yyyy) { yyyy = Neg(x) }").SerializeToString()
    refuse(data.replace(b"yyyy", b"\xff\xfe\xfd\xfc"), "not UTF-8")
    data = single("Upsample", {"x": X}, opset=7, scales=[1.0], mode="wxyz").SerializeToString()
    refuse(data.replace(b"wxyz", b"\xff\xfe\xfd\xfc"), "attribute 'mode': not UTF-8")


def test_missing_types_and_names():
    graph = helper.make_graph([], "g", [], [])
    graph.input.add(name="x")
    refuse(helper.make_model(graph), "input 'x': has no type")
    graph = helper.make_graph([], "g", [helper.make_tensor_value_info("", 1, [1])], [])
    refuse(helper.make_model(graph), "has no name")
    made = single("", {"x": X})
    refuse(made, "no op_type")


def test_opsets_must_be_imported():
    made = single("Neg", {"x": X})
    made.opset_import[0].domain = "other"
    refuse(made, "imports no opset of .*ai.onnx")
    refuse(single("Neg", {"x": X}, opset=0), "opset 0", UnsupportedError)


def test_bodies_must_fit_their_node():
    branch = "a () => (l) { l = Neg(x) }"
    text = f"g (bool c, float[2] x) => (y) {{ y = If(c) <then_branch = {branch}> }}"
    refuse(model(text), "attribute 'else_branch' is required")
    two = "b () => (r, s) { r = Neg(x) s = Neg(x) }"
    both = f"then_branch = {branch}, else_branch = {two}"
    refuse(
        model(f"g (bool c, float[2] x) => (y) {{ y = If(c) <{both}> }}"),
        "different numbers of outputs",
    )
    body = "b (int64 i) => (i) { }"
    text = f"g (int64 n, bool c) => (y) {{ y = Loop(n, c) <body = {body}> }}"
    refuse(model(text), "must take 2 inputs")


def test_nesting_has_a_limit(monkeypatch):
    monkeypatch.setattr("graphc.frontend.scope.MAX_NESTING", 5)
    body = "r = Neg(x)"
    for n in range(8):
        branches = (f"{kind}_branch = b{n} () => (r) {{ {body} }}" for kind in ("then", "else"))
        body = f"r = If(c) <{', '.join(branches)}>"
    refuse(model(f"g (bool c, float[2] x) => (r) {{ {body} }}"), "nested more than 5 deep")


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


@pytest.mark.suite("all")
@pytest.mark.parametrize(
    "name,inputs,attributes,message",
    [
        ("Conv", [zeros(1, 2, 5), zeros(4, 2, 3), zeros(1)], {}, "operand 2 is f32.1.: .* least 4"),
        ("Conv", [zeros(1, 2, 5), zeros(4, 2, 3), zeros()], {}, "operand 2 must have rank 1"),
        ("BatchNormalization", [zeros(2, 3), *[zeros(3)] * 3, zeros()], {}, "must have rank 1"),
        ("BatchNormalization", [zeros(), *[zeros(1)] * 3, zeros()], {}, "must have rank 1"),
        ("MaxPool", [zeros(1, 1, 5, 5)], {"kernel_shape": [-100, 2]}, "must be positive"),
        ("LRN", [zeros(1, 3, 2, 2)], {"size": -1}, "positive size"),
        ("Compress", [zeros(3), zeros(3, 1, dtype=bool)], {}, "condition must have rank 1"),
        (
            "GatherElements",
            [zeros(2, 3), zeros(2, 4, dtype=np.int64)],
            {"axis": 0},
            "dimension 1 must be at least 4",
        ),
        (
            "ReverseSequence",
            [zeros(2, 3), zeros(1, dtype=np.int64)],
            {"batch_axis": 0, "time_axis": 1},
            "for 2 sequences",
        ),
        (
            "DeformConv",
            [zeros(1, 1, 3, 3), zeros(1, 16, 2, 2), zeros(1, 8, 2, 2)],
            {},
            "weight expects 16",
        ),
        (
            "NegativeLogLikelihoodLoss",
            [zeros(3, 5), zeros(3, dtype=np.int64), zeros(1)],
            {},
            "for 5 classes",
        ),
        (
            "ScatterElements",
            [zeros(3), zeros(2, dtype=np.int64), zeros(2, dtype=np.float64)],
            {},
            "types must be equal",
        ),
        ("Split", [zeros(6)], {"num_outputs": 2}, "num_outputs is 2, but there are 1 outputs"),
        ("ScatterND", [zeros(3), zeros(dtype=np.int64), zeros(3)], {}, "data has rank 1"),
        ("ScatterElements", [zeros(3, 2), zeros(2, dtype=np.int64), zeros(2)], {}, "indices 1"),
    ],
)
def test_operands_must_fit_each_other(name, inputs, attributes, message):
    """What would read foreign memory is refused, in the name of the node."""
    made = single(name, {f"x{n}": x for n, x in enumerate(inputs)}, **attributes)
    with pytest.raises(ModelError, match=f"{name} .*node.*: .*{message}"):
        run(made, *inputs)


def test_unknown_modes_of_trees():
    tree = {
        "nodes_featureids": [0], "nodes_truenodeids": [0], "nodes_falsenodeids": [0],
        "nodes_trueleafs": [1], "nodes_falseleafs": [1], "tree_roots": [0],
        "leaf_targetids": [0], "leaf_weights": numpy_helper.from_array(zeros(1)),
        "nodes_splits": numpy_helper.from_array(zeros(1)),
        "nodes_modes": numpy_helper.from_array(np.array([9], np.uint8)),
    }  # fmt: skip
    made = single("TreeEnsemble", {"x": X}, domain="ai.onnx.ml", **tree)
    made.opset_import[1].version = 5
    with pytest.raises(ModelError, match="TreeEnsemble .node.: .*node modes are 0 to 6, found 9"):
        run(made, X)


def test_more_outputs_than_an_operator_has():
    made = single("CastLike", {"x": X, "y": X})
    made.graph.node[0].output.append("z")
    refuse(made, "takes 1 outputs, found 2")


def test_operands_that_are_left_out():
    made = single("Neg", {"x": X})
    made.graph.node[0].input[0] = ""
    refuse(made, r"Neg .node.: operand 0 .X. is missing")


@pytest.mark.parametrize("seed", range(4))
def test_mutated_files(seed):
    rng = random.Random(seed)
    original = DIGITS.read_bytes()
    head = original[:2000]
    for _ in range(300):
        data = bytearray(head)
        for _ in range(rng.choice([1, 2, 8])):
            place = rng.randrange(len(data))
            if rng.random() < 0.6:
                data[place] = rng.randrange(256)
            else:
                del data[place : place + rng.randrange(1, 6)]
        try:
            import_onnx(bytes(data) + original[2000:])
        except GraphcError as error:
            assert str(error)
