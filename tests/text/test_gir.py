"""Runs the text tests: every .gir file here and below.

A file holds cases, each a graph (or a kernel) in text followed by sections:

    // ---- case: NAME            starts another case
    // ---- input: NAME = CONTENTS  what an input holds when the graphs are run (default: random)
    // ---- within: NUMBER        how far results may differ, of the range (default 1e-4)
    // ---- after: PIPELINE       the graph expected after these passes; run on both, results agree
    // ---- unchanged: PIPELINE   these passes change nothing
    // ---- declines: PIPELINE    lines `rule: part of the reason` why the rules did not fire
    // ---- error: PIPELINE       a part of the message of the error that the passes raise

A pipeline is for a machine of which nothing is known, or `for TARGET: PIPELINE`.
Every graph must print and parse back, and verify. A constant written `...` matches any contents.
Symbols are 3, or the nearest value in their range, when graphs run. With GRAPHC_UPDATE_TEXT=1 the
graphs expected are rewritten to what the passes give.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from graphc.errors import GraphcError
from graphc.ir.expr import Const, Expr, Sym, substitute, walk
from graphc.ir.graph import Graph, Op, clone_graph
from graphc.ir.interp import interpret
from graphc.ir.kernel import Kernel
from graphc.ir.kernel_interp import run_kernel
from graphc.ir.simplify import simplify
from graphc.ir.text.constant_parser import ConstantParser, random_array
from graphc.ir.text.parser import parse, parse_graph
from graphc.ir.text.printer import graph_constants, print_graph, print_kernel
from graphc.ir.types import TensorType
from graphc.ir.verify.graphs import verify
from graphc.ir.verify.kernels import verify_kernel
from graphc.passes import Context, PassManager, parse_pipeline
from graphc.passes.manager.context import AnyTarget
from graphc.passes.manager.hooks import Verify, difference
from graphc.passes.manager.journal import Journal
from graphc.targets import lookup

FOLDER = Path(__file__).parent
MARK = re.compile(r"^// ---- (case|input|within|after|unchanged|declines|error): *(.*)$")
UPDATE = bool(os.environ.get("GRAPHC_UPDATE_TEXT"))


@dataclass
class Section:
    """One section: its kind, what follows the colon, and the lines below, from line `start`."""

    kind: str
    option: str
    start: int
    lines: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The lines, after blank ones that make line numbers in errors those of the file."""
        return "\n" * self.start + "\n".join(self.lines)


@dataclass
class Case:
    """A graph or kernel, and the sections that say what becomes of it."""

    path: Path
    source: Section
    sections: list[Section] = field(default_factory=list)

    def __str__(self) -> str:
        name = self.source.option or f"line{self.source.start + 1}"
        return f"{self.path.relative_to(FOLDER).with_suffix('')}:{name}"

    @property
    def tolerance(self) -> float:
        """How far results may differ, of the range."""
        return next((float(s.option) for s in self.sections if s.kind == "within"), 1e-4)

    def arrays(self, graph: Graph) -> list[np.ndarray]:
        """What the inputs of the graph hold."""
        given = {s.option.partition("=")[0].strip(): s for s in self.sections if s.kind == "input"}
        return [random_input(value, given.get(value.name)) for value in graph.params]


def read_cases(path: Path) -> list[Case]:
    """The cases of a file."""
    cases: list[Case] = []
    current = Section("case", "", 0)
    for number, line in enumerate(path.read_text().splitlines()):
        mark = MARK.match(line)
        if mark is None:
            current.lines.append(line)
            continue
        if current.kind == "case" and any(
            not x.startswith("//") for x in filter(str.strip, current.lines)
        ):
            cases.append(Case(path, current))
        current = Section(mark[1], mark[2], number + 1)
        if current.kind != "case":
            cases[-1].sections.append(current)
    if current.kind == "case":
        cases.append(Case(path, current))
    return cases


CASES = [case for path in sorted(FOLDER.rglob("*.gir")) for case in read_cases(path)]


@pytest.mark.suite("all")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_text(case: Case):
    source = parse(case.source.text)
    if isinstance(source, Kernel):
        check_kernel(source)
        return
    assert isinstance(source, Graph)
    check_graph(source)
    for section in case.sections:
        if section.kind in CHECKS:
            CHECKS[section.kind](case, source, section)


def check_kernel(kernel: Kernel) -> None:
    text = print_kernel(kernel)
    again = parse(text)
    assert again == kernel and print_kernel(again) == text  # type: ignore[arg-type]
    verify_kernel(kernel)
    arrays = {b.name: random_array(b.shape, b.dtype, n) for n, b in enumerate(kernel.params)}
    run_kernel(kernel, arrays)


def check_graph(graph: Graph) -> None:
    text = print_graph(graph)
    again = parse_graph(text, graph_constants(graph))
    assert again == graph and print_graph(again) == text
    verify(graph)


# ---------------------------------------------------------------- sections


def check_after(case: Case, source: Graph, section: Section) -> None:
    found, _ = run_passes(source, section.option)
    check_graph(found)
    if UPDATE:
        rewrite(case.path, section, print_graph(found, elide=True))
        return
    elided: list[Op] = []
    expected = parse_graph(section.text, graph_constants(found), elided)
    places = [k for k, op in enumerate(constants(expected)) if op in elided]
    hidden = [op for k, op in enumerate(constants(found)) if k in places]
    expected.phase = found.phase
    assert print_graph(found, hidden) == print_graph(expected, elided)
    if source.params and [v.name for v in source.params] == [v.name for v in found.params]:
        arrays = case.arrays(source)
        problem = difference(interpret(found, arrays), interpret(source, arrays), case.tolerance)
        assert problem is None, problem


def check_unchanged(case: Case, source: Graph, section: Section) -> None:
    found, _ = run_passes(source, section.option)
    found.phase = source.phase
    assert print_graph(found) == print_graph(source)


def check_declines(case: Case, source: Graph, section: Section) -> None:
    _, ctx = run_passes(source, section.option)
    for line in filter(None, map(str.strip, section.lines)):
        rule, _, reason = line.partition(": ")
        assert reason in ctx.explain(rule)


def check_error(case: Case, source: Graph, section: Section) -> None:
    with pytest.raises(GraphcError) as error:
        run_passes(source, section.option)
    assert "\n".join(section.lines).strip() in str(error.value)


CHECKS = {
    "after": check_after,
    "unchanged": check_unchanged,
    "declines": check_declines,
    "error": check_error,
}


def run_passes(source: Graph, pipeline: str) -> tuple[Graph, Context]:
    """A copy of the graph after the passes, verified after each."""
    target = AnyTarget()
    if pipeline.startswith("for "):
        name, pipeline = pipeline.removeprefix("for ").split(": ", 1)
        target = lookup(name)()
    graph, ctx = clone_graph(source), Context(target, journal=Journal())
    PassManager(parse_pipeline(pipeline), [Verify()]).run(graph, ctx)
    return graph, ctx


def constants(graph: Graph) -> list[Op]:
    return [op for op in graph.walk() if op.name == "Constant"]


def rewrite(path: Path, section: Section, text: str) -> None:
    """Replaces the lines of a section in its file."""
    old = "\n".join(section.lines).strip("\n")
    whole = path.read_text()
    header = f"// ---- {section.kind}: {section.option}"
    path.write_text(whole.replace(f"{header}\n{old}", f"{header}\n{text.rstrip()}", 1))


# ---------------------------------------------------------------- running


def random_input(value, given: Section | None) -> np.ndarray:
    """What an input of the model holds."""
    type = concrete(value.tensor)
    if given is None:
        return random_array(type.static_shape, type.dtype, value.index)
    return ConstantParser(given.option.partition("=")[2]).contents(type)


def concrete(type: TensorType) -> TensorType:
    """The type with a value for each symbol."""
    return type.with_shape([dimension(d) for d in type.dims])


def dimension(dim: int | Expr) -> int:
    if isinstance(dim, int):
        return dim
    symbols = [node for node in walk(dim) if isinstance(node, Sym)]
    values = {s: Const(max(s.lo, min(3, 3 if s.hi is None else s.hi))) for s in symbols}
    return simplify(substitute(dim, dict(values))).value  # type: ignore[attr-defined]
