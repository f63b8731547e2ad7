"""A long depth in blocks, whose products are summed apart.

Errors then grow with the steps of a block and with the number of blocks, not with their product (N.
J. Higham, The Accuracy of Floating Point Summation, 1993). The sums of blocks are added up on the
stack: a load, an addition and a store for each register of a tile and each block.
"""

from __future__ import annotations

from math import prod

from graphc.ir.expr import Index
from graphc.ir.extents import most
from graphc.ir.types import Dim
from graphc.records import dataclass

STEPS = 256  # of a block, unless a schedule says otherwise; shorter depths than two are whole


@dataclass(frozen=True)
class DepthBlocks:
    """Summed indices `outside` of blocks; the one, `split`, of which a block has `piece` values;
    and those `inside`."""

    outside: list[Index]
    split: Index
    piece: int
    inside: list[Index]


def depth_blocks(depth: list[Index], steps: int = STEPS) -> DepthBlocks | None:
    """The blocks of a depth, of at most so many steps; None if it is short."""
    if prod(most(x.extent) for x in depth) < 2 * steps:
        return None
    outside, split, inside, room = cut(depth, steps)
    if most(split.extent) <= room:
        return None
    return DepthBlocks(outside, split, _piece(split.extent, room), inside)


def cut(depth: list[Index], steps: int) -> tuple[list[Index], Index, list[Index], int]:
    """The summed indices outside of blocks of so many steps, the one that is cut, those inside of
    blocks, and how many values of the one that is cut a block has room for."""
    room, number = steps, len(depth) - 1
    while number > 0 and isinstance(depth[number].extent, int) and depth[number].count <= room:
        room //= max(depth[number].count, 1)
        number -= 1
    return depth[:number], depth[number], depth[number + 1 :], room


def _piece(extent: Dim, room: int) -> int:
    """The largest divisor of an extent that fits, unless it is a small part of what does."""
    if not isinstance(extent, int):
        return room
    best = max(d for d in range(1, room + 1) if extent % d == 0)
    return best if 2 * best > room else room
