"""Tiled transposes: loads that run across the vectors of a loop nest are taken in square tiles.

Where the innermost dimension of the output is not the one in which a load moves by one element (a
transposition, an image stored channels last that is wanted channels first), a vector of such loads
touches as many cache lines as it has lanes. So the loops are blocked for the cache: in a tile of as
many rows as lanes, whole vectors are loaded along memory and the tile is transposed in registers.
Every cache line is touched once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from graphc.ir.addresses import is_affine_in
from graphc.ir.expr import Expr, Index, Load, Reduce, loads, walk
from graphc.ir.extents import divided, is_below, most
from graphc.ir.instructions import transpose
from graphc.ir.kernel import Buffer, KernelBuilder
from graphc.ir.simplify import simplify
from graphc.ir.types import Dim
from graphc.passes.lower.strategies.reductions import NestOptions, element_bytes

LARGEST_SIDE = 16  # of a tile, whose rows are held in registers
SMALLEST_SIDE = 4
MOST_LOADS = 2  # each has a tile


@dataclass(frozen=True)
class TransposedLoads:
    """Loads from flat buffers that move by one element in the loop `across`, while outputs do in
    the loop `along`; tiles have `side` rows and columns."""

    loads: tuple[Load, ...]
    across: Index
    along: Index
    side: int

    def at(self, mapping: Mapping[Expr, Expr]) -> TransposedLoads:
        """The same loads with other indices known."""
        loads = [simplify(load, mapping) for load in self.loads]
        return replace(self, loads=tuple(x for x in loads if isinstance(x, Load)))


def transposed_loads(
    indices: list[Index], exprs: Sequence[Expr], options: NestOptions, sizes: dict[str, Dim]
) -> TransposedLoads | None:
    """What is to be loaded in tiles, of expressions over a space whose last index runs along the
    outputs; None if that is nothing. `sizes` are the elements of buffers: what is read under a
    guard alone is no part of a tile."""
    nodes = [node for e in exprs for node in walk(e)]
    if not options.vector_bytes or any(isinstance(node, Reduce) for node in nodes):
        return None
    *rows, last = indices
    side = min(LARGEST_SIDE, options.lanes(element_bytes(list(exprs))))
    apart = [x for e in exprs for x in loads(e) if abs(is_affine_in(x.index[0], last) or 0) > 1]
    for across in reversed(rows):
        columns = [x for x in dict.fromkeys(apart) if is_affine_in(x.index[0], across) == 1]
        if not columns or not SMALLEST_SIDE <= side <= min(most(across.extent), most(last.extent)):
            continue
        if len(columns) <= MOST_LOADS and all(is_inside(x, sizes[x.source]) for x in columns):
            return TransposedLoads(tuple(columns), across, last, side)
    return None


def is_inside(load: Load, size: Dim) -> bool:
    """Whether a load from a buffer of so many elements needs no guard."""
    return is_below(load.index[0], size)


def split_off(index: Index, side: int) -> tuple[Index, Index | None]:
    """The whole tiles along an index, and what is left, if anything is."""
    whole, left = divided(index.extent, side)
    return Index(index.name, whole), None if left == 0 else Index(index.name, left)


def load_tiles(
    k: KernelBuilder, transposed: TransposedLoads, top: Expr, left: Expr
) -> dict[Load, Buffer]:
    """Emits tiles whose first row and column are these; element [r * side + c] is what the load
    gives at row r and column c."""
    tiles = {}
    for load in transposed.loads:
        tile = k.alloc(load.dtype, (transposed.side * transposed.side,))
        for c in range(transposed.side):
            with k.loop(transposed.side, "vector", width=transposed.side) as v:
                place = {transposed.across: top + v, transposed.along: left + c}
                k.store(tile, (v + c * transposed.side,), simplify(load, place))
        k.emit(transpose(tile, transposed.side))
        tiles[load] = tile
    return tiles
