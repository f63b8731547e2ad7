"""Models that ONNX Runtime has saved for one CPU: how many channels its blocks have.

The file does not say; ONNX Runtime takes what is right for the CPU that runs it. Padding often
tells. Where it does not, the model must have been saved on a CPU of this kind, and a warning says
so. Poolings of such images are ONNX's (ir/ops/onnxruntime/blocked.py).
"""

from __future__ import annotations

import llvmlite.binding as llvm
from onnx import ModelProto
from onnx.helper import get_attribute_value

from graphc.errors import warn
from graphc.frontend.node import Node
from graphc.frontend.upgrade import EVERY, since
from graphc.ir.dtypes import f32
from graphc.ir.ops.onnxruntime.blocked import BLOCKED

SMALL, LARGE = 8, 16  # channels of a block: of AVX2, and of AVX-512


def block_size(model: ModelProto) -> int:
    """The channels of a block, by the padding of a model or by the CPU at hand."""
    dims = {tensor.name: tensor.dims for tensor in model.graph.initializer}
    padded: dict[str, int] = {}
    for node in model.graph.node:
        if node.domain != BLOCKED:
            continue
        if node.op_type == "Conv" and node.input[1] in dims:
            padded[node.output[0]] = dims[node.input[1]][0]
        elif node.input[0] in padded and node.op_type != "ReorderOutput":
            padded[node.output[0]] = padded[node.input[0]]
    if any(count % LARGE for count in padded.values()):
        return SMALL
    for node in model.graph.node:
        if node.domain == BLOCKED and node.op_type == "ReorderOutput" and node.input[0] in padded:
            named = {a.name: get_attribute_value(a) for a in node.attribute}
            if padded[node.input[0]] - named.get("channels", 0) >= SMALL:
                return LARGE
    size = LARGE if llvm.get_host_cpu_features().get("avx512f") else SMALL
    warn(
        f"ONNX Runtime has saved this model for one kind of CPU; its weights are read in blocks of "
        f"{size} channels, which is right if that was a CPU like this one. To be sure, save it at "
        'optimisation level "extended"'
    )
    return size


@since(EVERY, "MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool", domain=BLOCKED)
def _pooling(node: Node) -> None:
    node.domain = ""


@since(EVERY, "Upsample", domain=BLOCKED)
def _upsample(node: Node) -> None:
    scales = node.constant(node.attrs.pop("scales"), f32)
    attrs = {"coordinate_transformation_mode": "asymmetric", **node.attrs}
    if attrs.get("mode", "nearest") == "nearest":
        attrs["nearest_mode"] = "floor"
    node.rename("Resize", [node.required(0), None, scales], **attrs)
    node.domain = ""
