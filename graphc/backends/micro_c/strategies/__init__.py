"""The strategies of microcontrollers, with sizes for their register files."""

from __future__ import annotations

from collections.abc import Sequence

from graphc.backends.micro_c.strategies.tiles import TileOptions, lower_tiles
from graphc.passes.lower.nest import NestOptions
from graphc.passes.lower.program import Strategy
from graphc.passes.lower.strategies import nest_strategy


def strategies(tiles: TileOptions | None = None) -> Sequence[Strategy]:
    """Register tiles for sums of products, plain loops for everything else."""
    options = tiles or TileOptions()
    return [lambda c: lower_tiles(c, options), nest_strategy(NestOptions())]
