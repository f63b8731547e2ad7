"""A GPU through NVIDIA's own bindings, the package cuda-python."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

from .driver import Driver, DriverError, DriverMissing, check_ordinal

INSTALL = "install it with: pip install cuda-python"


def open_cuda_python(ordinal: int) -> Driver:
    """A device; DriverMissing says what is not there."""
    try:
        bindings = _bindings()
        _checked(bindings, "cuInit", 0)
        check_ordinal(ordinal, _checked(bindings, "cuDeviceGetCount"))
        return _driver(bindings, ordinal)
    except ImportError as error:
        raise DriverMissing(f"cannot be imported ({error}); {INSTALL}") from error
    except RuntimeError as error:  # DriverError, or what the bindings raise without a library
        raise DriverMissing(str(error)) from error


def _bindings() -> Any:
    try:
        from cuda.bindings import driver
    except ImportError:
        from cuda import cuda as driver  # its place before version 12.6
    return driver


@cache
def _driver(bindings: Any, ordinal: int) -> CudaPythonDriver:
    return CudaPythonDriver(bindings, ordinal)


def _checked(bindings: Any, name: str, *args: Any) -> Any:
    """Calls a function of the driver; its results without the status."""
    status, *results = getattr(bindings, name)(*args)
    if status != bindings.CUresult.CUDA_SUCCESS:
        text = bindings.cuGetErrorString(status)[1]
        said = text.decode() if isinstance(text, bytes) else str(text)
        raise DriverError(f"{name}: {said} ({getattr(status, 'name', status)})")
    return results[0] if len(results) == 1 else tuple(results)


class CudaPythonDriver(Driver):
    """Every method is one or two calls of the driver."""

    name = "cuda-python"

    def __init__(self, bindings: Any, ordinal: int):
        self.bindings, self.ordinal = bindings, ordinal
        device = self.call("cuDeviceGet", ordinal)
        attribute = bindings.CUdevice_attribute
        major, minor = (
            self.call("cuDeviceGetAttribute", which, device)
            for which in (
                attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            )
        )
        self.arch = f"sm_{major}{minor}"
        self.device = self.call("cuDeviceGetName", 256, device).split(b"\0")[0].decode()
        self.context = self._context_at_hand(device)

    def _context_at_hand(self, device: Any) -> Any:
        context = self.call("cuCtxGetCurrent")
        if int(context) and int(self.call("cuCtxGetDevice")) == int(device):
            return context
        return self.call("cuDevicePrimaryCtxRetain", device)

    def call(self, name: str, *args: Any) -> Any:
        return _checked(self.bindings, name, *args)

    @contextmanager
    def current(self) -> Iterator[None]:
        self.call("cuCtxPushCurrent", self.context)
        try:
            yield
        finally:
            self.call("cuCtxPopCurrent")

    # ------------------------------------------------------------ memory

    def allocate(self, nbytes: int) -> int:
        return int(self.call("cuMemAlloc", max(nbytes, 1)))

    def free(self, pointer: int) -> None:
        self.call("cuMemFree", pointer)

    def pinned(self, nbytes: int) -> np.ndarray:
        address = int(self.call("cuMemHostAlloc", max(nbytes, 1), 0))
        block = (ctypes.c_uint8 * max(nbytes, 1)).from_address(address)
        return np.ctypeslib.as_array(block)[:nbytes]

    def free_pinned(self, block: np.ndarray) -> None:
        self.call("cuMemFreeHost", block.ctypes.data)

    def upload(self, target: int, source: np.ndarray, stream: Any) -> None:
        self.call("cuMemcpyHtoDAsync", target, source.ctypes.data, source.nbytes, stream)

    def download(self, target: np.ndarray, source: int, stream: Any) -> None:
        self.call("cuMemcpyDtoHAsync", target.ctypes.data, source, target.nbytes, stream)

    def read(self, target: np.ndarray, source: int) -> None:
        self.call("cuMemcpyDtoH", target.ctypes.data, source, target.nbytes)

    def copy(self, target: int, source: int, nbytes: int, stream: Any) -> None:
        self.call("cuMemcpyDtoDAsync", target, source, nbytes, stream)

    # ------------------------------------------------------------ code

    def load(self, image: bytes) -> object:
        return self.call("cuModuleLoadData", image + b"\0")

    def unload(self, module: Any) -> None:
        self.call("cuModuleUnload", module)

    def function(self, module: Any, name: str, shared: int) -> object:
        function = self.call("cuModuleGetFunction", module, name.encode())
        if shared:
            which = self.bindings.CUfunction_attribute
            limit = which.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self.call("cuFuncSetAttribute", function, limit, shared)
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
        values = (ctypes.c_void_p * max(len(pointers), 1))(*pointers)
        start, size = ctypes.addressof(values), ctypes.sizeof(ctypes.c_void_p)
        held = [ctypes.create_string_buffer(map, len(map)) for map in maps]
        addresses = [start + n * size for n in range(len(pointers))]
        addresses += [ctypes.addressof(map) for map in held]
        places = (ctypes.c_void_p * max(len(addresses), 1))(*addresses)
        parameters = ctypes.addressof(places)
        self.call("cuLaunchKernel", function, *grid, *block, shared, stream, parameters, 0)

    # ------------------------------------------------------------ streams, events, graphs

    def stream(self, apart: bool = False) -> object:
        flags = self.bindings.CUstream_flags
        chosen = flags.CU_STREAM_NON_BLOCKING if apart else flags.CU_STREAM_DEFAULT
        return self.call("cuStreamCreate", int(chosen))

    def free_stream(self, stream: Any) -> None:
        self.call("cuStreamDestroy", stream)

    def synchronize(self, stream: Any) -> None:
        self.call("cuStreamSynchronize", stream)

    def number(self, stream: Any) -> int:
        return int(stream)

    def settle(self, handle: int) -> None:
        self.call("cuStreamSynchronize", self.bindings.CUstream(handle))

    def event(self, timed: bool = False) -> object:
        flags = self.bindings.CUevent_flags
        chosen = flags.CU_EVENT_DEFAULT if timed else flags.CU_EVENT_DISABLE_TIMING
        return self.call("cuEventCreate", int(chosen))

    def free_event(self, event: Any) -> None:
        self.call("cuEventDestroy", event)

    def record(self, event: Any, stream: Any) -> None:
        self.call("cuEventRecord", event, stream)

    def wait(self, event: Any, stream: Any) -> None:
        self.call("cuStreamWaitEvent", stream, event, 0)

    def elapsed(self, start: Any, end: Any) -> float:
        return float(self.call("cuEventElapsedTime", start, end))

    def begin_capture(self, stream: Any) -> None:
        mode = self.bindings.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        self.call("cuStreamBeginCapture", stream, mode)

    def end_capture(self, stream: Any) -> object:
        graph = self.call("cuStreamEndCapture", stream)
        try:
            return self.call("cuGraphInstantiate", graph, 0)
        finally:
            self.call("cuGraphDestroy", graph)

    def replay(self, graph: Any, stream: Any) -> None:
        self.call("cuGraphLaunch", graph, stream)

    def free_graph(self, graph: Any) -> None:
        self.call("cuGraphExecDestroy", graph)
