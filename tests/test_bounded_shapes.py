"""Shapes that depend on data, where sub-graphs read them: the true ones count, not their bounds."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import graphc

I64, F32, BOOL = TensorProto.INT64, TensorProto.FLOAT, TensorProto.BOOL
INFO = helper.make_tensor_value_info


def branches() -> list:
    """y is the shape of what Compress kept, in a branch."""
    kept = helper.make_graph(
        [helper.make_node("Shape", ["k"], ["s"])], "t", [], [INFO("s", I64, [1])]
    )
    none = helper.make_node("Identity", ["z"], ["r"])
    other = helper.make_graph([none], "e", [], [INFO("r", I64, [1])])
    return [helper.make_node("If", ["p"], ["y"], then_branch=kept, else_branch=other)]


def trips() -> list:
    """y is the shape of what Compress kept, in each trip of a loop that carries it."""
    body = helper.make_graph(
        [
            helper.make_node("Add", ["a", "a"], ["a2"]),
            helper.make_node("Identity", ["c1"], ["c2"]),
            helper.make_node("Shape", ["a2"], ["s"]),
        ],
        "b",
        [INFO("i", I64, []), INFO("c1", BOOL, []), INFO("a", F32, None)],
        [INFO("c2", BOOL, []), INFO("a2", F32, None), INFO("s", I64, [1])],
    )
    return [helper.make_node("Loop", ["n", "", "k"], ["w", "y"], body=body)]


def nested() -> list:
    """A size, of what Compress kept inside a branch, decides between branches."""
    inner = [
        helper.make_node("Compress", ["x", "c"], ["j"], axis=0),
        helper.make_node("Size", ["j"], ["size"]),
        helper.make_node("Greater", ["size", "two"], ["many"]),
        helper.make_node("Cast", ["many"], ["s0"], to=I64),
        helper.make_node("Reshape", ["s0", "minus"], ["s"]),
    ]
    then = helper.make_graph(inner, "t", [], [INFO("s", I64, [1])])
    other = helper.make_graph(
        [helper.make_node("Identity", ["z"], ["r"])], "e", [], [INFO("r", I64, [1])]
    )
    return [helper.make_node("If", ["p"], ["y"], then_branch=then, else_branch=other)]


@pytest.mark.parametrize("kind", [branches, trips, nested])
@pytest.mark.parametrize("bound", [False, True])
def test_shape_of_a_selection_in_a_sub_graph(kind, bound):
    nodes = [helper.make_node("Compress", ["x", "c"], ["k"], axis=0), *kind()]
    inputs = [INFO("x", F32, [4]), INFO("c", BOOL, [4]), INFO("p", BOOL, []), INFO("n", I64, [])]
    constants = [
        helper.make_tensor(*c) for c in (("z", I64, [1], [9]), ("minus", I64, [1], [-1]),
                                         ("two", I64, [], [2]))
    ]  # fmt: skip
    output = INFO("y", I64, None)
    output.type.tensor_type.ClearField("shape")
    model = helper.make_model(
        helper.make_graph(nodes, "g", inputs, [output], constants),
        opset_imports=[helper.make_opsetid("", 18)], ir_version=8,
    )  # fmt: skip
    feeds = {
        "x": np.arange(4, dtype=np.float32), "c": np.array([True, False, False, True]),
        "p": np.array(True), "n": np.array(2),
    }  # fmt: skip
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (expected,) = session.run(None, feeds)
    values = {name: feeds.pop(name) for name in ("p", "n")} if bound else {}
    (found,) = graphc.compile(model, values=values, threads=1).run(feeds)
    assert found.tolist() == expected.tolist()
