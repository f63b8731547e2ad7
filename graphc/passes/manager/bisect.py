"""Finds the rewrite that makes a result wrong.

Passes are deterministic and ask for fuel before each rewrite, so a run with fuel n + 1 does exactly
the first n rewrites of a full run. Binary search over n needs about log2(rewrites) runs; it assumes
that a result, once wrong, stays wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from graphc.errors import GraphcError
from graphc.ir.compare import difference
from graphc.ir.graph import Graph, clone_graph
from graphc.ir.interp import interpret
from graphc.passes.manager.base import Pass
from graphc.passes.manager.context import Aim, AnyTarget, Context, Rewrite
from graphc.passes.manager.manager import PassManager
from graphc.passes.specialise import specialise

Execute = Callable[[Graph, Sequence[object]], list[object]]
UNLIMITED = 1 << 60


@dataclass
class Culprit:
    """The first rewrite after which the result is wrong, how it is wrong, and the graph then."""

    rewrite: Rewrite
    problem: str
    graph: Graph

    def __str__(self) -> str:
        return f"{self.rewrite}: {self.problem}"


def bisect(
    graph: Graph,
    inputs: Sequence[object],
    pipeline: str | Sequence[Pass],
    *,
    tolerance: float = 1e-4,
    execute: Execute = interpret,
    target: Aim = AnyTarget(),  # noqa: B008 (immutable)
) -> Culprit | None:
    """The first rewrite of `pipeline` that makes the outputs differ from the interpreter's.

    `graph` is specialised to the shapes of `inputs` if it is not typed, and is not changed.
    `execute` runs a rewritten graph (by default the interpreter). None if all outputs are right.
    """
    expected = interpret(graph, inputs)
    start = graph if graph.reached("typed") else _specialised(graph, inputs)

    def attempt(rewrites: int) -> tuple[str | None, Context, Graph]:
        copy = clone_graph(start)
        ctx = Context(target, fuel=rewrites + 1, debug=0)
        try:
            PassManager(pipeline).run(copy, ctx)
            problem = difference(execute(copy, inputs), expected, tolerance)
        except GraphcError as error:
            problem = str(error)
        return problem, ctx, copy

    problem, ctx, _ = attempt(UNLIMITED)
    if problem is None:
        return None
    right, wrong = -1, ctx.rewrites
    while wrong - right > 1:
        middle = (right + wrong) // 2
        if attempt(middle)[0] is None:
            right = middle
        else:
            wrong = middle
    problem, ctx, copy = attempt(wrong)
    assert problem is not None
    blamed = ctx.diagnostics.log[-1] if wrong else Rewrite(0, "no rewrite at all", graph.name)
    return Culprit(blamed, problem, copy)


def _specialised(graph: Graph, inputs: Sequence[object]) -> Graph:
    arrays = {p.name: np.shape(v) for p, v in zip(graph.params, inputs) if hasattr(v, "shape")}
    return specialise(graph, arrays)
