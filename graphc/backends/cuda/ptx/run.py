"""Launch plans run by the PTX machine: what a CUDA compiler makes of their kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from graphc.backends.cuda.emit import CudaSource
from graphc.backends.cuda.hosted import HostedRun, Runner
from graphc.backends.cuda.machine_code import machine_code
from graphc.backends.cuda.ptx.kernels import Buffer, Memory, PtxKernels, device_memory
from graphc.backends.cuda.ptx.tensor_maps import TensorMap
from graphc.backends.cuda.schedule import schedule, shuffled
from graphc.backends.cuda.steps import LaunchStep
from graphc.backends.cuda.tensor_maps import SWIZZLE
from graphc.ir.checks import judged
from graphc.ir.program import Slot


def run_ptx(source: CudaSource, arch: str, order: int = 0, ptx: str | None = None) -> Runner:
    """A function from the inputs (numpy arrays, in order) to the list of outputs, computed by the
    PTX that a compiler makes of the kernels for an architecture (or by the `ptx` given).

    PtxFault if a kernel does what is undefined; UnsupportedError without a compiler of CUDA or C.
    """
    text = machine_code(source.text, arch, "ptx").decode() if ptx is None else ptx
    kernels = PtxKernels(text)

    def run(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        return judged(source.program.checks, PtxRun(source, kernels, inputs, order).outputs())

    return run


class PtxRun(HostedRun):
    """One run of a launch plan, whose launches the PTX machine does."""

    def __init__(
        self, source: CudaSource, kernels: PtxKernels, inputs: Sequence[np.ndarray], order: int
    ):
        super().__init__(source, inputs)
        self.kernels, self.order = kernels, order
        self.spaces: dict[tuple[str, int], Memory] = {}
        self.blocks: Sequence[int] | None = None  # those of a grid that are run; None: all

    def launch(self, numbers: Sequence[int], known: Mapping[str, int], *further: int) -> None:
        """Launches in an order that streams could give them: any that dependencies allow, unless
        all are on one stream since the host does steps between them."""
        if self.source.flow is None:
            numbers = shuffled(schedule(self.source.steps).after, self.order)
        super().launch(numbers, known, *further)

    def start(self, step: LaunchStep, further: Sequence[int] = ()) -> None:
        if not step.grid:
            return
        assert isinstance(step.grid, int)
        buffers = [
            Buffer(self.space(slot), slot.offset, slot.elements * slot.dtype.size, access != "in")
            for slot, access in zip(step.slots, step.access)
        ]
        self.kernels.launch(
            step.function, step.grid, step.block, buffers, (*step.sizes, *further), step.shared,
            self.order, self.blocks,
            [TensorMap(m.argument, m.element, m.dims, m.strides, m.box, SWIZZLE, m.offset)
             for m in step.maps],
        )  # fmt: skip

    def space(self, slot: Slot) -> Memory:
        """The memory that a slot is a part of."""
        key = slot.space, slot.index
        if key not in self.spaces:
            data = self.memory[key].reshape(-1).view(np.uint8)
            defined = self.defined.get(key)
            self.spaces[key] = Memory(data) if defined is None else device_memory(data, defined)
        return self.spaces[key]
