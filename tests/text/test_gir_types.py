"""The cases of text tests at other float types: what rewrites float32 must not break the rest.

Each graph of float32 is read again with another float type in its place. Its passes, and all passes
of a target, must leave a graph that verifies and gives what the source gives; whether rules fire is
not asked. A case whose text means float32 (no valid graph at another type) is left out.
"""

from __future__ import annotations

import re

import pytest
from test_gir import CASES, concrete, run_passes

from graphc.errors import GraphcError
from graphc.ir import dtypes
from graphc.ir.graph import Graph, clone_graph
from graphc.ir.interp import interpret
from graphc.ir.text.parser import parse
from graphc.ir.verify.graphs import verify
from graphc.passes.manager.hooks import difference
from graphc.targets import lookup

TOLERANCES = {"f16": 2e-2, "bf16": 1e-1, "f64": 1e-4}
GRAPHS = [case for case in CASES if re.search(r"^graph ", case.source.text, re.M)
          and "f32" in case.source.text and "phase typed" in case.source.text]  # fmt: skip


def at_type(text: str, name: str) -> Graph | None:
    """The graph of a text at another float type; None if it is none."""
    number = dtypes.of(name).onnx
    text = re.sub(r"\bf32\b", name, text)
    text = re.sub(r"\b(to|dtype)=1\b", rf"\g<1>={number}", text)
    try:
        graph = parse(text)
        assert isinstance(graph, Graph)
        verify(graph)
    except GraphcError:
        return None
    return graph


def compare(source: Graph, found: Graph, arrays, expected, tolerance: float, what: str) -> None:
    verify(found)
    if [v.name for v in source.params] != [v.name for v in found.params]:
        return
    results = interpret(found, arrays)[: len(expected)]  # checks of indices follow
    problem = difference(results, expected, tolerance)
    assert problem is None, f"{what}: {problem}"


@pytest.mark.suite("all")
@pytest.mark.parametrize("name", TOLERANCES)
@pytest.mark.parametrize("case", GRAPHS, ids=str)
def test_rules_at_other_types(case, name):
    source = at_type(case.source.text, name)
    if source is None:
        pytest.skip(f"no graph of {name}")
    arrays = case.arrays(source)
    expected = interpret(clone_graph(source), arrays)
    pipelines = {s.option for s in case.sections if s.kind in ("after", "unchanged", "declines")}
    if all(concrete(v.tensor) == v.tensor for v in source.params):
        pipelines |= {f"for {target}: {lookup(target)().pipeline()}" for target in ("c", "cuda")}
    for pipeline in sorted(pipelines):
        found, _ = run_passes(source, pipeline)
        compare(source, found, arrays, expected, TOLERANCES[name], pipeline)
