"""The strategies every target can use; the targets choose sizes and order."""

from __future__ import annotations

from collections.abc import Sequence

from graphc.passes.analysis.computation import Computation
from graphc.passes.lower.lowered import Lowered
from graphc.passes.lower.program import Strategy
from graphc.passes.lower.strategies.nest import NestOptions, lower_nest


def nest_strategy(options: NestOptions) -> Strategy:
    """Loop nests; always matches."""

    def strategy(computation: Computation) -> Lowered:
        return lower_nest(computation, options)

    return strategy


def plain_loops() -> Sequence[Strategy]:
    """Scalar loops for everything: slow, simple, and right on every backend."""
    return [nest_strategy(NestOptions())]
