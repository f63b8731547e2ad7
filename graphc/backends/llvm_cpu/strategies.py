"""The CPU's strategies, with the sizes of a machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from graphc.backends.llvm_cpu.lane_builder import LaneBuilder
from graphc.backends.llvm_cpu.processors.table import BYTE_DOTS, HALVES, PAIRS, SIGNED_DOTS
from graphc.ir.dtypes import bf16, f16
from graphc.ir.machine import Machine
from graphc.passes.lower.program import Conventions, Strategy
from graphc.passes.lower.strategies.attention_tiles import AttentionTiles
from graphc.passes.lower.strategies.block_tiles import BlockTiles
from graphc.passes.lower.strategies.nest import NestOptions
from graphc.passes.lower.strategies.plain import nest_strategy
from graphc.passes.lower.strategies.register_tiles import RegisterTiles
from graphc.passes.lower.strategies.split_sums import lower_split_sums
from graphc.passes.lower.strategies.tile_plan import RegisterTileOptions
from graphc.passes.lower.strategies.winograd import WinogradTiles
from graphc.passes.schedule.choosing import Choose, take_first


def strategies(machine: Machine, exact: bool = False) -> Sequence[Strategy]:
    """Attention, convolutions by Winograd's algorithm, unless they are to be `exact`, and
    contractions, whole and in blocks, where they match; loop nests elsewhere."""
    widened = frozenset((f16, bf16) if machine.has(HALVES) else (bf16,))
    contraction = RegisterTileOptions(
        machine.vector_bytes,
        machine.registers,
        machine.caches[1],
        widened=widened,
        signed_dots=machine.has(SIGNED_DOTS),
        pairs=machine.has(PAIRS) and not machine.has(BYTE_DOTS),
    )
    nest = NestOptions(vector_bytes=machine.vector_bytes)
    fast: list[Strategy] = [] if exact else [WinogradTiles(contraction)]
    return [
        AttentionTiles(contraction),
        *fast,
        RegisterTiles(contraction),
        BlockTiles(contraction),
        partial(lower_split_sums, options=nest, l2_bytes=machine.caches[1]),
        nest_strategy(nest),
    ]


def conventions(machine: Machine, choose: Choose = take_first) -> Conventions:
    """What the CPU asks of programs, whose schedules are chosen so."""
    usual = Conventions(numbers=True, updates=True, choose=choose)
    if not machine.vector_bytes:
        return usual
    builder = partial(LaneBuilder, vector_bytes=machine.vector_bytes)
    return replace(usual, vector_bytes=machine.vector_bytes, builder=builder)
