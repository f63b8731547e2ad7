"""The processors that kernels can be made for: what they offer, and how to name them to gcc.

Bundles of every processor compile and give the same results everywhere: instructions that a
compiler does not offer are spelled out (intrinsics.py). A processor decides the order of loops and
weights and the sizes of tiles.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphc.errors import ModelError


@dataclass(frozen=True)
class Cpu:
    """A processor: its name, gcc's options for it, whether four products of bytes are two
    instructions of pairs (`pairs`), the general registers that tiles can use, whether there are
    vectors of 128 bits (Helium), and the bytes of code that an operator of C comes to."""

    name: str
    flags: tuple[str, ...] = ()
    pairs: bool = True
    registers: int = 13
    vectors: bool = False
    operator_bytes: float = 2.2


DEFAULT = "generic"  # suits Cortex-M4 and M7, and runs everywhere
CPUS = {
    cpu.name: cpu
    for cpu in (
        Cpu(DEFAULT),
        Cpu("cortex-m0plus", ("-mcpu=cortex-m0plus", "-mthumb"), pairs=False, registers=8,
            operator_bytes=3.0),
        Cpu("cortex-m4", ("-mcpu=cortex-m4", "-mthumb", "-mfloat-abi=hard", "-mfpu=fpv4-sp-d16")),
        Cpu("cortex-m7", ("-mcpu=cortex-m7", "-mthumb", "-mfloat-abi=hard", "-mfpu=fpv5-d16")),
        Cpu("cortex-m33", ("-mcpu=cortex-m33", "-mthumb", "-mfloat-abi=hard", "-mfpu=fpv5-sp-d16")),
        Cpu("cortex-m55", ("-mcpu=cortex-m55", "-mthumb", "-mfloat-abi=hard"), vectors=True,
            operator_bytes=3.0),
        Cpu("rv32", ("-march=rv32imc", "-mabi=ilp32"), pairs=False, registers=26,
            operator_bytes=3.8),
    )
}  # fmt: skip


def cpu_of(name: str) -> Cpu:
    """The processor of that name; ModelError if there is none."""
    if name not in CPUS:
        raise ModelError(f"there is no processor {name!r}; there are {', '.join(CPUS)}")
    return CPUS[name]
