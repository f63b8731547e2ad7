"""How attention is cut for caches and registers, as schedules say.

vector(columns, L)       vectors of keys, and of columns of values, have L lanes
tile(columns, N)         a panel of values has N columns
tile(depth, K)           a panel of keys has K
tile(rows, M)            a tile has M rows
tile(rows, R)            the second: rows of a chunk, which share panels
split_reduce(depth, B)   a block has B keys
"""

from __future__ import annotations

from collections.abc import Iterator

from graphc.ir.dtypes import f32, i64
from graphc.ir.expr import as_expr
from graphc.ir.extents import as_dim, ceil_divided, most, points
from graphc.ir.types import Dim, elements_of
from graphc.passes.analysis.attention import Attention
from graphc.passes.analysis.spaces import count
from graphc.passes.lower.strategies.depth_blocks import STEPS
from graphc.passes.lower.strategies.reductions import strides_small
from graphc.passes.lower.strategies.tile_emitter import Segment, row_tiles
from graphc.passes.lower.strategies.tile_plan import (
    PARALLEL_PIECES,
    RegisterTileOptions,
    vectors_of,
)
from graphc.passes.lower.strategies.tile_schedules import LARGEST_TILE
from graphc.passes.lower.strategies.tile_transpose import LARGEST_SIDE, SMALLEST_SIDE
from graphc.passes.schedule.steps import Schedule, SplitReduce, Tile, Vector, misfit
from graphc.records import dataclass

ROOM = 1 << 16  # bytes that a second cache has at least for keys, and as many for sums
OF_CACHE = 8  # such rooms in a larger one: for keys, values, sums, and what passes through it
LARGER = 2  # times as many keys may be one block
SMALL_BLOCK = 32  # keys of a block without vectors
MOST_KEYS = 2 * STEPS  # of a block, over which sums are taken at once
FEW_ROWS = 4  # that do not make up for a copy of keys
FEWEST_TILES = 2  # of a chunk, which share its panels


@dataclass(frozen=True)
class AttentionPlan:
    """`lanes` of a vector; `score_vectors` and `value_vectors` of a panel of keys, and of columns;
    `tile_rows` of a tile, which are cut into `segments`; tiles of a `chunk`, and how many there
    are; the keys of a `block`, and the number of blocks. With `few` rows, keys are read as they
    lie, in vectors of their depth."""

    lanes: int
    few: bool
    score_vectors: int
    value_vectors: int
    tile_rows: int
    segments: list[Segment]
    tiles: Dim
    chunk: int
    block: int
    blocks: Dim

    @property
    def is_whole(self) -> bool:
        """Whether all keys are one block."""
        return self.blocks == 1

    @property
    def pitch(self) -> int:
        """Scores from a row to the next, which do not meet in the cache."""
        return self.block + self.lanes


def attention_schedules(
    name: str, match: Attention, options: RegisterTileOptions
) -> Iterator[Schedule]:
    """Schedules for an attention on a machine: what should be fastest, then other blocks of keys
    and chunks of tiles."""
    lanes = max(1, options.vector_bytes // f32.size)
    columns, rows, keys = count(match.columns), _rows(match), most(match.key.extent)
    few = _are_few(match, lanes)
    across = 1 if few else vectors_of(rows, -(-keys // lanes), options.registers)
    wide = vectors_of(rows, -(-columns // lanes), options.registers)
    widest = max(across, wide)
    tile = max(1, min((options.registers - widest - 1) // widest, rows))
    panel = across * lanes
    room = _room(options)
    usual = max(panel, _block(keys, room // (f32.size * count(match.depth)), panel, few, lanes > 1))
    tiles = sum(most(s.count) for s in _segments(match, tile))
    share = max(FEWEST_TILES, -(-tiles * max(1, points(match.outer)) // PARALLEL_PIECES))
    own = (Vector("columns", lanes), Tile("columns", wide * lanes), Tile("depth", panel))
    ways: dict[Schedule, None] = {}
    for block in (usual, max(panel, usual // 2 // panel * panel)):
        for chunk in (share, 2 * share, share // 2):
            if ceil_divided(match.key.extent, block) != 1:
                chunk = min(chunk, room // _bytes_of_sums(match, tile, wide * lanes))
            chunk = max(1, min(chunk, tiles))
            rows_of_chunk = Tile("rows", tile), Tile("rows", tile * chunk)
            ways[Schedule(name, (*own, *rows_of_chunk, SplitReduce("depth", block)))] = None
    return iter(ways)


def attention_plan(
    match: Attention, schedule: Schedule, options: RegisterTileOptions
) -> AttentionPlan:
    """The sizes that a schedule says. ModelError if they do not suit an attention on a machine."""
    lanes, keys = schedule.the(Vector, "columns").lanes, match.key.extent
    widest = max(1, options.vector_bytes // f32.size)
    if lanes != widest:
        raise misfit(schedule, f"vectors of {widest} columns on this machine", lanes)
    panels = schedule.the(Tile, "columns").size, schedule.the(Tile, "depth").size
    if any(panel % lanes for panel in panels):
        raise misfit(schedule, f"panels of a multiple of {lanes} columns", panels)
    few, (wide, across) = _are_few(match, lanes), (panel // lanes for panel in panels)
    if few and across > 1:
        raise misfit(schedule, f"tile(depth, {lanes}) for few rows", panels[1])
    tile, chunks = schedule.the(Tile, "rows").size, schedule.all(Tile, "rows")[1:]
    if tile > max(1, _rows(match)) or tile * max(wide, across) > LARGEST_TILE:
        least = f"a tile of at most {_rows(match)} rows and {LARGEST_TILE} vectors"
        raise misfit(schedule, least, f"{tile} rows of {max(wide, across)}")
    block = schedule.the(SplitReduce, "depth").size
    if block % panels[1] or block > -(-MOST_KEYS // panels[1]) * panels[1]:
        wanted = f"blocks of a multiple of {panels[1]} keys, at most about {MOST_KEYS}"
        raise misfit(schedule, wanted, block)
    chunk = max(1, chunks[0].size // tile) if chunks else 1
    blocks, segments = ceil_divided(keys, block), _segments(match, tile)
    kept = chunk * _bytes_of_sums(match, tile, panels[0])
    if blocks != 1 and chunk > 1 and kept > _room(options):
        raise misfit(schedule, f"sums of at most {_room(options)} bytes for a chunk", kept)
    number = as_dim(sum((as_expr(s.count, i64) for s in segments), as_expr(0, i64)))
    return AttentionPlan(lanes, few, across, wide, tile, segments, number, chunk, block, blocks)


def _room(options: RegisterTileOptions) -> int:
    """Bytes of keys in panels, and of the sums of a chunk of rows, at most if there are several
    blocks of keys."""
    return max(ROOM, options.l2_bytes // OF_CACHE if options.vector_bytes else 0)


def _bytes_of_sums(match: Attention, tile: int, panel: int) -> int:
    """Of a tile, in whole panels."""
    return f32.size * tile * -(-count(match.columns) // panel) * panel


def _rows(match: Attention) -> int:
    return most(elements_of(x.extent for x in match.rows))


def _segments(match: Attention, tile: int) -> list[Segment]:
    return row_tiles(elements_of(x.extent for x in match.rows), tile)


def _are_few(match: Attention, lanes: int) -> bool:
    """Whether rows do not make up for a copy of keys, which are then read as they lie."""
    return _rows(match) <= FEW_ROWS and _are_read_along(match, lanes)


def _block(keys: int, held: int, panel: int, few: bool, vectors: bool) -> int:
    """The keys of a block: whole panels, of as many as are `held` in the cache."""
    room = MOST_KEYS if few else held if vectors else SMALL_BLOCK
    room = max(1, min(room, MOST_KEYS) // panel) * panel
    return -(-keys // panel) * panel if keys <= min(LARGER * room, MOST_KEYS) else room


def _are_read_along(match: Attention, lanes: int) -> bool:
    """Whether keys run along memory in the depth, so that vectors are read from there."""
    if not SMALLEST_SIDE <= lanes <= LARGEST_SIDE or len(match.depth) != 1:
        return False
    return strides_small(match.b, match.depth[0])
