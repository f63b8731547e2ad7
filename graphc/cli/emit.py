"""The forms a model takes on the way, as text."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from graphc.errors import ModelError, NeedsValue

if TYPE_CHECKING:
    import numpy as np

    from graphc.cli.models import Model
    from graphc.driver import Settings
    from graphc.ir.graph import Graph
    from graphc.ir.program import Program
    from graphc.passes.manager.context import Context
    from graphc.targets import Target


def graph_at(model: Model, phase: str | None, target: Target, settings: Settings) -> Graph:
    """The graph after a phase (None: after the last pass)."""
    from graphc.driver import optimise
    from graphc.ir.graph import clone_graph

    if phase == "imported":
        return clone_graph(model.pinned())
    graph = typed(model, target)
    if phase == "typed":
        return graph
    return optimise(graph, settings, None, phase or "", target)


def typed(model: Model, target: Target | None, ctx: Context | None = None) -> Graph:
    """The pinned graph with static types, and tensors for maps unless it becomes a model again
    (which has no target); `ctx` takes down what is rewritten. Where a target's programs have sizes
    that data decides, types are over these. ModelError says which dimension is open."""
    from graphc.driver import policy
    from graphc.passes.counts import wholly_typed
    from graphc.passes.integers import KEEP_INTEGERS
    from graphc.passes.maps import in_tensors
    from graphc.passes.specialise import specialise

    graph = model.pinned()
    check_closed(graph)
    if target is not None:
        graph = in_tensors(graph)
    kept = KEEP_INTEGERS if target is None else policy(target)
    make = wholly_typed if target is not None and target.counts else specialise
    try:
        return make(graph, policy=kept, ctx=ctx)
    except NeedsValue as error:
        raise _unknown(error) from error


def _unknown(error: NeedsValue) -> ModelError:
    return ModelError(f"{error}: it depends on what inputs hold; give those with --set NAME=VALUE")


def check_closed(graph: Graph, open_sizes: bool = False) -> None:
    """ModelError if the inputs leave a dimension open; where a target has programs of open sizes,
    it says how to ask for one."""
    if not graph.symbols:
        return
    name, symbol = next(iter(graph.symbols.items()))
    bounds = f"{symbol.lo}..{symbol.hi}" if symbol.hi is not None else "1..64"
    hint = f"; for all sizes within bounds: --specialise any --dim {name}={bounds}"
    raise ModelError(
        f"dimension {name} is open: pin it with --dim {name}=1, or with --shape"
        + (hint if open_sizes else "")
    )


def program(model: Model, target: Target, settings: Settings) -> Program:
    """The model lowered for a target, memory planned."""
    from graphc.driver import to_program

    if one_for_all(model, target, settings):
        return to_program(_general(model, target), target, settings)
    check_closed(model.pinned(), target.open_sizes)
    return to_program(typed(model, target, settings.context.noting()), target, settings)


def one_for_all(model: Model, target: Target, settings: Settings) -> bool:
    """Whether a model becomes one program for all its sizes."""
    wanted = target.open_sizes and settings.specialise == "any"
    return wanted and bool(model.pinned().symbols)


def _general(model: Model, target: Target) -> Graph:
    """The pinned graph, typed for all sizes within bounds; ModelError names what has none."""
    from graphc.driver import policy
    from graphc.passes.counts import count_within
    from graphc.passes.general import general
    from graphc.passes.maps import in_tensors

    graph = model.pinned()
    for name, symbol in graph.symbols.items():
        if symbol.hi is None:
            raise ModelError(
                f"dimension {name} has no upper bound: give it one, --dim {name}=1..64"
            )
    try:
        further = count_within if target.counts else None
        return general(in_tensors(graph), policy(target), further=further)
    except NeedsValue as error:
        raise _unknown(error) from error


def text(program: Program, form: str, target: Target) -> str:
    """A program as `kernel`, `program`, or a form of the target's own."""
    if form == "program":
        return str(program)
    if form == "kernel":
        return "\n".join(map(str, program.kernels.values()))
    return target.emit(program, form)


def write(text: str, constants: Mapping[str, np.ndarray], path: str | None) -> None:
    """Writes a form to stdout, or to a file, with the constants that it names by digest in
    `path`.npz."""
    from graphc.cli.models import CONSTANTS
    from graphc.files import atomic, save_npz

    text = text if text.endswith("\n") else text + "\n"
    if path is None:
        sys.stdout.write(text)
        return
    with atomic(path) as temporary:
        temporary.write_bytes(text.encode())
        if constants:
            save_npz(path + CONSTANTS, constants)
