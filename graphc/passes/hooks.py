"""Hooks of the pass manager: verify, time, dump, and compare results between passes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from graphc import config
from graphc.errors import InternalError
from graphc.ir.graph import Graph
from graphc.passes.context import Context
from graphc.passes.pass_manager import Hook, Pass


class Verify(Hook):
    """Checks the graph's invariants after each pass; the error names the pass."""

    def after(self, step: Pass, graph: Graph, ctx: Context, changed: bool) -> None:
        from graphc.ir.verify import verify

        try:
            verify(graph)
        except InternalError as error:
            raise InternalError(f"after pass {step}: {error}") from error


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
        path.write_text(f"// ---- after: {step}\n{graph}\n")


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
        from graphc.ir.interp import interpret

        return interpret(graph, self.inputs)


def difference(found: Sequence[Any], expected: Sequence[Any], tolerance: float) -> str | None:
    """How two lists of results differ by more than `tolerance` times the range; None if not."""
    if len(found) != len(expected):
        return f"{len(found)} outputs, expected {len(expected)}"
    for number, (a, b) in enumerate(zip(found, expected)):
        problem = _value_difference(a, b, tolerance)
        if problem:
            return f"output {number}: {problem}"
    return None


def _value_difference(found: Any, expected: Any, tolerance: float) -> str | None:
    if isinstance(expected, list) and isinstance(found, list):
        return difference(found, expected, tolerance)
    if expected is None or found is None:
        return None if expected is found else f"found {found}, expected {expected}"
    a, b = np.asarray(found), np.asarray(expected)
    if a.shape != b.shape or a.dtype != b.dtype:
        return f"{a.dtype}{list(a.shape)}, expected {b.dtype}{list(b.shape)}"
    if a.dtype.kind in "fcV" or a.dtype.name.startswith(("bfloat", "float")):
        return _float_difference(a.astype(np.float64), b.astype(np.float64), tolerance)
    wrong = np.count_nonzero(a != b)
    return f"{wrong} of {a.size} elements differ" if wrong else None


def _float_difference(a: np.ndarray, b: np.ndarray, tolerance: float) -> str | None:
    finite = np.isfinite(b)
    if not np.array_equal(np.where(finite, 0, b), np.where(np.isfinite(a), 0, a), equal_nan=True):
        return "the infinite and NaN elements differ"
    if not finite.any():
        return None
    scale = max(float(np.ptp(b[finite])), float(np.abs(b[finite]).max()), 1e-30)
    worst = float(np.abs(a[finite] - b[finite]).max())
    if worst <= tolerance * scale:
        return None
    return f"differs by {worst:.3g} where values reach {scale:.3g}"


def debug_hooks(ctx: Context) -> list[Hook]:
    """The hooks that the debug level asks for."""
    ladder: list[tuple[int, Hook]] = [(1, Timings()), (2, Progress()), (3, PrintGraph())]
    return [hook for level, hook in ladder if ctx.debug >= level]
