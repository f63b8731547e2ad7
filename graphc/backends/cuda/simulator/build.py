"""Compiles translated CUDA C with g++ and runs launch plans on numpy arrays.

A run is repeated with the threads and blocks in other orders; all runs must give the same bits,
except where atomics make sums depend on the order.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from graphc.backends.cfamily.hostcc import shared_library
from graphc.backends.cuda.emit import CudaSource
from graphc.backends.cuda.hosted import HostedRun, Runner, SimulationError
from graphc.backends.cuda.simulator.translate import translate
from graphc.backends.cuda.steps import LaunchStep
from graphc.backends.cuda.tensor_maps import TensorMap
from graphc.ir.checks import judged
from graphc.ir.program import Slot

HEADER = "simulator.h"  # what kernels include: these files, one after another
PARTS = ("state", "memory", "threads", "functions", "instructions", "warp_groups", "bulk")
FLAGS = (
    "-std=c++17", "-O1", "-ffp-contract=off", "-w",
    "-U_FORTIFY_SOURCE",  # it takes a jump to another stack for an error
)  # fmt: skip
ORDERS = (0, 1)  # ascending and descending; larger numbers seed shuffled orders


def simulate(source: CudaSource, orders: Sequence[int] = ORDERS) -> Runner:
    """A function from the inputs (numpy arrays, in order) to the list of outputs.

    SimulationError if a kernel leaves its buffers, reads what was not written, lacks a barrier or
    gives results that depend on the order of threads; UnsupportedError without a C++ compiler.
    """
    library = library_of(source.text)
    exact = "atomicAdd" not in source.text
    program = source.program

    def run(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        first = Run(source, library, inputs, orders[0]).outputs()
        for order in orders[1:]:
            again = Run(source, library, inputs, order).outputs()
            for (name, _), a, b in zip(program.outputs, first, again):
                if exact and a.tobytes() != b.tobytes():
                    raise SimulationError(f"output {name} depends on the order of threads")
        return judged(program.checks, first)

    return run


def library_of(text: str) -> ctypes.CDLL:
    """The kernels of a CUDA file as functions of the host, `launch_NAME` each."""
    return compiled(translate(text))


def compiled(kernels: str, first: Sequence[str] = ()) -> ctypes.CDLL:
    """The library of translated kernels, with the simulator that they include, whose parts come
    after those named."""
    folder = Path(__file__).parent
    header = "\n".join((folder / f"{part}.h").read_text() for part in (*first, *PARTS))
    files = {"kernels.cc": kernels, HEADER: header}
    return ctypes.CDLL(str(shared_library(files, FLAGS, "C++", HEADER)))


class Run(HostedRun):
    """A run whose kernels are functions of a library."""

    def __init__(
        self, source: CudaSource, library: ctypes.CDLL, inputs: Sequence[np.ndarray], order: int
    ):
        super().__init__(source, inputs)
        self.library, self.order = library, order

    def start(self, step: LaunchStep, further: Sequence[int] = ()) -> None:
        """Launches a kernel."""
        if not step.grid:
            return
        count = max(len(step.slots), 1)
        data = (ctypes.c_void_p * count)(*(self.address(s) for s in step.slots))
        counts = (ctypes.c_int64 * count)(*(s.elements for s in step.slots))
        given = (*step.sizes, *further)
        sizes = (ctypes.c_int64 * max(len(given), 1))(*given)
        defined = (ctypes.c_void_p * count)(*(self.marks(s) for s in step.slots))
        entry = getattr(self.library, f"launch_{step.function}")
        entry.restype = ctypes.c_char_p
        message = entry(
            data, counts, defined, step.grid, step.block, self.order, step.shared, sizes,
            mapped(step.maps, data, [s.elements * s.dtype.size for s in step.slots], defined),
        )  # fmt: skip
        if message is not None:
            raise SimulationError(f"kernel {step.function}: {message.decode()}")

    def address(self, slot: Slot) -> int:
        return self.memory[slot.space, slot.index].ctypes.data + slot.offset

    def marks(self, slot: Slot) -> int | None:
        """Where the written bytes of a slot are marked; None for inputs and constants."""
        marks = self.defined.get((slot.space, slot.index))
        return None if marks is None else marks.ctypes.data + slot.offset


class MapStructure(ctypes.Structure):
    """As in state.h."""

    _fields_ = [
        ("data", ctypes.c_void_p), ("defined", ctypes.c_void_p), ("bytes", ctypes.c_int64),
        ("element", ctypes.c_int64), ("rank", ctypes.c_int64), ("dims", ctypes.c_int64 * 5),
        ("strides", ctypes.c_int64 * 4), ("box", ctypes.c_int64 * 5),
    ]  # fmt: skip


def mapped(
    maps: Sequence[TensorMap], data: Any, sizes: Sequence[int], defined: Any,
) -> ctypes.Array[MapStructure]:  # fmt: skip
    """Maps of tensors in arguments of a launch, which are so many bytes at these addresses."""
    made = (MapStructure * max(len(maps), 1))()
    for structure, map in zip(made, maps):
        structure.data = (data[map.argument] or 0) + map.offset
        marks = defined[map.argument]
        structure.defined = None if marks is None else marks + map.offset
        structure.bytes = sizes[map.argument] - map.offset
        structure.element, structure.rank = map.element, len(map.dims)
        structure.dims[: len(map.dims)] = map.dims
        structure.strides[: len(map.strides)] = map.strides
        structure.box[: len(map.box)] = map.box
    return made
