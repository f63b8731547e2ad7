"""The CPU's strategies, with sizes for the host."""

from __future__ import annotations

from collections.abc import Sequence

from graphc.passes.lower.contraction import ContractionOptions, lower_contraction
from graphc.passes.lower.nest import NestOptions
from graphc.passes.lower.program import Strategy
from graphc.passes.lower.strategies import nest_strategy


def strategies(vector_bytes: int = 64, registers: int = 32) -> Sequence[Strategy]:
    """Contractions where they match, loop nests for everything else."""
    contraction = ContractionOptions(vector_bytes=vector_bytes, registers=registers)
    nest = NestOptions(vector_bytes=vector_bytes)
    return [lambda c: lower_contraction(c, contraction), nest_strategy(nest)]
