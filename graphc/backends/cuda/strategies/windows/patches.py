"""The outputs that a thread of a sliding window computes: those for which the time is the least.

Such kernels are bound by memory, so the patch is chosen for the fewest instructions on a full GPU,
and for the most threads on a small problem.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from graphc.backends.cuda.machines import VECTOR_BYTES, Machine
from graphc.ir.expr import Index, cost, loads
from graphc.ir.extents import most, points
from graphc.passes.analysis.spaces import count
from graphc.passes.analysis.windows import Windows

MAX_CHANNELS = 8  # of a patch
PATCHES = (1, 2, 4, 7, 8)  # outputs along a dimension
MAX_SUMS = 48  # registers of a thread for sums
UNROLLED = 160  # products per channel that are written one by one; beyond, rows of taps are a loop
HIDDEN = 4  # warps of a scheduler, below which instructions wait for one another


@dataclass(frozen=True)
class Patch:
    """Outputs of a thread: along the last two slides, and channels. `loops`: how many slides have
    their taps in a loop."""

    rows: int
    columns: int
    channels: int
    loops: int


def best_patch(windows: Windows, gpu: Machine) -> Patch:
    """The patch with the least estimated time; of equal ones, that with fewer loops."""
    return min(_patches(windows), key=lambda x: (_time(windows, x, gpu), x.loops, x.channels))


def _patches(windows: Windows) -> Iterator[Patch]:
    size = min(x.dtype.size for x in loads(windows.a))
    channels = windows.channels.count
    *outer, last = windows.slides
    for wide in (1, 2, 4, 8):
        if channels % wide or wide > min(MAX_CHANNELS, VECTOR_BYTES // size):
            continue
        for columns in _lengths(last.index):
            yield Patch(1, columns, wide, len(outer))
            for rows in _lengths(outer[-1].index) if outer else ():
                patch = Patch(rows, columns, wide, len(outer) - 1)
                taps = outer[-1].axis.count * last.axis.count
                if rows * columns * wide <= MAX_SUMS and taps * rows * columns <= UNROLLED:
                    yield patch


def _lengths(index: Index) -> list[int]:
    return [n for n in PATCHES if n <= most(index.extent)]


def _time(windows: Windows, patch: Patch, gpu: Machine) -> float:
    """Instructions of a warp, times the warps that share a scheduler."""
    taps, reads = count(list(windows.hole.axes)), count(windows.rest)
    outputs = patch.rows * patch.columns
    lengths = [*[1] * patch.loops, patch.rows, patch.columns][-len(windows.slides) :]
    for slide, length in zip(windows.slides, lengths):
        reads *= len(slide.meetings(length))
    weights = taps if windows.b is not None else 0
    finish = sum(map(cost, windows.exprs)) - cost(windows.hole) + 4
    work = 4 * reads + weights + patch.channels * outputs * (taps + min(max(finish, 4), 40))
    threads = points(windows.indices) / patch.channels
    for slide, length in zip(windows.slides, lengths):
        outputs_along = most(slide.index.extent)
        threads *= -(-outputs_along // length) / outputs_along
    return work * max(HIDDEN, threads / 32 / (4 * gpu.multiprocessors))
