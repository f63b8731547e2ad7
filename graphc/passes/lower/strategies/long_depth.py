"""Register tiles over a long depth, as that of the gradient of weights: a sum over all positions of
all images, with few rows and columns.

A tile that takes the whole depth at once reads more of both factors than caches hold, and the next
tile reads the same columns again. So several tiles take a block of the depth in turn, and add what
they have summed to what they had before, on the stack.
"""

from __future__ import annotations

from typing import Any

from graphc.ir.addresses import unflatten_index
from graphc.ir.expr import Const, Expr, Index, minimum
from graphc.ir.extents import as_dim
from graphc.ir.simplify import simplify
from graphc.ir.types import elements_of

Emitter = Any  # TileEmitter of register_tiles.py, which imports this module
BLOCK = 256  # steps that tiles take in turn, at most
TILES = 16  # that take turns
PART_OF_CACHE = 8  # of the second level: what a tile may read at once


def steps_in_turn(e: Emitter) -> int:
    """The steps that tiles take in turn, at most; 0 if each takes the whole depth at once."""
    size = e.match.hole.dtype.size
    static = all(isinstance(k.extent, int) for k in e.depth)
    if not static or not e.depth or e.plan.quad is not None or not e.match.hole.dtype.is_float:
        return 0
    read = e.plan.depth * (e.plan.panel + e.plan.row_tile) * size
    return BLOCK if read > e.options.l2_bytes // PART_OF_CACHE else 0


def tiles_in_turn(
    e: Emitter, fixed: dict, tiled: Index, first: Expr, count: int, rows: Any,
    number: Expr, panels: Any,
) -> None:  # fmt: skip
    """Emits so many tiles of rows of a segment, from the first on, in one panel."""
    size, width, lanes = rows.size, e.plan.panel, e.plan.lanes
    cells = size * width
    group = -(-count // -(-count // TILES))
    panel = e.k.let(simplify(number))
    e.is_open = panels.open
    pieces = [(j, min(lanes, panels.size - j)) for j in range(0, panels.size, lanes)]
    outside, split, inside = _split(e.depth, e.inner)
    extents = (*(k.extent for k in outside), split.count // inside[0].count)
    with e.k.loop(-(-count // group)) as g:
        tiles = as_dim(minimum(count - g * group, group)) if count % group else group
        total = e.k.alloc(e.match.hole.dtype, (group * cells,), "stack")
        with e.k.loop(tiles) as t:
            e.set(total, size, pieces, lambda cell: Const(0, total.dtype), t * cells)
        with e.k.loop(elements_of(extents)) as block:
            *front, part = unflatten_index(block, extents)
            with e.k.loop(tiles) as t:
                row = e.k.let(simplify((first + g * group + t) * size + rows.first))
                sums, start = e.zeros(total.dtype, size, pieces), t * cells
                with e.k.loop(inside[0].extent) as x:
                    at = {**dict(zip(outside, front)), split: simplify(part * inside[0].count + x)}
                    e.sum_over(sums, fixed, tiled, row, size, panel, pieces, inside[1:], at)
                e.set(total, size, pieces, lambda c: total[c] + sums[simplify(c - start)], start)
        with e.k.loop(tiles) as t, e.k.loop(size) as r:
            at = {**fixed, tiled: simplify((first + g * group + t) * size + rows.first + r)}
            e.finish_row(total, at, panel, t * cells + r * width, pieces)


def _split(depth: list[Index], steps: int) -> tuple[list[Index], Index, list[Index]]:
    """The summed indices outside of blocks, the one that is split, and those inside, of which the
    first is a part of it."""
    inside: list[Index] = []
    for n in reversed(range(1, len(depth))):
        if depth[n].count > steps:
            break
        steps //= depth[n].count
        inside.insert(0, depth[n])
    split = depth[len(depth) - len(inside) - 1]
    piece = max(d for d in range(1, max(steps, 1) + 1) if split.count % d == 0)
    return depth[: len(depth) - len(inside) - 1], split, [Index(split.name, piece), *inside]
