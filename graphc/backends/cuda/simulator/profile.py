"""What the memory accesses of kernels cost on a GPU, counted in the simulator.

A request is what the lanes of a warp do together (see sites.py). Counted are

* for global memory the sectors of 32 bytes that a request touches, against the fewest that its
  bytes could lie in ("the number of 32-byte transactions necessary to service all of the threads of
  the warp", CUDA C++ Best Practices Guide, Coalesced Access to Global Memory);
* for shared memory the wavefronts, each of which serves one word of 4 bytes in each of 32 banks, to
  all lanes that want it (CUDA C++ Programming Guide, Compute Capability 5.x, Shared Memory). Lanes
  that take 8 or 16 bytes are served by halves and quarters of the warp, and so are the rows of
  ldmatrix, eight at a time (PTX ISA, ldmatrix). Of loads twice as many lanes are served at once
  where all lanes n and n ^ 1, or all n and n ^ 2, take the same (from sm_70 on: NVIDIA's Developer
  Forums, "Unexpected shared memory bank conflict", 2019). The fewest are those that the words of
  the lanes served together fill;
* for each block the sectors that it touches at all, against the bytes of them that it uses: what
  moves if the first level of cache keeps all that a block has read, while the sectors of requests
  are what moves if it keeps nothing.

Requests, sectors and wavefronts are those of Nsight Compute (Kernel Profiling Guide, Metrics
Decoder). Accesses are counted as they are written: those that a compiler joins or leaves out count
in full, and so does none that it adds by spilling registers.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graphc.backends.cuda.emit import CudaSource
from graphc.backends.cuda.simulator.build import Run, compiled
from graphc.backends.cuda.simulator.sites import Numbering, Site
from graphc.backends.cuda.simulator.translate import translate
from graphc.backends.cuda.steps import LaunchStep
from graphc.ir.types import largest

BLOCKS = 4  # of a launch, by default
SHUFFLED = 2  # the order of blocks of which the first are a sample, the same in every run
ALIGNMENT = 256  # of what a GPU allocates
SECTOR = 32
COUNTED = ("requests", "bytes", "sectors", "least_sectors", "wavefronts", "least_wavefronts")


class Counts(ctypes.Structure):
    """What profile.h counts for a site, over the blocks that were run."""

    _fields_ = [(name, ctypes.c_uint64) for name in COUNTED]


@dataclass(frozen=True)
class Traffic:
    """What accesses need: how many requests of warps, bytes that lanes ask for, sectors of global
    memory and wavefronts of shared memory, and the least there could be of both."""

    requests: float = 0
    bytes: float = 0
    sectors: float = 0
    least_sectors: float = 0
    wavefronts: float = 0
    least_wavefronts: float = 0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(*(getattr(self, n) + getattr(other, n) for n in COUNTED))

    @property
    def coalescing(self) -> float:
        """The fewest sectors, relative to those that are touched."""
        return self.least_sectors / self.sectors if self.sectors else 1.0

    @property
    def conflicts(self) -> float:
        """Wavefronts beyond the fewest, relative to these."""
        least = self.least_wavefronts
        return self.wavefronts / least - 1 if least else 0.0


@dataclass(frozen=True)
class KernelProfile:
    """The traffic of one launch of a kernel by site; bytes of all sectors that its blocks touch
    (`moved`), and those of them that are used. Where a sample of blocks was run, figures are those
    of the sample, scaled to the grid. `steps` are all launches of the kernel, the first of which
    was run."""

    steps: tuple[LaunchStep, ...]
    sites: dict[Site, Traffic]
    moved: float
    used: float

    @property
    def total(self) -> Traffic:
        """Of all sites."""
        return sum(self.sites.values(), Traffic())

    @property
    def wasted(self) -> float:
        """Bytes that all launches move and do not use."""
        return len(self.steps) * (self.moved - self.used)


def profile(
    source: CudaSource, inputs: Sequence[np.ndarray], blocks: int = BLOCKS
) -> list[KernelProfile]:
    """Profiles of all kernels, in order, of each of which at most so many blocks are run. Sizes
    that data decides are the largest.

    What blocks that do not run would have written is zero: where indices depend on data, accesses
    are not those of a true run. Raises what `simulate` raises, but for what was not written.
    """
    numbering = Numbering()
    text = translate(source.text, numbering.mark)
    library = compiled(text, ["profile"])
    run = _Sample(source, library, inputs, numbering.sites, blocks)
    steps: dict[str, list[LaunchStep]] = {}
    for step in source.steps:
        steps.setdefault(step.function, []).append(step.at(run.extent))
    return [run.profile(launches) for launches in steps.values()]


class _Sample(Run):
    """A run of some blocks of every kernel, in memory that counts as written, and is aligned as a
    GPU's is."""

    def __init__(
        self,
        source: CudaSource,
        library: ctypes.CDLL,
        inputs: Sequence[np.ndarray],
        sites: Sequence[Site],
        blocks: int,
    ):
        super().__init__(source, library, inputs, SHUFFLED)
        self.sites, self.blocks = sites, blocks
        self.sizes |= {size.name: largest(size) for size in source.program.counts}
        self.memory = {
            place: _aligned(array, place in self.defined) for place, array in self.memory.items()
        }
        for marks in self.defined.values():
            marks.fill(1)
        library.profile_of_sites.restype = ctypes.POINTER(Counts)
        library.profiled_sectors.restype = library.profiled_bytes.restype = ctypes.c_uint64

    def profile(self, steps: Sequence[LaunchStep]) -> KernelProfile:
        """Runs the first launch of a kernel."""
        step = steps[0]
        self.library.begin_profile(len(self.sites), self.blocks)
        self.start(step)
        scale = max(step.grid / self.blocks, 1.0)
        counts = self.library.profile_of_sites()
        sites = {}
        for number, site in enumerate(self.sites):
            if site.kernel == step.function:
                counted = counts[number]
                sites[site] = Traffic(*(getattr(counted, n) * scale for n in COUNTED))
        moved = self.library.profiled_sectors() * SECTOR * scale
        return KernelProfile(tuple(steps), sites, moved, self.library.profiled_bytes() * scale)


def _aligned(array: np.ndarray, empty: bool) -> np.ndarray:
    """The bytes of an array, or as many zeros, at a multiple of ALIGNMENT."""
    space = np.zeros(array.nbytes + ALIGNMENT, np.uint8)
    start = -space.ctypes.data % ALIGNMENT
    aligned = space[start : start + array.nbytes]
    if not empty:
        aligned[:] = array.reshape(-1).view(np.uint8)
    return aligned
