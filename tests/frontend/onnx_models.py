"""Small ONNX models for the tests, written in ONNX's text syntax."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import ModelProto, helper, numpy_helper, parser


def model(text: str, opset: int = 21, ir: int = 10, domains: str = "") -> ModelProto:
    """A model from the text of its graph (and functions)."""
    return parser.parse_model(f'<ir_version: {ir}, opset_import: ["": {opset}{domains}]>\n{text}')


def single(op: str, inputs: dict[str, np.ndarray], outputs=1, opset=21, domain="", **attrs):
    """A model with one node; `inputs` with a name that begins with "const" are initializers."""
    names = list(inputs)
    results = [f"y{n}" for n in range(outputs)]
    node = helper.make_node(op, names, results, name="node", domain=domain, **attrs)
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in inputs.items()
        if not n.startswith("const")
    ]
    constants = [numpy_helper.from_array(a, n) for n, a in inputs.items() if n.startswith("const")]
    outs = [onnx.ValueInfoProto(name=r) for r in results]
    graph = helper.make_graph([node], "single", infos, outs, constants)
    imports = [
        helper.make_opsetid("", opset),
        *([helper.make_opsetid(domain, 1)] if domain else []),
    ]
    made = helper.make_model(graph, opset_imports=imports)
    made.ir_version = 8
    return made


def run(source, *inputs):
    """Imports a model and runs it in the reference interpreter."""
    from graphc.frontend.onnx_import import import_onnx
    from graphc.ir.interp import interpret

    return interpret(import_onnx(source), [np.asarray(x) for x in inputs])
