"""Control flow becomes straight-line code that computes the same."""

import numpy as np
import pytest

from graphc.ir import dtypes
from graphc.ir.build import Builder, new_graph
from graphc.ir.graph import Graph, Op, Region
from graphc.ir.infer import infer_region
from graphc.ir.interp import interpret
from graphc.ir.opdef import lookup
from graphc.ir.types import TensorType
from graphc.passes import control_flow

F4 = TensorType(dtypes.f32, (4,))
X = np.array([1, -2, 3, 0.5], np.float32)


def _control_op(graph: Graph):
    return next(op for op in graph.ops if op.regions)


def _same_after(graph: Graph, rewrite, *inputs, **options) -> Graph:
    before = interpret(graph, inputs)
    assert rewrite(_control_op(graph), **options)
    assert not any(op.regions for op in graph.ops)
    for old, new in zip(before, interpret(graph, inputs)):
        np.testing.assert_array_equal(old, new)
    infer_region(graph)
    return graph


def _branches(*functions) -> list[Region]:
    regions = []
    for function in functions:
        region = Region()
        captured = region.add_param(F4, "x")
        region.set_results([function(Builder(region), captured)])
        regions.append(region)
    return regions


def _if_graph(constant=None) -> Graph:
    graph = new_graph(x=F4, c=TensorType(dtypes.boolean, ()))
    b = Builder(graph)
    condition = graph.params[1] if constant is None else b.constant(np.bool_(constant))
    regions = _branches(lambda b, x: b.Add(x, 1.0), lambda b, x: b.Mul(x, 2.0))
    graph.set_results([b.If(condition, graph.params[0], regions=regions)])
    return graph


@pytest.mark.parametrize("constant", [True, False])
def test_if_with_a_constant_condition(constant):
    graph = _same_after(_if_graph(constant), control_flow.inline_if, X, np.bool_(False))
    assert [op.name for op in graph.ops if op.name != "Constant"] == ["Add" if constant else "Mul"]


def test_if_keeps_a_condition_that_is_not_constant():
    reasons = []
    op = _control_op(_if_graph())
    assert not control_flow.inline_if(op, skip=lambda why: reasons.append(why) or False)
    assert reasons == ["the condition is not constant"]


def _loop_graph(trips, condition_of, scans=True) -> Graph:
    """s = s * 2 + x[i], yielding s[:1], while condition_of(b, i)."""
    graph = new_graph(x=F4, s=F4)
    b = Builder(graph)
    body = Region()
    i, _ = (
        body.add_param(TensorType(dtypes.i64, ())),
        body.add_param(TensorType(dtypes.boolean, ())),
    )
    state, x = body.add_param(F4, "s"), body.add_param(F4, "x")
    inner = Builder(body)
    new = inner.Add(inner.Mul(state, 2.0), inner.Gather(x, i))
    results = [condition_of(inner, i), new] + ([new] if scans else [])
    body.set_results(results)
    count = None if trips is None else b.constant(np.int64(trips))
    inputs = [count, b.constant(np.True_), graph.params[1], graph.params[0]]
    op = Op(lookup("Loop"), inputs, {"captures": 1}, 1 + scans, [body])
    graph.append(op)
    graph.set_results(op.outputs)
    return graph


def _always(b, i):
    return b.constant(np.True_)


def _twice(b, i):
    return b.Less(i, 1)


@pytest.mark.suite("all")
@pytest.mark.parametrize(
    "trips, condition", [(3, _always), (None, _twice), (4, _twice), (1, _always)]
)
def test_loop(trips, condition):
    graph = _loop_graph(trips, condition)
    _same_after(graph, control_flow.unroll_loop, X, X * 3)
    assert all(op.name not in ("Less", "Loop") for op in graph.ops)


def test_loop_that_never_runs():
    graph = _loop_graph(0, _always)
    infer_region(graph)
    assert [str(v.type) for v in graph.results] == ["f32[4]", "f32[0,4]"]
    _same_after(graph, control_flow.unroll_loop, X, X)


def test_loop_types_without_unrolling():
    graph = _loop_graph(3, _always)
    infer_region(graph)
    assert [str(v.type) for v in graph.results] == ["f32[4]", "f32[3,4]"]


def test_loop_is_left_alone_if_data_or_the_limit_forbids():
    graph = _loop_graph(3, lambda b, i: b.Less(b.ReduceSum(b.Gather(graph_x(b), i)), 0.0))
    before = [op.name for op in graph.ops]
    assert not control_flow.unroll_loop(_control_op(graph))
    assert [op.name for op in graph.ops] == before
    assert not control_flow.unroll_loop(_control_op(_loop_graph(30, _always)), limit=10)


def graph_x(b):
    return b.region.params[3]


@pytest.mark.suite("all")
@pytest.mark.parametrize("attrs", [
    {},
    {"scan_input_axes": (1,), "scan_input_directions": (1,)},
    {"scan_output_axes": (-1,), "scan_output_directions": (1,)},
])  # fmt: skip
def test_scan(attrs):
    graph = new_graph(s=TensorType(dtypes.f32, (3,)), xs=TensorType(dtypes.f32, (3, 3)))
    body = Region()
    state, row = (body.add_param(TensorType(dtypes.f32, (3,))) for _ in range(2))
    b = Builder(body)
    new = b.Add(state, row)
    body.set_results([new, b.Mul(new, 2.0)])
    results = Builder(graph).Scan(
        *graph.params, outputs=2, regions=[body], num_scan_inputs=1, **attrs
    )
    graph.set_results(list(results))
    xs = np.arange(9, dtype=np.float32).reshape(3, 3) ** 2
    _same_after(graph, control_flow.unroll_scan, np.float32([1, 2, 3]), xs)


def test_scan_of_length_zero():
    graph = new_graph(s=F4, xs=TensorType(dtypes.f32, (0, 4)))
    body = Region()
    state, row = body.add_param(F4), body.add_param(F4)
    new = Builder(body).Add(state, row)
    body.set_results([new, new])
    results = Builder(graph).Scan(*graph.params, outputs=2, regions=[body], num_scan_inputs=1)
    graph.set_results(list(results))
    _same_after(graph, control_flow.unroll_scan, X, np.zeros((0, 4), np.float32))


def test_sequence_map():
    graph = new_graph(x=F4, y=F4)
    b = Builder(graph)
    body = Region()
    item, other = body.add_param(F4), body.add_param(F4)
    body.set_results([Builder(body).Add(item, other)])
    items = b.SequenceConstruct(*graph.params)
    mapped = b.SequenceMap(items, graph.params[0], regions=[body])
    assert str(mapped.type) == "seq<f32[4]>"
    graph.set_results([b.SequenceAt(mapped, np.int64(1))])
    _same_after(graph, control_flow.unroll_sequence_map, X, X * 2)


def test_captured_constants_move_inside():
    graph = new_graph(c=TensorType(dtypes.boolean, ()))
    b = Builder(graph)
    regions = _branches(lambda b, x: b.Add(x, 1.0), lambda b, x: b.Mul(x, 2.0))
    graph.set_results([b.If(graph.params[0], X, regions=regions)])
    op = _control_op(graph)
    before = interpret(graph, [np.True_])
    assert control_flow.sink_constants(op)
    assert len(op.inputs) == 1 and not op.regions[0].params
    assert not control_flow.sink_constants(op)
    np.testing.assert_array_equal(before[0], interpret(graph, [np.True_])[0])
