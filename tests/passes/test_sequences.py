"""Sequences and optionals of known contents are taken apart into code that computes the same."""

import numpy as np
import pytest

from graphc.ir import dtypes
from graphc.ir.build import Builder, new_graph
from graphc.ir.graph import Op
from graphc.ir.interp import interpret
from graphc.ir.opdef import lookup
from graphc.ir.types import OptionalType, TensorType
from graphc.passes.sequences import forward

A = np.arange(6, dtype=np.float32).reshape(2, 3)
T = TensorType(dtypes.f32, (2, 3))


def _pair(b, x, y):
    return b.SequenceConstruct(x, y)


BUILDS = {
    "at": lambda b, x, y: b.SequenceAt(_pair(b, x, y), np.int64(-2)),
    "length": lambda b, x, y: b.SequenceLength(_pair(b, x, y)),
    "insert": lambda b, x, y: b.SequenceAt(
        b.SequenceInsert(_pair(b, x, y), b.Add(x, y), np.int64(1)), np.int64(1)
    ),
    "append to empty": lambda b, x, y: b.SequenceLength(b.SequenceInsert(b.SequenceEmpty(), y)),
    "erase": lambda b, x, y: b.SequenceAt(b.SequenceErase(_pair(b, x, y)), np.int64(0)),
    "has": lambda b, x, y: b.OptionalHasElement(b.Optional(x)),
    "get": lambda b, x, y: b.OptionalGetElement(b.Optional(y)),
    "tensor": lambda b, x, y: b.OptionalGetElement(y),
}


def _run_forward(graph, inputs):
    before = interpret(graph, inputs)
    for op in list(graph.ops):
        forward(op)
    for op in reversed(list(graph.ops)):  # dead code
        if not any(v.uses for v in op.outputs):
            op.erase()
    assert all(op.defn.form != "host" for op in graph.ops), graph.ops
    np.testing.assert_array_equal(before[0], interpret(graph, inputs)[0])


@pytest.mark.suite("all")
@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
def test_forward(build):
    graph = new_graph(x=T, y=T)
    graph.set_results([build(Builder(graph), *graph.params)])
    _run_forward(graph, [A, A * 10])


def _untyped(graph, name, *inputs, **attrs):
    """An op whose type is known only once it has run."""
    return graph.append(Op(lookup(name), inputs, attrs)).output


@pytest.mark.parametrize("new_axis", [0, 1])
def test_concat_from_sequence(new_axis):
    graph = new_graph(x=T, y=T)
    items = Builder(graph).SequenceConstruct(*graph.params)
    graph.set_results([_untyped(graph, "ConcatFromSequence", items, axis=-1, new_axis=new_axis)])
    _run_forward(graph, [A, A * 10])


@pytest.mark.suite("all")
@pytest.mark.parametrize("sizes", [None, np.int64(2), np.array([1, 2])])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_split_to_sequence(sizes, keepdims):
    graph = new_graph(x=T)
    b = Builder(graph)
    inputs = [graph.params[0]] + ([] if sizes is None else [b.constant(sizes)])
    parts = _untyped(graph, "SplitToSequence", *inputs, axis=1, keepdims=keepdims)
    graph.set_results([_untyped(graph, "SequenceAt", parts, b.constant(np.int64(1)))])
    _run_forward(graph, [A])


def test_unknown_contents_are_left_alone():
    graph = new_graph(x=T)
    graph.add_param(OptionalType(T), "o")
    has = Builder(graph).OptionalHasElement(graph.params[1])
    assert not forward(has.producer)
    assert len(graph.ops) == 1
