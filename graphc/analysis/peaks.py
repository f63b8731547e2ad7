"""What one thread can do at most: multiply-adds from registers, and copies, each measured alone.

A library's matrix product is no peak: models may beat it. The loop here does nothing but multiply
and add vectors of float32 that stay in registers, in more independent chains than units are deep.
Copies are those of the C library. The least time of some runs counts, in the thread's own processor
time, so that a busy machine does not look slow.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable

import numpy as np

from graphc.backends.llvm_cpu.jit import compile_module, load_object
from graphc.backends.llvm_cpu.target import host_target

CHAINS = 12  # independent sums: above latency times units on today's processors
TRIPS = 500_000  # of the loop, in one run
LARGE, SMALL = 32 << 20, 128 << 10  # bytes copied: far above the caches, and well within
SECONDS = 0.05  # of measuring each
MEASURABLE = 1e-3  # seconds that clocks tell apart well
MOST_AT_ONCE = 1000  # runs


def multiply_add_peak() -> float:
    """Float32 operations per second; a multiply-add counts two."""
    lanes = host_target().lanes(4)
    library = load_object(compile_module(_kernel(lanes)), ["peak"])
    run = library.function("peak", ctypes.c_float, ctypes.c_int64)
    return 2 * lanes * CHAINS * TRIPS / _least_seconds(lambda: run(TRIPS))


def copy_bandwidths() -> tuple[float, float]:
    """Bytes read and written per second, in memory and in the cache."""
    large, copy = np.ones(LARGE, np.uint8), np.empty(LARGE, np.uint8)
    small, small_copy = large[:SMALL], copy[:SMALL]
    return (
        2 * LARGE / _least_seconds(lambda: np.copyto(copy, large)),
        2 * SMALL / _least_seconds(lambda: np.copyto(small_copy, small)),
    )


def _least_seconds(action: Callable[[], object]) -> float:
    """The least processor time of a run, of those that fit into some time, several at once where
    one is too short for clocks. Where the system's accounts of processor time stand still, as those
    of virtual machines may, the mean time on the wall."""
    action()
    start = time.perf_counter()
    action()
    times = max(1, int(MEASURABLE / max(time.perf_counter() - start, MEASURABLE / MOST_AT_ONCE)))
    taken: list[float] = []
    begin = time.perf_counter()
    while len(taken) < 3 or time.perf_counter() - begin < SECONDS:
        start = time.thread_time()
        for _ in range(times):
            action()
        taken.append((time.thread_time() - start) / times)
    mean = (time.perf_counter() - begin) / (len(taken) * times)
    return min((each for each in taken if each > 0), default=mean)


def _kernel(lanes: int) -> str:
    vector = f"<{lanes} x float>" if lanes > 1 else "float"
    fma = f"llvm.fma.v{lanes}f32" if lanes > 1 else "llvm.fma.f32"
    some = f"<{', '.join(['float 0.5'] * lanes)}>" if lanes > 1 else "0.5"
    chains = range(CHAINS)
    starts = [f"  %s{n} = phi {vector} [ {some}, %entry ], [ %t{n}, %loop ]" for n in chains]
    steps = [
        f"  %t{n} = call {vector} @{fma}({vector} %s{n}, {vector} {some}, {vector} {some})"
        for n in chains
    ]
    sums = [f"  %u0 = fadd {vector} %t0, {some}"]
    sums += [f"  %u{n} = fadd {vector} %u{n - 1}, %t{n}" for n in chains if n]
    last = f"%u{CHAINS - 1}"
    if lanes > 1:
        sums.append(f"  %result = extractelement {vector} {last}, i64 0")
        last = "%result"
    return "\n".join([
        f"declare {vector} @{fma}({vector}, {vector}, {vector})",
        "define float @peak(i64 %trips) {", "entry:", "  br label %loop", "loop:",
        "  %i = phi i64 [ 0, %entry ], [ %next, %loop ]", *starts, *steps,
        "  %next = add i64 %i, 1", "  %more = icmp slt i64 %next, %trips",
        "  br i1 %more, label %loop, label %done", "done:", *sums, f"  ret float {last}", "}",
    ])  # fmt: skip
