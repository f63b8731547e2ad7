"""The strategies every target can use; the targets choose sizes and order."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from graphc.passes.lower.program import Strategy
from graphc.passes.lower.strategies.nest import NestOptions, lower_nest


def nest_strategy(options: NestOptions) -> Strategy:
    """Loop nests; always matches."""
    return partial(lower_nest, options=options)


def plain_loops() -> Sequence[Strategy]:
    """Scalar loops for everything: slow, simple, and right on every backend."""
    return [nest_strategy(NestOptions())]
