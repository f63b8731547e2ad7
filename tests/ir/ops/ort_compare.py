"""Runs one operator in the reference interpreter and in ONNX Runtime, and compares."""

from __future__ import annotations

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

from graphc.frontend.onnx_import import import_onnx
from graphc.ir.interp import interpret

onnxruntime.set_default_logger_severity(3)


def one_node_model(op_type: str, inputs, attrs: dict, outputs: int = 1, opset: int = 21):
    """A model of a single node; an input of None is omitted, outputs are typed by the checker."""
    names = ["" if x is None else f"x{n}" for n, x in enumerate(inputs)]
    results = [f"y{n}" for n in range(outputs)]
    node = helper.make_node(op_type, names, results, **attrs)
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in zip(names, inputs)
        if x is not None
    ]
    # ONNX Runtime needs no output types beyond the kind of value.
    outs = [helper.make_value_info(y, helper.make_tensor_type_proto(0, None)) for y in results]
    for out in outs:
        out.ClearField("type")
    graph = helper.make_graph([node], "g", infos, outs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def run_both(op_type: str, inputs, attrs: dict | None = None, outputs: int = 1, opset: int = 21):
    """Outputs of the interpreter, and of ONNX Runtime."""
    model = one_node_model(op_type, inputs, attrs or {}, outputs, opset)
    given = [np.asarray(x) for x in inputs if x is not None]
    ours = interpret(import_onnx(model), given)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    feeds = dict(zip([i.name for i in session.get_inputs()], given))
    return ours, session.run(None, feeds)


def agree(op_type: str, *inputs, outputs: int = 1, opset: int = 21, tolerance=1e-5, **attrs):
    """Asserts that both give the same dtypes, shapes and values (relative to the largest)."""
    ours, theirs = run_both(op_type, inputs, attrs, outputs, opset)
    for got, want in zip(ours, theirs):
        assert got.dtype == want.dtype and got.shape == want.shape, (got.shape, want.shape)
        if want.dtype.kind != "f":
            np.testing.assert_array_equal(got, want)
            continue
        scale = np.abs(want[np.isfinite(want)]).max(initial=1e-3)
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance * float(scale))


__all__ = ["TensorProto", "agree", "run_both"]
