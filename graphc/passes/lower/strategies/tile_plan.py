"""Plans of contractions in register tiles: the tile, and the loops that tiles are in.

A plan is what a schedule says (tile_schedules.py), in the terms of those who emit loops.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from graphc.ir.addresses import flatten_loads, is_affine_in
from graphc.ir.dtypes import DType, bf16, f16, i8, u8
from graphc.ir.expr import Expr, Index, Load
from graphc.ir.extents import most, points
from graphc.ir.types import Dim, elements_of
from graphc.passes.analysis.contraction import Match
from graphc.passes.analysis.spaces import known_last, merge_adjacent
from graphc.passes.lower.strategies.depth_blocks import STEPS
from graphc.passes.lower.strategies.row_operand import separable
from graphc.passes.schedule.steps import Role
from graphc.records import dataclass

CACHE_WAY = PAGE = 4096  # bytes: of a way of the first cache, and of a page
LOW_TILE = 8  # rows of two vectors
WAYS = 8  # rows that the first cache holds, at least, if their places in it are the same
PAGES = 64  # that the first table of translated addresses knows
MANY_ROWS = 128  # that make up for panels made at run time
PARALLEL_PIECES = 12  # independent parts that a kernel should have, for a few threads to share
UNBOUNDED = 1 << 40  # rows, as many as there may be

Order = tuple[Role, Role, Role]
ROWS_OUTSIDE: Order = ("places", "rows", "columns")  # panels pass over a block of rows
COLUMNS_OUTSIDE: Order = ("places", "columns", "rows")  # rows pass over a panel
COLUMNS_FIRST: Order = ("columns", "places", "rows")  # so do rows at all places


UNSIGNED: Mapping[DType, int] = MappingProxyType({i8: -128})  # dot products of unsigned bytes
SIGNED: Mapping[DType, int] = MappingProxyType({u8: 128})  # and of signed ones


@dataclass(frozen=True)
class RegisterTileOptions:
    """Sizes of the machine: vector and cache bytes, and vector registers; and the narrow floats
    that it widens a vector at a time, of which constants stay narrow."""

    vector_bytes: int = 64
    registers: int = 32
    l2_bytes: int = 1 << 20
    min_depth: int = 4  # products summed, below which a loop nest does as well
    widened: frozenset[DType] = frozenset((f16, bf16))
    signed_dots: bool = False  # products of signed bytes are the cheapest
    pairs: bool = False  # bytes are multiplied as pairs of int16

    @property
    def are_low(self) -> bool:
        """Whether tiles have few rows, as registers are few: a vector of a panel is then multiplied
        in hardly more clocks than it takes to come from the second cache."""
        return (self.registers - 3) // 2 <= LOW_TILE

    @property
    def held_bytes(self) -> int:
        """What stays in the second level of cache while something else passes through it."""
        return self.l2_bytes // 2

    @property
    def centres(self) -> Mapping[DType, int]:
        """What products of bytes subtract from those of rows, by their type."""
        return SIGNED if self.signed_dots else UNSIGNED


@dataclass(frozen=True)
class TilePlan:
    """Tile sizes: `vectors` of `lanes` make a panel of columns; `row_tile` rows at a time. Columns
    are `packed` before, or `in_blocks`, or read in place. `quad` is the index of bytes, if so many
    `together` are multiplied at once, as one step of the depth. Depths of at least twice `split`
    steps are summed in parts of so many (0: at once). An epilogue that is `looped` is a loop over
    the rows of a tile; None: if it is long."""

    lanes: int
    vectors: int
    row_tile: int
    columns: Dim
    depth: Dim
    packed: bool
    quad: Index | None
    in_blocks: bool = False
    split: int = STEPS
    looped: bool | None = None
    together: int = 1

    @property
    def panel(self) -> int:
        return self.lanes * self.vectors


@dataclass(frozen=True)
class Blocks:
    """At most so many tiles of rows, and panels of columns, in a block."""

    tiles: int
    panels: int


@dataclass(frozen=True)
class LoopPlan:
    """Loops over tiles: their `order`, from the outside in; the `rows` of a block that stay in a
    cache while panels pass over them (0: all); whether the last tile of rows may `overlap` the one
    before it; how many `pieces` threads should have to share. Where caches hold neither operand,
    tiles are computed in `blocks`, and rows are `staged` in a copy for each."""

    order: Order = ROWS_OUTSIDE
    rows: int = 0
    overlap: bool = False
    pieces: int = PARALLEL_PIECES
    blocks: Blocks | None = None
    staged: bool = False

    def tiles_of_block(self, size: int) -> int:
        """The tiles of so many rows of a block."""
        return max(1, (self.rows or UNBOUNDED) // size)


def tile_plan(
    match: Match, options: RegisterTileOptions, quad: Index | None, together: int = 1
) -> TilePlan:
    """The tiles of a contraction on a machine; `quad` and `together` as in TilePlan."""
    lanes = max(1, options.vector_bytes // match.hole.dtype.size)
    columns = elements_of(x.extent for x in match.cols)
    depth = elements_of(x.extent for x in match.depth)
    merged, (a,) = merge_adjacent(match.rows, [match.a])
    merged = known_last(merged)
    rows = most(merged[-1].extent) if merged else 1
    vectors = vectors_of(rows, -(-most(columns) // lanes), options.registers)
    row_tile = max(1, min((options.registers - vectors - 1) // vectors, rows))
    if vectors == 2 and row_tile > WAYS and merged and meet_in_cache(a, merged[-1]):
        vectors, row_tile = 3, WAYS
    in_place = isinstance(columns, int) and _contiguous_columns(match)
    packed = quad is not None or not in_place or _pays(match, columns, depth, vectors * lanes)
    return TilePlan(lanes, vectors, row_tile, columns, depth, packed, quad, together=together)


def vectors_of(rows: int, needed: int, registers: int) -> int:
    """Vectors per panel: two for tall problems, more where there are few rows. One row takes up to
    two more where the last panel is fuller then, as panels of constants are stored whole. One where
    there are no columns."""
    if needed <= 1:
        return 1
    if rows >= 7 or registers < 32 and rows >= 4:
        return 2
    if rows >= 5:
        return min(needed, 3)
    most_of = 8 if registers >= 32 else 4
    vectors = min(needed, most_of, max(2, (registers - 4) // max(rows, 1) - 1))
    if rows > 1 or vectors < most_of:
        return vectors
    return min(range(vectors, vectors + 3), key=lambda size: -needed % size)


def meet_in_cache(a: Expr, row: Index) -> bool:
    """Whether the rows of a tile lie so far apart that they share a place in the first cache."""
    assert isinstance(a, Load)
    apart = is_affine_in(a.index[0], row) if a.index else None
    return bool(apart) and isinstance(apart, int) and apart * a.dtype.size % CACHE_WAY == 0


def _pays(match: Match, columns: Dim, depth: Dim, panel: int) -> bool:
    """Whether panels made at run time are read faster than columns in place: where a panel's rows
    are on more pages than are known at once, or meet in few places of the first cache, and enough
    rows are multiplied with it."""
    assert isinstance(columns, int)
    rows, apart = points(match.rows), columns * match.b.dtype.size >= PAGE // 2
    enough = rows >= MANY_ROWS if apart else rows >= 4 * MANY_ROWS and columns > panel
    return enough and most(depth) > PAGES


def is_read_in_place(match: Match, plan: TilePlan) -> bool:
    """Whether tiles can read columns as they lie."""
    return plan.quad is None and isinstance(plan.columns, int) and _contiguous_columns(match)


def _contiguous_columns(match: Match) -> bool:
    """Whether `b` can be read in place: not constant, one column index, at stride 1."""
    b = match.b
    if not isinstance(b, Load) or len(match.cols) != 1 or b.source in match.computation.constants:
        return False
    flat = flatten_loads(b, match.shapes)
    assert isinstance(flat, Load)
    apart = separable(flat.index[0], set(match.depth))
    return apart and is_affine_in(flat.index[0], match.cols[0]) == 1
