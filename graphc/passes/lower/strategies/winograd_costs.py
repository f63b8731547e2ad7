"""How long a convolution takes directly and by Winograd's algorithm, and in which tiles.

Times are in multiply-adds of vectors. Products in tiles of registers reach a part of the peak;
transforms take an operation, or a load or store, each; transformed weights that the second level of
cache does not hold are read once per block of tiles.
"""

from __future__ import annotations

from graphc.ir.dtypes import f32
from graphc.ir.extents import ceil_divided, most, points
from graphc.ir.types import Dim
from graphc.passes.analysis.convolution import Convolution
from graphc.passes.lower.strategies.tile_plan import RegisterTileOptions
from graphc.passes.lower.transforms.winograd import POINTS, TAPS, Winograd, operations, winograd

DIRECT = 0.9  # of the peak that direct products reach
BATCHED = 0.8  # of the peak that products of transformed values reach
BYTES = 2  # that come from beyond the second level of cache in the time of a multiply-add
GAIN = 1.1  # at least, for what code and transformed weights take
TRANSFORMED_AGAIN = 0.06  # of the time of products: what transforms take that are done again
STACK = 5 << 17  # bytes of transformed inputs, at most
FEWEST_TILES = 8  # of a block, below which products are slower
FEW_TILES, MANY_TILES = 16, 28  # of a block that has room for them in a part of the cache


def cheapest(planes: Convolution, options: RegisterTileOptions) -> list[int] | str:
    """The outputs of tiles, the fastest first, or why direct products are faster."""
    lanes = options.vector_bytes // f32.size
    columns = -(-most(planes.columns) // lanes)
    outputs = points(planes.match.rows)
    direct = 9 * outputs * planes.channels.count * columns / DIRECT
    times = {m: _time(planes, winograd(m), options) for m in POINTS}
    ranked = sorted(times, key=lambda m: times[m])
    if direct < GAIN * times[ranked[0]]:
        return (
            f"winograd: it must be {GAIN} times as fast as direct products, found "
            f"{direct / times[ranked[0]]:.2f} by estimate"
        )
    return ranked


def groups_of_panels(
    planes: Convolution, form: Winograd, block: int, panels: Dim, pieces: int
) -> int:
    """Into how many equal groups to split the panels of each block, so that threads have so many
    pieces to share. Each group transforms the inputs, so there are no more than take a small part
    of the time."""
    blocks = -(-tiles_of(planes, form) // block)
    if not isinstance(panels, int) or blocks >= pieces:
        return 1
    columns = most(planes.columns)
    again = _inputs(form) / (form.points**2 * columns)  # of a vector of channels
    fitting = min(1 + int(TRANSFORMED_AGAIN / again), -(-pieces // blocks))
    return max(d for d in range(1, panels + 1) if panels % d == 0 and d <= max(1, fitting))


def _inputs(form: Winograd) -> int:
    """The steps that transform a vector of channels of a tile."""
    return 2 * form.points * operations(form.inputs) + 2 * form.points**2


def _time(planes: Convolution, form: Winograd, options: RegisterTileOptions) -> float:
    lanes, n, m = options.vector_bytes // f32.size, form.points, form.outputs
    depth = planes.channels.count
    columns = -(-most(planes.columns) // lanes)
    tiles = tiles_of(planes, form)
    block = block_of_tiles(planes, form, options)
    products = n * n * tiles * depth * columns / (BATCHED * min(1, block / FEWEST_TILES))
    outputs = (n + m) * operations(form.results) + n * n + 3 * m * m
    transforms: float = tiles * (-(-depth // lanes) * _inputs(form) + columns * outputs)
    size = n * n * depth * columns * options.vector_bytes
    near = size <= options.held_bytes
    read = 0.0 if near else size / BYTES
    if planes.changes:
        weights = (TAPS + n) * operations(form.weights) + TAPS**2 + n * n
        transforms += depth * columns * weights + read
    return products + transforms + -(-tiles // block) * read


def tiles_of(planes: Convolution, form: Winograd) -> int:
    """The tiles of all images, at the largest sizes."""
    count = points(planes.others)
    for slide in planes.slides:
        count *= most(ceil_divided(slide.index.extent, form.outputs))
    return count


def block_of_tiles(planes: Convolution, form: Winograd, options: RegisterTileOptions) -> int:
    """How many tiles are computed together: as many as a quarter of the second level of cache has
    room for, but enough for a tile of registers, in blocks of nearly equal size."""
    tiles, nbytes = tiles_of(planes, form), bytes_of_tile(planes, form)
    room = min(MANY_TILES, options.l2_bytes // 4 // nbytes)
    room = max(room, min(FEW_TILES, options.l2_bytes * 5 // 8 // nbytes))
    room = max(1, min(room, STACK // nbytes))
    blocks = -(-tiles // room)
    return -(-tiles // blocks)


def bytes_of_tile(planes: Convolution, form: Winograd) -> int:
    """Of the transformed inputs of a tile."""
    return form.points**2 * planes.channels.count * f32.size
