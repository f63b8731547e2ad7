"""The cost model of contractions: how long a kernel takes with a tile, so that the best is chosen.

A block is limited by what its multiprocessor does in a clock: products, bytes between shared memory
and registers, bytes from the second-level cache. Blocks that are resident on a multiprocessor
together (occupancy) share these rates. A block alone is also limited by the latency of what each
warp does in turn. The grid takes as long as the multiprocessor with the most blocks, which run in
waves of as many as fit:

    time = waves * wave(fitting) + wave(left over)         wave(n) = max(n * busy, alone) + ...

This is a roofline (S. Williams et al., Roofline, 2009) with wave quantisation. The dots are a part
of the lesser of the two, as neither hides the other entirely. Figures are clocks; only their order
matters.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from graphc.backends.cuda.machines import WARP, Machine

SHARED_RATE = 128  # bytes that a multiprocessor moves between shared memory and registers
SCHEDULERS = 4  # warp schedulers of a multiprocessor
FIXED = 1500  # clocks from the start of a block to its first products, and from the last to its end
SYNCHRONISED = 60  # clocks in which a block that is alone waits for all its threads
BESIDE = 100  # instructions of a thread before its first slice and after its last
FINISHING = 10  # instructions for each result
EXCHANGING = 4  # instructions for each sum of each group, or block of a cluster
NEIGHBOURS = 16  # multiprocessors of a cluster's blocks are of one GPC, which has at least so many
APART = 0.125  # of the shorter of two times, which the longer does not hide
LATENCY = 700  # clocks until a slice is there that is asked for
MEETING = 380  # clocks until blocks of a cluster have met, and the first sums are there
GIVEN_RATE = 13  # bytes in a clock that a block reads of others of its cluster (Luo et al., 2024)


@dataclass(frozen=True)
class Block:
    """What a block takes of a multiprocessor: `threads`, bytes of `shared` memory, `registers` of a
    thread; and needs, over all slices: clocks of arithmetic by all its warps (`multiply`), bytes
    between shared memory and registers (`moved`) and from cache (`read`), in so many `slices`, each
    asked for while those `ahead` of it are multiplied; clocks in which all threads wait for one
    another at each, if it is alone (`synchronised`), or a thread copies a slice (`copied`); and
    bytes of sums that blocks of a cluster give it (`given`). `copying` threads do only that."""

    threads: int
    shared: int
    registers: int
    multiply: float
    moved: float
    read: float
    slices: int
    ahead: int
    synchronised: int = SYNCHRONISED
    copied: int = 0
    given: int = 0
    copying: int = 0

    @property
    def computing(self) -> int:
        """Threads that multiply and finish results."""
        return self.threads - self.copying


class Tiled(Protocol):
    """What of a problem one block computes."""

    @property
    def rows(self) -> int: ...

    @property
    def columns(self) -> int: ...

    @property
    def k_groups(self) -> int:
        """Groups of threads that sum parts of the depth (sliced_k.py)."""
        ...

    @property
    def split(self) -> int:
        """Blocks that sum parts of the depth of one tile."""
        ...

    def block(self, gpu: Machine, depth: int) -> Block:
        """What a block of the tile needs for sums of `depth` products."""
        ...


def exchanged(tile: Tiled) -> int:
    """Bytes of the partial sums that groups exchange."""
    return 4 * tile.rows * tile.columns * tile.k_groups if tile.k_groups > 1 else 0


T = TypeVar("T", bound=Tiled)


@dataclass(frozen=True)
class Problem:
    """So many products of matrices, rows x depth by depth x columns."""

    batch: int
    rows: int
    columns: int
    depth: int


def clocks(tile: Tiled, gpu: Machine, problem: Problem) -> float:
    """An estimate; infinite if blocks do not fit."""
    block = tile.block(gpu, problem.depth)
    fitting = gpu.resident(block.threads, block.shared, block.registers)
    if not fitting:
        return float("inf")
    grid = problem.batch * -(-problem.rows // tile.rows) * -(-problem.columns // tile.columns)
    grid *= tile.split
    least = NEIGHBOURS if tile.split > 2 else 1
    most = -(-grid // (gpu.multiprocessors // least * least))
    warps, beside = block.computing // WARP, _beside(tile, block)
    busy = max(block.multiply, block.moved / SHARED_RATE, block.read / gpu.cache_rate) + beside
    turn = block.multiply * SCHEDULERS / min(SCHEDULERS, warps) / block.slices
    slice = max(turn, LATENCY / block.ahead, block.copied) + block.synchronised
    alone = block.slices * slice + FIXED + beside
    alone += MEETING + block.given / GIVEN_RATE if block.given else 0
    batches, left = divmod(most, fitting)
    return batches * _together(fitting * busy, alone) + (
        _together(left * busy, alone) if left else 0
    )


def _together(a: float, b: float) -> float:
    """Clocks of what goes on at once."""
    return max(a, b) + APART * min(a, b)


def _beside(tile: Tiled, block: Block) -> float:
    """Clocks that a block's threads issue instructions in before and after all slices."""
    results, sharing = tile.rows * tile.columns, max(tile.k_groups, tile.split)
    issued = BESIDE * block.computing + FINISHING * results // tile.split
    if sharing > 1:
        issued += EXCHANGING * results * tile.k_groups
    return issued / WARP / SCHEDULERS


def ranked(tiles: Iterable[T], gpu: Machine, problem: Problem) -> list[T]:
    """Tiles that fit on a GPU, those that should be fastest first."""
    timed = [(clocks(tile, gpu, problem), n, tile) for n, tile in enumerate(tiles)]
    return [tile for time, _, tile in sorted(timed, key=lambda t: t[:2]) if time < float("inf")]
