"""ONNX's Gradient becomes `graphc.Gradient`, whose body is what the node names: the nodes from the
tensors `xs` and `zs` to the tensor `y`. The node's operands are the values for `xs` and `zs`, which
may be others than these tensors hold. What `y` depends on besides is read where it is.
"""

from __future__ import annotations

from graphc.autodiff import gradient_op as gradient_op  # registers the operator
from graphc.errors import ModelError, UnsupportedError
from graphc.frontend.node import Node
from graphc.frontend.upgrade import EVERY, since
from graphc.ir.graph import Op, Region, Value, copy_op
from graphc.ir.opdef import lookup


@since(EVERY, "Gradient", domain="ai.onnx.preview.training")
def _gradient(node: Node) -> None:
    xs, y = list(node.attrs["xs"]), node.attrs["y"]
    names = [*xs, *node.attrs.get("zs", ())]
    if len(names) != len(node.inputs) or None in node.inputs:
        raise ModelError(f"takes a value for each of {names}, found {len(node.inputs)} operands")
    if len(node.outputs) > len(xs):
        raise ModelError(f"gives a gradient for each of {xs}, found {len(node.outputs)}")
    if node.scope.captures.keys() & {*names, y}:
        raise UnsupportedError("its xs, zs and y must be tensors of the graph that it is in")
    starts = [node.scope.require(name) for name in names]
    region, captured = _body(node, starts, node.scope.require(y))
    operands = [*node.inputs, *captured]
    made = Op(lookup("Gradient", "graphc"), operands, {}, len(node.outputs), [region], node.loc)
    node.built = list(node.scope.region.append(made).outputs)


def _body(node: Node, starts: list[Value], y: Value) -> tuple[Region, list[Value]]:
    """The ops from `starts` to y in a region of their own, whose parameters stand for `starts` and
    then for the values that they read besides; and these values."""
    region, mapping = Region(), dict[Value, Value]()
    for value in starts:
        mapping[value] = region.add_param(value.type, value.name)
    ops = _between(node.scope.region, starts, y)
    made = {v for op in ops for v in op.outputs}
    captured: list[Value] = []
    for read in (y, *(v for op in ops for v in op.inputs)):
        if read is not None and read not in mapping and read not in made:
            captured.append(read)
            mapping[read] = region.add_param(read.type, read.name)
    for op in ops:
        copy_op(op, region, mapping)
    region.set_results([mapping[y]])
    return region, captured


def _between(region: Region, starts: list[Value], y: Value) -> list[Op]:
    """The ops of a region that lie between values and y, in order."""
    reached = set(starts)
    for op in region.ops:
        if any(v in reached for v in op.inputs):
            reached.update(op.outputs)
    needed, ops = {y}, []
    for op in reversed(region.ops):
        between = any(v in needed for v in op.outputs) and any(v in reached for v in op.inputs)
        if between and not all(v in starts for v in op.outputs):
            ops.append(op)
            needed.update(v for v in op.inputs if v is not None and v not in starts)
    return ops[::-1]
