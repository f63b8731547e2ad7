"""Latency, measured in turn: each round runs every contender once, on the same inputs.

The figure to quote is the median over rounds of the ratio of two times in one round, so a machine
whose speed drifts does not bend it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

LEAST_ROUNDS = 5
WARM_UP = 2


@dataclass(frozen=True)
class Times:
    """Seconds of each round."""

    seconds: np.ndarray

    @property
    def median(self) -> float:
        return float(np.median(self.seconds))

    @property
    def best(self) -> float:
        return float(self.seconds.min())

    def ratio(self, other: Times) -> float:
        """The median over rounds of the other's time by this one's: how many times faster."""
        return float(np.median(other.seconds / self.seconds))


def measure(
    contenders: Mapping[str, Callable[[], object]],
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Times]:
    """Times contenders in turn for about `seconds`, at least LEAST_ROUNDS rounds. On a machine that
    does other work, `time.process_time` is a better `clock`, for contenders of one thread."""
    for _ in range(WARM_UP):
        for run in contenders.values():
            run()
    rounds: dict[str, list[float]] = {name: [] for name in contenders}
    begin = time.perf_counter()
    count = 0
    while count < LEAST_ROUNDS or time.perf_counter() - begin < seconds:
        for name, run in contenders.items():
            start = clock()
            run()
            rounds[name].append(clock() - start)
        count += 1
    return {name: Times(np.array(values)) for name, values in rounds.items()}
