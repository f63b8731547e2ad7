"""Schedules: functions from the number of a step (from 0) to a learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable

Schedule = Callable[[int], float]


def constant(rate: float) -> Schedule:
    """The same rate in all steps."""
    return lambda step: rate


def cosine(rate: float, steps: int, least: float = 0.0) -> Schedule:
    """From `rate` to `least` along half a cosine, in so many steps; `least` from then on
    (Loshchilov and Hutter, 2017)."""

    def scheduled(step: int) -> float:
        done = min(step / max(steps, 1), 1.0)
        return least + (rate - least) * (1 + math.cos(math.pi * done)) / 2

    return scheduled


def linear(rate: float, steps: int, least: float = 0.0) -> Schedule:
    """From `rate` to `least` along a line, in so many steps; `least` from then on."""
    return lambda step: rate + (least - rate) * min(step / max(steps, 1), 1.0)


def stepwise(rate: float, every: int, factor: float = 0.1) -> Schedule:
    """`rate`, times `factor` after each `every` steps."""
    return lambda step: rate * factor ** (step // every)


def exponential(rate: float, factor: float) -> Schedule:
    """`rate`, times `factor` after each step."""
    return lambda step: rate * factor**step


def warmed_up(schedule: Schedule, steps: int) -> Schedule:
    """Up along a line from nearly 0 to where the schedule starts, in so many steps; then the
    schedule, from its start."""
    return lambda step: (
        schedule(0) * (step + 1) / (steps + 1) if step < steps else schedule(step - steps)
    )
