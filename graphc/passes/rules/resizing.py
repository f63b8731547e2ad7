"""Images are resized along one axis at a time, where that reads less.

Weights of linear and cubic interpolation, with and without antialiasing, are products of one for
each axis. So a resize along several axes may be done along one axis after the other: an element is
then a sum over the taps of one axis at each step instead of over all combinations. The order is the
one that reads least. The intermediate images are held in memory, and are as wide as the result:
rounding differs by what the sums' orders do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import permutations

import numpy as np

from graphc.ir.extents import most
from graphc.ir.graph import Op, Value
from graphc.ir.ops.resize import ResizeAxis, reach, resize_axes
from graphc.passes.pattern import P, opt, var
from graphc.passes.rewriter import Rewriter, rule
from graphc.passes.rules.facts import array_of, is_static, shape_of

x, roi, scales, sizes = var("x roi scales sizes")
WIDE = (np.float32, np.float64)
MANY = 16  # taps of an element from which on
LESS = 0.65  # so much of what is read in one step is worth steps


@rule("resize-by-axes", P.Resize(x, opt(roi), opt(scales), opt(sizes)), group="axes")
def resize_by_axes(
    rw: Rewriter, resize: Op, x: Value, roi: Value | None, scales: Value | None, sizes: Value | None
) -> Value | None:
    """resize(x, axes a, b)  ==  resize(resize(x, axis a), axis b)"""
    static = is_static(x) and is_static(resize.output)
    if rw.attr(resize, "mode") == "nearest" or not static or x.tensor.dtype.np not in WIDE:
        return rw.skip("it does not interpolate static floats")
    if rw.attr(resize, "coordinate_transformation_mode") == "tf_crop_and_resize":
        return rw.skip("positions outside have a value of their own")
    if (rw.attr(resize, "keep_aspect_ratio_policy") or "stretch") != "stretch":
        return rw.skip("scales of axes depend on each other")
    plan = _plan(rw, resize, shape_of(x), scales, sizes)
    changed = [a for a, axis in enumerate(plan) if not axis.is_identity]
    taps = {a: _taps(rw, resize, plan[a]) for a in changed}
    if len(changed) < 2 or math.prod(taps.values()) < MANY:
        return rw.skip("taps are few")
    order = min(permutations(changed), key=lambda order: _read(plan, order, taps))
    at_once = math.prod(most(axis.out) for axis in plan) * math.prod(taps.values())
    if _read(plan, order, taps) > LESS * at_once:
        return rw.skip("steps read hardly less")
    return _steps(rw, resize, x, order, scales, sizes)


def _plan(
    rw: Rewriter, resize: Op, shape: tuple[int, ...], scales: Value | None, sizes: Value | None
) -> list[ResizeAxis]:
    scale, size = (None if v is None else array_of(v) for v in (scales, sizes))
    axes = rw.attr(resize, "axes")
    return resize_axes(shape, None, scale, size, axes, "stretch", "half_pixel")


def _taps(rw: Rewriter, resize: Op, axis: ResizeAxis) -> int:
    return most(reach(axis, rw.attr(resize, "mode"), bool(rw.attr(resize, "antialias"))))


def _read(plan: Sequence[ResizeAxis], order: Sequence[int], taps: dict[int, int]) -> int:
    """The elements that all steps read, in this order of axes."""
    total, extents = 0, [most(axis.extent) for axis in plan]
    for a in order:
        extents[a] = most(plan[a].out)
        total += math.prod(extents) * taps[a]
    return total


def _steps(
    rw: Rewriter, resize: Op, value: Value, order: Sequence[int], scales: Value | None,
    sizes: Value | None,
) -> Value:  # fmt: skip
    """A resize for each axis in turn, by the scale or the size that the one of all has for it."""
    rank = value.tensor.rank
    listed = [a % rank for a in rw.attr(resize, "axes") or range(rank)]
    wanted = None if sizes is None else array_of(sizes)
    by_size = wanted is not None and wanted.size > 0
    given = wanted if by_size else array_of(scales)
    assert given is not None
    for a in order:
        own = rw.constant(given[listed.index(a)].reshape(1))
        operands = (value, None, None, own) if by_size else (value, None, own)
        value = rw.op("Resize", *operands, **{**resize.attrs, "axes": [a]})
    return value
