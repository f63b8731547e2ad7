"""The roofline of this machine: what a thread can do at most, each kind of work measured alone.

A library's matrix product is no peak: models may beat it. The loops here do nothing but multiply
and add vectors that stay in registers, in more independent chains than units are deep.
Copies are those of the C library. The least time of some runs counts, in the thread's own processor
time, so that a busy machine does not look slow.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from graphc.backends.llvm_cpu.emit_dots import has_vnni, vnni_intrinsic
from graphc.backends.llvm_cpu.jit import compile_module
from graphc.backends.llvm_cpu.objects import load_object
from graphc.backends.llvm_cpu.spell import vector_of
from graphc.backends.llvm_cpu.target import default_threads, host_target
from graphc.ir.instructions import DOT4
from graphc.ir.machine import Peaks

CHAINS = 12  # independent sums: above latency times units on today's processors
TRIPS = 500_000  # of the loop, in one run
LARGE, SMALL = 32 << 20, 128 << 10  # bytes copied: far above the caches, and well within
SECONDS = 0.05  # of measuring each
MEASURABLE = 1e-3  # seconds that clocks tell apart well
MOST_AT_ONCE = 1000  # runs


def measured_peaks(threads: int = 1) -> Peaks:
    """The peaks of this machine, measured in about a fifth of a second.

    The peak is that of one thread times `threads`, the cache's bandwidth too; that of the memory is
    one thread's.
    """
    cores = min(threads, default_threads())
    memory, cache = copy_bandwidths()
    products = byte_product_peak()
    own = {} if products is None else {DOT4: cores * products}
    flops = cores * multiply_add_peak()
    return Peaks(flops, memory, cores * cache, instructions=own)


def multiply_add_peak() -> float:
    """Float32 operations per second; a multiply-add counts two."""
    lanes = host_target().lanes(4)
    name = f"llvm.fma.v{lanes}f32" if lanes > 1 else "llvm.fma.f32"
    unit = _Unit("float", lanes, name, "{some}, {some}, {sum}", "0.5", "fadd")
    return 2 * lanes * _chains_per_second(unit)


def byte_product_peak() -> float | None:
    """Operations per second where four products of bytes are one instruction (dot4); None where
    they are several. A product that is added counts two."""
    host = host_target()
    lanes = host.lanes(4)
    if not has_vnni(host.features, lanes):
        return None
    unit = _Unit("i32", lanes, vnni_intrinsic(lanes), "{sum}, {some}, {some}", "1", "add")
    return 8 * lanes * _chains_per_second(unit)


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
    return min((seconds for seconds in taken if seconds > 0), default=mean)


@dataclass(frozen=True)
class _Unit:
    """An instruction that adds to sums, its intrinsic and operands; `some` is an operand."""

    element: str
    lanes: int
    intrinsic: str
    operands: str
    some: str
    add: str

    @property
    def vector(self) -> str:
        return vector_of(self.element, self.lanes)

    @property
    def filled(self) -> str:
        items = ", ".join([f"{self.element} {self.some}"] * self.lanes)
        return f"<{items}>" if self.lanes > 1 else self.some


def _chains_per_second(unit: _Unit) -> float:
    """Instructions per second."""
    library = load_object(compile_module(_kernel(unit)), ["peak"])
    run = library.function("peak", None, ctypes.c_int64, ctypes.c_void_p)
    result = np.empty(unit.lanes, np.int32)
    return CHAINS * TRIPS / _least_seconds(lambda: run(TRIPS, result.ctypes.data))


def _kernel(unit: _Unit) -> str:
    vector, some = unit.vector, f"{unit.vector} {unit.filled}"
    chains = range(CHAINS)
    operands = [unit.operands.format(some=some, sum=f"{vector} %s{n}") for n in chains]
    sums = [f"  %u0 = {unit.add} {vector} %t0, %t0"]
    sums += [f"  %u{n} = {unit.add} {vector} %u{n - 1}, %t{n}" for n in chains if n]
    return "\n".join([
        f"declare {vector} @{unit.intrinsic}({vector}, {vector}, {vector})",
        "define void @peak(i64 %trips, ptr %result) {", "entry:", "  br label %loop", "loop:",
        "  %i = phi i64 [ 0, %entry ], [ %next, %loop ]",
        *(f"  %s{n} = phi {vector} [ {unit.filled}, %entry ], [ %t{n}, %loop ]" for n in chains),
        *(f"  %t{n} = call {vector} @{unit.intrinsic}({operands[n]})" for n in chains),
        "  %next = add i64 %i, 1", "  %more = icmp slt i64 %next, %trips",
        "  br i1 %more, label %loop, label %done", "done:", *sums,
        f"  store {vector} %u{CHAINS - 1}, ptr %result, align 4", "  ret void", "}",
    ])  # fmt: skip
