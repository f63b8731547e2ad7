"""The manager runs passes in order, with hooks around each."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path

from graphc.errors import GraphcError, ModelError
from graphc.ir.graph import Graph
from graphc.ir.phases import PHASES
from graphc.passes.manager.base import Hook, Pass, establishing, made_here
from graphc.passes.manager.context import Context
from graphc.passes.manager.contracts import Ledger, check_order
from graphc.passes.manager.hooks import usual_hooks
from graphc.passes.manager.pipeline import steps_of


class PassManager:
    """Runs passes in order, with hooks around each."""

    def __init__(self, passes: str | Iterable[Pass], hooks: Sequence[Hook] = ()):
        self.passes = steps_of(passes)
        self.hooks = list(hooks)
        self.ledger = Ledger()

    def remaining(self, graph: Graph) -> list[Pass]:
        """The passes that a graph has ahead of it: those after the first that takes a graph to its
        phase. All of them for one that is only typed, or if no pass leads to its phase. ModelError
        if they cannot run in this order."""
        steps = self._remaining(graph)
        check_order(steps, establishing, graph)
        return steps

    def _remaining(self, graph: Graph) -> list[Pass]:
        if not graph.is_optimised:
            return self.passes
        order = [PHASES.index(step.phase()) for step in self.passes]
        phase = PHASES.index(graph.phase)
        done = next((n for n, reached in enumerate(order, 1) if reached >= phase), 0)
        return [step for step in self.passes[done:] if "original" not in step.requires]

    def run(self, graph: Graph, ctx: Context) -> bool:
        """Runs every pass once; returns whether any changed the graph."""
        check_order(self.passes, establishing, graph)
        changed = False
        for step in self.passes:
            changed |= self.step(step, graph, ctx)
        return changed

    def step(self, step: Pass, graph: Graph, ctx: Context) -> bool:
        """Runs one pass; ModelError if the graph is not as the pass requires."""
        self.ledger.require(step, graph, establishing)
        for hook in self.hooks:
            hook.before(step, graph, ctx)
        ctx.begin(step.name)
        with ctx.timed(step.name):
            changed = _run(step, graph, ctx)
        self.ledger.ran(step)
        if not graph.reached(step.phase()):
            graph.phase = step.phase()
        for hook in self.hooks:
            hook.after(step, graph, ctx, changed)
        return changed


def _run(step: Pass, graph: Graph, ctx: Context) -> bool:
    """Runs a pass; what goes wrong in one of a plugin is a ModelError that says where."""
    try:
        return bool(step.run(graph, ctx))
    except GraphcError:
        raise
    except Exception as error:
        if made_here(type(step)):
            raise
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise ModelError(
            f"pass {step} fails: {type(error).__name__}: {error} "
            f"({Path(last.filename).name}, line {last.lineno})"
        ) from error


def run_pipeline(graph: Graph, text: str, ctx: Context | None = None) -> Graph:
    """Runs the passes that `text` names on the graph, in place, and returns it."""
    ctx = ctx or Context()
    PassManager(text, usual_hooks(ctx)).run(graph, ctx)
    return graph
