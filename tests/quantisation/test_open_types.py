"""Layers behind shapes that a model of open sizes computes: they are found, and become integer."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from saturation import exact_session

import graphc
from graphc.ir.graph import clone_graph
from graphc.passes.analysis.facts import choice
from graphc.quantisation.open_types import lend, take_back, types_between
from graphc.quantisation.quantiser import prepared

RNG = np.random.default_rng(3)


def heads(opset=17):
    """x[N,T,8] times weights, split into two heads by a computed shape, then merged and projected:
    what exporters write for attention. Sums over T keep sizes from cancelling out."""
    node = helper.make_node
    nodes = [
        node("MatMul", ["x", "w1"], ["h"], "first"),
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "zero"], ["n"]),
        node("Gather", ["s", "one"], ["t"]),
        node("Unsqueeze", ["n", "axis"], ["n1"]),
        node("Unsqueeze", ["t", "axis"], ["t1"]),
        node("Concat", ["n1", "t1", "split"], ["target"], axis=0),
        node("Reshape", ["h", "target"], ["r"]),
        node("Transpose", ["r"], ["p"], perm=[0, 2, 1, 3]),
        node("Softmax", ["p"], ["m"]),
        node("Transpose", ["m"], ["q"], perm=[0, 2, 1, 3]),
        node("Concat", ["n1", "t1", "whole"], ["back"], axis=0),
        node("Reshape", ["q", "back"], ["z"]),
        node("MatMul", ["z", "w2"], ["y"], "second"),
    ]
    ints = {"zero": 0, "one": 1, "axis": [0], "split": [2, 6], "whole": [12]}
    weights = {name: np.array(value, np.int64) for name, value in ints.items()}
    weights |= {n: RNG.standard_normal(s).astype(np.float32)
                for n, s in {"w1": (8, 12), "w2": (12, 5)}.items()}  # fmt: skip
    graph = helper.make_graph(
        nodes, "heads",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", "T", 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", "T", 5])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def sample(n, t):
    return {"x": RNG.standard_normal((n, t, 8)).astype(np.float32)}


@pytest.mark.parametrize("options", [{}, {"whole": True}, {"keep_accuracy": 1.0}])
def test_layers_behind_computed_shapes(options):
    source = heads().SerializeToString()
    quantised = graphc.quantise(source, [sample(4, 20), sample(8, 15)], **options)
    assert {*(layer.name for layer in quantised.layers), *quantised.left_out} == {"first", "second"}
    made = quantised.to_onnx()
    onnx.checker.check_model(made, full_check=True)
    if options:
        return
    expected = ort.InferenceSession(source).run(None, feeds := sample(3, 5))[0]
    found = exact_session(made).run(None, feeds)[0]
    own = graphc.compile(made).run(feeds)[0]
    for result in (found, own):
        noise = np.square(result - expected).mean() / np.square(expected).mean()
        assert 10 * np.log10(noise) < -30


def test_types_are_lent_and_taken_back():
    graph = prepared(heads().SerializeToString())
    untyped = [value.name for value in graph.values() if value.type is None]
    assert "r" in untyped and "y" in untyped
    types = types_between(graph, sample(2, 7))
    assert str(types["r"]) == 'f32["2 or 4","7 or 14",2,6]'
    lent = clone_graph(graph)
    lend(lent, types)
    assert all(value.type is not None for value in lent.values())
    reshape = next(op for op in lent.ops if op.name == "Reshape")
    assert choice(reshape) is None, "where its elements come from follows from a computed shape"
    take_back(lent)
    assert [value.name for value in lent.values() if value.type is None] == untyped


def test_no_types_where_only_one_size_works():
    """The shape of a constant decides about N: no other size has types."""
    made = heads()
    made.graph.node.append(helper.make_node("Add", ["y", "fixed"], ["out"]))
    made.graph.output[0].name = "out"
    fixed = np.zeros((2, 7, 5), np.float32)
    made.graph.initializer.append(numpy_helper.from_array(fixed, "fixed"))
    assert "y" not in types_between(prepared(made.SerializeToString()), sample(2, 7))
