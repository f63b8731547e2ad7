"""The strategies of microcontrollers, with sizes for their register files."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from graphc.backends.micro_c.cpus import DEFAULT, PAIRS, Cpu, cpu_of
from graphc.backends.micro_c.strategies.helium.strategy import lower_helium
from graphc.backends.micro_c.strategies.helium.sums import HeliumOptions
from graphc.backends.micro_c.strategies.scalar_tiles import TileOptions, lower_tiles
from graphc.passes.lower.program import Strategy
from graphc.passes.lower.strategies.nest import NestOptions
from graphc.passes.lower.strategies.plain import nest_strategy

FEW, MANY = 12, 24  # general registers


def strategies(cpu: str = DEFAULT, small: bool = False) -> Sequence[Strategy]:
    """Register tiles for sums of products, plain loops for everything else; `small` ones make
    less code."""
    target = cpu_of(cpu)
    options = small_tiles(target) if small else tile_options(target)
    chosen: list[Strategy] = [partial(lower_tiles, options=options), nest_strategy(NestOptions())]
    if target.vectors:
        chosen.insert(0, partial(lower_helium, options=HeliumOptions()))
    return chosen


def tile_options(cpu: Cpu) -> TileOptions:
    """Tiles whose sums and operands fit the registers."""
    if cpu.registers >= MANY:
        return TileOptions(
            integer_rows=4, integer_columns=4, integer_alone=8, quads=cpu.has(PAIRS)
        )  # fmt: skip
    if cpu.registers >= FEW:
        return TileOptions(quads=cpu.has(PAIRS))
    return TileOptions(
        rows=2, columns=2, alone=2, integer_rows=1, integer_columns=4, integer_alone=4,
        quads=cpu.has(PAIRS), unroll=1, whole=4,
    )  # fmt: skip


def small_tiles(cpu: Cpu) -> TileOptions:
    """Tiles of two by two, and loops that are hardly unrolled."""
    if cpu.registers < FEW:
        return tile_options(cpu)
    return TileOptions(
        rows=2, columns=2, alone=2, integer_alone=2, quads=cpu.has(PAIRS),
        quad_unroll=1, unroll=1, whole=4,
    )  # fmt: skip
