"""Folding, decomposition, common subexpressions and dead code in place."""

from __future__ import annotations

import numpy as np
import pytest

from graphc.driver import compile
from graphc.errors import ModelError
from graphc.ir.interp import interpret
from graphc.ir.text.parser import parse_graph
from graphc.passes import Context, run_pipeline
from graphc.passes.fold import FoldPolicy
from graphc.passes.manager.hooks import difference


def names(region) -> list[str]:
    return [op.name for op in region.ops if op.name != "Constant"]


def passed(text: str, pipeline: str, **options):
    graph = parse_graph(text)
    before = parse_graph(text)
    run_pipeline(graph, pipeline, Context(options=options, fuel=None))
    inputs = [np.linspace(-2, 2, p.type.size, dtype=np.float32).reshape(p.type.shape)
              for p in graph.params]  # fmt: skip
    assert difference(interpret(graph, inputs), interpret(before, inputs), 1e-5) is None
    return graph


def test_fold_leaves_one_constant():
    graph = passed(
        """graph @g(%x: f32[2]) -> f32[2] phase typed {
          const %a : f32[2] = [1.0, 2.0]
          const %b : f32[2] = [3.0, 4.0]
          %s = Add(%a, %b) : f32[2]
          %e = Sqrt(%s) : f32[2]
          %y = Mul(%x, %e) : f32[2]
          return %y
        }""",
        "fold,dce",
    )
    assert names(graph) == ["Mul"] and len(graph.ops) == 2


WEIGHTS = """graph @g(%x: f32[2,200]) -> f32[2,200] phase typed {
  const %q : i8[200,200] = random(seed=1)
  const %s : f32[] = 0.1
  %w = DequantizeLinear(%q, %s) : f32[200,200]
  %y = MatMul(%x, %w) : f32[2,200]
  return %y
}"""


@pytest.mark.parametrize("growth, left", [(1.0, ["DequantizeLinear", "MatMul"]), (4.0, ["MatMul"])])
def test_weights_grow_only_as_the_policy_says(growth, left):
    graph = passed(WEIGHTS, "fold,dce", fold_policy=FoldPolicy(growth=growth))
    assert names(graph) == left


def test_statistics_of_weights_are_constants():
    """Reductions are evaluated once per channel, not per element: weights that are standardised by
    a batch normalisation in training mode are folded."""
    graph = passed(
        """graph @g(%x: f32[1,64,512]) -> f32[1,64,512] phase typed {
          const %w : f32[1,64,512] = random(seed=1)
          const %s : f32[64] = random(seed=2)
          const %z : f32[64] = random(seed=3)
          %n = BatchNormalization(%w, %s, %z, %z, %z) {training_mode=1} : f32[1,64,512]
          %y = Mul(%x, %n) : f32[1,64,512]
          return %y
        }""",
        "fold,dce",
    )
    assert names(graph) == ["Mul"]


TABLE = """graph @g(%x: f32[2,64]) -> f32[2,64] phase typed {
  const %p : f32[64,64] = random(seed=1)
  const %w : f32[64,64] = random(seed=2)
  %k = MatMul(%p, %w) : f32[64,64]
  %y = MatMul(%x, %k) : f32[2,64]
  return %y
}"""


@pytest.mark.parametrize("work, left", [(16383, ["MatMul", "MatMul"]), (16384, ["MatMul"])])
def test_sums_of_products_are_cheap_to_evaluate(work, left):
    """64^3 products count as 64^3 / 16 operations."""
    assert names(passed(TABLE, "fold,dce", fold_policy=FoldPolicy(work=work))) == left


def test_empty_results_are_constants():
    graph = passed(
        """graph @g(%x: f32[0,3]) -> f32[0,3] phase typed {
          %y = Exp(%x) : f32[0,3]
          return %y
        }""",
        "fold,dce",
    )
    assert names(graph) == []


BEFORE_EMPTY = """graph @g(%x: f32[1,3]) -> f32[2] phase imported {
  const %i : i64[2] = [0, 2]
  const %none : i64[1] = [0]
  const %axis : i64[1] = [1]
  %picked = Gather(%x, %i) : f32[2,3]
  %cut = Slice(%picked, %none, %none, %axis) : f32[2,0]
  %y = ReduceSum(%cut, %axis) {keepdims=0} : f32[2]
  return %y
}"""


def test_what_lies_before_an_empty_result_is_checked():
    with pytest.raises(ModelError, match="index 2 of indices 'i' must be in -1..0"):
        compile(parse_graph(BEFORE_EMPTY), "cpu", specialise="exact").run([np.zeros((1, 3), "f4")])
    right = compile(parse_graph(BEFORE_EMPTY.replace("[0, 2]", "[0, 0]")), "cpu")
    assert right.run([np.zeros((1, 3), "f4")])[0].tolist() == [0, 0]


def test_what_fails_is_left_for_run_time():
    graph = parse_graph("""graph @g() -> f32[2] phase typed {
      const %x : f32[2] = [1.0, 2.0]
      const %i : i64[1] = [5]
      const %u : f32[1] = [9.0]
      %y = ScatterElements(%x, %i, %u) : f32[2]
      return %y
    }""")
    run_pipeline(graph, "fold")
    assert len(graph.results) == 1


def test_decompose_keeps_what_it_is_told():
    text = """graph @g(%x: f32[2,3]) -> f32[2,3] phase typed {
      %a = Softmax(%x) : f32[2,3]  loc("attention")
      %y = Dropout(%a) : f32[2,3]
      return %y
    }"""
    assert names(passed(text, "decompose{keep=[Softmax]},dce")) == ["Softmax"]
    whole = passed(text, "decompose,dce")
    assert names(whole) == ["ReduceMax", "Sub", "Exp", "ReduceSum", "Div"]
    assert all(op.loc == ("attention",) for op in whole.ops)
    assert whole.results[0].name == "a"


BRANCHES = """graph @g(%x: f32[2], %f: bool[], %unused: f32[2]) -> f32[2] phase typed {
  const %one : f32[] = 1.0
  %y = If(%f, %x, %unused) : f32[2] {
    ^(%a: f32[2], %u: f32[2])
    const %k : f32[] = 2.0
    const %l : f32[] = 2.0
    %d = Exp(%u) : f32[2]
    %b = Mul(%a, %k) : f32[2]
    %c = Mul(%a, %l) : f32[2]
    %e = Add(%b, %c) : f32[2]
    yield %e
  } else {
    ^(%a: f32[2], %u: f32[2])
    %b = Neg(%a) : f32[2]
    yield %b
  }
  return %y
}"""


def test_regions_are_cleaned_too():
    graph = parse_graph(BRANCHES)
    run_pipeline(graph, "cse,dce")
    (branch,) = [op for op in graph.ops if op.name == "If"]
    assert len(graph.ops) == 1 and len(branch.inputs) == 2, "the unused capture is gone"
    assert names(branch.regions[0]) == ["Mul", "Add"]
    assert [len(r.params) for r in branch.regions] == [1, 1]
    x = np.array([1, 2], np.float32)
    for flag, expected in ((True, 4 * x), (False, -x)):
        (found,) = interpret(graph, [x, np.array(flag), x])
        np.testing.assert_array_equal(found, expected)


def test_cse_tells_zeros_apart():
    graph = passed(
        """graph @g(%x: f32[2]) -> (f32[2], f32[2], f32[2]) phase typed {
          const %p : f32[] = 0.0
          const %n : f32[] = -0.0
          const %q : f32[] = 0.0
          %a = Add(%x, %p) : f32[2]
          %b = Add(%x, %n) : f32[2]
          %c = Add(%x, %q) : f32[2]
          return %a, %b, %c
        }""",
        "cse,dce",
    )
    assert len(names(graph)) == 2 and graph.results[0] is graph.results[2]
