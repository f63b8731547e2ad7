"""Operators that ONNX Runtime has beside ONNX's of the same meaning: they are read as those.

Those of its domain were added before ONNX had them, or differ in a spelling; those of ONNX's own
domain are experimental operators that ONNX has removed.
"""

from __future__ import annotations

from graphc.frontend.node import Node
from graphc.frontend.upgrade import EVERY, grid_sample_modes, since
from graphc.ir.dtypes import i64
from graphc.ir.graph import Value
from graphc.ir.ops.helpers import RUNTIME


@since(EVERY, "ExpandDims", "GatherND", "Pad", "Range", "Trilu", "Unique", domain=RUNTIME)
def _former_name(node: Node) -> None:
    _FORMER[node.op_type](node)
    node.domain = ""


def _expand_dims(node: Node) -> None:
    axis = node.emit("Cast", node.required(1), to=i64.onnx)
    axes = node.emit("Reshape", axis, node.constant([1], i64))
    node.rename("Unsqueeze", [node.required(0), axes])


def _gather_nd(node: Node) -> None:
    index = node.emit("Cast", node.required(1), to=i64.onnx)
    node.rename("GatherND", [node.required(0), index])


def _pad(node: Node) -> None:
    """Pads may be [1, 2 * rank], the value [1]."""
    pads = node.emit("Reshape", node.required(1), node.constant([-1], i64))
    value = node.input(2)
    node.rename("Pad", [node.required(0), pads, value and _scalar(node, value)], **node.attrs)


def _range(node: Node) -> None:
    """Numbers may be [1], and the step left out."""
    start, limit = (_scalar(node, node.required(n)) for n in range(2))
    step = node.input(2)
    node.rename("Range", [start, limit, _scalar(node, step) if step else node.like(1, start)])


def _unique(node: Node) -> None:
    """By first occurrence; ONNX has the position of this between the two first results."""
    node.rename("Unique", node.inputs, sorted=0)
    node.outputs = [*node.outputs[:1], "", *node.outputs[1:]]
    node.finish.append(lambda outputs: [*outputs[:1], *outputs[2:]])


def _scalar(node: Node, value: Value) -> Value:
    return node.emit("Reshape", value, node.constant([], i64))


_FORMER = {
    "ExpandDims": _expand_dims,
    "GatherND": _gather_nd,
    "Pad": _pad,
    "Range": _range,
    "Trilu": lambda node: None,
    "Unique": _unique,
}


@since(EVERY, "GridSample", domain=RUNTIME)
def _grid_sample(node: Node) -> None:
    grid_sample_modes(node)
    node.domain = ""


@since(EVERY, "SampleOp", domain=RUNTIME)
@since(EVERY, "MemcpyFromHost", "MemcpyToHost")
def _copy(node: Node) -> None:
    node.rename("Identity", node.inputs)
    node.domain = ""


@since(EVERY, "DynamicSlice")
def _dynamic_slice(node: Node) -> None:
    node.op_type = "Slice"
