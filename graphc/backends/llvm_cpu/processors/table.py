"""What tables of processors are made of.

A `Level` is a set of instructions that code may use: LLVM's features, the vector registers, and the
cache of one core. An `Architecture` has levels by name, and the CPUs that LLVM schedules for, each
with the level that it has. `gives` tells which instructions of `Machine` stand behind features.
"""

from __future__ import annotations

from collections.abc import Mapping

from graphc.errors import ModelError, near_or_all
from graphc.records import dataclass

FUSED = "fused_products"  # a * b + c is one instruction, rounded once
RELAXED = "relaxed_products"  # a * b + c of a whole vector is one, rounded once or twice
RELAXED_BITS = 128  # of such a vector
HALVES = "converts_halves"  # vectors of f16 become float32 in an instruction or two, as bf16 do
SIGNED_DOTS = "signed_dot_products"  # dot4 of signed bytes is the cheapest
PAIRS = "pair_products"  # two products of int16 are one instruction: dot2_wide
BYTE_DOTS = "byte_dot_products"  # dot4 is one instruction, for some types of bytes
SCALES = "scales_by_powers"  # x * 2**n of a vector of float32 is one instruction
EVEN_PRODUCTS = "even_products"  # products of every other lane of 32 bits, in 64, are one
ALWAYS = ""  # in place of a feature: what every processor of an architecture has


@dataclass(frozen=True)
class Level:
    """Features by LLVM's names; bits and number of vector registers (0: none); bytes of the second
    cache of a core; and LLVM's name of the CPU, where it has one that stands for the level."""

    features: frozenset[str]
    vector_bits: int
    registers: int
    l2_bytes: int = 512 << 10
    cpu: str = "generic"


@dataclass(frozen=True)
class Architecture:
    """An instruction set. `levels` are told from least to most, `cpus` name the level of each, and
    `usual` is the level of code for which nothing else is asked."""

    name: str
    levels: Mapping[str, Level]
    cpus: Mapping[str, str]
    usual: str
    gives: Mapping[str, tuple[str, ...]]

    def level(self, name: str) -> tuple[str, Level]:
        """LLVM's name of a CPU, and its level; of a level, by the name of that. ModelError says
        what is known."""
        if not name:
            name = self.usual
        if name in self.levels:
            return self.levels[name].cpu, self.levels[name]
        if name in self.cpus:
            return name, self.levels[self.cpus[name]]
        known = near_or_all(name, [*self.levels, *self.cpus])
        raise ModelError(f"mcpu {name!r}: no level or CPU of {self.name} is called so{known}")

    def instructions(self, features: frozenset[str]) -> frozenset[str]:
        """The instructions of `Machine` that a processor with these features has."""
        having = (names for f, names in self.gives.items() if f == ALWAYS or f in features)
        return frozenset(name for names in having for name in names)
