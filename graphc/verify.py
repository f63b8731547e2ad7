"""References to compare a model's outputs with: ONNX Runtime, and graphc's own interpreter.

Each is a function from the inputs, by name, to the list of outputs; `graphc.ir.compare` judges.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from graphc.distribution import install
from graphc.errors import UnsupportedError
from graphc.ir import dtypes
from graphc.ir.graph import Graph
from graphc.ir.interp import interpret
from graphc.ir.ops.control import MAX_ITERATIONS, at_most

Run = Callable[[Mapping[str, Any]], list[Any]]


def interpreter(graph: Graph, max_iterations: int | None = None) -> Run:
    """Runs the graph as imported in the reference interpreter."""

    def run(feeds: Mapping[str, Any]) -> list[Any]:
        with at_most(max_iterations or MAX_ITERATIONS):
            return interpret(graph, [feeds[p.name] for p in graph.params])

    return run


def onnxruntime(
    source: str | os.PathLike | bytes | Graph, threads: int | None = None, optimised: bool = True
) -> Run:
    """Runs a model in ONNX Runtime, with or without its graph optimisations; UnsupportedError if it
    is not installed or declines."""
    try:
        import onnxruntime as ort
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            f"ONNX Runtime is not installed: {install('verify')}, or compare with "
            "--against interpreter"
        ) from error
    if isinstance(source, Graph):
        from graphc.frontend.onnx_export import export_onnx  # loads onnx

        exported = _declining(lambda: export_onnx(source).SerializeToString())
        return onnxruntime(exported, threads, optimised)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    if not optimised:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if threads is not None:
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    model: Any = source if isinstance(source, bytes) else os.fspath(source)
    session = _declining(
        lambda: ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    )
    types = [output.type for output in session.get_outputs()]

    def run(feeds: Mapping[str, Any]) -> list[Any]:
        outputs = _declining(lambda: session.run(None, dict(feeds)), UNFIT)
        return [_of_type(value, type) for value, type in zip(outputs, types, strict=True)]

    return run


def _of_type(value: Any, type: str) -> Any:
    """An output with the elements that its type names: ONNX Runtime gives floats of 8 bits as
    bytes."""
    if not type.startswith("tensor(float8"):
        return value
    floats = {
        f"tensor({dtype.np.name.replace('_', '')})": dtype.np for dtype in dtypes.BY_NAME.values()
    }
    return value.view(floats[type])


UNFIT = "; if its inputs do not fit together, give the dimensions that do with --dim"


def _declining(action: Callable[[], Any], hint: str = "") -> Any:
    """Runs ONNX Runtime; whatever it raises means that it cannot serve as a reference."""
    try:
        return action()
    except Exception as error:
        message = " ".join(str(error).split())
        raise UnsupportedError(
            f"ONNX Runtime cannot run this model (compare with --against interpreter{hint}): "
            f"{message[:300]}"
        ) from error
