"""Contractions on matrix cores (tensor cores): which ones qualify, how operands lie, which
instruction multiplies.

Factors are values of narrow types. A constant right operand is packed at compile time so that
asynchronous copies can bring it. A left operand that needs a conversion is stored converted, if
copies can bring it then (operand_packing.py). Warps multiply by mma.sync (warp_mma.py), warp groups
of four by wgmma (producer.py).
"""

from __future__ import annotations

from dataclasses import replace

from graphc.backends.cuda.machines import Machine
from graphc.backends.cuda.strategies.contraction.blocks import constant_depth, flattened, sort_depth
from graphc.backends.cuda.strategies.contraction.costs import Problem, clocks, ranked
from graphc.backends.cuda.strategies.contraction.mma_operands import KINDS, Kind, narrow
from graphc.backends.cuda.strategies.contraction.multistage import SlicedContraction, SlicedTile
from graphc.backends.cuda.strategies.contraction.operand_packing import (
    lay_out_constant,
    store_narrow,
)
from graphc.backends.cuda.strategies.contraction.producer import Producer
from graphc.backends.cuda.strategies.contraction.warp_mma import WARP_TILES, Warps
from graphc.backends.cuda.strategies.contraction.wgmma import GROUP_TILES, GroupTile
from graphc.ir.dtypes import f32, i32
from graphc.ir.extents import points
from graphc.ir.kernel import Kernel
from graphc.passes.analysis.computation import Computation
from graphc.passes.analysis.contraction import Match, match_contraction, wide_sums
from graphc.passes.lower.lowered import Lowered
from graphc.passes.lower.transforms.zero_points import take_zero_points
from graphc.passes.schedule.choosing import Choose, take_first

MIN_DEPTH = 16  # products to sum
MIN_ROWS, MIN_COLUMNS = 8, 8  # below which a fragment is mostly empty
ERROR = 1.15  # times a time that the cost model cannot tell from another one


def lower_matrix_cores(
    computation: Computation,
    gpu: Machine,
    tile: SlicedTile | None = None,
    choose: Choose = take_first,
) -> Lowered | str:
    """The kernel of a contraction that a GPU's matrix cores can do, with a tile or the one chosen
    of those that fit; or the reason why there is none."""
    match = match_contraction(wide_sums(computation), MIN_DEPTH, (f32, i32))
    if isinstance(match, str):
        return match
    kind = kind_of(match)
    if kind is None:
        return f"contraction: factors must be values narrower than {match.hole.dtype}, found none"
    if not gpu.has(kind.instruction):
        return f"contraction: matrix cores must have {kind.instruction}, found none in {gpu.arch}"
    depth = constant_depth(match)
    if isinstance(depth, str):
        return depth
    rows, columns = points(match.rows), points(match.cols)
    if rows < MIN_ROWS or columns < MIN_COLUMNS or any(x.extent == 0 for x in match.indices):
        return (
            f"contraction: fragments need {MIN_ROWS} rows and {MIN_COLUMNS} columns, found {rows} "
            f"and {columns}"
        )
    sort_depth(match)
    panels = lay_out_constant(match, kind)
    store_narrow(match, kind)
    batch = points(match.outer)
    words = -(-depth // kind.per_word)
    problem, flat = Problem(batch, rows, columns, words), flattened(match)

    def emitter(tile: SlicedTile) -> SlicedContraction:
        if isinstance(tile, GroupTile):
            return Producer(flat, kind, panels, tile)
        return Warps(flat, kind, panels, tile)

    def kernel(tile: SlicedTile) -> Kernel:
        return emitter(tile).kernel("cores")

    padded = Warps(flat, kind, panels, WARP_TILES[-1]).padded
    tiles: list[SlicedTile] = [replace(t, padded=padded) for t in WARP_TILES]
    if gpu.group_rate:
        produced = (Producer(flat, kind, panels, t) for t in GROUP_TILES)
        tiles = [*(p.described(_at_once(p.tile, gpu)) for p in produced if p.fits), *tiles]
    if isinstance(tile, GroupTile):
        fits = gpu.group_rate > 0 and Producer(flat, kind, panels, tile).fits
    else:
        fits = tile is None or bool(ranked([replace(tile, padded=padded)], gpu, problem))
    if not fits:
        return f"contraction: operands and {gpu.arch} must suit the tile, found {tile}"
    best = _groups_first(ranked(tiles, gpu, problem), gpu, problem)
    chosen = tile or choose(computation.text, best, lambda tile: [kernel(tile)])
    flops = 2 * batch * rows * columns * depth
    return Lowered(kernel(chosen), match.prepare, match.temporaries, flops=flops)


def _groups_first(tiles: list[SlicedTile], gpu: Machine, problem: Problem) -> list[SlicedTile]:
    """Ranked tiles, the best one of warp groups first if it is as good as the best for all that the
    model can tell: it reads less of caches, and leaves most instructions to issue to others."""
    grouped = next((t for t in tiles if isinstance(t, GroupTile)), None)
    if grouped is None or clocks(grouped, gpu, problem) > ERROR * clocks(tiles[0], gpu, problem):
        return tiles
    return [grouped, *(t for t in tiles if t is not grouped)]


def _at_once(tile: GroupTile, gpu: Machine) -> int:
    """Blocks of a tile that a GPU holds."""
    return gpu.multiprocessors * max(gpu.resident(tile.threads, tile.shared, tile.registers), 1)


def kind_of(match: Match) -> Kind | None:
    """The types of the factors, which become bare of conversions; None if there is none."""
    if match.hole.dtype is i32 and not take_zero_points(match):
        return None
    for kind in KINDS:
        if kind.sum is match.hole.dtype:
            a = narrow(match.a, kind.dtype, kind.sum)
            b = narrow(match.b, kind.second or kind.dtype, kind.sum)
            if a is not None and b is not None:
                match.a, match.b = a, b
                return kind
    return None
