"""Compiles translated CUDA C with g++ and runs launch plans on numpy arrays.

A run starts with poisoned outputs and arena, whose bytes are marked unwritten. It is repeated with
the threads and blocks in other orders; all runs must give the same bits, except where atomics make
sums depend on the order.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from graphc.backends.cfamily.hostcc import shared_library
from graphc.backends.cuda.emit import CudaSource, LaunchStep
from graphc.backends.cuda.machines import VECTOR_BYTES
from graphc.backends.cuda.simulator.translate import translate
from graphc.errors import InternalError, ModelError
from graphc.ir.checks import judged
from graphc.ir.imperative.lowering import SIZES
from graphc.ir.program import Slot
from graphc.ir.sizes import sizes_of

HEADER = "simulator.h"  # what kernels include: these files, one after another
PARTS = ("state", "memory", "threads", "functions", "instructions", "warp_groups")
FLAGS = (
    "-std=c++17", "-O1", "-ffp-contract=off", "-w",
    "-U_FORTIFY_SOURCE",  # it takes a jump to another stack for an error
)  # fmt: skip
ORDERS = (0, 1)  # ascending and descending; larger numbers seed shuffled orders
POISON = 0xFF

Runner = Callable[[Sequence[np.ndarray]], list[np.ndarray]]


class SimulationError(InternalError):
    """A kernel that would be wrong on a GPU: what it did, and where."""


def simulate(source: CudaSource, orders: Sequence[int] = ORDERS) -> Runner:
    """A function from the inputs (numpy arrays, in order) to the list of outputs.

    SimulationError if a kernel leaves its buffers, reads what was not written, lacks a barrier or
    gives results that depend on the order of threads; UnsupportedError without a C++ compiler.
    """
    library = library_of(source.text)
    exact = "atomicAdd" not in source.text
    program = source.program

    def run(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        now = source
        if program.sizes:
            shapes = [array.shape for array in inputs]
            now = source.at(sizes_of(program.sizes, program.inputs, shapes))
        first = Run(now, library, inputs, orders[0]).outputs()
        for order in orders[1:]:
            again = Run(now, library, inputs, order).outputs()
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


class Run:
    """One run: the memory of the device, and which of its bytes were written."""

    def __init__(
        self, source: CudaSource, library: ctypes.CDLL, inputs: Sequence[np.ndarray], order: int
    ):
        self.source, self.library, self.order = source, library, order
        program = source.program
        self.results = [np.empty(t.static_shape, t.dtype.np) for _, t in program.outputs]
        self.arena = np.empty(max(program.arena_bytes, 1), np.uint8)
        self.memory: dict[tuple[str, int], np.ndarray] = {("arena", 0): self.arena}
        self.defined: dict[tuple[str, int], np.ndarray] = {}
        for space, arrays in (("output", self.results), ("arena", [self.arena])):
            for number, array in enumerate(arrays):
                self.memory[space, number] = array
                self.defined[space, number] = np.zeros(max(array.nbytes, 1), np.uint8)
                ctypes.memset(array.ctypes.data, POISON, array.nbytes)
        for space, arrays in (("input", _checked(source, inputs)), ("const", program.constants)):
            for number, array in enumerate(arrays):
                self.memory[space, number] = _as_copied(array)

    def outputs(self) -> list[np.ndarray]:
        """The results of all launches."""
        for step in self.source.steps:
            self.launch(step)
        bounded = _bounded_outputs(self.source)
        for number, (name, type) in enumerate(self.source.program.outputs):
            if number in bounded:
                continue
            missing = np.flatnonzero(self.defined["output", number][: type.nbytes] == 0)
            if missing.size:
                element = int(missing[0]) // type.dtype.size
                raise SimulationError(f"output {name}: element {element} was never written")
        return self.results

    def launch(self, step: LaunchStep) -> None:
        if not step.grid:
            return
        count = max(len(step.slots), 1)
        data = (ctypes.c_void_p * count)(*(self.address(s) for s in step.slots))
        counts = (ctypes.c_int64 * count)(*(s.elements for s in step.slots))
        sizes = (ctypes.c_int64 * max(len(step.sizes), 1))(*step.sizes)
        defined = (ctypes.c_void_p * count)(*(self.marks(s) for s in step.slots))
        entry = getattr(self.library, f"launch_{step.function}")
        entry.restype = ctypes.c_char_p
        message = entry(
            data, counts, defined, step.grid, step.block, self.order, step.shared, sizes
        )
        if message is not None:
            raise SimulationError(f"kernel {step.function}: {message.decode()}")

    def address(self, slot: Slot) -> int:
        return self.memory[slot.space, slot.index].ctypes.data + slot.offset

    def marks(self, slot: Slot) -> int | None:
        """Where the written bytes of a slot are marked; None for inputs and constants."""
        marks = self.defined.get((slot.space, slot.index))
        return None if marks is None else marks.ctypes.data + slot.offset


def _as_copied(array: np.ndarray) -> np.ndarray:
    """An array as a device has its copy: contiguous, and where any vector may begin."""
    array = np.ascontiguousarray(array)
    return array.copy() if array.ctypes.data % VECTOR_BYTES else array


def _bounded_outputs(source: CudaSource) -> set[int]:
    """Outputs whose true size a kernel tells; they are longer than what is written."""
    program = source.program
    return {
        slot.index
        for step in program.calls
        if any(b.name == SIZES for b in program.kernels[step.kernel].params)
        for slot in step.slots
        if slot.space == "output"
    }


def _checked(source: CudaSource, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    expected = source.program.inputs
    if len(inputs) != len(expected):
        raise ModelError(f"takes {len(expected)} inputs, found {len(inputs)}")
    for (name, type), array in zip(expected, inputs):
        if array.dtype != type.dtype.np or array.shape != type.static_shape:
            raise ModelError(f"input {name} takes {type}, found {array.dtype}{list(array.shape)}")
    return list(inputs)
