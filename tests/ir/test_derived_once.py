"""What is derived from an op is kept with it and with its copies, and made anew when it changes."""

from __future__ import annotations

import numpy as np

from graphc.ir.dtypes import f32, f64
from graphc.ir.graph import Graph, Op, clone_graph, constant_op, copy_op
from graphc.ir.infer import expand, infer_op, op_body
from graphc.ir.opdef import lookup
from graphc.ir.types import TensorType


def made(name: str, *types: TensorType) -> tuple[Graph, Op]:
    """A graph of one op of its parameters, typed."""
    graph = Graph("one")
    op = graph.append(Op(lookup(name, ""), [graph.add_param(type) for type in types]))
    infer_op(op)
    graph.set_results(op.outputs)
    return graph, op


def test_a_composite_is_expanded_once() -> None:
    graph, op = made("Softmax", TensorType(f32, (2, 3)))
    assert expand(op)[0] is expand(op)[0]
    copy = clone_graph(graph).ops[0]
    assert expand(copy)[0] is expand(op)[0]


def test_a_composite_of_another_type_is_expanded_anew() -> None:
    _, op = made("Softmax", TensorType(f32, (2, 3)))
    before = expand(op)[0]
    op.operand(0).type = TensorType(f64, (4,))
    infer_op(op)
    assert expand(op)[0] is not before
    assert op.output.type == TensorType(f64, (4,))
    assert expand(op)[1][0].type == TensorType(f64, (4,))


def test_a_copy_has_the_body() -> None:
    graph, op = made("Add", TensorType(f32, (2, 3)), TensorType(f32, (3,)))
    body = op_body(op)
    copy = clone_graph(graph).ops[0]
    assert copy.memo["body", 0] is body


def test_a_copy_with_a_constant_operand_derives_its_own() -> None:
    graph, op = made("Add", TensorType(f32, (2, 3)), TensorType(f32, (3,)))
    op_body(op)
    constant = graph.append(constant_op(np.ones(3, np.float32))).output
    one, two = op.operand(0), op.operand(1)
    copy = copy_op(op, graph, {one: one, two: constant})
    assert not copy.memo


def test_a_copy_of_operands_of_another_type_derives_its_own() -> None:
    graph, op = made("Add", TensorType(f32, (2, 3)), TensorType(f32, (3,)))
    op_body(op)
    one, two = op.operand(0), op.operand(1)
    other = graph.add_param(TensorType(f32, (1,)))
    assert not copy_op(op, graph, {one: one, two: other}).memo
