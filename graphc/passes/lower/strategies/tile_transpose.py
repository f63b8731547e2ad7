"""Tiled transposes: loads that run across the vectors of a loop nest are taken in square tiles.

Where the innermost dimension of the output is not the one in which a load moves by one element (a
transposition, an image stored channels last that is wanted channels first), a vector of such loads
touches as many cache lines as it has lanes. So the loops are blocked for the cache: in a tile of as
many rows as lanes, whole vectors are loaded along memory and the tile is transposed in registers.
Every cache line is touched once. Where the innermost dimension is short, as in the weights of a
convolution, which an optimiser updates by gradients that are stored in another order, tiles run
along several dimensions together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from graphc.ir.addresses import is_affine_in, unflatten_index
from graphc.ir.expr import Expr, Index, Load, Reduce, loads, reduces, walk
from graphc.ir.extents import divided, is_below, most
from graphc.ir.instructions import transpose
from graphc.ir.kernel import Buffer, KernelBuilder
from graphc.ir.simplify import simplify
from graphc.ir.types import Dim
from graphc.passes.lower.strategies.reductions import NestOptions, element_bytes
from graphc.records import dataclass

LARGEST_SIDE = 16  # of a tile, whose rows are held in registers
SMALLEST_SIDE = 4
MOST_LOADS = 2  # each has a tile

Joined = tuple[list[Index], dict[Expr, Expr]]
"""Indices, of which the last stands for several others, and what these are."""


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
    side = min(LARGEST_SIDE, options.lanes(element_bytes(list(exprs))))
    read = [x for e in exprs for x in loads(e)]
    apart = [x for x in read if abs(is_affine_in(x.index[0], indices[-1]) or 0) > 1]
    return _in_tiles(indices, apart, side, sizes)


def _in_tiles(
    indices: list[Index], apart: list[Load], side: int, sizes: dict[str, Dim]
) -> TransposedLoads | None:
    """Those of loads that are apart along the last index and move by one element in another."""
    *rows, last = indices
    for across in reversed(rows):
        columns = [x for x in dict.fromkeys(apart) if is_affine_in(x.index[0], across) == 1]
        if not columns or not SMALLEST_SIDE <= side <= min(most(across.extent), most(last.extent)):
            continue
        if len(columns) <= MOST_LOADS and all(is_inside(x, sizes[x.source]) for x in columns):
            return TransposedLoads(tuple(columns), across, last, side)
    return None


def joined_rows(indices: list[Index], exprs: Sequence[Expr], options: NestOptions) -> Joined | None:
    """The last indices of a space as one, where the last is too short for tiles, as in the weights
    of convolutions, and what each of them then is; None if it is long, or too few are together."""
    side = min(LARGEST_SIDE, options.lanes(element_bytes(list(exprs))))
    number, count = len(indices), 1
    while number > 1 and count < side and isinstance(indices[number - 1].extent, int):
        number -= 1
        count *= indices[number].count
    if not 1 < most(indices[-1].extent) < side or count < side:
        return None
    last = indices[number:]
    joined = Index(last[-1].name, count)
    places = unflatten_index(joined, tuple(x.extent for x in last))
    return [*indices[:number], joined], dict(zip(last, places))


def joined_loads(
    indices: list[Index],
    offset: Expr,
    exprs: Sequence[Expr],
    options: NestOptions,
    sizes: dict[str, Dim],
) -> TransposedLoads | None:
    """As `transposed_loads`, where the last index stands for several: elements must be stored along
    it, and all that is read elsewhere than along it must be taken in tiles."""
    if not options.vector_bytes or is_affine_in(offset, indices[-1]) != 1:
        return None
    if any(reduces(e) for e in exprs):
        return None
    side = min(LARGEST_SIDE, options.lanes(element_bytes(list(exprs))))
    read = [x for e in exprs for x in loads(e)]
    apart = [x for x in read if is_affine_in(x.index[0], indices[-1]) not in (0, 1)]
    tiled = _in_tiles(indices, apart, side, sizes)
    return tiled if tiled is not None and set(apart) == set(tiled.loads) else None


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
