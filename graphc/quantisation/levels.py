"""The precisions that a layer can have, and what it costs at each.

int8     weights and what it reads in 8 bits: products of integers
int16    weights in 8 bits, what it reads in 16: float products on most machines
int4     weights in 4 bits, a scale for each block; what it reads is float
float16  weights stored in 16 bits, computed with in float32
float    as it was
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from graphc.errors import ModelError, did_you_mean

FLOAT = "float"
INTEGER = ("int8", "int16")
"""Levels at which what a layer reads is quantised; of values that several read, the last."""
BYTES_PER_CYCLE = 4  # of weights, from memory


@dataclass(frozen=True)
class Level:
    """Bits of weights and of what a layer reads, and multiplications in a cycle: those of a core
    with vectors of 16 floats or 64 bytes. Only their ratios matter."""

    weight_bits: int
    activation_bits: int
    per_cycle: int

    def cost(self, multiplications: float, weights: int) -> float:
        """Cycles of multiplications, and of reading the weights once."""
        read = weights * self.weight_bits / 8 / BYTES_PER_CYCLE
        return multiplications / self.per_cycle + read


LEVELS: Mapping[str, Level] = {
    "int8": Level(8, 8, 64), "int16": Level(8, 16, 16), "int4": Level(4, 32, 16),
    "float16": Level(16, 32, 16), FLOAT: Level(32, 32, 16),
}  # fmt: skip


def checked(names: Iterable[str]) -> tuple[str, ...]:
    """Levels to choose among; ModelError if one is not known, or there is no choice."""
    levels = tuple(dict.fromkeys(names))
    for name in levels:
        if name not in LEVELS:
            known = ", ".join(LEVELS)
            raise ModelError(
                f"mixture: there is no level {name!r}, but {known}{did_you_mean(name, LEVELS)}"
            )
    if len(levels) < 2:
        raise ModelError("mixture: name two levels or more, of " + ", ".join(LEVELS))
    return levels
