"""The time of a kernel, from its machine code, what a block of it does, and figures of a GPU.

A block takes of its multiprocessor so many clocks of each unit: the issue of instructions, lanes of
arithmetic, matrix cores, shared memory, the second level of cache. Blocks that are resident
together share these, and one alone takes at least as long as what each of its warps waits for in
turn. The grid takes as long as the multiprocessor with the most blocks, or as memory takes for all
bytes: a roofline with wave quantisation, as in strategies/contraction/costs.py, but of what
compilers made.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from graphc.backends.cuda.machines import (
    KIB,
    PER_WORD,
    REGISTERS,
    VECTOR_BYTES,
    WARP,
    Machine,
)
from graphc.backends.cuda.prediction.executions import executions
from graphc.backends.cuda.prediction.figures import figures
from graphc.backends.cuda.prediction.kinds import COPY, LOAD, PRODUCT, kind_of_sass
from graphc.backends.cuda.prediction.sample import Sample
from graphc.backends.cuda.prediction.sass import OUTSIDE, UNREACHED, Sass

SCHEDULERS = 4
ALLOCATED = 256  # registers of a warp are allocated in so many
MOST_BLOCKS = {75: 16, 86: 16, 87: 16, 89: 24, 120: 24}  # of a multiprocessor, by architecture
FLOATS = ("FFMA", "FADD", "FMUL", "IMAD", "HFMA2", "HADD2", "HMUL2")
INTEGERS = ("IADD3", "VIADD", "LOP3", "SHF", "ISETP", "IMNMX", "VIMNMX", "LEA", "SEL", "FSEL",
            "PRMT", "FSETP", "FMNMX", "PLOP3", "POPC", "FLO", "IABS")  # fmt: skip
CONVERSIONS = ("F2F", "F2I", "I2F", "F2FP", "I2FP", "FRND", "I2I")
DOUBLES = ("DFMA", "DADD", "DMUL", "DSETP", "DMNMX")
MEMORY = ("LDG", "STG", "LDS", "STS", "LDSM", "STSM", "LDL", "STL", "LDGSTS", "ATOM", "ATOMG",
          "ATOMS", "RED", "SHFL")  # fmt: skip
PIPES = {
    **dict.fromkeys(FLOATS, "float"), **dict.fromkeys(INTEGERS, "integer"),
    **dict.fromkeys(CONVERSIONS, "conversion"), **dict.fromkeys(DOUBLES, "double"),
    **dict.fromkeys(MEMORY, "memory"), "MUFU": "special",
}  # fmt: skip
WAVES, LAUNCH, LATENCY, DRAM = "waves", "launch", "latency", "memory"
EVEN = 0.75  # efficiency of waves below which they bound a kernel that no latency does
WAITING = 1.25  # times the clocks of the busiest unit, above which waiting bounds a kernel


@dataclass(frozen=True)
class Code:
    """What machine code itself tells of a kernel: registers of a thread, loads and stores of local
    memory and bytes of stack (spills), bytes of shared memory of a block; in the loop with most
    products, instructions for each product of matrix cores (None without any); and barriers."""

    registers: int
    spills: int
    stack: int
    shared: int
    per_product: float | None
    barriers: int


@dataclass(frozen=True)
class Prediction:
    """The time of a launch in seconds and what bounds it; clocks that a block takes of each unit
    (`units`) and `alone`; blocks that are resident together, occupancy (warps of those that there
    could be), the share of multiprocessors' time that the grid fills (`even`), bytes of memory that
    are moved, and the shares of bytes of global memory that accesses of 16 load and store."""

    seconds: float
    bound: str
    units: Mapping[str, float]
    alone: float
    resident: int
    occupancy: float
    even: float
    bytes: int
    wide_loads: float | None
    wide_stores: float | None


@dataclass(frozen=True)
class Launched:
    """A launch: blocks, threads of a block, bytes of shared memory it asks for, bytes of operands
    that memory must hold, and of those that kernels before have written."""

    grid: int
    block: int
    shared: int
    nbytes: int
    recent: int


def code_of(sass: Sass, shared: int) -> Code:
    """What machine code tells, where a launch asks for `shared` bytes more."""
    places = sass.places
    products: Counter[int] = Counter()
    sizes: Counter[int] = Counter()
    for instruction, place in zip(sass.instructions, places):
        sizes[place] += 1
        products[place] += (kind_of_sass(instruction) or "").startswith(PRODUCT)
    looped = [p for p in products if p >= 0 and products[p]]
    hottest = max(looped or [OUTSIDE], key=lambda p: (products[p], -sizes[p]))
    per_product = sizes[hottest] / products[hottest] if products[hottest] else None
    reached = [i.base for i, p in zip(sass.instructions, places) if p != UNREACHED]
    return Code(
        sass.registers, sass.local_accesses, sass.stack, sass.shared + shared, per_product,
        reached.count("BAR"),
    )  # fmt: skip


def resident(gpu: Machine, block: int, registers: int, shared: int) -> int:
    """Blocks that a multiprocessor has room for: threads, registers as they are allocated to warps,
    shared memory with what the system takes of it, and a limit of blocks."""
    warps = -(-block // WARP)
    of_warp = -(-max(registers, 1) * WARP // ALLOCATED) * ALLOCATED
    own = (gpu.kib - gpu.block_kib) * KIB
    digits = int(gpu.arch.removeprefix("sm_").rstrip("af"))
    return min(
        gpu.threads // (warps * WARP), REGISTERS // (of_warp * warps),
        gpu.kib * KIB // max(shared + own, 1), MOST_BLOCKS.get(digits, 32),
    )  # fmt: skip


def predicted(sass: Sass, sample: Sample, launched: Launched, gpu: Machine) -> Prediction:
    """The time of a launch."""
    known = figures(gpu.arch)
    counted = executions(sass, sample)
    fits = max(resident(gpu, launched.block, sass.registers, sass.shared + launched.shared), 1)
    units = _units(sass, sample, counted, gpu, known)
    alone = _alone(sass, sample, counted, units, known)
    most = -(-launched.grid // gpu.multiprocessors)
    busy = max(units.values())
    waves, left = divmod(most, fits)
    clocks = known["start"] + waves * _together(fits * busy, alone, known)
    clocks += _together(left * busy, alone, known) if left else 0
    moved, memory = _memory(sample, launched, gpu, known)
    seconds = max(clocks / (gpu.clock * 1e9), memory) + gpu.launch_seconds
    even = launched.grid / (gpu.multiprocessors * most)
    if gpu.launch_seconds > seconds / 2:
        bound = LAUNCH
    elif memory >= clocks / (gpu.clock * 1e9):
        bound = DRAM
    elif alone > WAITING * min(most, fits) * busy:
        bound = LATENCY
    else:
        bound = WAVES if even < EVEN else max(units, key=lambda unit: units[unit])
    warps = gpu.threads // WARP
    occupancy = min(fits, most) * -(-launched.block // WARP) / warps
    loads, stores = _wide(sass, counted, ("LDG", "LDGSTS")), _wide(sass, counted, ("STG",))
    return Prediction(seconds, bound, units, alone, fits, occupancy, even, moved, loads, stores)


def _wide(sass: Sass, counted: Mapping[int, float], names: tuple[str, ...]) -> float | None:
    """The share of bytes that accesses of 16 move, of all that instructions of some names do."""
    all, wide = 0.0, 0.0
    for instruction, place in zip(sass.instructions, sass.places):
        if instruction.base in names:
            nbytes = counted.get(place, 0.0) * instruction.bytes
            all, wide = all + nbytes, wide + nbytes * (instruction.bytes == VECTOR_BYTES)
    return wide / all if all else None


def _units(
    sass: Sass,
    sample: Sample,
    counted: Mapping[int, float],
    gpu: Machine,
    known: Mapping[str, float],
) -> dict[str, float]:
    """Clocks of a multiprocessor's units that a block takes."""
    issued, pipes = 0.0, Counter[str]()
    for instruction, place in zip(sass.instructions, sass.places):
        times = counted.get(place, 0.0)
        issued += times
        pipe = PIPES.get(instruction.base)
        if pipe:
            pipes[pipe] += times  # type: ignore[assignment]
    lanes = {**known, "float": gpu.float_rate}
    units = {pipe: times * WARP / lanes[pipe] for pipe, times in sorted(pipes.items())}
    units["issue"] = issued / known["issue"]
    units["shared"] = sample.wavefronts + sample.group_bytes / known["shared"]
    units["cache"] = sample.moved / gpu.cache_rate
    of_warps, of_groups = _products(sample)
    units["matrix cores"] = of_warps / (gpu.core_rate * known["tensor"])
    units["matrix cores"] += of_groups / (max(gpu.group_rate, gpu.core_rate) * known["tensor"])
    return units


def _products(sample: Sample) -> tuple[float, float]:
    """Products of 32-bit words that warps, and groups of warps, do."""

    def words(products: Mapping[str, int]) -> float:
        return sum(count / PER_WORD.get(type, 4) for type, count in products.items())

    return words(sample.products), words(sample.group_products)


def _alone(
    sass: Sass, sample: Sample, counted: Mapping[int, float], units: Mapping[str, float],
    known: Mapping[str, float],
) -> float:  # fmt: skip
    """Clocks of a block that has its multiprocessor to itself: what its warps do one instruction
    after another, barriers, and loads that each pass of a loop waits for."""
    warps = sample.warps
    turn = known["dependent"] / known["in flight"] * units["issue"] * known["issue"] / warps
    turn = max(turn, units["matrix cores"] * SCHEDULERS / min(SCHEDULERS, warps))
    loads, copies = set[int](), set[int]()
    for instruction, place in zip(sass.instructions, sass.places):
        kind = kind_of_sass(instruction) or ""
        if place != UNREACHED and kind.startswith((LOAD, COPY)):
            (loads if kind.startswith(LOAD) else copies).add(place)
    waits = known["memory latency"] if loads or copies else 0.0
    for place in (loads | copies) - {OUTSIDE}:
        passes = counted.get(place, 0.0) / warps
        latency = known["cache latency"] / (1 if place in loads else sample.ahead)
        waits += passes * max(latency - turn / max(passes, 1.0) * (place not in loads), 0.0)
    waits += sample.barriers * known["barrier"] + sample.meetings * known["cluster barrier"]
    return turn + waits + sample.remote_bytes / known["cluster"]


def _together(a: float, b: float, known: Mapping[str, float]) -> float:
    """Clocks of what goes on at once."""
    return max(a, b) + known["apart"] * min(a, b)


def _memory(
    sample: Sample, launched: Launched, gpu: Machine, known: Mapping[str, float]
) -> tuple[int, float]:
    """Bytes that memory moves, and seconds of that. What kernels before have written is in the
    second level of cache, if it is not too much."""
    kept = known["kept"] * gpu.cache_mib * (1 << 20)
    nbytes = launched.nbytes - (launched.recent if launched.recent <= kept else 0)
    nbytes = min(nbytes, math.ceil(sample.moved * launched.grid))
    return nbytes, nbytes / (gpu.bandwidth * 1e9 * known["bandwidth"])
