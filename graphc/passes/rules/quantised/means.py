"""Means of quantised values: sums in int32, rescaled by a factor that holds the count.

A mean with the scale of its elements often is exactly halfway between two integers. ONNX Runtime
takes means over whole images of integers, and rounds halves to even, but means over windows of
floats, whose errors decide (graphc.ir.ops.averages).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from graphc.ir.dtypes import i32
from graphc.ir.expr import as_expr
from graphc.ir.graph import Op, Value
from graphc.ir.ops.averages import DIGITS, FARTHEST, LARGEST_WINDOW
from graphc.ir.ops.fixed_point import DOMAIN
from graphc.ir.window import POOL, WindowAxis, make_window
from graphc.passes.pattern import attribute
from graphc.passes.rewriter import Rewriter
from graphc.passes.rules.facts import ints
from graphc.passes.rules.quantised.activations import Activated
from graphc.passes.rules.quantised.kernels import in_one_kernel, shift_in_kernel
from graphc.passes.rules.quantised.per_channel_products import LARGEST_BYTE, NO_OPERAND
from graphc.passes.rules.quantised.rescale import (
    LARGEST_SUM,
    fixed_point,
    gives_halves,
    rescaled,
)
from graphc.passes.rules.quantised.values import Quantised, Target, activation


def _operand(rw: Rewriter, op: Op, count: int, after: Activated) -> Quantised | None:
    """The quantised operand of a mean of `count` elements."""
    x = activation(op.inputs[0])
    if x is None:
        return rw.skip(NO_OPERAND)
    if count * LARGEST_BYTE > LARGEST_SUM:
        return rw.skip("the sum does not fit int32")
    if after.slope is not None:
        return rw.skip("a mean has no slopes below zero")
    return x


def global_mean(rw: Rewriter, op: Op, after: Activated) -> Value | None:
    """A mean over all positions of every channel."""
    channels, *positions = _inner(op.operand(0))
    count = math.prod(positions)
    x = _operand(rw, op, count, after)
    if x is None:
        return None
    total = rw.op("ChannelSum", x.value, domain=DOMAIN)
    offset = np.full(channels, -count * x.zero_point, np.int64)
    factors = np.array([x.step / after.target.step / count])
    return rescaled(rw, total, offset, factors, 1, after.target)


def average_pool(rw: Rewriter, op: Op, after: Activated) -> Value | None:
    """A mean over windows; padding that does not count makes a factor per position."""
    (_, *positions), (_, *result) = _inner(op.operand(0)), _inner(op.output)
    x = _operand(rw, op, math.prod(op.attrs["kernel_shape"]), after)
    if x is None:
        return None
    counts = _counts(op, positions)
    if _often_tied(counts, x.step / after.target.step) and _within_reach(op, x, after.target):
        if not op.output.tensor.is_static:
            return rw.skip("a mean that is often halfway needs static shapes")
        return _tied_average(rw, op, x, after)
    whole = all(extent == 1 for extent in result) and not any(op.attrs.get("pads") or ())
    if whole and list(op.attrs["kernel_shape"]) == positions:
        return global_mean(rw, op, after)
    factors = x.step / after.target.step / counts
    if (counts == counts.reshape(-1)[0]).all():
        factors = factors.reshape(-1)[:1]
    return rescaled(rw, _window_sums(rw, op, x), np.zeros(1), factors, 1, after.target)


def _window_sums(rw: Rewriter, op: Op, x: Quantised) -> Value:
    geometry = {k: v for k, v in op.attrs.items() if k != "count_include_pad"}
    return rw.op("WindowSum", x.value, domain=DOMAIN, zero_point=x.zero_point, **geometry)


def _often_tied(counts: np.ndarray, factor: float) -> bool:
    """Whether means times a factor often are close to halfway between two integers."""
    if factor == 1:
        return bool((counts % 2 == 0).any())
    fixed = fixed_point(factor / np.unique(counts))
    return fixed is not None and gives_halves(*fixed)


def _within_reach(pool: Op, x: Quantised, target: Target) -> bool:
    """Whether the computation in float32 can be followed: nothing overflows."""
    exponent = math.frexp(x.step)[1] - math.frexp(target.step)[1]
    elements = math.prod(pool.attrs["kernel_shape"])
    return FARTHEST[0] <= exponent <= FARTHEST[1] and elements <= LARGEST_WINDOW


def _tied_average(rw: Rewriter, pool: Op, x: Quantised, after: Activated) -> Value:
    """A mean that often is close to halfway between two integers."""
    target = after.target
    (mx, ex), (my, ey) = math.frexp(x.step), math.frexp(target.step)
    added = target.zero_point + shift_in_kernel(rw) if in_one_kernel(rw, pool, after) else 0
    return rw.op(
        "RoundedAverage", x.value, _window_sums(rw, pool, x), domain=DOMAIN,
        x_mantissa=int(math.ldexp(mx, DIGITS)), mantissa=int(math.ldexp(my, DIGITS)),
        exponent=ex - ey, x_zero_point=x.zero_point, zero_point=target.zero_point, added=added,
        **target.attrs(), **pool.attrs,
    )  # fmt: skip


def _inner(value: Value) -> list[int]:
    """The channels and the positions of a batch of images, which must be static."""
    return [value.tensor.extent(axis) for axis in range(1, value.tensor.rank)]


def _counts(op: Op, positions: Sequence[int]) -> np.ndarray:
    """How many elements count at each position: [1, 1, rows...]."""
    given = {name: attribute(op, name) for name in POOL}
    window = make_window(tuple(positions), attribute(op, "kernel_shape"), **given)
    padded = bool(attribute(op, "count_include_pad"))
    total = np.ones((1,), np.int64)
    for axis in window:
        total = total[..., None] * _counts_along(axis, padded)
    return total[None].astype(np.float64)


def _counts_along(axis: WindowAxis, padded: bool) -> np.ndarray:
    positions = range(int(axis.out))  # type: ignore[arg-type]
    counts = [axis.count(as_expr(n), padded=padded) for n in positions]
    return np.array([int(n) for n in counts])  # type: ignore[arg-type]


def reduced_mean(rw: Rewriter, op: Op, after: Activated) -> Value | None:
    """A mean over some axes."""
    type = op.operand(0).tensor
    axes = op.inputs[1] if len(op.inputs) > 1 else None
    chosen = ints(axes) if axes is not None else []
    if chosen is None or (not chosen and attribute(op, "noop_with_empty_axes")):
        return rw.skip("the axes are not constant, or there are none")
    count = math.prod(map(type.extent, chosen)) if chosen else type.size
    x = _operand(rw, op, count, after)
    if x is None:
        return None
    total = rw.ReduceSum(rw.Cast(x.value, to=i32.onnx), axes, **op.attrs)
    offset = np.array([-count * x.zero_point])
    factors = np.array([x.step / after.target.step / count])
    return rescaled(rw, total, offset, factors, 0, after.target)
