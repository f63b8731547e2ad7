"""Operators that rearrange elements without computing: each body is one load through an index map.

An operator with the trait "view" keeps the row-major order of its first operand, so its result can
be the same memory. Joins, pads and constants of shapes are in assembly.py, gathers in gather.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from graphc.errors import ModelError
from graphc.ir.dtypes import i64
from graphc.ir.expr import Expr, as_expr, maximum, minimum, select
from graphc.ir.extents import as_dim, at_most
from graphc.ir.opdef import Any_, Int, Known, Operand, OutIndex, linear, op
from graphc.ir.ops.helpers import (
    dims_of,
    ints_of,
    normal_axes,
    normal_axis,
    numbers_of,
    replaced,
)
from graphc.ir.simplify import bounds, simplify
from graphc.ir.types import MAX_ELEMENTS, Dim, Shape, at, broadcast

# ---------------------------------------------------------------- views


def _reshaped(x: Operand, shape: np.ndarray, *, allowzero: int) -> Shape:
    """Resolves 0 (copy the dimension) and one -1 (whatever is left over)."""
    wanted = dims_of(shape, 0 if allowzero else 1)
    if wanted.count(-1) > 1 or any(isinstance(d, int) and d < -1 for d in wanted):
        raise ModelError(f"shape {wanted} may hold one -1 and no other negative")
    dims: list[Dim] = [*wanted]
    if not allowzero:
        if any(d == 0 and n >= x.rank for n, d in enumerate(dims)):
            raise ModelError(f"shape {wanted} copies a dimension that {list(x.shape)} lacks")
        dims = [x.shape[n] if d == 0 else d for n, d in enumerate(dims)]
    known = _product(d for d in dims if not (isinstance(d, int) and d == -1))
    if -1 in wanted:
        dims[wanted.index(-1)] = _left_over(x, known, wanted)
    elif at(known, {}) != at(x.size, {}):
        raise ModelError(f"{list(x.shape)} has {x.size} elements, shape {wanted} {known}")
    return tuple(dims)


def _left_over(x: Operand, known: Dim, wanted: Sequence[Dim]) -> Dim:
    if isinstance(known, int) and known == 0:
        raise ModelError(f"-1 in shape {wanted} is not determined: the other dimensions hold 0")
    if isinstance(x.size, int) and isinstance(known, int) and x.size % known:
        raise ModelError(f"{list(x.shape)} ({x.size} elements) does not fit shape {wanted}")
    left = at(x.size // known, {})
    if at(left * known, {}) != at(x.size, {}):
        raise ModelError(f"{list(x.shape)} may not fit shape {wanted}")
    return left


def _product(dims: Iterable[Dim]) -> Dim:
    result: Dim = 1
    for extent in dims:
        result = result * extent
    return result


@op("Reshape", infer=_reshaped, traits=("view",))
def reshape(i: OutIndex, x: Any_, shape: Known(Int), *, allowzero: int = 0) -> Expr:
    """x with another shape of as many elements, in the same row-major order."""
    return x.flat(linear(i, i.shape))


def _flattened(x: Operand, *, axis: int) -> Shape:
    if not -x.rank <= axis <= x.rank:
        raise ModelError(f"axis {axis} is out of range for rank {x.rank}")
    cut = axis + x.rank if axis < 0 else axis
    return (_product(x.shape[:cut]), _product(x.shape[cut:]))


@op("Flatten", infer=_flattened, traits=("view",))
def flatten(i: OutIndex, x: Any_, *, axis: int = 1) -> Expr:
    """The dimensions before `axis` as one, those from it on as another."""
    return x.flat(linear(i, i.shape))


def _squeezed_axes(x: Operand, axes: np.ndarray | None) -> list[int]:
    if axes is None:
        return [n for n, extent in enumerate(x.shape) if isinstance(extent, int) and extent == 1]
    chosen = normal_axes(axes, x.rank)
    wrong = [n for n in chosen if isinstance(x.shape[n], int) and x.shape[n] != 1]
    if wrong:
        raise ModelError(f"cannot squeeze axis {wrong[0]} of {list(x.shape)}: it is not 1")
    return chosen


def _squeezed(x: Operand, axes: np.ndarray | None) -> Shape:
    gone = _squeezed_axes(x, axes)
    return tuple(extent for n, extent in enumerate(x.shape) if n not in gone)


@op("Squeeze", infer=_squeezed, traits=("view",))
def squeeze(i: OutIndex, x: Any_, axes: Known(Int) = None) -> Expr:
    """x without some dimensions of extent 1 (all of them if none are named)."""
    gone, rest = _squeezed_axes(x, axes), iter(i)
    return x[tuple(as_expr(0, i64) if n in gone else next(rest) for n in range(x.rank))]


def _unsqueezed(x: Operand, axes: np.ndarray) -> Shape:
    new = normal_axes(axes, x.rank + np.asarray(axes).size)
    rest = iter(x.shape)
    return tuple(1 if n in new else next(rest) for n in range(x.rank + len(new)))


@op("Unsqueeze", infer=_unsqueezed, traits=("view",))
def unsqueeze(i: OutIndex, x: Any_, axes: Known(Int)) -> Expr:
    """x with new dimensions of extent 1 at `axes` of the result."""
    new = normal_axes(axes, len(i))
    return x[tuple(position for n, position in enumerate(i) if n not in new)]


# ---------------------------------------------------------------- permutations and blocks


def _permutation(x: Operand, perm: Sequence[int] | None) -> list[int]:
    order = list(range(x.rank))[::-1] if perm is None else normal_axes(perm, x.rank)
    if len(order) != x.rank:
        raise ModelError(f"perm {list(perm)} does not name each of {x.rank} dimensions once")
    return order


@op("Transpose", infer=lambda x, *, perm: tuple(x.shape[d] for d in _permutation(x, perm)))
def transpose(i: OutIndex, x: Any_, *, perm: Sequence[int] | None = None) -> Expr:
    """Dimension n of the result is dimension perm[n] of x; reversed by default."""
    source: list = [None] * x.rank
    for position, dim in zip(i, _permutation(x, perm)):
        source[dim] = position
    return x[tuple(source)]


def _to_space(x: Operand, *, blocksize: int) -> Shape:
    n, c, h, w = x.shape
    if blocksize < 1 or as_dim(c % (blocksize * blocksize)) != 0:
        raise ModelError(f"{c} channels do not divide by blocksize {blocksize} squared")
    return (n, c // (blocksize * blocksize), h * blocksize, w * blocksize)


@op("DepthToSpace", infer=_to_space)
def depth_to_space(i: OutIndex, x: Any_, *, blocksize: int, mode: str = "DCR") -> Expr:
    """Blocks of channels become blocks of pixels; DCR: block-major channels, CRD: channel-major."""
    n, c, h, w = i
    block = (h % blocksize) * blocksize + w % blocksize
    if mode not in ("DCR", "CRD"):
        raise ModelError(f"mode must be DCR or CRD, found {mode!r}")
    depth = block * i.shape[1] + c if mode == "DCR" else c * (blocksize * blocksize) + block
    return x[n, depth, h // blocksize, w // blocksize]


def _to_depth(x: Operand, *, blocksize: int) -> Shape:
    n, c, h, w = x.shape
    if blocksize < 1 or any(as_dim(d % blocksize) != 0 for d in (h, w)):
        raise ModelError(f"image of {h} x {w} does not divide into blocks of {blocksize}")
    return (n, c * (blocksize * blocksize), h // blocksize, w // blocksize)


@op("SpaceToDepth", infer=_to_depth)
def space_to_depth(i: OutIndex, x: Any_, *, blocksize: int, mode: str = "DCR") -> Expr:
    """Blocks of pixels become blocks of channels, the inverse of DepthToSpace."""
    n, depth, h, w = i
    if mode not in ("DCR", "CRD"):
        raise ModelError(f"mode must be DCR or CRD, found {mode!r}")
    channels, area = x.shape[1], blocksize * blocksize
    if mode == "DCR":
        c, block = depth % channels, depth // channels
    else:
        c, block = depth // area, depth % area
    return x[n, c, h * blocksize + block // blocksize, w * blocksize + block % blocksize]


# ---------------------------------------------------------------- repetition and ranges


def _expanded(x: Operand, shape: np.ndarray) -> Shape:
    return broadcast(x.shape, tuple(dims_of(shape, 0)))


@op("Expand", infer=_expanded)
def expand(i: OutIndex, x: Any_, shape: Known(Int)) -> Expr:
    """x broadcast against `shape`."""
    return x[i]


def _tiled(x: Operand, repeats: np.ndarray) -> Shape:
    counts = ints_of(repeats)
    if len(counts) != x.rank or any(c < 0 for c in counts):
        raise ModelError(f"repeats {counts} must give a count for each of {x.rank} dimensions")
    return tuple(extent * count for extent, count in zip(x.shape, counts))


@op("Tile", infer=_tiled)
def tile(i: OutIndex, x: Any_, repeats: Known(Int)) -> Expr:
    """x repeated along each dimension."""
    return x[tuple(position % extent for position, extent in zip(i, x.shape))]


def _slices(
    x: Operand, starts: np.ndarray, ends: np.ndarray, axes: np.ndarray | None,
    steps: np.ndarray | None,
) -> dict[int, tuple[Dim, Dim, int]]:  # fmt: skip
    """The source positions of each sliced axis (see `_positions`)."""
    begin, end = numbers_of(starts), numbers_of(ends)
    chosen = list(range(len(begin))) if axes is None else normal_axes(axes, x.rank)
    stride = [1] * len(begin) if steps is None else ints_of(steps)
    if not len(begin) == len(end) == len(chosen) == len(stride):
        raise ModelError(
            f"starts, ends, axes and steps have {len(begin)}, {len(end)}, {len(chosen)} and "
            f"{len(stride)} elements"
        )
    if 0 in stride:
        raise ModelError("steps must not be 0")
    bounds = zip(chosen, begin, end, stride)
    return {n: _positions(x.shape[n], lo, hi, by) for n, lo, hi, by in bounds}


def _open_positions(extent: Dim, lo: Dim, hi: Dim, by: int) -> tuple[Dim, Dim, int]:
    """As `_positions`, where the extent or a limit is of open size."""
    end = as_expr(extent, i64)
    if by > 0:
        first, last = (_clamped_limit(limit, end, 0, end) for limit in (lo, hi))
        span = last - first
    elif lo == -1 and isinstance(hi, int) and hi < -MAX_ELEMENTS:  # all, from the last one on
        first, span = end - 1, end
    else:
        first, last = (_clamped_limit(x, end, least, end - 1) for x, least in ((lo, 0), (hi, -1)))
        span = first - last
    count = (maximum(span, 0) + (abs(by) - 1)) // abs(by)
    return at(first, {}), at(count, {}), by


FARTHEST = 1 << 62  # beyond all positions, and no sum with an extent overflows


def _clamped_limit(limit: Dim, extent: Expr, least: int, most: Expr) -> Expr:
    """A limit of a slice, counted from the end if it is negative, as a position in least..most."""
    if isinstance(limit, int):
        limit = min(max(limit, -FARTHEST), FARTHEST)
    low, high = (limit, limit) if isinstance(limit, int) else bounds(limit)
    number = as_expr(limit, i64)
    counted = number if low >= 0 else extent + number
    if low < 0 <= high:
        counted = select(number < 0, counted, number)
    return simplify(minimum(maximum(counted, least), most))


def _positions(extent: Dim, lo: Dim, hi: Dim, by: int) -> tuple[Dim, Dim, int]:
    """From lo to hi, each counted from the end if negative and then clamped to what there is: the
    first position, how many there are, and the step. Going backwards, a start before the first
    position is the first, where Python takes nothing."""
    if any(isinstance(x, Expr) for x in (extent, lo, hi)):
        return _open_positions(extent, lo, hi, by)
    assert isinstance(extent, int) and isinstance(lo, int) and isinstance(hi, int)
    if by < 0 and lo < -extent:
        lo = 0
    positions = range(extent)[lo:hi:by]
    return positions.start, len(positions), by


def _sliced(
    x: Operand, starts: np.ndarray, ends: np.ndarray, axes: np.ndarray | None,
    steps: np.ndarray | None,
) -> Shape:  # fmt: skip
    cuts = _slices(x, starts, ends, axes, steps)
    return tuple(cuts[n][1] if n in cuts else extent for n, extent in enumerate(x.shape))


@op("Slice", infer=_sliced)
def slice_op(
    i: OutIndex, x: Any_, starts: Known(Int), ends: Known(Int), axes: Known(Int) = None,
    steps: Known(Int) = None,
) -> Expr:  # fmt: skip
    """x[starts:ends:steps] on the named axes; limits are counted and clamped by `_positions`."""
    index = tuple(i)
    for axis, (start, _, step) in _slices(x, starts, ends, axes, steps).items():
        index = replaced(index, axis, i[axis] * step + start)
    return x[index]


def _split_parts(
    x: Operand, split: np.ndarray | None, axis: int, num_outputs: int | None, count: int
) -> list[tuple[Dim, Dim]]:
    """Where each part along `axis` starts, and its extent."""
    extent: Any = x.shape[axis]
    if split is None:
        parts = count if num_outputs is None else num_outputs
        if parts != count:
            raise ModelError(f"num_outputs is {parts}, but there are {count} outputs")
        return _equal_parts(extent, parts)
    sizes = numbers_of(split)
    if len(sizes) != count or as_dim(sum(sizes)) != extent or not all(at_most(0, n) for n in sizes):
        raise ModelError(f"sizes {sizes} do not split extent {extent} into {count} outputs")
    return [(as_dim(sum(sizes[:n])), size) for n, size in enumerate(sizes)]


def _equal_parts(extent: Dim, parts: int) -> list[tuple[Dim, Dim]]:
    """Parts of an extent, the last of which may be smaller, or empty."""
    chunk = as_dim((extent + parts - 1) // parts)
    starts = [as_dim(n * chunk) for n in range(parts)]
    if as_dim(chunk * parts) == extent:
        return [(start, chunk) for start in starts]
    left = (as_expr(extent - start, i64) for start in starts)
    return [(start, as_dim(maximum(minimum(n, chunk), 0))) for start, n in zip(starts, left)]


def _split_shapes(
    x: Operand, split: np.ndarray | None, *, axis: int, num_outputs: int | None, count: int
) -> list[Shape]:
    axis = normal_axis(axis, x.rank)
    parts = _split_parts(x, split, axis, num_outputs, count)
    return [replaced(x.shape, axis, size) for _, size in parts]


@op("Split", infer=_split_shapes, outputs=None)
def split_op(
    i: OutIndex, x: Any_, split: Known(Int) = None, *, axis: int = 0, num_outputs: int | None = None
) -> Expr:
    """Consecutive parts of x along `axis`: of the given sizes, or equal with a smaller last one."""
    axis = normal_axis(axis, x.rank)
    start, _ = _split_parts(x, split, axis, num_outputs, i.count)[i.output]
    return x[replaced(tuple(i), axis, i[axis] + start)]
