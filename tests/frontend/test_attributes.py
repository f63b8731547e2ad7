"""Attributes that an opset lacks: a warning if they say nothing, else an error."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from graphc.errors import ModelError, ModelWarning
from graphc.frontend.onnx_import import import_onnx
from graphc.ir.interp import interpret


def model(kind: str, opset: int, shape: list[int], **attrs):
    quantised = kind == "DequantizeLinear"
    types = [TensorProto.UINT8 if quantised else TensorProto.FLOAT, TensorProto.FLOAT]
    inputs = [helper.make_tensor_value_info("x", types[0], shape)]
    if quantised:
        inputs.append(helper.make_tensor_value_info("s", types[1], []))
    node = helper.make_node(kind, [i.name for i in inputs], ["y"], name="n", **attrs)
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph([node], "g", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


@pytest.mark.parametrize(
    "opset, attrs, since", [(10, {"axis": 1}, 13), (13, {"block_size": 0}, 21)]
)
def test_a_default_of_a_later_opset_is_a_warning(opset, attrs, since):
    (name,) = attrs
    said = f"attribute '{name}' is of opset {since}, this model of {opset}; it has its default"
    with pytest.warns(ModelWarning, match=said):
        graph = import_onnx(model("DequantizeLinear", opset, [2, 3], **attrs))
    x = np.arange(6, dtype=np.uint8).reshape(2, 3)
    (found,) = interpret(graph, [x, np.array(0.5, np.float32)])
    assert (found == x / 2).all()


def test_another_value_is_an_error():
    with pytest.raises(ModelError, match="has no attribute 'axis' in opset 10, but from 13 on"):
        import_onnx(model("DequantizeLinear", 10, [2, 3], axis=0))


@pytest.mark.suite("all")
@pytest.mark.parametrize("attrs", [{"colour": 0}, {"_colour": 0}, {"axis": 1}])
def test_an_attribute_of_no_opset_is_an_error(attrs):
    with pytest.raises(ModelError, match="has no attribute"):
        import_onnx(model("Relu", 13, [2, 3], **attrs))


def test_ceil_mode_of_an_old_pooling():
    with pytest.warns(ModelWarning, match="'ceil_mode' is of opset 10"):
        graph = import_onnx(model("MaxPool", 8, [1, 1, 4], kernel_shape=[2], ceil_mode=0))
    (found,) = interpret(graph, [np.arange(4, dtype=np.float32).reshape(1, 1, 4)])
    assert found.tolist() == [[[1, 2, 3]]]
