"""The kernels of a PTX module, launched on memory of this machine.

Every parameter that is a pointer has addresses of its own, so that an access that leaves its buffer
is seen even if another buffer lies behind it.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graphc.backends.cuda.hosted import SimulationError
from graphc.backends.cuda.ptx import (  # noqa: F401 (their handlers)
    decode_bulk,
    decode_conversions,
    decode_matrices,
    decode_memory,
)
from graphc.backends.cuda.ptx.calls import without_calls
from graphc.backends.cuda.ptx.code import Code
from graphc.backends.cuda.ptx.decode import Decoder, parameter_size
from graphc.backends.cuda.ptx.library import Launch, Region, library
from graphc.backends.cuda.ptx.tensor_maps import TensorMap, packed
from graphc.backends.cuda.ptx.text import Module, PtxError, Variable

REGION_BITS = 40  # of an address, below the number of its region
PLACE = 256  # the low bits of an address are those that it has on a device
MESSAGE = 1024
BUDGET = 1 << 30  # instructions of a block
COUNTED = ("executions", "sectors", "first_sectors", "wavefronts", "least_wavefronts")
TOO_LARGE = 2  # a cluster, for the machine
LATEST = 1 << 19  # the clock starts anew once it is so late


class PtxFault(SimulationError):
    """What a kernel did that is undefined, and where: instruction, block and thread."""


@dataclass
class Memory:
    """Memory of the device: bytes, which of them were written (None: all), and marks of who wrote
    and read them last (None: nobody writes it)."""

    data: np.ndarray
    defined: np.ndarray | None = None
    writer: np.ndarray | None = None
    reader: np.ndarray | None = None


def device_memory(data: np.ndarray, defined: np.ndarray | None = None) -> Memory:
    """Memory that kernels may write; `defined` marks its bytes that were written."""
    marks = [np.zeros(max(data.nbytes, 1), np.uint32) for _ in range(2)]
    return Memory(data, defined, *marks)


@dataclass(frozen=True)
class Buffer:
    """What a pointer points to: some bytes of memory from an offset on."""

    memory: Memory
    offset: int
    nbytes: int
    writable: bool


class PtxKernels:
    """The kernels of a PTX text. `counting`: `counts` then has, for every kernel that was run, what
    each of its instructions did (COUNTED, see machine/traffic.h)."""

    def __init__(self, text: str, budget: int = BUDGET, counting: bool = False):
        self.module = Module(text)
        self.counts: dict[str, np.ndarray] | None = {} if counting else None
        self.budget = budget
        self._codes: dict[str, _Ready] = {}
        self._clock: np.ndarray = np.zeros(1, np.uint32)
        self._marked: list[Memory] = []

    def launch(
        self, name: str, grid: int, threads: int, buffers: Sequence[Buffer],
        numbers: Sequence[int] = (), shared: int = 0, order: int = 0,
        blocks: Sequence[int] | None = None, maps: Sequence[TensorMap] = (),
        tensors: Sequence[Buffer] = (),
    ) -> None:  # fmt: skip
        """Runs a grid, or some of its blocks, on buffers, the first parameters, then numbers, then
        maps of tensors. These name buffers by number; `tensors` are further ones, no parameters.

        `shared`: bytes of shared memory that the launch asks for. PtxFault if a kernel does what is
        undefined, PtxError if it has an instruction that the machine does not know.
        """
        ready = self._ready(name)
        if ready.code.threads and threads > ready.code.threads:
            raise PtxFault(f"kernel {name}: {threads} threads are more than .maxntid allows")
        given = len(buffers) + len(numbers) + len(maps)
        if given != len(ready.code.parameters):
            raise PtxFault(
                f"kernel {name} takes {len(ready.code.parameters)} parameters, found {given}"
            )
        if grid % ready.code.cluster:
            raise PtxFault(f"kernel {name}: {grid} blocks are no clusters of {ready.code.cluster}")
        self._reset_clock([*buffers, *tensors])
        count = len(ready.code.parameters)
        regions = [_region(n, b) for n, b in enumerate(buffers)]
        values: list[int | bytes] = [*(r.base for r in regions), *map(int, numbers)]
        regions += [Region() for _ in range(count - len(regions))]  # of no pointers
        regions += ready.variable_regions(count)
        first = len(regions)
        regions += [_region(first + n, b) for n, b in enumerate(tensors)]
        mapped = [*regions[: len(buffers)], *regions[first:]]
        values += [packed(m, mapped[m.buffer].base, mapped[m.buffer].size) for m in maps]
        self._run(ready, regions, values, grid, threads, shared, order, blocks)

    def _ready(self, name: str) -> _Ready:
        if name not in self._codes:
            self._codes[name] = _Ready(self.module, name)
        return self._codes[name]

    def code_of(self, name: str) -> Code:
        """The code of a kernel."""
        return self._ready(name).code

    def _counts_of(self, ready: _Ready) -> int | None:
        """Where the machine counts what a kernel does: rows of COUNTED for each instruction."""
        if self.counts is None:
            return None
        code = ready.code
        zeros = np.zeros((code.count, len(COUNTED)), np.int64)
        return self.counts.setdefault(code.name, zeros).ctypes.data

    def _reset_clock(self, buffers: Sequence[Buffer]) -> None:
        known = {id(m) for m in self._marked}
        self._marked += [b.memory for b in buffers if id(b.memory) not in known]
        if self._clock[0] > LATEST:
            self._clock[0] = 0
            for memory in self._marked:
                for marks in (memory.writer, memory.reader):
                    if marks is not None:
                        marks[:] = 0

    def _run(
        self, ready: _Ready, regions: list[Region], values: list[int | bytes], grid: int,
        threads: int, shared: int, order: int, blocks: Sequence[int] | None,
    ) -> None:  # fmt: skip
        code = ready.code
        params = _parameters(code, values)
        chosen = np.arange(grid) if blocks is None else np.asarray(blocks)
        chosen = np.unique(chosen // code.cluster).astype(np.int64) * code.cluster
        message = ctypes.create_string_buffer(MESSAGE)
        listed = (Region * max(len(regions), 1))(*regions)
        launch = Launch(
            *(a.ctypes.data for a in ready.arrays), params.ctypes.data,
            ctypes.addressof(listed), chosen.ctypes.data, self._clock.ctypes.data,
            ctypes.addressof(message), self._counts_of(ready), code.count, len(code.file),
            len(code.defined), len(code.specials) // 2, len(params), len(regions), len(chosen),
            MESSAGE,
            max(code.shared, code.dynamic + shared if code.dynamic >= 0 else 0), code.local,
            threads, grid, order, _shift(code.shared_width), _shift(code.global_width),
            self.budget, int(code.has_products), code.cluster,
        )  # fmt: skip
        failed = library().run_launch(ctypes.byref(launch))
        if failed == TOO_LARGE:
            raise PtxError(
                f"kernel {code.name}: the machine runs clusters of 16 blocks and 64 warps at most"
            )
        if failed:
            line, block, thread, what = message.value.decode().split("\n", 3)
            text = code.lines.get(int(line), "")
            raise PtxFault(
                f"kernel {code.name}, block {block}, thread {thread}: {what}\n"
                f"  at line {line} of the PTX: {text[:200]}"
            )


def _parameters(code: Code, values: Sequence[int | bytes]) -> np.ndarray:
    """Values where a kernel has its parameters."""
    whole = bytearray(8 + max((o + parameter_size(t) for t, o in code.parameters), default=0))
    for value, (type, offset) in zip(values, code.parameters):
        size = parameter_size(type)
        if not isinstance(value, bytes):
            value = (value & (1 << 8 * size) - 1).to_bytes(size, "little")
        if len(value) != size:
            raise PtxFault(f"kernel {code.name}: a parameter of {size} bytes is given {len(value)}")
        whole[offset : offset + size] = value
    return np.frombuffer(bytes(whole), np.uint8)


class _Ready:
    """The code of a kernel, in arrays of the machine, and the module's variables."""

    def __init__(self, module: Module, name: str):
        function = without_calls(module, name)
        outer = [v for v in module.variables if v.space == "shared"]
        variables = [v for v in module.variables if v.space != "shared"]
        first = len(function.parameters)
        addresses = {v.name: _base(first + n) for n, v in enumerate(variables)}
        used = {o for line in function.instructions for o in line.text.replace("[", " ").split()}
        shared = [v for v in outer if any(v.name in text for text in used)]
        self.code: Code = Decoder(function, shared, addresses).decode()
        self.variables = [(v, np.frombuffer(_contents(v), np.uint8).copy()) for v in variables]
        code = self.code
        self.arrays: list[np.ndarray] = [
            np.array(code.words, np.int32),
            np.array(code.operands or [0], np.int32),
            np.frombuffer(bytes(code.file) or b"\0", np.uint8),
            np.array(code.defined or [0], np.uint32),
            np.array(code.specials or [0], np.int32),
        ]

    def variable_regions(self, first: int) -> list[Region]:
        return [
            Region(_base(first + n), data.nbytes, 0, data.ctypes.data, None, None, None, 0)
            for n, (_, data) in enumerate(self.variables)
        ]


def _contents(variable: Variable) -> bytes:
    if variable.space == "global" and not variable.contents:
        raise PtxError(f"the PTX machine does not know variables like {variable.name}")
    return variable.contents.ljust(variable.size, b"\0") or b"\0"


def _base(number: int) -> int:
    return (number + 1) << REGION_BITS


def _region(number: int, buffer: Buffer) -> Region:
    memory = buffer.memory
    marks = [memory.writer, memory.reader]
    pointers = [None if a is None else a.ctypes.data for a in marks]
    defined = None if memory.defined is None else memory.defined.ctypes.data + buffer.offset
    return Region(
        _base(number) + buffer.offset % PLACE, buffer.nbytes, buffer.offset,
        memory.data.ctypes.data + buffer.offset, defined, *pointers, int(buffer.writable),
    )  # fmt: skip


def _shift(width: int) -> int:
    return int(math.log2(width))
