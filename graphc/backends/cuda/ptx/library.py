"""The machine, compiled by the system's C compiler: the same for all kernels, and kept."""

from __future__ import annotations

import ctypes
import platform
from functools import lru_cache
from pathlib import Path

from graphc.backends.cfamily.hostcc import shared_library
from graphc.backends.cuda.ptx.code import MACHINE, TOLERANT
from graphc.backends.cuda.ptx.operations import operations_text

PARTS = (
    "state", "memory", "accesses", "exchanges", "phases", "products", "warp_groups", "bulk",
    "traffic", "run",
)  # fmt: skip
FLAGS = ("-std=gnu11", "-O2", "-ffp-contract=off", "-fno-strict-aliasing", "-fwrapv", "-w")
VECTORS = ("avx2", "fma", "f16c")  # what the machine gains from, where the processor has it


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL:
    """The machine; UnsupportedError without a C compiler."""
    folder = Path(__file__).parent / "machine"
    names = ", ".join((*MACHINE, "FIRST_OPERATION", f"FIRST_TOLERANT = {TOLERANT}"))
    names += ", SELECTS = 1, AND_PREDICATES, OR_PREDICATES"
    parts = [(folder / f"{part}.h").read_text() for part in ("numbers", *PARTS)]
    text = "\n".join([parts[0], operations_text(), f"enum {{ {names} }};", *parts[1:]])
    loaded = ctypes.CDLL(str(shared_library({"machine.c": text}, (*FLAGS, *_vectors()))))
    loaded.run_launch.argtypes = [ctypes.POINTER(Launch)]
    return loaded


def _vectors() -> tuple[str, ...]:
    if platform.machine() != "x86_64":
        return ()
    try:
        known = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return ()
    return tuple(f"-m{name}" for name in VECTORS) if known.issuperset(VECTORS) else ()


class Region(ctypes.Structure):
    """As in state.h."""

    _fields_ = [
        ("base", ctypes.c_uint64), ("size", ctypes.c_uint64), ("shadow", ctypes.c_uint64),
        ("host", ctypes.c_void_p), ("defined", ctypes.c_void_p), ("writer", ctypes.c_void_p),
        ("reader", ctypes.c_void_p), ("writable", ctypes.c_int64),
    ]  # fmt: skip


_POINTERS = ("code", "operands", "file", "defined", "specials", "params", "regions", "blocks",
             "clock", "message", "counts")  # fmt: skip
_NUMBERS = ("count", "file_bytes", "registers", "special_count", "param_bytes", "region_count",
            "block_count", "message_bytes", "shared_bytes", "local_bytes", "threads", "grid",
            "order", "shared_shift", "global_shift", "budget", "has_products",
            "cluster")  # fmt: skip


class Launch(ctypes.Structure):
    """As in state.h."""

    _fields_ = [(name, ctypes.c_void_p) for name in _POINTERS] + [
        (name, ctypes.c_int64) for name in _NUMBERS
    ]
