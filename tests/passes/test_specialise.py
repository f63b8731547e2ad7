"""Specialisation: static types, folding of shape arithmetic, what is needed where data decides."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from graphc.errors import ModelError, NeedsValue
from graphc.frontend.onnx_import import import_onnx
from graphc.ir.interp import interpret
from graphc.ir.text.parser import parse_graph
from graphc.passes import run_pipeline
from graphc.passes.fold import FoldPolicy
from graphc.passes.manager.hooks import difference
from graphc.passes.specialise import needed_inputs, specialise

WILD = Path(__file__).parent.parent / "models_wild"
CASES = json.loads((WILD / "manifest.json").read_text())
CANONICAL = (
    "canonicalise, rewrite{group=lowering}, decompose, fold, canonicalise, cse, dce"  # as compiled
)


def names(graph) -> list[str]:
    return [op.name for op in graph.ops if op.name != "Constant"]


FLATTEN = """graph @g(%x: f32[N,C,4]) -> ? where N: 1..8, C: 1.. {
  const %zero : i64[] = 0
  const %rest : i64[1] = [-1]
  const %axis : i64[1] = [0]
  %s = Shape(%x)
  %n = Gather(%s, %zero)
  %u = Unsqueeze(%n, %axis)
  %t = Concat(%u, %rest) {axis=0}
  %y = Reshape(%x, %t)
  return %y
}"""


def test_shape_arithmetic_vanishes():
    graph = specialise(parse_graph(FLATTEN), {"x": (2, 3, 4)})
    assert names(graph) == ["Reshape"]
    assert graph.results[0].tensor.static_shape == (2, 12)
    assert graph.phase == "typed" and not graph.symbols


def test_dimensions_by_name():
    graph = specialise(parse_graph(FLATTEN), dims={"N": 2, "C": 5})
    assert graph.results[0].tensor.static_shape == (2, 20)


@pytest.mark.suite("all")
@pytest.mark.parametrize(
    "shapes, dims, message",
    [
        ({}, {}, "dimension N is not known"),
        ({"x": (1, 2)}, {}, "has rank 3"),
        ({"x": (1, 2, 5)}, {}, "found shape [1, 2, 5]"),
        ({"x": (9, 2, 4)}, {}, "dimension N = 9 is out of 1..8"),
        ({"x": (2, 2, 4)}, {"N": 3}, "dimension N is 2, but also 3"),
        ({"y": (2, 2, 4)}, {}, "there is no input 'y'"),
        ({}, {"M": 3}, "there is no dimension 'M'"),
    ],
)
def test_contradictions_are_explained(shapes, dims, message):
    with pytest.raises(ModelError) as error:
        specialise(parse_graph(FLATTEN), shapes, dims=dims)
    assert message in str(error.value)


RESHAPE = """graph @g(%x: f32[12], %n: i64[2], %k: i64[]) -> ? {
  %m = Mul(%n, %k)
  %y = Reshape(%x, %m)
  return %y
}"""


def test_bound_inputs_stay_parameters():
    values = {"n": np.array([2, 1]), "k": np.array(2)}
    graph = specialise(parse_graph(RESHAPE.replace("12", "8")), values=values)
    assert [p.name for p in graph.params] == ["x", "n", "k"]
    assert graph.results[0].tensor.static_shape == (4, 2)


def test_a_value_that_decides_a_type_is_named():
    with pytest.raises(NeedsValue) as caught:
        specialise(parse_graph(RESHAPE))
    error = caught.value
    assert error.contents and error.value.name == "m"
    assert [p.name for p in needed_inputs(error.graph, error.value)] == ["n", "k"]


NONZERO = """graph @g(%x: f32[6], %z: f32[6]) -> (?, ?) {
  const %zero : f32[] = 0.0
  %a = Relu(%x)
  %p = Greater(%a, %zero)
  %w = NonZero(%p)
  %v = Transpose(%w)
  %g = GatherND(%a, %v)
  %y = Exp(%g)
  %b = Tanh(%z)
  return %y, %b
}"""


def test_what_data_decides_is_named():
    graph = parse_graph(NONZERO)
    with pytest.raises(NeedsValue) as caught:
        specialise(graph)
    error = caught.value
    assert error.value.name == "w" and not error.contents
    assert error.graph.results[1].tensor.static_shape == (6,), "the rest is typed"


def test_partial_leaves_untyped_what_is_not_known():
    graph = specialise(parse_graph(NONZERO), partial=True)
    assert graph.results[0].type is None and graph.results[1].type is not None


EXPAND = """graph @g(%x: f32[2,3]) -> (?, ?) {
  const %shape : i64[2] = [1000, 1000]
  const %one : f32[] = 1.0
  const %k : i64[2] = [0, 1]
  %big = Expand(%one, %shape)
  %t = ReduceSum(%big, %k) {keepdims=0}
  return %big, %t
}"""


def test_no_large_constant_for_a_cheap_expression():
    graph = specialise(parse_graph(EXPAND))
    assert names(graph) == ["Expand"], "its sum is small, and known"
    assert graph.results[1].constant == np.float32(1e6)
    generous = specialise(parse_graph(EXPAND), policy=FoldPolicy(small=1 << 20))
    assert names(generous) == []


def test_known_contents_of_a_large_value():
    graph = parse_graph("""graph @g(%x: f32[20000]) -> ? {
      const %from : i64[] = 0
      const %to : i64[] = 20000
      const %by : i64[] = 1
      const %axis : i64[1] = [0]
      %r = Range(%from, %to, %by)
      %m = ReduceMax(%r, %axis) {keepdims=1}
      %e = Expand(%x, %m)
      return %e
    }""")
    with pytest.raises(ModelError, match="broadcast"):
        specialise(graph)


def test_known_condition_and_trips():
    graph = parse_graph("""graph @g(%x: f32[N,4]) -> ? where N: 1.. {
      const %zero : i64[] = 0
      const %two : i64[] = 2
      %s = Shape(%x)
      %n = Gather(%s, %zero)
      %many = Greater(%n, %two)
      %y = If(%many, %x) {
        ^(%a: f32[N,4])
        %e = Exp(%a)
        yield %e
      } else {
        ^(%a: f32[N,4])
        const %axis : i64[1] = [0]
        %r = ReduceSum(%a, %axis)
        yield %r
      }
      return %y
    }""")
    assert names(specialise(graph, {"x": (3, 4)})) == ["Exp"]
    assert names(specialise(graph, {"x": (2, 4)})) == ["ReduceSum"]


LOOP = """graph @g(%x: f32[3], %n: i64[]) -> ? {
  %y = Loop(%n, _, %x) {captures=0} {
    ^(%i: i64[], %c: bool[], %s: f32[*])
    %t = Concat(%s, %s) {axis=0}
    %u = Shape(%s)
    %f = Cast(%u) {to=1}
    %v = Add(%t, %f)
    yield %c, %v
  }
  return %y
}"""


def test_a_loop_that_stays_keeps_its_body():
    """Nothing may be folded that holds for the types of the first trip only."""
    graph = parse_graph(LOOP)
    partial = specialise(graph, partial=True)
    inputs = [np.ones(3, np.float32), np.array(2)]
    assert difference(interpret(partial, inputs), interpret(graph, inputs), 1e-6) is None
    unrolled = specialise(graph, values={"n": np.array(2)})
    assert "Loop" not in names(unrolled)
    assert difference(interpret(unrolled, inputs), interpret(graph, inputs), 1e-6) is None


def test_sequences_are_taken_apart():
    graph = parse_graph("""graph @g(%x: f32[6], %s: seq<f32[*]>) -> (?, ?, ?) {
      const %two : i64[] = 2
      const %one : i64[] = 1
      %parts = SplitToSequence(%x, %two)
      %part = SequenceAt(%parts, %one)
      %n = SequenceLength(%s)
      %a = SequenceAt(%s, %one)
      %y = Exp(%a)
      return %part, %n, %y
    }""")
    typed = specialise(graph, {"s": [(2,), (5,)]})
    assert names(typed) == ["Slice", "SequenceAt", "Exp"]
    assert typed.results[1].constant == 2
    assert typed.results[2].tensor.static_shape == (5,)


# ---------------------------------------------------------------- models as exported


def wild(case):
    graph = import_onnx(str(WILD / case["file"]))
    arrays = np.load(WILD / case["npz"])
    return graph, [arrays[f"input_{n}"] for n in range(len(graph.params))]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c["name"])
def test_wild_models_keep_their_results(case):
    graph, inputs = wild(case)
    expected = interpret(graph, inputs)
    shapes = {p.name: v.shape for p, v in zip(graph.params, inputs)}
    try:
        typed = specialise(graph, shapes)
    except NeedsValue as error:
        assert case["file"] == "if_runtime.onnx", error
        typed = specialise(graph, shapes, partial=True)
        assert difference(interpret(typed, inputs), expected, 1e-5) is None
        return
    assert difference(interpret(typed, inputs), expected, 1e-5) is None
    left = set(names(typed)) & {"Shape", "Size", "Range", "ConstantOfShape", "NonZero", "Loop"}
    assert not left, "shape arithmetic is gone"
    run_pipeline(typed, CANONICAL)
    assert difference(interpret(typed, inputs), expected, 1e-4) is None


ROWS = """graph @g(%x: f32[N]) -> ? where N: 0.. {
  const %axis : i64[1] = [0]
  const %start : f32[] = 1.0
  %s = Shape(%x)
  %n = Squeeze(%s, %axis)
  %y = Loop(%n, _, %start, %x) {captures=1} {
    ^(%i: i64[], %go: bool[], %sum: f32[], %all: f32[N])
    %row = Gather(%all, %i)
    %new = Add(%sum, %row)
    yield %go, %new
  }
  return %y
}"""


@pytest.mark.parametrize("rows", [0, 3])
def test_loops_over_no_rows_need_none(rows):
    x = np.arange(rows, dtype=np.float32)
    graph = specialise(parse_graph(ROWS), {"x": x.shape})
    assert "Loop" not in names(graph)
    assert interpret(graph, [x])[0] == 1 + x.sum()
