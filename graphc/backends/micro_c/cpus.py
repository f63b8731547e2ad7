"""The processors that kernels can be made for: their instructions and registers, and their names
for gcc.

Bundles of every processor compile and give the same results everywhere: instructions that a
compiler does not offer are spelled out (intrinsics.py). A processor decides the order of loops and
weights and the sizes of tiles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from graphc.errors import ModelError, near_or_all
from graphc.ir.machine import Machine

PAIRS = "smlad"  # four products of bytes are two instructions of pairs
FLOATS = "vfma"  # single floats are multiplied and added in registers of their own
HELIUM_BYTES = 16  # of a vector
FEW = 12  # registers, below which tiles and loops are small


@dataclass(frozen=True)
class Cpu(Machine):
    """A processor: its name, gcc's options for it, and the bytes of code that an operator of C
    comes to. Its `registers` are the general ones."""

    name: str
    flags: tuple[str, ...] = ()
    operator_bytes: float = 2.2

    @property
    def few_registers(self) -> bool:
        """Whether most instructions reach eight."""
        return self.registers < FEW

    @property
    def vectors(self) -> bool:
        """Whether it has those of Helium."""
        return self.vector_bytes > 0


DEFAULT = "generic"  # suits Cortex-M4 and M7, and runs everywhere
HARD = ("-mthumb", "-mfloat-abi=hard")
MVE = ("-march=armv8.1-m.main+mve.fp+fp.dp", *HARD)  # older compilers know no -mcpu of these
ARM: dict[str, Any] = {"registers": 13, "instructions": frozenset({PAIRS, FLOATS})}
CPUS = {
    cpu.name: cpu
    for cpu in (
        Cpu(DEFAULT, **ARM),
        Cpu("cortex-m0plus", ("-mcpu=cortex-m0plus", "-mthumb"), 3.0, registers=8),
        Cpu("cortex-m4", ("-mcpu=cortex-m4", *HARD, "-mfpu=fpv4-sp-d16"), **ARM),
        Cpu("cortex-m7", ("-mcpu=cortex-m7", *HARD, "-mfpu=fpv5-d16"), **ARM),
        Cpu("cortex-m33", ("-mcpu=cortex-m33", *HARD, "-mfpu=fpv5-sp-d16"), **ARM),
        Cpu("cortex-m55", ("-mcpu=cortex-m55", *HARD), 3.0, vector_bytes=HELIUM_BYTES, **ARM),
        Cpu("cortex-m52", MVE, 3.0, vector_bytes=HELIUM_BYTES, **ARM),
        Cpu("cortex-m85", MVE, 3.0, vector_bytes=HELIUM_BYTES, **ARM),
        Cpu("rv32", ("-march=rv32imc", "-mabi=ilp32"), 3.8, registers=26),
    )
}


def cpu_of(name: str) -> Cpu:
    """The processor of that name; ModelError if there is none."""
    if name not in CPUS:
        raise ModelError(f"there is no processor {name!r}{near_or_all(name, CPUS)}")
    return CPUS[name]
