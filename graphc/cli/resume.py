"""graphc compile --start-from: going on from a form that --stop-after printed.

The text of a graph names its phase, and every command goes on from there. `--start-from` names the
phase of a graph written by hand, or starts again from an earlier one, as far as the graph obeys the
rules of that phase. A program (`planned`) is compiled as it is: kernels, steps and arena.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from graphc.errors import GraphcError, InternalError, ModelError

if TYPE_CHECKING:
    from graphc.ir.graph import Graph
    from graphc.ir.program import Program
    from graphc.targets import Target

PHASES = ("imported", "typed", "canonical", "laid_out", "fused", "planned")


def graph_from(graph: Graph, phase: str, path: Path) -> Graph:
    """The graph as one of a phase; ModelError if it breaks a rule of that phase."""
    from graphc.ir.graph import clone_graph
    from graphc.ir.verify.graphs import verify

    result = clone_graph(graph)
    result.phase = phase
    if phase != "imported":
        if result.symbols:
            name = next(iter(result.symbols))
            raise ModelError(f"{path}: --start-from {phase}: dimension {name} is open")
        untyped = [v.name for op in result.walk() for v in op.outputs if v.type is None]
        if untyped:
            raise ModelError(f"{path}: --start-from {phase}: %{untyped[0]} has no type")
    try:
        verify(result)
    except InternalError as error:
        raise ModelError(f"{path}: --start-from {phase}: {error}") from error
    return result


def compile_program(args: argparse.Namespace, form: str | None, target: Target) -> Program:
    """Makes what the arguments ask for of a planned program in text; the program."""
    from graphc.cli import emit
    from graphc.cli.output import progress
    from graphc.ir.text.printer import program_constants

    pins = [name for name in ("shape", "dim", "set") if getattr(args, name)]
    if pins:
        raise ModelError(f"--{pins[0]}: the shapes of a planned program are fixed")
    path = Path(args.model)
    program = read_program(path)
    if form is not None:
        if form == "ir":
            raise ModelError("--start-from planned: no graph is left to print; try --emit program")
        constants = program_constants(program) if form == "program" else {}
        emit.write(emit.text(program, form, target), constants, args.output)
    elif args.output:
        with progress(f"compiling {path.name} to {args.output}"):
            target.write_program(program, Path(args.output))
    return program


def read_program(path: Path) -> Program:
    """A program in text, checked; ModelError tells what is wrong with it."""
    from graphc.cli.models import constants_of
    from graphc.ir.text.program_parser import parse_program
    from graphc.ir.verify.programs import verify_program

    if not path.is_file():
        raise ModelError(f"{path}: there is no such file")
    try:
        program = parse_program(path.read_text(), constants_of(path))
        verify_program(program)
    except (GraphcError, UnicodeDecodeError) as error:
        raise ModelError(f"{path}: {error}") from error
    return program
