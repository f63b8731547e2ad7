"""What the machine can do at most: multiply-adds from registers, and copies, each measured alone.

A library's matrix product is no peak: models may beat it. The kernel here does nothing but multiply
and add vectors of float32 that stay in registers, in more independent chains than units are deep.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import replace

from graphc.analysis.roofline import Machine, measure_machine
from graphc.backends.llvm_cpu.jit import compile_module, load_object
from graphc.backends.llvm_cpu.target import host_target

CHAINS = 12  # independent sums: above latency times units on today's processors
TRIPS = 2_000_000
REPEATS = 7


def machine(threads: int) -> Machine:
    """The machine's peaks for a number of threads."""
    measured = measure_machine(threads)
    return replace(measured, flops=max(measured.flops, threads * multiply_add_peak()))


def multiply_add_peak() -> float:
    """Operations per second of one thread; a multiply-add counts two."""
    lanes = host_target().lanes(4)
    library = load_object(compile_module(_kernel(lanes)), ["peak"])
    run = library.function("peak", ctypes.c_float, ctypes.c_int64)
    return 2 * lanes * CHAINS * TRIPS / min(_seconds(lambda: run(TRIPS)) for _ in range(REPEATS))


def _seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


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


if __name__ == "__main__":
    found = machine(1)
    print(f"{found.flops / 1e9:.0f} GFLOP/s, {found.bandwidth / 1e9:.1f} GB/s on one thread")
