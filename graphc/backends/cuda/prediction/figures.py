"""What predictions assume of GPUs: one table, each figure with its source.

Figures that kernels are planned with as well (multiprocessors, clocks, rates of matrix cores, bytes
of cache and memory) are in machines.py. Those here are per multiprocessor and clock, unless it says
otherwise. GPUs between two that are listed have the figures of the older one.

Sources: [guide] CUDA C++ Programming Guide, Throughput of Native Arithmetic Instructions, and
technical specifications by compute capability; [A100], [H100] NVIDIA's architecture white papers;
[Abdelkhalik] Demystifying the Nvidia Ampere architecture through microbenchmarking and
instruction-level analysis, HPEC 2022; [Luo] Benchmarking and dissecting the Nvidia Hopper GPU
architecture, arXiv 2402.13499, and its sequel 2501.12084; [plain] an assumption, to be calibrated
where a GPU is at hand.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Assumption:
    """A figure: what it is for sm_80 and for sm_90, its unit, and where it is from."""

    name: str
    ampere: float
    hopper: float
    unit: str
    source: str


ASSUMPTIONS = (
    Assumption("issue", 4, 4, "instructions of warps a clock", "[A100], [H100]: four schedulers"),
    Assumption("integer", 64, 64, "lanes a clock", "[guide]"),
    Assumption("special", 16, 16, "lanes a clock", "[guide]"),
    Assumption("conversion", 16, 64, "lanes a clock", "[guide]: other type conversions"),
    Assumption("double", 32, 64, "lanes a clock", "[guide]"),
    Assumption("memory", 32, 32, "lanes a clock", "[A100], [H100]: load and store units"),
    Assumption("shared", 128, 128, "bytes a clock", "[guide]: 32 banks of 4 bytes"),
    Assumption("dependent", 4, 4, "clocks until a result is used", "[Abdelkhalik], [Luo]"),
    Assumption("in flight", 2, 2, "independent instructions of a warp", "[plain]"),
    Assumption("cache latency", 262, 263, "clocks", "[Luo]: second level of cache"),
    Assumption("memory latency", 466, 479, "clocks", "[Luo]: global memory"),
    Assumption("barrier", 30, 30, "clocks, where all warps are there", "[plain]"),
    Assumption("cluster barrier", 200, 200, "clocks, where all blocks of a cluster are there",
               "[plain]"),
    Assumption("cluster", 13, 13, "bytes a clock that a block reads of others of its cluster",
               "[Luo]: four blocks"),
    Assumption("start", 700, 700, "clocks from a launch to a block's first instruction, and from "
               "its last to the end", "[plain]"),
    Assumption("bandwidth", 0.90, 0.91, "of memory's peak that copies reach", "[Luo]"),
    Assumption("tensor", 0.95, 0.90, "of the peak of matrix cores that is sustained",
               "[Luo]: mma.sync on A100, wgmma of operands in shared memory on H100"),
    Assumption("kept", 0.5, 0.5, "of the second level of cache that holds what kernels before "
               "have written", "[plain]"),
    Assumption("apart", 0.125, 0.125, "of the shorter of two times, which the longer does not hide",
               "[plain]: as in strategies/contraction/costs.py"),
)  # fmt: skip


def figures(arch: str) -> dict[str, float]:
    """The figures of an architecture (sm_86) by name."""
    newer = int(arch.split(",")[0].removeprefix("sm_").rstrip("af")) >= 90
    return {a.name: a.hopper if newer else a.ampere for a in ASSUMPTIONS}


def table_of_figures() -> list[tuple[str, str, str, str, str]]:
    """The table with a head, as text."""
    rows = [(a.name, f"{a.ampere:g}", f"{a.hopper:g}", a.unit, a.source) for a in ASSUMPTIONS]
    return [("figure", "sm_80", "sm_90", "unit", "source"), *rows]
