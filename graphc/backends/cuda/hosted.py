"""Launch plans run on memory of this machine: what simulators of kernels share.

A run starts with poisoned outputs and arena, whose bytes are marked unwritten.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from graphc.backends.cuda.emit import CudaSource
from graphc.backends.cuda.machines import VECTOR_BYTES
from graphc.backends.cuda.runtime.steps import Place, perform
from graphc.backends.cuda.steps import LaunchStep
from graphc.errors import InternalError, ModelError
from graphc.ir.dtypes import i64
from graphc.ir.expr import Const, Expr
from graphc.ir.imperative.lowering import SIZES
from graphc.ir.sizes import sizes_of
from graphc.ir.types import Dim, at, elements_of, largest

POISON = 0xFF

Runner = Callable[[Sequence[np.ndarray]], list[np.ndarray]]


class SimulationError(InternalError):
    """A kernel that would be wrong on a GPU: what it did, and where."""


class HostedRun:
    """One run: the memory of the device, which of its bytes were written, and the sizes that are
    known. Subclasses launch kernels."""

    def __init__(self, source: CudaSource, inputs: Sequence[np.ndarray]):
        self.source = source
        program = source.program
        self.sizes = _sizes(source, inputs)
        self.steps: dict[tuple[int, int], LaunchStep] = {}  # by number and how many sizes are known
        self.results = [
            np.empty(largest(self.extent(elements_of(t.dims))), t.dtype.np)
            for _, t in program.outputs
        ]
        self.arena = np.empty(max(program.arena_bytes, 1), np.uint8)
        self.memory: dict[tuple[str, int], np.ndarray] = {("arena", 0): self.arena}
        self.defined: dict[tuple[str, int], np.ndarray] = {}
        for space, arrays in (("output", self.results), ("arena", [self.arena])):
            for number, array in enumerate(arrays):
                self.memory[space, number] = array
                self.defined[space, number] = np.zeros(max(array.nbytes, 1), np.uint8)
                ctypes.memset(array.ctypes.data, POISON, array.nbytes)
        for space, given in (("input", inputs), ("const", program.constants)):
            for number, array in enumerate(given):
                self.memory[space, number] = _as_copied(array)

    def extent(self, dim: Dim) -> Dim:
        """A number over sizes, as far as they are known."""
        known: dict[Expr, Expr] = {
            size: Const(self.sizes[size.name], i64)
            for size in self.source.program.all_sizes
            if size.name in self.sizes
        }
        return at(dim, known)

    def outputs(self) -> list[np.ndarray]:
        """The results of all launches."""
        if self.source.flow is None:
            self.launch(range(len(self.source.steps)), self.sizes)
        else:
            perform(self.source.flow, self.sizes, self)
        bounded, arrays = _bounded_outputs(self.source), []
        for number, (name, type) in enumerate(self.source.program.outputs):
            shape = tuple([largest(self.extent(dim)) for dim in type.dims])  # known by now
            arrays.append(self.results[number][: math.prod(shape)].reshape(shape))
            if number in bounded:
                continue
            missing = np.flatnonzero(self.defined["output", number][: arrays[-1].nbytes] == 0)
            if missing.size:
                element = int(missing[0]) // type.dtype.size
                raise SimulationError(f"output {name}: element {element} was never written")
        return arrays

    def launch(self, numbers: Sequence[int], known: Mapping[str, int], *further: int) -> None:
        for number in numbers:
            key = number, len(known)
            if key not in self.steps:
                self.steps[key] = self.source.steps[number].at(self.extent)
            self.start(self.steps[key], further)

    def start(self, step: LaunchStep, further: Sequence[int] = ()) -> None:
        """Launches a kernel."""
        raise NotImplementedError

    def copy(self, target: Place, source: Place, nbytes: int) -> None:
        (values, written), (into, marks) = self.part(source, nbytes), self.part(target, nbytes)
        into[:], marks[:] = values, written

    def read(self, place: Place, nbytes: int) -> int:
        values, written = self.part(place, nbytes)
        if not written.all():
            raise SimulationError(f"{place} decides what is done before it is written")
        return int.from_bytes(values.tobytes(), "little", signed=True)

    def part(self, place: Place, nbytes: int) -> tuple[np.ndarray, np.ndarray]:
        """The bytes of a place, and the marks of those that are written."""
        space, number, start = place
        whole = self.memory[space, number].reshape(-1).view(np.uint8)
        if not 0 <= start <= start + nbytes <= whole.nbytes:
            raise SimulationError(f"bytes {start}..{start + nbytes} are not in {space} {number}")
        marks = self.defined.get((space, number), np.ones_like(whole))
        return whole[start : start + nbytes], marks[start : start + nbytes]


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


def _sizes(source: CudaSource, inputs: Sequence[np.ndarray]) -> dict[str, int]:
    """The sizes that inputs have; ModelError unless they have the right types."""
    program = source.program
    if len(inputs) != len(program.inputs):
        raise ModelError(f"takes {len(program.inputs)} inputs, found {len(inputs)}")
    for (name, type), array in zip(program.inputs, inputs):
        is_wrong = type.is_static and array.shape != type.static_shape
        if is_wrong or array.dtype != type.dtype.np:
            raise ModelError(f"input {name} takes {type}, found {array.dtype}{list(array.shape)}")
    values = sizes_of(program.sizes, program.inputs, [array.shape for array in inputs])
    return {size.name: value for size, value in zip(program.sizes, values)}
