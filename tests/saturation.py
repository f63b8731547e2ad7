"""Where ONNX Runtime is no judge of products of bytes.

On an x86 that has AVX2 and no VNNI it adds products of uint8 and int8 up in pairs, which saturate
at 16 bits. Its mode that avoids this (session.x64quantprecision) fails on some models. So tests
that compare with it have an `exact_session`, or keep weights within `LARGEST_WEIGHT`, the largest
whose pairs are exact here.
"""

from __future__ import annotations

import numpy as np
import onnxruntime
from onnx import ModelProto, TensorProto, helper


def _largest_weight() -> int:
    node = helper.make_node("MatMulInteger", ["x", "w"], ["y"])
    types = (("x", TensorProto.UINT8), ("w", TensorProto.INT8), ("y", TensorProto.INT32))
    x, w, y = (helper.make_tensor_value_info(name, type, None) for name, type in types)
    model = helper.make_model(
        helper.make_graph([node], "g", [x, w], [y]),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    pair = {"x": np.full((4, 16), 255, np.uint8), "w": np.full((16, 16), 127, np.int8)}
    return 127 if (session.run(None, pair)[0] == 16 * 255 * 127).all() else 63


LARGEST_WEIGHT = _largest_weight()
SATURATES = LARGEST_WEIGHT < 127


def exact_session(model: ModelProto) -> onnxruntime.InferenceSession:
    """A session of ONNX Runtime in which sums of products of bytes do not saturate: where they
    would, QDQ is computed in float, as it is without optimisations, and operators of bytes in the
    mode that avoids it."""
    options = onnxruntime.SessionOptions()
    if SATURATES and any(node.op_type == "DynamicQuantizeLSTM" for node in model.graph.node):
        options.add_session_config_entry("session.x64quantprecision", "1")
    elif SATURATES:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
