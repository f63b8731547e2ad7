"""How long a step takes at the least on a machine: the roofline model.

A step takes its operations at peak speed, or its bytes at full bandwidth, whichever is longer, and
a fixed time to be started. Steps whose bytes fit into the cache get the cache's bandwidth; those
that multiply by special instructions, these instructions' peak.
(Williams, Waterman, Patterson: Roofline, CACM 52(4), 2009.)
"""

from __future__ import annotations

from graphc.analysis.cost import Cost
from graphc.errors import ModelError
from graphc.ir.machine import Peaks


def seconds(peaks: Peaks, cost: Cost) -> float:
    """The least time of a step."""
    return max(_compute(peaks, cost), _transfer(peaks, cost)) + peaks.overhead


def bound(peaks: Peaks, cost: Cost) -> str:
    """What limits a step: compute, bandwidth (cache or memory) or overhead."""
    compute, transfer = _compute(peaks, cost), _transfer(peaks, cost)
    if peaks.overhead > max(compute, transfer):
        return "overhead"
    if compute >= transfer:
        return "compute"
    return "cache" if cost.nbytes <= peaks.cache else "memory"


def _compute(peaks: Peaks, cost: Cost) -> float:
    return cost.flops / peaks.flops


def _transfer(peaks: Peaks, cost: Cost) -> float:
    within = cost.nbytes <= peaks.cache
    return cost.nbytes / (peaks.cache_bandwidth if within else peaks.bandwidth)


def parse_peaks(text: str) -> Peaks:
    """The peaks of a machine given as `GFLOPS,GB/S[,CACHE GB/S]`."""
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) not in (2, 3) or any(not 0 < n < float("inf") for n in numbers):
        raise ModelError(f"a machine is GFLOPS,GB/S[,CACHE-GB/S], found {text!r}")
    flops, bandwidth = numbers[0] * 1e9, numbers[1] * 1e9
    return Peaks(flops, bandwidth, numbers[2] * 1e9 if len(numbers) == 3 else 4 * bandwidth)
