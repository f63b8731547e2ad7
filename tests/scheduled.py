"""Graphs of phase fused whose one product is given a schedule in their text."""

from __future__ import annotations

from graphc.ir.expr import Expr
from graphc.ir.graph import Graph
from graphc.ir.text.parser import parse_graph
from graphc.ir.text.printer import graph_constants, print_graph
from graphc.passes.analysis.compose import computations
from graphc.passes.analysis.computation import Computation
from graphc.passes.analysis.core import reductions_in
from graphc.passes.schedule.steps import Schedule
from graphc.targets.base import Target


def exprs(part: Computation) -> list[Expr]:
    return [output.expr for output in part.outputs]


def with_schedule(graph: Graph, schedule: str) -> Graph:
    """The graph, read from a text that gives its one product a schedule."""
    ops = [op for op in graph.ops if op.name != "Constant"]
    found = [op for op, part in zip(ops, computations(ops)) if reductions_in(exprs(part))]
    (found or ops)[-1].schedule = schedule
    text = print_graph(graph)
    assert f'schedule "{schedule}"' in text
    again = parse_graph(text, graph_constants(graph))
    assert print_graph(again) == text
    return again


def proposals(graph: Graph, target: Target, name: str) -> list[Schedule]:
    """What a strategy of a target proposes for the one product of a graph."""
    (strategy,) = [s for s in target.strategies() if getattr(s, "name", "") == name]
    ops = [op for op in graph.ops if op.name != "Constant"]
    own = [strategy.propose(part) for part in computations(ops)]
    return [schedule for given in own if not isinstance(given, str) for schedule in given]
