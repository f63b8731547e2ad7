"""How attention is cut for caches and registers: blocks of keys, tiles of rows, chunks of tiles."""

from __future__ import annotations

from dataclasses import dataclass

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
from graphc.passes.lower.strategies.tile_transpose import LARGEST_SIDE, SMALLEST_SIDE

PANELS = 1 << 16  # bytes of keys in panels, at most if there are several blocks of them
LARGER = 2  # times as many keys may be one block
SUMS = 1 << 16  # bytes of the sums of a chunk of rows, if there are several blocks
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


def attention_plan(match: Attention, options: RegisterTileOptions) -> AttentionPlan:
    """The sizes for an attention on a machine."""
    lanes = max(1, options.vector_bytes // f32.size)
    all_rows, columns = elements_of(x.extent for x in match.rows), count(match.columns)
    rows, keys = most(all_rows), match.key.extent
    few = rows <= FEW_ROWS and _are_read_along(match, lanes)
    across = 1 if few else vectors_of(rows, -(-most(keys) // lanes), options.registers)
    wide = vectors_of(rows, -(-columns // lanes), options.registers)
    widest = max(across, wide)
    tile_rows = max(1, min((options.registers - widest - 1) // widest, rows))
    block = _block(most(keys), count(match.depth), across * lanes, few, lanes > 1)
    blocks = ceil_divided(keys, block)
    segments = row_tiles(all_rows, tile_rows)
    tiles = sum(most(s.count) for s in segments)
    chunk = max(FEWEST_TILES, -(-tiles * max(1, points(match.outer)) // PARALLEL_PIECES))
    if blocks != 1:
        panels = -(-columns // (wide * lanes))
        chunk = min(chunk, max(1, SUMS // (4 * tile_rows * panels * wide * lanes)))
    number = as_dim(sum((as_expr(s.count, i64) for s in segments), as_expr(0, i64)))
    return AttentionPlan(
        lanes, few, across, wide, tile_rows, segments, number, max(1, min(chunk, tiles)), block,
        blocks,
    )  # fmt: skip


def _block(keys: int, depth: int, panel: int, few: bool, vectors: bool) -> int:
    """The keys of a block: whole panels."""
    room = MOST_KEYS if few else PANELS // (f32.size * depth) if vectors else SMALL_BLOCK
    room = max(1, min(room, MOST_KEYS) // panel) * panel
    return -(-keys // panel) * panel if keys <= min(LARGER * room, MOST_KEYS) else room


def _are_read_along(match: Attention, lanes: int) -> bool:
    """Whether keys run along memory in the depth, so that vectors are read from there."""
    if not SMALLEST_SIDE <= lanes <= LARGEST_SIDE or len(match.depth) != 1:
        return False
    return strides_small(match.b, match.depth[0])
