"""Pipelines as text, contracts, hooks, fuel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from graphc.errors import InternalError, ModelError
from graphc.ir.build import Builder, new_graph
from graphc.ir.dtypes import f32
from graphc.ir.types import TensorType
from graphc.passes import Context, Pass, PassManager, parse_pipeline, register_pass
from graphc.passes.manager.hooks import Compare, Dump, difference


def small_graph():
    graph = new_graph(x=TensorType(f32, (4,)))
    b = Builder(graph)
    (x,) = graph.params
    graph.set_results([b.Neg(b.Neg(b.Relu(b.Identity(b.Relu(x)))))])
    graph.output_names = ["y"]
    graph.phase = "typed"
    return graph


def test_pipeline_text_gives_passes_with_options():
    first, second, third = parse_pipeline('decompose{keep=[Softmax, Gelu]}, dce,rewrite{group="x"}')
    assert str(first) == "decompose{keep=[Softmax, Gelu]}"
    assert str(second) == "dce"
    assert third.group == "x"


def test_a_rule_is_a_pass():
    (only,) = parse_pipeline("double-negation")
    assert only.rules == ["double-negation"]


@pytest.mark.suite("all")
@pytest.mark.parametrize(
    "text, message",
    [
        ("nothing", "there is no pass or rule 'nothing'"),
        ("dce{fast=true}", "pass dce has no option 'fast'"),
        ("dce cse", "expected ',', found 'cse'"),
        ("decompose{keep=[a}", "expected ',', found '}'"),
        ("dce{", "expected a name, found the end"),
        ("dce; cse", "cannot read '; cse'"),
    ],
)
def test_bad_pipelines_are_explained(text, message):
    with pytest.raises(ModelError, match=".*" + message.replace("[", r"\[")):
        parse_pipeline(text)


def test_a_pass_needs_its_phase():
    graph = small_graph()
    graph.phase = "imported"
    with pytest.raises(ModelError, match="canonicalise requires a graph that is typed.*infer does"):
        PassManager("canonicalise").run(graph, Context())


def test_phases_only_advance():
    graph = small_graph()
    graph.phase = "fused"
    PassManager("canonicalise").run(graph, Context())
    assert graph.phase == "fused"


def test_fuel_stops_before_the_nth_rewrite():
    every = Context(fuel=None)
    graph = small_graph()
    PassManager("canonicalise").run(graph, every)
    assert every.rewrites == 3 and len(graph.ops) == 1
    for fuel in range(1, 5):
        limited = Context(fuel=fuel)
        PassManager("canonicalise").run(small_graph(), limited)
        assert limited.rewrites == min(fuel - 1, 3)
        assert limited.diagnostics.log == every.diagnostics.log[: fuel - 1]


def test_fuel_comes_from_the_environment(monkeypatch):
    monkeypatch.setenv("GRAPHC_FUEL", "2")
    assert Context().fuel == 2
    monkeypatch.setenv("GRAPHC_FUEL", "many")
    with pytest.raises(ModelError, match="GRAPHC_FUEL must be an integer"):
        Context()


def test_compare_blames_the_pass_that_breaks_a_graph():
    @register_pass
    @dataclass
    class Break(Pass):
        name = "break"

        def run(self, graph, ctx):
            (x,) = graph.params
            graph.set_results([Builder(graph).Exp(x)])
            return True

    x = np.array([1, -2, 3, -4], np.float32)
    manager = PassManager("canonicalise, break", [Compare([x])])
    with pytest.raises(InternalError, match="after pass break the results changed: output 0"):
        manager.run(small_graph(), Context())


def test_dump_writes_a_file_per_pass(tmp_path):
    PassManager("canonicalise,dce", [Dump(tmp_path / "out")]).run(small_graph(), Context())
    names = sorted(p.name for p in (tmp_path / "out").iterdir())
    assert names == ["01-canonicalise.gir", "02-dce.gir"]


def test_passes_are_timed():
    ctx = Context()
    PassManager("dce").run(small_graph(), ctx)
    assert ctx.diagnostics.seconds["dce"] > 0


@pytest.mark.suite("all")
@pytest.mark.parametrize(
    "found, expected, problem",
    [
        ([1.0, np.nan], [1.0, np.nan], None),
        ([1.0, np.inf], [1.0, np.inf], None),
        ([1.0, np.inf], [1.0, -np.inf], "infinite and NaN"),
        ([1.0, 2.1], [1.0, 2.0], "differs by 0.05"),
        ([0.0, 0.0], [0.0, 0.0], None),
    ],
)
def test_difference(found, expected, problem):
    said = difference([np.array(found)], [np.array(expected)], 1e-3)
    assert said is None if problem is None else problem in said
