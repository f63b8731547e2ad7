"""Activations between a sum and its quantisation: limits, and slopes below zero.

Relu and Clip become the limits of the integer result; LeakyRelu and PRelu second factors for
negative sums. They may follow each other as long as a slope comes before the limits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from graphc.ir.graph import Op, Value
from graphc.passes.pattern import attribute
from graphc.passes.rules.facts import array_of, channel_vector
from graphc.passes.rules.quantised.values import Target


@dataclass(frozen=True)
class Activated:
    """A target with the limits of the activations before it; `slope` is what negative sums are
    multiplied by, one number or one per channel (axis 1)."""

    target: Target
    slope: np.ndarray | None = None

    def slopes(self, channels: int) -> np.ndarray | None:
        return None if self.slope is None else np.broadcast_to(self.slope, (channels,))


def activated(value: Value, target: Target) -> tuple[Value, Activated]:
    """The value before the activations that only this quantisation uses."""
    while True:
        op, bounds = value.producer, limits(value.producer)
        if op is None or bounds is None or not _feeds_only(op):
            break
        inner = target.limited(*bounds)
        if not (target.low <= inner.low <= inner.high <= target.high):
            break
        value, target = op.inputs[0], inner  # type: ignore[assignment]
    op, slope = value.producer, _slope(value.producer)
    if op is None or slope is None or not _feeds_only(op):
        return value, Activated(target)
    return op.inputs[0], Activated(target, slope)  # type: ignore[return-value]


def _feeds_only(op: Op) -> bool:
    return len(op.output.uses) == 1 and op.inputs[0] is not None


def limits(op: Op | None) -> tuple[float, float] | None:
    """The bounds of a Relu, or of a Clip with constant ones."""
    if op is not None and op.name == "Relu":
        return 0.0, math.inf
    if op is None or op.name != "Clip":
        return None
    bounds = [-math.inf, math.inf]
    for n, value in enumerate(op.inputs[1:]):
        array = array_of(value)
        if value is not None and (array is None or array.size != 1):
            return None
        if array is not None:
            bounds[n] = float(array.reshape(-1)[0])
    return (bounds[0], bounds[1]) if bounds[0] <= bounds[1] else None


def _slope(op: Op | None) -> np.ndarray | None:
    """What negative values are multiplied by, if constant per channel."""
    if op is not None and op.name == "LeakyRelu":
        return np.array([attribute(op, "alpha")], np.float32).astype(np.float64)
    if op is None or op.name != "PRelu" or op.output.tensor.rank < 2:
        return None
    shape = op.output.tensor.static_shape
    slopes = channel_vector(op.inputs[1], len(shape), 1, shape[1])
    return None if slopes is None else slopes.astype(np.float64)
