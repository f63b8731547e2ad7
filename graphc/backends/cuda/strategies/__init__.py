"""The strategies of GPUs. The last, a thread per output element, always matches."""

from __future__ import annotations

from collections.abc import Sequence

from graphc.passes.lower.nest import NestOptions
from graphc.passes.lower.program import Strategy
from graphc.passes.lower.strategies import nest_strategy


def strategies() -> Sequence[Strategy]:
    """One thread per output element for everything."""
    return [nest_strategy(NestOptions(flat=True))]
