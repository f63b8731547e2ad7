"""The strategies of microcontrollers, with sizes for their register files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from graphc.backends.micro_c.cpus import DEFAULT, FEW, FLOATS, PAIRS, Cpu, cpu_of
from graphc.backends.micro_c.goals import FASTEST, SIZE, SPEED
from graphc.backends.micro_c.strategies.dense import Dense
from graphc.backends.micro_c.strategies.depthwise import Depthwise
from graphc.backends.micro_c.strategies.helium.strategy import HeliumTiles
from graphc.backends.micro_c.strategies.padded_copy import PaddedTiles
from graphc.backends.micro_c.strategies.panels import PanelOptions, Panels
from graphc.backends.micro_c.strategies.scalar_tiles import ScalarTiles, TileOptions
from graphc.backends.micro_c.strategies.winograd import STACK, IntegerWinograd
from graphc.passes.lower.program import Strategy
from graphc.passes.lower.strategies.attention_tiles import AttentionTiles
from graphc.passes.lower.strategies.block_tiles import BlockTiles
from graphc.passes.lower.strategies.nest import NestOptions
from graphc.passes.lower.strategies.plain import nest_strategy
from graphc.passes.lower.strategies.tile_plan import RegisterTileOptions

MANY = 24  # general registers


def strategies(cpu: str = DEFAULT, goal: str = SPEED.name) -> Sequence[Strategy]:
    """Attention, block tiles for codes, register tiles for sums of products, plain loops for
    everything else, as a goal wants them (goals.py)."""
    target = cpu_of(cpu)
    options = small_tiles(target) if goal == SIZE.name else tile_options(target)
    registers = min(FEW, target.registers) if goal == SIZE.name else target.registers
    scalars = RegisterTileOptions(vector_bytes=0, registers=registers)
    first: list[Strategy] = [
        AttentionTiles(scalars), BlockTiles(replace(scalars, registers=2 * registers))
    ]  # fmt: skip
    if target.vectors:
        first.append(HeliumTiles())
    elif target.has(PAIRS) and goal != SIZE.name:
        first += of_pairs(goal == FASTEST.name)
    return [
        *first, PaddedTiles(options), ScalarTiles(options), nest_strategy(NestOptions()),
    ]  # fmt: skip


def of_pairs(fastest: bool) -> list[Strategy]:
    """Those that multiply pairs of int16: with more stack, and fewer products, if fastest."""
    panels = Panels(PanelOptions(STACK) if fastest else PanelOptions())
    return [*([IntegerWinograd()] if fastest else []), Depthwise(), panels, Dense()]


def tile_options(cpu: Cpu) -> TileOptions:
    """Tiles whose sums and operands fit the registers."""
    if cpu.registers >= MANY:
        return TileOptions(
            integer_rows=4, integer_columns=4, integer_alone=8, quads=cpu.has(PAIRS)
        )  # fmt: skip
    if not cpu.few_registers:
        return TileOptions(quads=cpu.has(PAIRS), runs=cpu.has(FLOATS))
    return TileOptions(
        rows=2, columns=2, alone=2, integer_rows=1, integer_columns=8, integer_alone=8,
        quads=cpu.has(PAIRS), unroll=1, whole=4, unsigned=True, epilogue_loop=True,
    )  # fmt: skip


def small_tiles(cpu: Cpu) -> TileOptions:
    """Tiles of two by two, and loops that are hardly unrolled."""
    if cpu.few_registers:
        return tile_options(cpu)
    return TileOptions(
        rows=2, columns=2, alone=2, integer_alone=2, quads=cpu.has(PAIRS),
        quad_unroll=1, unroll=1, whole=4,
    )  # fmt: skip
