"""The processor's own counters of events, through Linux's perf_event_open, where that is allowed.

They count what the calling thread does outside the kernel; threads of a pool are not counted.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Callable
from pathlib import Path

NUMBERS = {"x86_64": 298, "aarch64": 241}  # of the system call
EVENTS = {  # of PERF_TYPE_HARDWARE (linux/perf_event.h)
    "cycles": 0,
    "instructions": 1,
    "cache_misses": 3,
    "branches": 4,
    "branch_misses": 5,
}
ATTRIBUTES = 112  # bytes of perf_event_attr, version 5
NO_KERNEL = 1 << 5 | 1 << 6  # exclude_kernel, exclude_hv
PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")


def counted(action: Callable[[], object], times: int) -> dict[str, float] | str:
    """Events of an action, the mean of so many; or why there are none."""
    opened: dict[str, int] = {}
    try:
        for name, number in EVENTS.items():
            file = _opened(number)
            if isinstance(file, str):
                return file
            opened[name] = file
        before = {name: _read(file) for name, file in opened.items()}
        for _ in range(times):
            action()
        return {name: (_read(file) - before[name]) / times for name, file in opened.items()}
    finally:
        for file in opened.values():
            os.close(file)


def _opened(event: int) -> int | str:
    """A file that tells how often an event has happened; or why there is none."""
    number = NUMBERS.get(platform.machine())
    if platform.system() != "Linux" or number is None:
        return f"no perf_event_open on {platform.system()} {platform.machine()}"
    attributes = struct.pack("IIQQQQQ", 0, ATTRIBUTES, event, 0, 0, 0, NO_KERNEL)
    buffer = ctypes.create_string_buffer(attributes.ljust(ATTRIBUTES, b"\0"), ATTRIBUTES)
    call = ctypes.CDLL(None, use_errno=True).syscall
    file = call(number, buffer, 0, -1, -1, 8)  # this thread, any processor, closed by exec
    return file if file >= 0 else _why(ctypes.get_errno())


def _why(error: int) -> str:
    if error in (errno.EACCES, errno.EPERM):
        try:
            level = PARANOID.read_text().strip()
        except OSError:
            level = "unknown"
        return (
            f"the system does not allow them ({os.strerror(error)}; kernel.perf_event_paranoid is "
            f"{level}, and at most 2 is needed; containers may forbid the call itself)"
        )
    if error in (errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP):
        return "this processor, or the virtual machine it is in, has none"
    return os.strerror(error)


def _read(file: int) -> int:
    return int.from_bytes(os.read(file, 8), "little")
