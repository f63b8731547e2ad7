"""Figures of GPUs that strategies read: how many blocks run at once, and which types matrix cores
multiply.

One entry per architecture, of its largest common GPU; figures are from NVIDIA's architecture white
papers and from the table of technical specifications of the CUDA C++ Programming Guide. Kernels are
right on every GPU, whichever they were planned for, if they take no more shared memory than it has;
where code is made for several architectures, kernels keep to what all of them have.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from graphc.backends.cuda import warpgroup_instructions as warpgroup
from graphc.errors import ModelError
from graphc.ir import machine as ir


@dataclass(frozen=True)
class Machine(ir.Machine):
    """A GPU of an architecture; `multiprocessors` that a grid should fill; what the blocks on a
    multiprocessor share: KiB of shared memory, of which one block may have `block_kib`, and
    threads; and what one does in a clock, about, if its blocks do it all the time: products of
    float32, products of 32-bit words on matrix cores, bytes read from the second level of cache,
    and products of words by warp groups (0: it has none). `gpu` is the one whose `clock` (GHz,
    boosted), `bandwidth` of memory (GB/s) and second level of cache (MiB) these are, for
    rooflines."""

    arch: str
    multiprocessors: int
    kib: int
    block_kib: int
    threads: int
    float_rate: int
    core_rate: int
    cache_rate: int
    gpu: str
    clock: float
    bandwidth: int
    cache_mib: float
    group_rate: int = 0

    @property
    def block_shared(self) -> int:
        """Bytes of shared memory that a block may have."""
        return self.block_kib * KIB

    def resident(self, threads: int, shared: int, registers: int) -> int:
        """How many blocks of so many threads, with so many registers each, and bytes of shared
        memory are on a multiprocessor at once; 0 if a block does not fit at all."""
        kept = (self.kib - self.block_kib) * KIB  # of every block, by the system
        by_shared = self.kib * KIB // max(shared + kept, 1)
        return min(by_shared, self.threads // threads, REGISTERS // (threads * registers))

    def peak(self, rate: int) -> float:
        """How many in a second, if a multiprocessor does so many in a clock."""
        return rate * self.multiprocessors * self.clock * 1e9

    def peaks(self, threads: int = 1) -> ir.Peaks:
        """Those of its architecture; `threads` are a CPU's."""
        products = (name for name in sorted(self.instructions) if name.startswith("mma_"))
        warps = {name: name.removeprefix("mma_") for name in products}
        groups = {name: type for name, (type, _) in warpgroup.PRODUCTS.items()}
        groups |= {name: type for name, (type, _) in warpgroup.HELD.items()}
        return ir.Peaks(
            self.peak(2 * self.float_rate),
            self.bandwidth * 1e9,
            self.peak(self.cache_rate),
            self.launch_seconds,
            int(self.cache_mib * (1 << 20)),
            {
                name: self.peak(2 * rate * PER_WORD.get(type, 4))
                for rate, types in ((self.core_rate, warps), (self.group_rate, groups))
                for name, type in types.items()
                if rate
            },
            f"NVIDIA {self.gpu} ({self.arch})",
        )

    def rounds(self, blocks: int) -> int:
        """How many times the GPU is filled, one block to a multiprocessor."""
        return -(-blocks // self.multiprocessors)


VOLTA = frozenset({"fast_floats", "unaligned_vectors", "widening_loads"})
TURING = VOLTA | {"mma_f16", "mma_s8", "mma_u8", "mma_s8_u8", "mma_u8_s8"}
AMPERE = TURING | {"mma_bf16", "mma_tf32"}
PER_WORD = {"f16": 2, "bf16": 2, "tf32": 1}  # elements of 32 bits; bytes: 4
KIB = 1 << 10
VECTOR_BYTES = 16  # what a thread reads or writes at once; operands start at multiples of it
STATIC_SHARED = 48 * KIB  # bytes of shared memory that a kernel may declare on every architecture
WARP = 32  # threads that go together
FULL = 1 << 17  # threads that fill a GPU
SHARED_LIMIT = 227 * KIB  # bytes of shared memory that a block may have on some GPU
REGISTERS = 1 << 16  # of a multiprocessor
LAUNCH = 1.5e-6  # seconds from one kernel of a CUDA graph to the next, about


def _gpu(instructions: frozenset[str], *figures: Any) -> Machine:
    return Machine(
        *figures, vector_bytes=VECTOR_BYTES, warp=WARP, launch_seconds=LAUNCH,
        instructions=instructions,
    )  # fmt: skip


MACHINES = (
    _gpu(VOLTA, "sm_70", 80, 96, 96, 2048, 64, 64, 18, "V100", 1.53, 900, 6),
    _gpu(TURING, "sm_75", 68, 64, 64, 1024, 64, 256, 16, "RTX 2080 Ti", 1.55, 616, 5.5),
    _gpu(AMPERE, "sm_80", 108, 164, 163, 2048, 64, 512, 32, "A100", 1.41, 2039, 40),
    _gpu(AMPERE, "sm_86", 84, 100, 99, 1536, 128, 256, 16, "RTX A6000", 1.8, 768, 6),
    _gpu(AMPERE, "sm_89", 128, 100, 99, 1536, 128, 256, 16, "RTX 4090", 2.52, 1008, 72),
    _gpu(AMPERE, "sm_90", 132, 228, 227, 2048, 128, 640, 36, "H100", 1.83, 3350, 50),
    _gpu(AMPERE, "sm_90a", 132, 228, 227, 2048, 128, 640, 36, "H100", 1.83, 3350, 50, 1024),
    _gpu(AMPERE, "sm_100", 148, 228, 227, 2048, 128, 512, 28, "B200", 1.85, 8000, 126),
    _gpu(AMPERE, "sm_120", 170, 100, 99, 1536, 128, 256, 16, "RTX 5090", 2.41, 1792, 96),
)
DEFAULT_ARCH = "sm_80"
DEFAULT_ARCHS = ("sm_80", "sm_90")  # that machine code is made for


def machine(arch: str = DEFAULT_ARCH) -> Machine:
    """The GPU of an architecture (sm_80, sm_90a, ...), or of the newest older one; of several
    (sm_90,sm_80) the first, with what all have of instructions and shared memory. ModelError if one
    is older than all."""
    first, *others = machines = [_machine(part) for part in arch.split(",")]
    common = first.instructions.intersection(*(m.instructions for m in others))
    least = min(machines, key=lambda m: m.block_kib)
    groups = min(m.group_rate for m in machines)
    return replace(
        first, instructions=common, kib=least.kib, block_kib=least.block_kib, group_rate=groups
    )


def _machine(arch: str) -> Machine:
    """Features of one architecture alone (sm_90a) are in none but that one."""
    digits = arch.removeprefix("sm_").rstrip("af")
    if not digits.isdigit():
        raise ModelError(f"an architecture is written sm_80, found {arch!r}")
    numbers = {m.arch.removeprefix("sm_"): m for m in MACHINES}
    older = [m for n, m in numbers.items() if n.isdigit() and int(n) <= int(digits)]
    if not older:
        raise ModelError(f"GPUs of {arch} are too old; {MACHINES[0].arch} is the oldest")
    return numbers.get(arch.removeprefix("sm_"), older[-1])


class Sized(Protocol):
    """A tile: the rows that one block computes, and roughly at what share of the peak."""

    @property
    def rows(self) -> int: ...

    @property
    def speed(self) -> float: ...


T = TypeVar("T", bound=Sized)


def fastest(tiles: Iterable[T], machine: Machine, batch: int, rows: int) -> T:
    """The tile whose grid takes the least time: rounds of blocks, each its rows over its speed."""

    def time(tile: T) -> float:
        return machine.rounds(batch * -(-rows // tile.rows)) * tile.rows / tile.speed

    return min(tiles, key=time)
