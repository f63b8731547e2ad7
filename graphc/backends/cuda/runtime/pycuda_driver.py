"""A GPU through PyCUDA.

PyCUDA has no graphs of launches: those functions are called in the driver's library itself.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

from .driver import MAP_ALIGNMENT, Driver, DriverError, DriverMissing, check_ordinal, library

INSTALL = (
    "install it with: pip install pycuda (it is built from source: CUDA's toolkit and a C++ "
    "compiler are needed; CUDA_ROOT names the toolkit)"
)
NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED


def open_pycuda(ordinal: int) -> Driver:
    """A device; DriverMissing says what is not there."""
    try:
        import pycuda.driver as bindings
    except ImportError as error:
        raise DriverMissing(f"cannot be imported ({error}); {INSTALL}") from error
    try:
        bindings.init()
        check_ordinal(ordinal, bindings.Device.count())
        return _driver(bindings, ordinal)
    except bindings.Error as error:
        raise DriverMissing(str(error)) from error


@cache
def _driver(bindings: Any, ordinal: int) -> PyCudaDriver:
    return PyCudaDriver(bindings, ordinal)


class PyCudaDriver(Driver):
    """Objects of PyCUDA give back what they stand for when they are dropped; memory is kept by its
    pointer until it is freed."""

    name = "pycuda"

    def __init__(self, bindings: Any, ordinal: int):
        self.bindings, self.ordinal = bindings, ordinal
        device = bindings.Device(ordinal)
        self.device = device.name()
        self.arch = "sm_{}{}".format(*device.compute_capability())
        at_hand = bindings.Context.get_current()
        same = at_hand is not None and bindings.Context.get_device() == device
        self.context = at_hand if same else device.retain_primary_context()
        self.memory: dict[int, Any] = {}
        self.blocks: dict[int, Any] = {}

    @contextmanager
    def current(self) -> Iterator[None]:
        self.context.push()
        try:
            yield
        finally:
            self.bindings.Context.pop()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Errors of PyCUDA as DriverError, where they arise."""
        try:
            yield
        except self.bindings.Error as error:
            raise DriverError(str(error)) from error

    # ------------------------------------------------------------ memory

    def allocate(self, nbytes: int) -> int:
        with self._errors():
            allocation = self.bindings.mem_alloc(max(nbytes, 1))
        self.memory[int(allocation)] = allocation
        return int(allocation)

    def free(self, pointer: int) -> None:
        with self._errors():
            self.memory.pop(pointer).free()

    def pinned(self, nbytes: int) -> np.ndarray:
        with self._errors():
            block = self.bindings.pagelocked_empty(max(nbytes, 1), np.uint8)
        self.blocks[block.ctypes.data] = block
        return block[:nbytes]

    def free_pinned(self, block: np.ndarray) -> None:
        with self._errors():
            self.blocks.pop(block.ctypes.data).base.free()

    def upload(self, target: int, source: np.ndarray, stream: Any) -> None:
        with self._errors():
            self.bindings.memcpy_htod_async(target, source, stream)

    def download(self, target: np.ndarray, source: int, stream: Any) -> None:
        with self._errors():
            self.bindings.memcpy_dtoh_async(target, source, stream)

    def read(self, target: np.ndarray, source: int) -> None:
        with self._errors():
            self.bindings.memcpy_dtoh(target, source)

    def copy(self, target: int, source: int, nbytes: int, stream: Any) -> None:
        with self._errors():
            self.bindings.memcpy_dtod_async(target, source, nbytes, stream)

    # ------------------------------------------------------------ code

    def load(self, image: bytes) -> object:
        with self._errors():
            return self.bindings.module_from_buffer(image + b"\0")

    def unload(self, module: Any) -> None:
        """PyCUDA does it when the module and its functions are dropped."""

    def function(self, module: Any, name: str, shared: int) -> object:
        with self._errors():
            function = module.get_function(name)
            if shared:
                limit = self.bindings.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES
                function.set_attribute(limit, shared)
        return function

    def launch(
        self,
        function: Any,
        grid: Sequence[int],
        block: Sequence[int],
        shared: int,
        stream: Any,
        pointers: Sequence[int],
        maps: Sequence[Any] = (),
    ) -> None:
        parameters: list[Any] = [*map(np.uintp, pointers)]
        if maps:  # each at a multiple of its alignment in what PyCUDA packs
            padding = -len(pointers) * ctypes.sizeof(ctypes.c_void_p) % MAP_ALIGNMENT
            whole = bytes(padding) + b"".join(maps)
            parameters.append(np.frombuffer(whole, np.uint8))
        with self._errors():
            function(
                *parameters, grid=tuple(grid), block=tuple(block), stream=stream, shared=shared
            )

    # ------------------------------------------------------------ streams, events, graphs

    def stream(self, apart: bool = False) -> object:
        with self._errors():
            return self.bindings.Stream(NON_BLOCKING if apart else 0)

    def free_stream(self, stream: Any) -> None:
        """PyCUDA does it when the stream is dropped."""

    def synchronize(self, stream: Any) -> None:
        with self._errors():
            stream.synchronize()

    def number(self, stream: Any) -> int:
        return int(stream.handle)

    def settle(self, handle: int) -> None:
        _call("cuStreamSynchronize", ctypes.c_void_p(handle))

    def event(self, timed: bool = False) -> object:
        flags = self.bindings.event_flags
        with self._errors():
            return self.bindings.Event(flags.DEFAULT if timed else flags.DISABLE_TIMING)

    def free_event(self, event: Any) -> None:
        """PyCUDA does it when the event is dropped."""

    def record(self, event: Any, stream: Any) -> None:
        with self._errors():
            event.record(stream)

    def wait(self, event: Any, stream: Any) -> None:
        with self._errors():
            stream.wait_for_event(event)

    def elapsed(self, start: Any, end: Any) -> float:
        with self._errors():
            return float(start.time_till(end))

    def begin_capture(self, stream: Any) -> None:
        _call("cuStreamBeginCapture_v2", ctypes.c_void_p(stream.handle), RELAXED)

    def end_capture(self, stream: Any) -> object:
        graph, ready = ctypes.c_void_p(), ctypes.c_void_p()
        _call("cuStreamEndCapture", ctypes.c_void_p(stream.handle), ctypes.byref(graph))
        try:
            flags = ctypes.c_ulonglong(0)
            _call("cuGraphInstantiateWithFlags", ctypes.byref(ready), graph, flags)
        finally:
            _call("cuGraphDestroy", graph)
        return ready

    def replay(self, graph: Any, stream: Any) -> None:
        _call("cuGraphLaunch", graph, ctypes.c_void_p(stream.handle))

    def free_graph(self, graph: Any) -> None:
        _call("cuGraphExecDestroy", graph)


def _call(name: str, *args: Any) -> None:
    """A function of the driver's library."""
    try:
        function: Callable[..., int] = getattr(library(), name)
    except AttributeError:
        raise DriverError(f"{name}: the driver is too old; CUDA 11.4 is needed") from None
    status = function(*args)
    if status:
        text = ctypes.c_char_p()
        library().cuGetErrorString(status, ctypes.byref(text))
        raise DriverError(f"{name}: {(text.value or b'').decode()} (error {status})")
