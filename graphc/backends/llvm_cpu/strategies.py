"""The CPU's strategies, with the sizes of a target machine."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from graphc.backends.llvm_cpu.lane_builder import LaneBuilder
from graphc.backends.llvm_cpu.target import host_target
from graphc.passes.lower.program import Conventions, Strategy
from graphc.passes.lower.strategies.nest import NestOptions
from graphc.passes.lower.strategies.plain import nest_strategy
from graphc.passes.lower.strategies.register_tiles import lower_register_tiles
from graphc.passes.lower.strategies.tile_plan import RegisterTileOptions


def strategies(vector_bytes: int | None = None, registers: int | None = None) -> Sequence[Strategy]:
    """Contractions where they match, loop nests elsewhere; sizes default to the host's."""
    host = host_target()
    vector_bytes = _own_vectors() if vector_bytes is None else vector_bytes
    registers = host.vector_registers if registers is None else registers
    contraction = RegisterTileOptions(
        vector_bytes, registers, host.l2_bytes, widened=host.widened_floats
    )
    nest = NestOptions(vector_bytes=vector_bytes)
    return [partial(lower_register_tiles, options=contraction), nest_strategy(nest)]


def conventions(vector_bytes: int | None = None) -> Conventions:
    """What the CPU asks of programs; the size of vectors defaults to the host's."""
    vector_bytes = _own_vectors() if vector_bytes is None else vector_bytes
    if not vector_bytes:
        return Conventions(numbers=True)
    builder = partial(LaneBuilder, vector_bytes=vector_bytes)
    return Conventions(vector_bytes=vector_bytes, numbers=True, builder=builder)


def _own_vectors() -> int:
    return host_target().vector_bits // 8
