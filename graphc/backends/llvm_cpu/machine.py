"""This machine's CPU as passes and strategies see it."""

from __future__ import annotations

from graphc.backends.llvm_cpu.target import host_target
from graphc.ir.instructions import DOT4, DOT4_CODES, TRANSPOSE
from graphc.ir.machine import Machine, Peaks
from graphc.records import dataclass

HALVES = "converts_halves"  # vectors of f16 become float32 in an instruction or two, as bf16 do


@dataclass(frozen=True, kw_only=True)
class CpuMachine(Machine):
    """The CPU that graphc runs on, whose peaks are measured when they are asked for."""

    def peaks(self, threads: int = 1) -> Peaks:
        from graphc.backends.llvm_cpu.roofline import measured_peaks  # loads LLVM

        return measured_peaks(threads)


def host_machine() -> CpuMachine:
    """What passes ask of this machine's CPU."""
    host = host_target()
    halves = {HALVES} if "f16c" in host.features or host.arch == "aarch64" else set()
    return CpuMachine(
        vector_bytes=host.vector_bits // 8,
        registers=host.vector_registers,
        caches=(0, host.l2_bytes),
        instructions=host.features
        | {DOT4, DOT4_CODES, TRANSPOSE, "fast_floats", "unaligned_vectors", *halves},
    )
