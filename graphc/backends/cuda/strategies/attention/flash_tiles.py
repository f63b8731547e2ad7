"""Flash attention on matrix cores: which attentions qualify, and by which tiles.

Warps multiply by mma.sync (flash_matrix_cores.py), warp groups of four by wgmma
(flash_warp_groups.py).
"""

from __future__ import annotations

from dataclasses import replace

from graphc.backends.cuda.machines import Machine, fastest
from graphc.backends.cuda.strategies.attention.flash_matrix_cores import (
    CORE_TILES,
    SIDE,
    CoreTile,
    FlashMatrixCores,
)
from graphc.backends.cuda.strategies.attention.flash_warp_groups import (
    GROUP_CORE_TILES,
    FlashWarpGroups,
    GroupCoreTile,
)
from graphc.backends.cuda.strategies.attention.online_softmax import padded
from graphc.backends.cuda.strategies.contraction.mma_operands import KINDS, Kind, narrow
from graphc.ir.dtypes import f32
from graphc.ir.expr import Expr, cast
from graphc.ir.extents import most, points
from graphc.passes.analysis.attention import Attention, match_attention
from graphc.passes.analysis.computation import Computation
from graphc.passes.analysis.spaces import count
from graphc.passes.lower.lowered import Lowered


def lower_flash_matrix_cores(
    computation: Computation, gpu: Machine, tile: CoreTile | None = None
) -> Lowered | str:
    """The kernel of an attention whose factors are narrow, or the reason why there is none."""
    match = match_attention(computation)
    if isinstance(match, str):
        return match
    narrowed = _narrowed(match)
    if narrowed is None:
        return "attention: factors must all be values of one narrow type, found others"
    kind, match = narrowed
    if not gpu.has(kind.instruction):
        return f"attention: matrix cores must have {kind.instruction}, found none in {gpu.arch}"
    batch, rows, columns = points(match.outer), points(match.rows), count(match.columns)

    def emitter(tile: CoreTile) -> FlashMatrixCores:
        scheme = FlashWarpGroups if isinstance(tile, GroupCoreTile) else FlashMatrixCores
        return scheme(match, kind, tile)

    tiles = [t for t in (*GROUP_CORE_TILES, *CORE_TILES) if emitter(t).fits(gpu)]
    if not tiles:
        return (
            f"attention: a tile must fit into registers and {gpu.block_shared} bytes of shared "
            f"memory, found {count(match.depth)} products and {columns} columns"
        )
    keys = most(match.key.extent)
    fullest = [t for t in tiles if t.keys < 2 * padded(keys, SIDE)]
    chosen = tile or fastest(fullest or tiles, gpu, batch, rows)
    kernel = emitter(chosen).kernel("flash_matrix_cores")
    work = batch * rows * keys
    return Lowered(kernel, flops=2 * work * (count(match.depth) + columns))


def _narrowed(match: Attention) -> tuple[Kind, Attention] | None:
    """The type that the factors of both contractions have, which becomes theirs. If it is that of
    the results too, queries and weights are rounded to it."""
    results = {o.buffer.dtype for o in match.computation.outputs}
    for kind in KINDS:
        rounds = results == {kind.dtype} and kind.dtype is not f32
        factors = (
            _factor(match.a, kind, rounds), _factor(match.b, kind, False),
            _factor(match.value, kind, False), _factor(match.softmax.weight, kind, rounds),
        )  # fmt: skip
        operands = [x for x in factors if x is not None]
        if kind.sum is f32 and len(operands) == len(factors):
            a, b, value, _ = operands
            return kind, replace(match, a=a, b=b, value=value)
    return None


def _factor(expr: Expr, kind: Kind, may_round: bool) -> Expr | None:
    """A factor as an expression of the type of a kind; None if it is none."""
    if expr.dtype is kind.dtype and kind.dtype is not f32:
        return expr
    narrowed = narrow(expr, kind.dtype, f32)
    return cast(expr, kind.dtype) if narrowed is None and may_round else narrowed
