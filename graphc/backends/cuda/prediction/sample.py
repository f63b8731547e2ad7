"""What a block of a kernel does, counted where the PTX machine runs two blocks of each.

The two mirror each other about the middle of the grid: where a block's work grows along a tensor
(causal attention: the later its rows, the more keys), their mean is that of all blocks, whichever
index blocks are numbered by first.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from graphc.backends.cuda.emit import CudaSource
from graphc.backends.cuda.machines import WARP, Machine
from graphc.backends.cuda.prediction.kinds import (
    BARRIER,
    COPY,
    GROUP_PRODUCT,
    MEETING,
    PRODUCT,
    REMOTE,
    STORE,
    kind_of_ptx,
)
from graphc.backends.cuda.ptx import PtxError, PtxFault, PtxKernels
from graphc.backends.cuda.ptx.run import PtxRun
from graphc.backends.cuda.steps import LaunchStep
from graphc.ir.types import largest

BUDGET = 1 << 26  # instructions of a block, after which it is given up
SECTOR = 32
_SHAPE = re.compile(r"\.m(\d+)n(\d+)k(\d+)\.")
_FACTORS = re.compile(r"\.(f16|bf16|tf32|s8|u8)\.(?:f16|bf16|tf32|s8|u8)")


@dataclass
class Sample:
    """Of the warps of one block: how often instructions of each kind are executed, and all of PTX
    together; products of matrix cores by type of factors, those of warps and of warp groups; clocks
    of shared memory (wavefronts), the fewest there could be, and bytes that warp groups read there;
    bytes that go to and from the second level of cache, if the first keeps what it has read, and
    that come from other blocks of the cluster; groups of copies that are on their way while a slice
    is computed with; whether some warps copy, and others compute."""

    warps: int
    executions: Counter[str] = field(default_factory=Counter)
    instructions: int = 0
    products: Counter[str] = field(default_factory=Counter)
    group_products: Counter[str] = field(default_factory=Counter)
    wavefronts: int = 0
    least_wavefronts: int = 0
    group_bytes: int = 0
    moved: int = 0
    remote_bytes: int = 0
    ahead: int = 1
    is_specialised: bool = False

    @property
    def matrix_instructions(self) -> int:
        """Products of matrix cores, one for each warp that starts one."""
        return self.executions[PRODUCT] + self.executions[GROUP_PRODUCT]

    @property
    def meetings(self) -> float:
        """Barriers of a cluster that a warp comes to."""
        return self.executions[MEETING] / self.warps

    @property
    def barriers(self) -> float:
        """Barriers that a warp comes to."""
        return self.executions[BARRIER] / self.warps


def samples(source: CudaSource, ptx: str, gpu: Machine) -> dict[str, Sample | str]:
    """A sample of each kernel, or why there is none. Sizes are the largest; operands are zero.

    UnsupportedError without a C compiler."""
    kernels = PtxKernels(ptx, BUDGET, counting=True)
    inputs = [np.zeros([largest(d) for d in t.dims], t.dtype.np) for _, t in source.program.inputs]
    run = _Sampling(source, kernels, inputs)
    taken: dict[str, Sample | str] = {}
    for step in source.steps:
        if step.function not in taken:
            taken[step.function] = run.sample(step.at(run.extent), gpu)
    return taken


class _Sampling(PtxRun):
    """A run of some blocks of each kernel, in memory that counts as written."""

    def __init__(self, source: CudaSource, kernels: PtxKernels, inputs: list[np.ndarray]):
        super().__init__(source, kernels, inputs, 0)
        self.sizes |= {size.name: largest(size) for size in source.program.counts}
        for place, marks in self.defined.items():
            marks.fill(1)
            self.memory[place].fill(0)

    def sample(self, step: LaunchStep, gpu: Machine) -> Sample | str:
        if not step.grid:
            return "it has no blocks"
        assert isinstance(step.grid, int)
        further = [0] * self._counters(step)

        def run(block: int) -> Sample:
            self.blocks = [block]
            self.start(step, further)
            return counted(self.kernels, step.function, step.block)

        try:
            return of_grid(step.grid, gpu, run)
        except (PtxFault, PtxError) as error:
            return str(error)

    def _counters(self, step: LaunchStep) -> int:
        """Numbers that a launch passes on: the trip of a loop."""
        given = len(step.slots) + len(step.sizes) + len(step.maps)
        return len(self.kernels.code_of(step.function).parameters) - given


def of_grid(grid: int, gpu: Machine, run: Callable[[int], Sample]) -> Sample:
    """What a block of a grid does on average; where all run at once, what the slowest does: the
    first or the last. `run` runs a block by its number."""
    at_once = grid <= gpu.multiprocessors
    first = 0 if at_once else grid // 3
    ran = [run(block) for block in dict.fromkeys((first, grid - 1 - first))]
    return max(ran, key=lambda sample: sample.instructions) if at_once else mean(ran)


def mean(of: Sequence[Sample]) -> Sample:
    """The mean of samples of one kernel, in whole numbers."""
    made: dict[str, Any] = {}
    for name in (f.name for f in fields(Sample)):
        values = [getattr(sample, name) for sample in of]
        if isinstance(values[0], Counter):
            total = sum(values, Counter[str]())
            made[name] = Counter({key: count // len(of) for key, count in total.items()})
        else:
            made[name] = type(values[0])(sum(values) // len(of))
    return Sample(**made)


def counted(kernels: PtxKernels, name: str, threads: int) -> Sample:
    """What a block of so many threads of a kernel did, which was run since this was asked last."""
    assert kernels.counts is not None
    code, counts = kernels.code_of(name), kernels.counts.pop(name)
    lines = code.line_of_each()
    counts = counts // code.cluster  # its blocks, which do the same, were run together
    sample = Sample(-(-threads // WARP))
    for line in dict.fromkeys(lines):
        of_line = counts[lines == line]
        _add(sample, code.lines.get(line, ""), of_line)
    made = sum(counts[lines == n][:, 0].max() for n in dict.fromkeys(lines)
               if "mbarrier.init" in code.lines.get(n, ""))  # fmt: skip
    if made:  # two for each stage
        sample.ahead, sample.is_specialised = max(int(made) // 2 - 1, 1), True
    return sample


def _add(sample: Sample, text: str, counts: np.ndarray) -> None:
    """Adds what an instruction of PTX did, of which the machine may have made several."""
    executions = int(counts[:, 0].max())
    sectors, first, wavefronts, least = map(int, counts[:, 1:].sum(axis=0))
    kind = kind_of_ptx(text) if text else None
    sample.instructions += executions
    sample.wavefronts += wavefronts
    sample.least_wavefronts += least
    keeps = kind is None or not kind.startswith((COPY, STORE))
    sample.moved += SECTOR * (first if keeps else sectors)
    if kind:
        sample.executions[kind] += executions
    if kind and kind.startswith(REMOTE):
        sample.remote_bytes += executions * WARP * int(kind.split()[-1])
    if kind in (PRODUCT, GROUP_PRODUCT):
        _add_products(sample, text, executions)
    ahead = re.search(r"cp\.async\.wait_group\s+(\d+)", text)
    sample.ahead = max(sample.ahead, int(ahead[1]) + 1 if ahead else 1)


def _add_products(sample: Sample, text: str, executions: int) -> None:
    shape, type = _SHAPE.search(text), _FACTORS.search(text)
    if shape is None or type is None:
        return
    rows, columns, depth = map(int, shape.groups())
    if not text.lstrip().startswith("wgmma"):
        sample.products[type[1]] += rows * columns * depth * executions
        return
    groups = executions // 4  # a product is that of four warps
    sample.group_products[type[1]] += rows * columns * depth * groups
    size = {"tf32": 4, "s8": 1, "u8": 1}.get(type[1], 2)
    held = text.count("{") > 1  # rows come from registers
    sample.group_bytes += (columns + (0 if held else rows)) * depth * size * groups
