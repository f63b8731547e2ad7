"""CPUs as passes and strategies see them."""

from __future__ import annotations

from graphc.backends.llvm_cpu.target import CpuTarget, host_target
from graphc.ir.instructions import DOT2_WIDE, DOT4, DOT4_CODES, TRANSPOSE
from graphc.ir.machine import Machine, Peaks
from graphc.records import dataclass


@dataclass(frozen=True, kw_only=True)
class CpuMachine(Machine):
    """The CPU that graphc runs on, whose peaks are measured when they are asked for."""

    def peaks(self, threads: int = 1) -> Peaks:
        from graphc.backends.llvm_cpu.roofline import measured_peaks  # loads LLVM

        return measured_peaks(threads)


def host_machine() -> CpuMachine:
    """What passes ask of this machine's CPU."""
    return CpuMachine(**vars(machine_of(host_target())))


def machine_of(target: CpuTarget) -> Machine:
    """What passes ask of a CPU."""
    return Machine(
        vector_bytes=target.vector_bits // 8,
        registers=target.vector_registers,
        caches=(0, target.l2_bytes),
        instructions=target.instructions
        | {DOT2_WIDE, DOT4, DOT4_CODES, TRANSPOSE, "fast_floats", "unaligned_vectors"},
    )
