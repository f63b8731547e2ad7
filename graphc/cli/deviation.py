"""Who deviates where a model and ONNX Runtime differ.

ONNX Runtime computes a model in two ways: by its optimisations, which fuse quantised layers into
integer kernels, and node by node. Their results differ by some steps of quantised outputs. An
output that is as near to one of them as they are to one another is no fault of graphc's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphc.ir.compare import Agreement, agreements, extent_of
from graphc.ir.graph import Graph, Value

MOVING = ("Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Identity", "Slice")


@dataclass(frozen=True)
class Deviation:
    """How an output compares with ONNX Runtime, `optimised` and unoptimised (`plain`), and how its
    two ways compare with one another (`between`); all relative to the range."""

    optimised: Agreement
    plain: Agreement
    between: Agreement

    @property
    def is_accepted(self) -> bool:
        """Whether graphc is as near to one way as the other way is."""
        return min(self.optimised.error, self.plain.error) <= self.between.error

    def told(self, step: float) -> str:
        """Who is how far from whom, in steps of a quantised output or relative to the range."""
        far = [_far(x, step) for x in (self.optimised, self.plain, self.between)]
        who = "ONNX Runtime's own ways differ as much" if self.is_accepted else "graphc deviates"
        return (
            f"{far[0]} from ONNX Runtime, {far[1]} from it without optimisations, which are "
            f"{far[2]} apart: {who}"
        )


def _far(agreement: Agreement, step: float) -> str:
    if agreement.problem:
        return agreement.problem
    return f"{agreement.error / step:.3g} steps" if step else f"{agreement.error:.2g}"


def deviations(
    names: Sequence[str], outputs: Sequence[Any], optimised: Sequence[Any], plain: Sequence[Any]
) -> list[Deviation]:
    """How each output compares with both ways of ONNX Runtime."""
    pairs = ((outputs, optimised), (outputs, plain), (optimised, plain))
    return [Deviation(*x) for x in zip(*(agreements(names, a, b) for a, b in pairs), strict=True)]


def quantising(graph: Graph) -> int:
    """How many operators of a graph quantise, or compute with what is quantised."""
    return sum("Quantize" in op.name or op.name.startswith("QLinear") for op in graph.walk())


def units(graph: Graph, expected: Sequence[Any]) -> list[float]:
    """For each output what one step is, relative to its range: of 8-bit integers one, of what
    DequantizeLinear gives its scale; 0 of others."""
    steps = [_step(value) for value in graph.results]
    return [_unit(array, step) for array, step in zip(expected, steps, strict=True)]


def _unit(array: object, step: float) -> float:
    if not isinstance(array, np.ndarray) or not array.size:
        return 0.0
    if array.dtype in (np.int8, np.uint8):
        step = 1.0
    return step / extent_of(array.astype(np.float64)) if step else 0.0


def _step(value: Value) -> float:
    """The scale by which a value is quantised, as far as that is a constant and one for all; what
    only moves elements keeps it."""
    op = value.producer
    while op is not None and op.name in MOVING and op.inputs[0] is not None:
        op = op.inputs[0].producer
    if op is None or op.name != "DequantizeLinear":
        return 0.0
    scale = op.operand(1).constant
    return float(scale.reshape(-1)[0]) if scale is not None and scale.size == 1 else 0.0
