"""Activations between a sum and its quantisation: limits, and slopes below zero.

Relu and Clip become the limits of the integer result; LeakyRelu and PRelu second factors for
negative sums. They may follow each other as long as a slope comes before the limits.
"""

from __future__ import annotations

import numpy as np

from graphc.ir.graph import Op, Value
from graphc.passes.analysis.facts import limits, negative_factor
from graphc.passes.rules.facts import channel_vector
from graphc.passes.rules.quantised.values import Target
from graphc.records import dataclass


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
        op = value.producer
        bounds = None if op is None else limits(op)
        if op is None or bounds is None or not _feeds_only(op):
            break
        inner = target.limited(*bounds)
        if not (target.low <= inner.low <= inner.high <= target.high):
            break
        value, target = op.operand(0), inner
    op, slope = value.producer, _slope(value.producer)
    if op is None or slope is None or not _feeds_only(op):
        return value, Activated(target)
    return op.operand(0), Activated(target, slope)


def _feeds_only(op: Op) -> bool:
    """Whether only a quantisation reads what an op makes of its first operand's elements."""
    return len(op.output.uses) == 1 and op.operand(0).type == op.output.type


def _slope(op: Op | None) -> np.ndarray | None:
    """What negative values are multiplied by, if constant per channel."""
    factor = None if op is None else negative_factor(op)
    if isinstance(factor, float):
        return np.array([factor])
    if op is None or factor is None or op.output.tensor.rank < 2:
        return None
    type = op.output.tensor
    slopes = channel_vector(factor, type.rank, 1, type.extent(1))
    return None if slopes is None else slopes.astype(np.float64)
