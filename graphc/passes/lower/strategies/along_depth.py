"""Products of few rows with columns that run along memory in the depth, read as they lie.

Each column and row gives a vector of sums; those of as many columns as a vector has lanes are
transposed and added, so that the epilogue gets a vector of columns.
"""

from __future__ import annotations

from graphc.ir.dtypes import f32, i64
from graphc.ir.expr import Const, Expr, Index, as_expr, call, minimum
from graphc.ir.instructions import transpose
from graphc.ir.kernel import Buffer
from graphc.ir.simplify import simplify
from graphc.passes.lower.strategies.tile_emitter import Segment, TileEmitter


def multiply_along(
    e: TileEmitter, tiled: Index, fixed: dict, size: int, panel: Expr, panels: Segment
) -> None:
    """Emits the sums of so many rows and the columns of a panel, which is a vector wide, and their
    epilogue. The depth must be one index."""
    k, side = e.k, e.plan.lanes
    panel = k.let(panel)
    e.is_open = panels.open
    for t in range(size):
        row = {**fixed, tiled: as_expr(t, i64)}
        tile = k.alloc(f32, (side * side,))
        for c in range(side):
            column = minimum(panel * side + c, e.plan.columns - 1)
            _multiply_column(e, {**row, e.column: column}, tile, c * side)
        k.emit(transpose(tile, side))
        sums = k.alloc(f32, (side,), "reg")
        with e.lanes(side) as v:
            parts: list[Expr] = [tile[simplify(v + r * side)] for r in range(side)]
            while len(parts) > 1:
                parts = [x + y for x, y in zip(parts[::2], parts[1::2])]
            k.store(sums, v, parts[0])
        e.finish_row(sums, row, panel, 0, e.pieces(panels.size))


def _multiply_column(e: TileEmitter, place: dict, tile: Buffer, start: int) -> None:
    """A row and a column, multiplied along the depth: a vector of sums, which starts there."""
    (deep,), lanes = e.depth, e.plan.lanes
    whole, left = divmod(deep.count, lanes)

    def factors(position: Expr) -> list[Expr]:
        return [simplify(x, {**place, deep: position}) for x in (e.a, e.b)]

    with e.lanes(lanes) as v:
        total: Expr = Const(0, f32)
        for n in range(whole):
            total = call("fma", *factors(v + n * lanes), total)
        e.k.store(tile, simplify(v + start), total)
    if left:
        with e.lanes(left) as v:
            cell = simplify(v + start)
            more = call("fma", *factors(v + whole * lanes), tile[cell])
            e.k.store(tile, cell, more)
