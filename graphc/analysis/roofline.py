"""How long a step takes at the least on a machine: the roofline model.

A step takes its operations at peak speed, or its bytes at full bandwidth, whichever is longer, and
a fixed time to be started. Steps whose bytes fit into the cache get the cache's bandwidth; those
that multiply by special instructions, these instructions' peak.
(Williams, Waterman, Patterson: Roofline, CACM 52(4), 2009.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from graphc.analysis.cost import Cost
from graphc.errors import ModelError

CACHE = 1 << 20  # bytes a step may touch and still find in the cache
OVERHEAD = 0.5e-6  # seconds to start a step


@dataclass(frozen=True)
class Peaks:
    """Peak operations/s, bytes/s from memory and from the cache, seconds to start a step, bytes of
    the cache, and the peak operations/s of instructions that have one of their own. `name` is
    empty if nothing but these numbers is known."""

    flops: float
    bandwidth: float
    cache_bandwidth: float
    overhead: float = OVERHEAD
    cache: int = CACHE
    instructions: Mapping[str, float] = field(default_factory=dict)
    name: str = ""

    def using(self, instructions: Iterable[str]) -> Peaks:
        """The same for steps that use some instructions."""
        peaks = (self.instructions[name] for name in instructions if name in self.instructions)
        return replace(self, flops=max(peaks, default=self.flops))

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
        return "cache" if cost.nbytes <= self.cache else "memory"

    def _compute(self, cost: Cost) -> float:
        return cost.flops / self.flops

    def _transfer(self, cost: Cost) -> float:
        within = cost.nbytes <= self.cache
        return cost.nbytes / (self.cache_bandwidth if within else self.bandwidth)


def parse_machine(text: str) -> Peaks:
    """`GFLOPS,GB/S[,CACHE GB/S]` as a machine."""
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) not in (2, 3) or any(not 0 < n < float("inf") for n in numbers):
        raise ModelError(f"a machine is GFLOPS,GB/S[,CACHE-GB/S], found {text!r}")
    flops, bandwidth = numbers[0] * 1e9, numbers[1] * 1e9
    return Peaks(flops, bandwidth, numbers[2] * 1e9 if len(numbers) == 3 else 4 * bandwidth)
