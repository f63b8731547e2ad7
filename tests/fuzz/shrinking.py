"""Makes a failing case smaller by cutting off what the failure does not need, and writes it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from generator import Case
from judging import Runner, failure, run_interpreter

from graphc.errors import InternalError, UnsupportedError
from graphc.ir.graph import Graph, Value, clone_graph
from graphc.ir.interp import interpret
from graphc.passes.dce import remove_dead


def smaller(case: Case, runner: Runner, seconds: float = 60.0) -> Case:
    """A case that fails as this one does, with as few ops as can be found greedily."""
    until = time.monotonic() + seconds
    improved = True
    while improved and time.monotonic() < until:
        improved = False
        for candidate in candidates(case):
            if time.monotonic() > until:
                break
            if fails(candidate, runner):
                case, improved = candidate, True
                break
    return case


def fails(case: Case, runner: Runner) -> bool:
    try:
        return failure(case, runner) is not None
    except Exception:
        return False


def candidates(case: Case) -> Iterator[Case]:
    """Smaller cases: one result alone; a value as an input; an op skipped."""
    graph = case.graph
    if len(graph.results) > 1:
        for n in range(len(graph.results)):
            yield with_results(case, [n])
    contents = values_of(case)
    for number in reversed(range(len(graph.ops))):
        op = graph.ops[number]
        if op.name == "Constant":
            continue
        for k, value in enumerate(op.outputs):
            array = contents.get(value)
            if value.uses and isinstance(array, np.ndarray) and array.shape == value.tensor.dims:
                yield cut_at(case, number, k, array)
        for operand in op.inputs:
            if operand is not None and operand.type == op.outputs[0].type:
                yield without(case, number, op.inputs.index(operand))


def values_of(case: Case) -> dict[Value, Any]:
    found: dict[Value, Any] = {}
    interpret(case.graph, case.inputs, lambda op, results: found.update(zip(op.outputs, results)))
    return found


def tidied(case: Case, graph: Graph, inputs: list[np.ndarray]) -> Case:
    remove_dead(graph)
    used = [bool(p.uses) for p in graph.params]
    if any(used):
        inputs = [x for x, keep in zip(inputs, used) if keep]
        graph.params = [p for p, keep in zip(graph.params, used) if keep]
        for index, param in enumerate(graph.params):
            param.index = index
    return replace(case, graph=graph, inputs=inputs)


def with_results(case: Case, numbers: list[int]) -> Case:
    graph = clone_graph(case.graph)
    graph.set_results([graph.results[n] for n in numbers])
    graph.output_names = graph.output_names[: len(numbers)]
    graph.output_types = [v.type for v in graph.results]
    return tidied(case, graph, list(case.inputs))


def cut_at(case: Case, number: int, output: int, contents: np.ndarray) -> Case:
    """The value of an op becomes an input."""
    graph = clone_graph(case.graph)
    value = graph.ops[number].outputs[output]
    param = graph.add_param(value.type, f"cut{len(graph.params)}")
    value.replace_uses(param)
    return tidied(case, graph, [*case.inputs, contents])


def without(case: Case, number: int, operand: int) -> Case:
    """An op is replaced by one of its operands."""
    graph = clone_graph(case.graph)
    op = graph.ops[number]
    source = op.inputs[operand]
    assert source is not None
    op.outputs[0].replace_uses(source)
    return tidied(case, graph, list(case.inputs))


def save(case: Case, folder: Path, name: str, message: str) -> None:
    """Writes a failing case: its text, its inputs and results, and the model if it has one."""
    from graphc.frontend.onnx_export import export_onnx

    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.txt").write_text(f"{message}\n\n{case.graph}\n")
    arrays = {p.name: x for p, x in zip(case.graph.params, case.inputs)}
    for n, y in enumerate(run_interpreter(case)):
        arrays[f"expected_{n}"] = y
    np.savez(folder / f"{name}.npz", **arrays)
    with suppress(UnsupportedError, InternalError):  # then the text says it all
        (folder / f"{name}.onnx").write_bytes(export_onnx(case.graph).SerializeToString())
