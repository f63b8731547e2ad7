"""A compilation as it was watched: the ops after each pass, the journal, the programs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from graphc.ir.graph import Graph
from graphc.ir.program import Program
from graphc.passes.manager.base import Hook, Pass
from graphc.passes.manager.context import Context
from graphc.passes.manager.journal import Journal, Subject, subject
from graphc.runtime.plans import HOST


def subjects(graph: Graph) -> list[Subject]:
    """The ops of a graph as they are, but constants; those of branches and loops included, not what
    fused ops hold."""
    kept = (op for op in graph.walk() if op.name not in ("Constant", "yield"))
    inside = {m for op in graph.walk() if op.name == "fused" for m in op.regions[0].ops}
    return [subject(op) for op in kept if op not in inside]


@dataclass
class Run:
    """A graph, in the end as the last pass left it, and its ops after each pass that changed it."""

    graph: Graph
    stages: list[tuple[str, list[Subject]]]


@dataclass
class Trace(Hook):
    """Watches passes: a hook of the pass manager. `observe` takes programs. `stopped` is the error
    that ended the run of a model which is compiled in stages, while it runs."""

    journal: Journal = field(default_factory=Journal)
    runs: list[Run] = field(default_factory=list)
    programs: list[Program] = field(default_factory=list)
    stopped: str = ""

    def before(self, step: Pass, graph: Graph, ctx: Context) -> None:
        if not self.runs or self.runs[-1].graph is not graph:
            self.runs.append(Run(graph, [("specialise", subjects(graph))]))

    def after(self, step: Pass, graph: Graph, ctx: Context, changed: bool) -> None:
        if changed:
            self.runs[-1].stages.append((step.name, subjects(graph)))

    @property
    def is_staged(self) -> bool:
        """Whether the host runs a part of the model, and others are compiled after it has run."""
        return any(decision.about == HOST for decision in self.journal.decisions)

    def observe(self, program: Program) -> None:
        """Keeps a program that was made."""
        self.programs.append(program)

    def lost(self, layer: str) -> str:
        """The pass after which no op comes from a layer; "" if it never was, or still is, there."""
        for run in self.runs:
            for (_, before), (name, after) in zip(run.stages, run.stages[1:]):
                if _holds(before, layer) and not _holds(after, layer):
                    return name
        return ""


def _holds(ops: Iterable[Subject], layer: str) -> bool:
    return any(layer in op.loc for op in ops)
