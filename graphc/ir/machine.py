"""What passes and strategies ask of the machine that code is made for.

A `Machine` is plain data. The empty one is a processor that runs scalar loops, of which nothing
else is known; every pass gives right results for it. Backends extend it with fields for their own
strategies. No pass compares the names of targets or of machines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, replace

from graphc.records import dataclass

CACHE = 1 << 20  # bytes a step may touch and still find in the cache
OVERHEAD = 0.5e-6  # seconds to start a step
PRECISIONS = ("f32", "tf32", "f16", "bf16")  # in which matrix products can be multiplied


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


@dataclass(frozen=True, kw_only=True)
class Machine:
    """`vector_bytes` of a register, or of what a thread of a GPU reads at once (0: no vectors);
    `registers` that tiles can use; `caches`, bytes from the first level on, as far as known;
    `warp`, how many threads go together, each with an element of its own; `launch_seconds` until a
    kernel starts; and its `instructions`: those of ir/instructions.py and of its backend that it
    has, and these properties of others:

        fast_floats          arithmetic on floats takes no longer than that on 8-bit integers
        unaligned_vectors    a vector is read from any address, as fast as from its multiples
        widening_loads       narrow floats become wider ones at no cost while they are read
        results_in_place     updates of inputs are stored in the order of these, in their memory
        little_memory        less memory is worth more than speed: who reads what takes few
                             operations of values that are there anyway computes it again

    Limits of fusion: `operands`, tensors that a kernel takes; on how many operations per element it
    spends less time than on storing the element and reading it again (`recomputed`), or than on a
    pass more over rows in memory (`recomputed_in_rows`); `attention_features`, the longest keys and
    values that flash attention keeps close by; and `reduced_vectors`, how many vectors times one
    matrix are row reductions rather than tiles.
    """

    vector_bytes: int = 0
    registers: int = 0
    caches: tuple[int, ...] = ()
    warp: int = 1
    launch_seconds: float = 0.0
    operands: int = 256
    recomputed: int = 6
    recomputed_in_rows: int = 64
    attention_features: int = 256
    reduced_vectors: int = 4
    instructions: frozenset[str] = frozenset()

    def has(self, instruction: str) -> bool:
        """Whether it has an instruction, or a property of instructions."""
        return instruction in self.instructions

    def peaks(self, threads: int = 1) -> Peaks | None:
        """What it can do at most, on so many threads of a CPU; None if that is not known."""
        return None
