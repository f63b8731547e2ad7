"""The way through: from a model to something that runs, one readable pipeline per target."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from graphc.compiled import CompiledModel, Executable, natively
from graphc.errors import ModelError
from graphc.ir.graph import Graph
from graphc.ir.program import Program
from graphc.passes import run_pipeline
from graphc.passes.fuse import fuse
from graphc.passes.layout import assign_layouts
from graphc.passes.lower import Strategy, lower

CANONICAL = "cse,dce"


def load_graph(source: Any) -> Graph:
    """A Graph from a path, bytes, a ModelProto, or a Graph itself."""
    if isinstance(source, Graph):
        return source
    from graphc.frontend.onnx_import import import_onnx

    return import_onnx(source)


def compile(
    source: Any,
    target: str = "cpu",
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int] | None = None,
    values: Mapping[str, Any] | None = None,
    threads: int | None = None,
    **options: Any,
) -> CompiledModel:
    """Compiles a model (path, bytes, ModelProto or Graph) for a target.

    `shapes` pins inputs, `dims` dimension symbols, and `values` binds inputs to contents; what they
    fix is compiled at once, the rest when the model is run. `threads` is the number of CPU threads
    (default: all). Raises ModelError, UnsupportedError.
    """
    if target not in TARGETS:
        raise ModelError(f"target {target!r} is none of {', '.join(TARGETS)}")
    graph = load_graph(source)
    compile_static = TARGETS[target](threads or os.cpu_count() or 1, options)
    return CompiledModel(graph, compile_static, natively)


def optimise(graph: Graph) -> Graph:
    """Typed to fused: canonical form, composites taken apart, layouts, fusion (in place)."""
    run_pipeline(graph, f"decompose,{CANONICAL}")
    assign_layouts(graph)
    fuse(graph)
    return graph


def to_program(graph: Graph, strategies: Sequence[Strategy], optimising: bool = True) -> Program:
    """A typed static graph, lowered."""
    if optimising:
        optimise(graph)
    else:
        run_pipeline(graph, f"decompose,{CANONICAL}")
    return lower(graph, strategies, graph.name)


def _cpu(threads: int, options: dict[str, Any]) -> Callable[[Graph], Executable]:
    from graphc.backends.llvm_cpu.runtime import NativeModel
    from graphc.backends.llvm_cpu.strategies import strategies

    def compile_static(graph: Graph) -> Executable:
        return NativeModel(to_program(graph, strategies()), threads)

    return compile_static


def _c(threads: int, options: dict[str, Any]) -> Callable[[Graph], Executable]:
    from graphc.backends.c99 import build
    from graphc.passes.lower.strategies import plain_loops

    def compile_static(graph: Graph) -> Executable:
        return build(to_program(graph, plain_loops(), optimising=False))

    return compile_static


TARGETS: dict[str, Callable[[int, dict[str, Any]], Callable[[Graph], Executable]]] = {
    "cpu": _cpu,
    "c": _c,
}
