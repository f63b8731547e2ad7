"""Hooks of the pass manager: verify, time, dump, and compare results between passes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from graphc import config
from graphc.errors import InternalError, ModelError
from graphc.files import write_text
from graphc.ir.compare import difference
from graphc.ir.graph import Graph
from graphc.ir.interp import interpret
from graphc.ir.verify.graphs import verify
from graphc.passes.manager.base import Hook, Pass, file_of, made_here
from graphc.passes.manager.context import Context
from graphc.passes.rewriter import Rewrite


class Verify(Hook):
    """Checks the graph's invariants after each pass; the error names the pass."""

    def after(self, step: Pass, graph: Graph, ctx: Context, changed: bool) -> None:
        try:
            verify(graph)
        except InternalError as error:
            raise InternalError(f"after pass {step}: {error}") from error


class VerifyPlugins(Hook):
    """Checks the graph's invariants after passes that are no part of graphc, and after those that
    apply rules that are none. ModelError names them: whoever wrote them can mend it."""

    def after(self, step: Pass, graph: Graph, ctx: Context, changed: bool) -> None:
        makers: Sequence[Callable] = [type(step)]
        if made_here(type(step)):
            makers = _foreign_rules(step) if changed else []
        if not makers:
            return
        try:
            verify(graph)
        except InternalError as error:
            names = ", ".join(maker.__name__ for maker in makers)
            raise ModelError(
                f"after pass {step}: the graph breaks a rule, by {names} of {file_of(makers[0])}: "
                f"{error}"
            ) from error


def _foreign_rules(step: Pass) -> list[Callable]:
    """The functions of the rules that a pass applies and that are no part of graphc."""
    rules = step.chosen() if isinstance(step, Rewrite) else []
    return [rule.function for rule in rules if not made_here(rule.function)]


class Timings(Hook):
    """Says how long each pass took and how many ops are left."""

    def before(self, step: Pass, graph: Graph, ctx: Context) -> None:
        self.start = time.perf_counter()

    def after(self, step: Pass, graph: Graph, ctx: Context, changed: bool) -> None:
        milliseconds = (time.perf_counter() - self.start) * 1e3
        config.say(f"{milliseconds:8.1f} ms  {step}: {len(graph.ops)} ops")


class Progress(Hook):
    """Names each pass as it starts, and says which changed nothing."""

    def before(self, step: Pass, graph: Graph, ctx: Context) -> None:
        config.say(f"pass {step}")

    def after(self, step: Pass, graph: Graph, ctx: Context, changed: bool) -> None:
        if not changed:
            config.say(f"pass {step}: nothing to do")


class PrintGraph(Hook):
    """Prints the graph after each pass that changed it."""

    def after(self, step: Pass, graph: Graph, ctx: Context, changed: bool) -> None:
        if changed:
            config.say(f"// ---- after: {step}\n{graph}")


class Dump(Hook):
    """Writes the graph after each pass to NN-pass.gir in a directory."""

    def __init__(self, directory: str | Path):
        self.directory, self.count = Path(directory), 0
        self.directory.mkdir(parents=True, exist_ok=True)

    def after(self, step: Pass, graph: Graph, ctx: Context, changed: bool) -> None:
        self.count += 1
        path = self.directory / f"{self.count:02d}-{step.name}.gir"
        write_text(path, f"// ---- after: {step}\n{graph}\n")


class Compare(Hook):
    """Interprets the graph after each pass and compares its outputs with those before the first."""

    def __init__(self, inputs: Sequence[Any], tolerance: float = 1e-4):
        self.inputs, self.tolerance = inputs, tolerance
        self.expected: list[Any] | None = None

    def before(self, step: Pass, graph: Graph, ctx: Context) -> None:
        if self.expected is None:
            self.expected = self.outputs(graph)

    def after(self, step: Pass, graph: Graph, ctx: Context, changed: bool) -> None:
        if changed and self.expected is not None:
            problem = difference(self.outputs(graph), self.expected, self.tolerance)
            if problem:
                raise InternalError(f"after pass {step} the results changed: {problem}")

    def outputs(self, graph: Graph) -> list[Any]:
        return interpret(graph, self.inputs)


def usual_hooks(ctx: Context, own: Sequence[Hook] = ()) -> list[Hook]:
    """The hook that checks plugins, those that the debug level asks for, and `own`. With any of
    these, graphs are verified after each pass, once the others have printed or written them."""
    ladder: list[tuple[int, Hook]] = [(1, Timings()), (2, Progress()), (3, PrintGraph())]
    watching = [*(hook for level, hook in ladder if ctx.debug >= level), *own]
    return [VerifyPlugins(), *watching, *([Verify()] if watching else [])]
