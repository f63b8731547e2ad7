"""All nodes of a model that are not supported are named at once."""

from __future__ import annotations

import pytest
from onnx import TensorProto, helper

import graphc
from graphc.errors import ModelError, UnsupportedError
from graphc.frontend.onnx_import import import_onnx


def model(*nodes):
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 3]) for n in "xy"]
    graph = helper.make_graph(list(nodes), "g", infos[:1], infos[1:])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def node(kind, x, y, domain="", **attrs):
    return helper.make_node(kind, [x], [y], name=f"the {y}", domain=domain, **attrs)


def test_missing_operators():
    chain = [node("Strange", "x", "a", "my.ops")]
    chain += [node("Strange", f"a{n}" if n else "a", f"a{n + 1}", "my.ops") for n in range(4)]
    chain += [node("Relu", "a4", "b"), node("Odd", "b", "y", "my.ops")]
    with pytest.raises(UnsupportedError) as caught:
        import_onnx(model(*chain))
    lines = str(caught.value).splitlines()
    assert lines[0] == "6 nodes of the model are not supported:"
    assert 'Strange "the a", Strange "the a1", Strange "the a2" and 2 more: ' in lines[1]
    assert "operator my.ops.Strange has neither" in lines[1] and "--plugin" in lines[1]
    assert lines[2].startswith('  Odd "the y": operator my.ops.Odd')


def test_a_single_one():
    with pytest.raises(UnsupportedError, match='^Odd "the y": operator my.ops.Odd has neither'):
        import_onnx(model(node("Odd", "x", "y", "my.ops")))


def test_refused_attributes():
    """What is known only when types are."""
    runtime = "com.microsoft"
    chain = [
        helper.make_node("GatedAdd", ["x", "x", "x", "x"], ["a"], name="first", domain=runtime),
        helper.make_node("CausalConvWithState", ["x", "x"], ["b"], name="second", domain=runtime,
                         ndim=2),
        helper.make_node("Add", ["a", "b"], ["y"]),
    ]  # fmt: skip
    with pytest.raises(UnsupportedError) as caught:
        graphc.compile(model(*chain))
    text = str(caught.value)
    assert "gate_weight is not supported" in text and "ndim is 2" in text
    assert '"first"' in text and '"second"' in text


def test_wrong_models_are_named_first():
    with pytest.raises(ModelError, match="nowhere"):
        import_onnx(model(node("Odd", "x", "a", "my.ops"), node("Relu", "nowhere", "y")))
