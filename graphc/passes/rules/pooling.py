"""The largest elements of windows are found along one axis at a time, where that reads less.

The largest of a window is the largest of those of its columns, and neighbouring windows share
columns: five times five elements are read as five and five.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import permutations
from typing import Any

from graphc.ir.graph import Op, Value
from graphc.ir.window import WindowAxis, make_window
from graphc.passes.pattern import P, var
from graphc.passes.rewriter import Rewriter, rule
from graphc.passes.rules.facts import is_static, shape_of

x = var("x")
LESS = 0.65  # so much of what is read in one step is worth steps


@rule("max-pool-by-axes", P.MaxPool(x), group="windows")
def max_pool_by_axes(rw: Rewriter, pool: Op, x: Value) -> Value | None:
    """max over windows (a, b)  ==  max over windows b of max over windows a"""
    if not is_static(x) or any(value.uses for value in pool.outputs[1:]):
        return rw.skip("sizes are not known, or positions are asked for")
    names = ("auto_pad", "pads", "strides", "dilations", "ceil_mode")
    attrs = {name: rw.attr(pool, name) for name in names}
    window = make_window(shape_of(x)[2:], rw.attr(pool, "kernel_shape"), **attrs)
    changed = [a for a, axis in enumerate(window) if axis.kernel > 1 or axis.stride > 1]
    order = min(permutations(changed), key=lambda order: _read(window, order))
    if min((pad for axis in window for pad in (axis.begin, axis.end)), default=0) < 0:
        return rw.skip("it crops elements that are not padding")
    at_once = math.prod(axis.out * axis.kernel for axis in window)
    if len(order) < 2 or _read(window, order) > LESS * at_once:
        return rw.skip("steps read hardly less")
    return _steps(rw, pool, x, window, order)


def _read(window: Sequence[WindowAxis], order: Sequence[int]) -> int:
    """The elements of an image that all steps read."""
    total: Any = 0
    extents = [axis.extent for axis in window]
    for a in order:
        extents[a] = window[a].out
        total += math.prod(extents) * window[a].kernel
    return total


def _steps(
    rw: Rewriter, pool: Op, value: Value, window: Sequence[WindowAxis], order: Sequence[int]
) -> Value:
    rank = len(window)
    for a in order:
        axis = window[a]
        here = [d == a for d in range(rank)]
        value = rw.op(
            "MaxPool", value,
            kernel_shape=[axis.kernel if own else 1 for own in here],
            strides=[axis.stride if own else 1 for own in here],
            dilations=[axis.dilation if own else 1 for own in here],
            pads=[axis.begin * own for own in here] + [axis.end * own for own in here],
            ceil_mode=rw.attr(pool, "ceil_mode"),
        )  # fmt: skip
    return value
