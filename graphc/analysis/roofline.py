"""How long a step takes at the least on a machine: the roofline model.

A step takes its operations at peak speed, or its bytes at full bandwidth, whichever is longer, and
a fixed time to be started. Steps whose bytes fit into the cache get the cache's bandwidth.
(Williams, Waterman, Patterson: Roofline, CACM 52(4), 2009.)
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from graphc.analysis.cost import Cost
from graphc.errors import ModelError

CACHE = 1 << 20  # bytes a step may touch and still find in the cache
OVERHEAD = 0.5e-6  # seconds to start a step
THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")


@dataclass(frozen=True)
class Machine:
    """Peak operations/s, bytes/s from memory and from the cache, and seconds to start a step."""

    flops: float
    bandwidth: float
    cache_bandwidth: float
    overhead: float = OVERHEAD

    def seconds(self, cost: Cost) -> float:
        """The least time of a step."""
        return max(self._compute(cost), self._transfer(cost)) + self.overhead

    def bound(self, cost: Cost) -> str:
        """What limits a step: compute, bandwidth (cache or memory) or overhead."""
        compute, transfer = self._compute(cost), self._transfer(cost)
        if self.overhead > max(compute, transfer):
            return "overhead"
        if compute >= transfer:
            return "compute"
        return "cache" if cost.nbytes <= CACHE else "memory"

    def _compute(self, cost: Cost) -> float:
        return cost.flops / self.flops

    def _transfer(self, cost: Cost) -> float:
        within = cost.nbytes <= CACHE
        return cost.nbytes / (self.cache_bandwidth if within else self.bandwidth)


def parse_machine(text: str) -> Machine:
    """`GFLOPS,GB/S[,CACHE GB/S]` as a machine."""
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) not in (2, 3) or any(not 0 < n < float("inf") for n in numbers):
        raise ModelError(f"a machine is GFLOPS,GB/S[,CACHE-GB/S], found {text!r}")
    flops, bandwidth = numbers[0] * 1e9, numbers[1] * 1e9
    return Machine(flops, bandwidth, numbers[2] * 1e9 if len(numbers) == 3 else 4 * bandwidth)


def measure_machine(threads: int = 1) -> Machine:
    """This machine, measured with numpy in about half a second.

    The peak is that of a float32 matrix product on one thread, times `threads`; the bandwidths are
    those of copying on one thread (the cache's, times `threads`). A process of its own keeps
    numpy's library to one thread.
    """
    command = [sys.executable, "-m", "graphc.analysis.roofline"]
    alone = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, "1")}
    done = subprocess.run(command, env=alone, capture_output=True, text=True, check=True)
    flops, bandwidth, cache = map(float, done.stdout.split())
    cores = min(threads, _cores())
    return Machine(cores * flops, bandwidth, cores * cache)


def _measure() -> tuple[float, float, float]:
    """Peak operations/s, bytes/s copied in memory and in the cache."""
    size = 512
    a = np.ones((size, size), np.float32)
    out = np.empty_like(a)
    large = np.ones(8 << 20, np.float32)
    copy = np.empty_like(large)
    small, copy_small = large[: 1 << 15], copy[: 1 << 15]
    return (
        2 * size**3 / _best(lambda: np.matmul(a, a, out), 0.15),
        2 * large.nbytes / _best(lambda: np.copyto(copy, large), 0.1),
        2 * small.nbytes / _best(lambda: np.copyto(copy_small, small), 0.05),
    )


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _best(action: Callable[[], object], seconds: float) -> float:
    """The least processor time of the runs that fit into some time. It is not wall time, so that a
    busy machine does not look slow."""
    action()
    shortest, begin = float("inf"), time.perf_counter()
    while time.perf_counter() - begin < seconds:
        start = time.process_time()
        action()
        shortest = min(shortest, time.process_time() - start)
    return shortest


if __name__ == "__main__":
    print(*_measure())
