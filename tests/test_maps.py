"""Maps: dicts as outputs and inputs from Python, tensors in compiled code, errors elsewhere."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import graphc
from graphc import driver
from graphc.cli.app import main
from graphc.errors import ModelError, ModelWarning
from graphc.ir.text.type_parser import parse_type

ML = "ai.onnx.ml"
X = np.array([[0.25, 1.5, -1], [2, 0, 3]], np.float32)


def model(nodes, inputs, outputs) -> onnx.ModelProto:
    infos = [onnx.ValueInfoProto(name=name) for name in outputs]
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(ML, 3)]
    graph = helper.make_graph(nodes, "scores", inputs, infos)
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def tensor(name: str, shape: list, dtype: int = TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, dtype, shape)


def classifier(rows: int | str = 2, **labels) -> onnx.ModelProto:
    """Doubled scores as a tensor and as maps."""
    nodes = [
        helper.make_node("Add", ["x", "x"], ["s"]),
        helper.make_node("ZipMap", ["s"], ["z"], domain=ML, name="zip", **labels),
    ]
    return model(nodes, [tensor("x", [rows, 3])], ["s", "z"])


def reference(proto: onnx.ModelProto, feeds: dict) -> list:
    providers = ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=providers)
    return session.run(None, feeds)


@pytest.mark.parametrize(
    "labels",
    [{"classlabels_int64s": [7, 3, 5]}, {"classlabels_strings": ["b", "a", "é"]},
     {"classlabels_int64s": [7, 3, 7]}],
)  # fmt: skip
def test_maps_are_those_of_onnxruntime(labels):
    proto = classifier(**labels)
    _, expected = reference(proto, {"x": X})
    (_, found), (_, interpreted) = (
        graphc.compile(proto, threads=1).run([X]), graphc.interpret(graphc.import_onnx(proto), [X])
    )  # fmt: skip
    assert found == interpreted == expected
    assert [list(row) for row in found] == [list(row) for row in expected]
    assert type(next(iter(found[0].values()))) is float


def test_a_single_row():
    node = helper.make_node("ZipMap", ["x"], ["z"], domain=ML, classlabels_int64s=[1, 2, 3])
    proto = model([node], [tensor("x", [3])], ["z"])
    assert graphc.compile(proto, threads=1).run([X[0]]) == reference(proto, {"x": X[0]})


def test_compiled_files_hold_tensors(tmp_path):
    compiled = graphc.compile(classifier(classlabels_int64s=[7, 3, 5]), threads=1)
    with pytest.warns(ModelWarning, match=r"output 'z' is a list of maps.*labels 7, 3, 5"):
        compiled.save(tmp_path / "m.gcm")
    _, found = graphc.load(tmp_path / "m.gcm").run([X])
    np.testing.assert_array_equal(found, X + X)


def test_programs_without_a_host_give_tensors():
    with pytest.warns(ModelWarning, match="'z' is a list of maps"):
        graph = driver.typed(classifier(classlabels_int64s=[7, 3, 5]))
    assert [str(v.type) for v in graph.results] == ["f32[2,3]", "f32[2,3]"]
    assert driver.program_for(graph, "c").steps


def test_commands(tmp_path, capsys):
    path = tmp_path / "m.onnx"
    onnx.save(classifier("N", classlabels_strings=["b", "a", "c"]), path)
    assert main(["verify", str(path), "--dim", "N=3"]) == 0
    assert main(["run", str(path), "--dim", "N=1"]) == 0
    assert "z: [{a: " in capsys.readouterr().out
    assert main(["run", str(path), "--dim", "N=2", "-o", str(tmp_path / "y.npz")]) == 0
    assert np.load(tmp_path / "y.npz")["z"].shape == (2, 3)
    capsys.readouterr()
    assert main(["compile", str(path), "--dim", "N=1", "--target", "c", "--with-test",
                 "-o", str(tmp_path / "c")]) == 0  # fmt: skip
    assert "output 'z' is a list of maps" in capsys.readouterr().err
    assert main(["opt", str(path), "--dim", "N=2", "-o", str(tmp_path / "o.onnx")]) == 0
    again = onnx.load(tmp_path / "o.onnx")
    assert reference(again, {"x": X})[1] == reference(onnx.load(path), {"x": X})[1]


def test_nothing_else_takes_maps():
    zipped = helper.make_node("ZipMap", ["x"], ["z"], domain=ML, classlabels_int64s=[1, 2, 3])
    for node in (
        helper.make_node("SequenceLength", ["z"], ["y"]),
        helper.make_node("Add", ["z", "z"], ["y"]),
    ):
        proto = model([zipped, node], [tensor("x", [2, 3])], ["y"])
        with pytest.raises(
            ModelError, match=f"{node.op_type}.*seq<map<i64,f32>>.*only be an output"
        ):
            graphc.compile(proto, threads=1).run([X])


@pytest.mark.parametrize(
    "labels, message",
    [({"classlabels_int64s": [1, 2]}, "ZipMap.*2 labels for"), ({}, "needs either")],
)
def test_wrong_labels(labels, message):
    with pytest.raises(ModelError, match=message):
        graphc.compile(classifier(**labels), threads=1).run([X])


# ---------------------------------------------------------------- maps as inputs


def map_input(key: int, value: int):
    type = helper.make_map_type_proto(key, helper.make_tensor_type_proto(value, ()))
    return helper.make_value_info("m", type)


INTS, FLOATS, TEXT = TensorProto.INT64, TensorProto.FLOAT, TensorProto.STRING


def ran(node, key: int, value: int, given: dict, judge: bool = True) -> np.ndarray:
    """What an operator makes of a map; ONNX Runtime judges, if its Python takes such a map."""
    proto = model([node], [map_input(key, value)], ["y"])
    (found,) = graphc.compile(proto, threads=1).run({"m": given})
    if judge:
        (expected,) = reference(proto, {"m": given})
        assert found.tolist() == expected.tolist() and found.dtype == expected.dtype
    return found


def test_dict_vectorizer():
    def vectorized(key: int, value: int, given: dict, judge: bool = True, **attrs) -> list:
        node = helper.make_node("DictVectorizer", ["m"], ["y"], domain=ML, **attrs)
        return ran(node, key, value, given, judge).tolist()

    words = ["a", "b", "b"]
    assert vectorized(TEXT, FLOATS, {"b": 2.5, "q": 1}, string_vocabulary=words) == [[0, 2.5, 2.5]]
    assert vectorized(INTS, FLOATS, {4: 2.5, 1: 1.0}, int64_vocabulary=[1, 9, 4]) == [[1, 0, 2.5]]
    assert vectorized(INTS, FLOATS, {}, False, int64_vocabulary=[1, 9]) == [[0, 0]]
    assert vectorized(INTS, TEXT, {4: "x"}, False, int64_vocabulary=[1, 4]) == [["", "x"]]


@pytest.mark.parametrize(
    "to, form, floats, text",
    [("TO_FLOAT", {}, [1, 2.5], [-3, 7]), ("TO_INT64", {}, [1, 2], [-3, 7]),
     ("TO_STRING", {}, ["1.000000", "2.500000"], ["-3", "7"]),
     ("TO_FLOAT", {"max_map": 5}, [0, 1, 0, 0, 2.5], [-3, 0, 0, 0, 7]),
     ("TO_STRING", {"max_map": 2}, ["0.f", "1.000000"], ["-3", "0.f"])],
)  # fmt: skip
def test_cast_map(to, form, floats, text):
    form = {"map_form": "SPARSE" if form else "DENSE", **form}
    node = helper.make_node("CastMap", ["m"], ["y"], domain=ML, cast_to=to, **form)
    assert ran(node, INTS, FLOATS, {4: 2.5, 1: 1.0}).tolist() == [floats]
    assert ran(node, INTS, TEXT, {4: "7", 0: "-3"}, judge=False).tolist() == [text]


def test_what_is_no_map_is_refused():
    node = helper.make_node("DictVectorizer", ["m"], ["y"], domain=ML, int64_vocabulary=[1])
    compiled = graphc.compile(model([node], [map_input(INTS, FLOATS)], ["y"]), threads=1)
    with pytest.raises(ModelError, match="takes a dict, found list"):
        compiled.run([[1.0]])
    with pytest.raises(ModelError, match=r"'m' is map<i64,f32>, found \{'a': 1\}"):
        compiled.run([{"a": 1}])


def test_types_in_text():
    assert str(parse_type("seq<map<string,f32>>")) == "seq<map<string,f32>>"
