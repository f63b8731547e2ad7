"""Comparing the outputs of a model with those of a reference, which is not ours where possible.

The error of an output is the largest difference of an element, over the range of the reference:
max(largest - smallest, largest magnitude). Infinities and NaN must be where the reference has them;
strings and booleans must be equal. References: ONNX Runtime, and graphc's interpreter.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphc.errors import UnsupportedError
from graphc.ir.graph import Graph

REFERENCES = ("onnxruntime", "interpreter")
TINY = 1e-30  # the least range, for outputs that are all zero

Run = Callable[[Mapping[str, Any]], list[Any]]


@dataclass(frozen=True)
class Agreement:
    """How one output agrees with the reference. `error` is relative to its range; infinite if
    `problem` says why the two cannot be compared at all."""

    name: str
    error: float
    problem: str = ""

    def within(self, rtol: float) -> bool:
        """Whether the error is at most `rtol`."""
        return self.error <= rtol


def agreements(
    names: Sequence[str], found: Sequence[Any], expected: Sequence[Any]
) -> list[Agreement]:
    """Compares outputs one by one."""
    return [compare(n, a, b) for n, a, b in zip(names, found, expected, strict=True)]


def compare(name: str, found: Any, expected: Any) -> Agreement:
    """Compares one output: an array, a list for a sequence, or None for an empty optional."""
    if isinstance(expected, list):
        if not isinstance(found, list) or len(found) != len(expected):
            return Agreement(name, np.inf, f"{_kind(found)}, expected {_kind(expected)}")
        members = [compare(f"{name}[{n}]", a, b) for n, (a, b) in enumerate(zip(found, expected))]
        return max(members, key=lambda m: m.error, default=Agreement(name, 0.0))
    if found is None or expected is None:
        same = found is expected
        return Agreement(name, 0.0 if same else np.inf, "" if same else "only one is present")
    a, b = np.asarray(found), np.asarray(expected)
    if a.shape != b.shape or (a.dtype != b.dtype and "O" not in (a.dtype.kind, b.dtype.kind)):
        return Agreement(name, np.inf, f"{_kind(a)}, expected {_kind(b)}")
    if b.dtype.kind in "OUSb":
        wrong = int(np.count_nonzero(a != b))
        problem = f"{wrong} of {a.size} elements differ" if wrong else ""
        return Agreement(name, np.inf if wrong else 0.0, problem)
    return _compare_numbers(name, a, b)


def _kind(value: Any) -> str:
    if isinstance(value, list):
        return f"{len(value)} arrays"
    return f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else str(value)


def _compare_numbers(name: str, a: np.ndarray, b: np.ndarray) -> Agreement:
    wide = np.complex128 if b.dtype.kind == "c" else np.float64
    a, b = a.astype(wide), b.astype(wide)
    finite = np.isfinite(b)
    same = np.array_equal(a[~finite], b[~finite], equal_nan=True)
    if not same or not np.isfinite(a[finite]).all():
        return Agreement(name, np.inf, "infinities or NaN are elsewhere")
    if not finite.any():
        return Agreement(name, 0.0)
    a, b = a[finite], b[finite]
    extent = np.abs(b).max() if wide is np.complex128 else max(np.ptp(b), np.abs(b).max())
    return Agreement(name, float(np.abs(a - b).max() / max(extent, TINY)))


# ---------------------------------------------------------------- references


def interpreter(graph: Graph) -> Run:
    """Runs the graph as imported in the reference interpreter."""
    from graphc.ir.interp import interpret

    return lambda feeds: interpret(graph, [feeds[p.name] for p in graph.params])


def onnxruntime(source: str | os.PathLike | bytes | Graph, threads: int | None = None) -> Run:
    """Runs a model in ONNX Runtime; UnsupportedError if it is not installed or declines."""
    try:
        import onnxruntime as ort
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            "ONNX Runtime is not installed: pip install 'graphc[verify]', or compare with "
            "--against interpreter"
        ) from error
    if isinstance(source, Graph):
        from graphc.frontend.onnx_export import export_onnx

        return onnxruntime(export_onnx(source).SerializeToString(), threads)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    if threads is not None:
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    model: Any = source if isinstance(source, bytes) else os.fspath(source)
    session = _declining(
        lambda: ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    )
    return lambda feeds: _declining(lambda: session.run(None, dict(feeds)))


def _declining(action: Callable[[], Any]) -> Any:
    """Runs ONNX Runtime; whatever it raises means that it cannot serve as a reference."""
    try:
        return action()
    except Exception as error:
        message = " ".join(str(error).split())
        raise UnsupportedError(f"ONNX Runtime cannot run this model: {message[:300]}") from error
