"""What strategies know of GPUs: how many blocks run at once, and what matrix cores multiply.

One entry per architecture, of its largest common GPU; figures are from NVIDIA's architecture white
papers. Kernels are right on every GPU, whichever they were planned for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from graphc.errors import ModelError


@dataclass(frozen=True)
class Machine:
    """`multiprocessors` that a grid should fill; the `products` (see instructions.py) that have an
    instruction of their own."""

    arch: str
    multiprocessors: int
    products: tuple[str, ...]

    def rounds(self, blocks: int) -> int:
        """How many times the GPU is filled, one block to a multiprocessor."""
        return -(-blocks // self.multiprocessors)


TURING = ("mma_f16",)
AMPERE = ("mma_f16", "mma_bf16", "mma_tf32", "mma_s8")
MACHINES = (
    Machine("sm_70", 80, ()),
    Machine("sm_75", 68, TURING),
    Machine("sm_80", 108, AMPERE),
    Machine("sm_86", 84, AMPERE),
    Machine("sm_89", 128, AMPERE),
    Machine("sm_90", 132, AMPERE),
    Machine("sm_100", 148, AMPERE),
    Machine("sm_120", 170, AMPERE),
)
DEFAULT_ARCH = "sm_80"


def machine(arch: str = DEFAULT_ARCH) -> Machine:
    """The GPU of an architecture (sm_80, sm_90a, ...), or of the newest older one; ModelError if it
    is older than all."""
    digits = arch.removeprefix("sm_").rstrip("af")
    if not digits.isdigit():
        raise ModelError(f"an architecture is written sm_80, found {arch!r}")
    older = [m for m in MACHINES if int(m.arch.removeprefix("sm_")) <= int(digits)]
    if not older:
        raise ModelError(f"GPUs of {arch} are too old; {MACHINES[0].arch} is the oldest")
    return older[-1]


class Sized(Protocol):
    """A tile: what of a problem one block computes, and roughly at what share of the peak."""

    @property
    def area(self) -> int: ...

    @property
    def speed(self) -> float: ...

    def blocks(self, rows: int, columns: int) -> int: ...


T = TypeVar("T", bound=Sized)


def fastest(tiles: Iterable[T], machine: Machine, batch: int, rows: int, columns: int) -> T:
    """The tile whose grid takes the least time: rounds of blocks, each its area over its speed."""

    def time(tile: T) -> float:
        return machine.rounds(batch * tile.blocks(rows, columns)) * tile.area / tile.speed

    return min(tiles, key=time)
