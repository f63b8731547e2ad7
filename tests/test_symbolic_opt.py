"""Models whose dimensions stay open are optimised, and mean the same at every shape."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import graphc
from graphc.cli import main
from graphc.driver import Settings, optimise
from graphc.frontend.onnx_export import export_onnx
from graphc.frontend.onnx_import import import_onnx
from graphc.ir.compare import agreements
from graphc.ir.graph import Graph
from graphc.passes.analysis import facts, parts
from graphc.passes.rewriter import RULES
from graphc.passes.specialise import pin, type_symbolically
from graphc.runtime.feeds import random_feeds

ROOT = Path(__file__).parent.parent
WILD = sorted(ROOT.glob("tests/models_wild/*.onnx"))
MODELS = [  # less those whose dimensions depend on each other: a mask as long as cache and tokens
    ROOT / "models" / "digits_cnn.onnx", *(p for p in WILD if not p.stem.startswith("decoder"))
]  # fmt: skip
PASSES = "canonicalise, cse, dce"


def optimised(graph: Graph) -> Graph:
    return optimise(type_symbolically(graph), Settings(passes=PASSES))


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_models_at_several_shapes(path):
    pytest.importorskip("onnxruntime")
    from graphc.verify import onnxruntime

    graph = import_onnx(path)
    made = export_onnx(optimised(graph))
    onnx.checker.check_model(made)
    before, after = (onnxruntime(m.SerializeToString(), 1) for m in (onnx.load(path), made))
    for number in (1, 2, 3):
        dims = {n: number if n in ("N", "n", "batch") else 5 + 3 * number for n in graph.symbols}
        feeds = random_feeds(pin(graph, dims=dims), number)
        for agreement in agreements(graph.output_names, after(feeds), before(feeds)):
            assert agreement.within(1e-5), (dims, agreement)


def test_rules_decline_what_needs_static_shapes():
    graph = graphc.parse("""
graph @g(%x: f32[N,4], %y: f32[M,4]) -> (f32[N,4], ?) where N: 1..8, M: 1..8 {
  %a = Identity(%x) : f32[N,4]
  %b = Neg(%a) : f32[N,4]
  %c = Neg(%b) : f32[N,4]
  %d = Add(%x, %y)
  return %c, %d
}
""")
    result = optimised(graph)
    assert result.results[0] is result.params[0]  # -(-x)
    assert result.results[1].type is None  # N or M may be 1
    x, y = np.ones((1, 4), np.float32), np.ones((3, 4), np.float32)
    assert graphc.interpret(result, [x, y])[1].shape == (3, 4)


def test_facts_of_values_without_a_type_are_not_known():
    graph = type_symbolically(
        graphc.parse("""
graph @g(%x: f32[N,4], %y: f32[M,4], %z: f32[3,4]) -> (?, ?) where N: 1..8, M: 1..8 {
  %a = Add(%x, %y)
  %b = Neg(%a)
  %c = Neg(%b)
  %d = Transpose(%c)
  %e = Concat(%d, %d) {axis=0}
  %f = Softmax(%a)
  %h = MatMul(%e, %z)
  return %h, %f
}
""")
    )  # N or M may be 1
    known = facts.is_involution, facts.choice, facts.copied_operand, facts.limits, parts.map_operand
    for op in graph.ops:
        assert op.output.type is None and not op.is_typed and not op.output.is_static
        assert not any(fact(op) for fact in known) and parts.dims_along(op, 0) is None
        for entry in RULES.values():
            assert entry.pattern.fact is None or not list(entry.pattern.match_op(op)), entry.name
    optimised(graph)


def test_the_command(capsys, tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    source, out = str(MODELS[0]), str(tmp_path / "small.onnx")
    assert main(["opt", source, "-o", out, "--verify"]) == 0
    assert "BatchNormalization: 3 -> 0" in capsys.readouterr().out
    assert [d.dim_param for d in onnx.load(out).graph.input[0].type.tensor_type.shape.dim][0] == "N"
    assert main(["opt", source, "-o", out, "--passes", "layout"]) == 2
    assert "pass layout takes static shapes only: pin N" in capsys.readouterr().err
