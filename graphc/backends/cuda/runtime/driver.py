"""What a model asks of a GPU: memory, code, streams, events and graphs of launches.

`Driver` is one device through one set of Python bindings. Pointers are integers; streams, events,
modules, functions and graphs are whatever the bindings use. All methods but `current` must be
called within `with driver.current():`, which makes the device's context that of this thread: the
context that was current when the driver was opened, if it is of the same device, otherwise the
device's primary context, which PyTorch, JAX and CuPy use too.

Streams that work is done on are such that CUDA orders them after and before work on the legacy
default stream. So arrays may come from, and go to, libraries that use that stream, without waiting.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any

import numpy as np

LIBRARIES = ("libcuda.so.1", "libcuda.so", "nvcuda.dll")


class DriverError(RuntimeError):
    """The GPU or its driver refused or failed; says which call, and which kernel."""


class DriverMissing(RuntimeError):
    """There is no GPU that can be used: what is missing, and how to install it."""


class Driver:
    """One device. `arch` is like sm_90; `name` is that of the bindings, `device` of the GPU."""

    name = ""
    device = ""
    arch = ""
    ordinal = 0

    def current(self) -> AbstractContextManager[object]:
        """Within it, the device's context is current on this thread."""
        raise NotImplementedError

    def allocate(self, nbytes: int) -> int:
        """Device memory, aligned to 256 bytes; at least one byte."""
        raise NotImplementedError

    def free(self, pointer: int) -> None:
        """Gives back what `allocate` gave."""
        raise NotImplementedError

    def pinned(self, nbytes: int) -> np.ndarray:
        """Page-locked bytes of the host, from and to which copies are asynchronous."""
        raise NotImplementedError

    def free_pinned(self, block: np.ndarray) -> None:
        """Gives back what `pinned` gave."""
        raise NotImplementedError

    def load(self, image: bytes) -> object:
        """A module from a cubin or PTX."""
        raise NotImplementedError

    def unload(self, module: object) -> None:
        """Gives back a module; its functions must not be launched any more."""
        raise NotImplementedError

    def function(self, module: object, name: str, shared: int) -> object:
        """A kernel of a module, to be launched with so many bytes of dynamic shared memory."""
        raise NotImplementedError

    def launch(
        self,
        function: object,
        grid: Sequence[int],
        block: Sequence[int],
        shared: int,
        stream: object,
        pointers: Sequence[int],
        maps: Sequence[Any] = (),
    ) -> None:
        """Launches a kernel whose parameters are all pointers, then maps of tensors; returns before
        it ends."""
        raise NotImplementedError

    def tensor_map(self, entry: Mapping[str, Any], address: int) -> Any:
        """The map of a tensor at an address, as a plan describes it."""
        return encoded(entry, address)

    def upload(self, target: int, source: np.ndarray, stream: object) -> None:
        """Copies contiguous bytes of the host to the device, in the order of the stream."""
        raise NotImplementedError

    def download(self, target: np.ndarray, source: int, stream: object) -> None:
        """Copies from the device to contiguous bytes of the host, in the order of the stream."""
        raise NotImplementedError

    def read(self, target: np.ndarray, source: int) -> None:
        """As `download`, at once: for memory whose contents are there."""
        raise NotImplementedError

    def copy(self, target: int, source: int, nbytes: int, stream: object) -> None:
        """Copies within the device, in the order of the stream."""
        raise NotImplementedError

    def stream(self, apart: bool = False) -> object:
        """A stream in order with the legacy default stream; `apart`: in no order with it, so that
        any thread may use that one while this captures."""
        raise NotImplementedError

    def free_stream(self, stream: object) -> None:
        """Gives back a stream, when all that it was given is done."""
        raise NotImplementedError

    def synchronize(self, stream: object) -> None:
        """Waits until all that a stream was given is done."""
        raise NotImplementedError

    def number(self, stream: object) -> int:
        """A stream as other libraries know it."""
        raise NotImplementedError

    def settle(self, handle: int) -> None:
        """Waits for a stream of another library, by its number."""
        raise NotImplementedError

    def event(self, timed: bool = False) -> object:
        """A mark in a stream, with a time if asked for."""
        raise NotImplementedError

    def free_event(self, event: object) -> None:
        """Gives back a mark."""
        raise NotImplementedError

    def record(self, event: object, stream: object) -> None:
        """Puts a mark behind what a stream was given."""
        raise NotImplementedError

    def wait(self, event: object, stream: object) -> None:
        """What the stream is given from now on starts after the mark."""
        raise NotImplementedError

    def elapsed(self, start: object, end: object) -> float:
        """Milliseconds between two marks that have been passed."""
        raise NotImplementedError

    def begin_capture(self, stream: object) -> None:
        """What a stream apart is given from now on is recorded, not done. Meanwhile this thread and
        others may call anything else."""
        raise NotImplementedError

    def end_capture(self, stream: object) -> object:
        """What was recorded, as a graph ready to be replayed."""
        raise NotImplementedError

    def replay(self, graph: object, stream: object) -> None:
        """Does what a graph holds, in the order of the stream."""
        raise NotImplementedError

    def free_graph(self, graph: object) -> None:
        """Gives back a graph."""
        raise NotImplementedError


# ---------------------------------------------------------------- what is here


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL:
    """The driver's own library; DriverMissing where there is none."""
    for name in LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise DriverMissing(
        "no GPU can be used: NVIDIA's driver is not here (there is no libcuda.so.1); install it, "
        "or run this where there is a GPU"
    )


MAP_BYTES, MAP_ALIGNMENT = 128, 64
DATA_TYPES = {1: 0, 2: 1, 4: 2}  # CU_TENSOR_MAP_DATA_TYPE_UINT8, UINT16, UINT32: bits, no numbers
NO_INTERLEAVE, SWIZZLE_128B, L2_PROMOTION_256B, ZEROS = 0, 3, 3, 0


def encoded(entry: Mapping[str, Any], address: int) -> bytes:
    """The map of a tensor at an address, of which kernels copy boxes (TMA), as the driver makes it:
    lines of a box are 128 bytes, swizzled, and elements outside are zero. DriverError if the driver
    refuses."""
    rank = len(entry["dims"])
    room = ctypes.create_string_buffer(MAP_BYTES + MAP_ALIGNMENT)
    start = -ctypes.addressof(room) % MAP_ALIGNMENT
    status = library().cuTensorMapEncodeTiled(
        ctypes.byref(room, start), DATA_TYPES[entry["element"]], rank, ctypes.c_void_p(address),
        (ctypes.c_uint64 * rank)(*entry["dims"]), (ctypes.c_uint64 * rank)(*entry["strides"]),
        (ctypes.c_uint32 * rank)(*entry["box"]), (ctypes.c_uint32 * rank)(*[1] * rank),
        NO_INTERLEAVE, SWIZZLE_128B, L2_PROMOTION_256B, ZEROS,
    )  # fmt: skip
    if status:
        raise DriverError(
            f"cuTensorMapEncodeTiled: error {status} for a tensor at {address:#x}: {dict(entry)}"
        )
    return room.raw[start : start + MAP_BYTES]


def check_ordinal(ordinal: int, count: int) -> None:
    """DriverMissing if there is no such device."""
    if not 0 <= ordinal < count:
        devices = f"there are {count}, numbered from 0" if count else "the driver finds none"
        raise DriverMissing(f"there is no GPU {ordinal}: {devices}")
