"""Padding and broadcasting that the next op can do itself."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphc.ir.graph import Op, Value
from graphc.ir.types import Dim, broadcast
from graphc.ir.window import WINDOW, WindowAxis, make_window
from graphc.passes.analysis.facts import is_broadcast, is_pointwise
from graphc.passes.analysis.structure import is_view, moved
from graphc.passes.pattern import P, opt, rest, var
from graphc.passes.rewriter import Rewriter, rule
from graphc.passes.rules.facts import array_of, ints, is_normal, is_static
from graphc.passes.rules.weights import is_shared

x, w, b, amounts, fill, axes, c = var("x w b amounts fill axes c")

PADDED = P.Pad(x, amounts, opt(fill), opt(axes)).only_use()


def _spatial_pads(rw: Rewriter, pad: Op, user: Op) -> tuple[int, ...] | None:
    """What a Pad adds to the spatial axes, first all before, then all after, plus what its user
    adds; None if it pads other axes, crops, or does not fill with zeros."""
    x, fill = pad.inputs[0], array_of(pad.inputs[2]) if len(pad.inputs) > 2 else None
    given = ints(pad.inputs[1])
    if given is None or rw.attr(pad, "mode") != "constant":
        return rw.skip("the pads are not constant")
    if len(pad.inputs) > 2 and pad.inputs[2] is not None and (fill is None or fill.any()):
        return rw.skip("it does not pad with zeros")
    rank = x.tensor.rank  # type: ignore[union-attr]
    chosen = list(range(rank))
    if len(pad.inputs) > 3 and pad.inputs[3] is not None:
        chosen = [axis % rank for axis in ints(pad.inputs[3]) or []]
    before, after = [0] * rank, [0] * rank
    for n, axis in enumerate(chosen):
        before[axis], after[axis] = given[n], given[len(chosen) + n]
    if min(*before, *after) < 0 or any((*before[:2], *after[:2])):
        return rw.skip("it crops, or pads other than spatial axes")
    if rw.attr(user, "auto_pad") not in ("NOTSET", "VALID"):
        return rw.skip("the window's own padding depends on the padded extent")
    own = rw.attr(user, "pads") or (0,) * (2 * (rank - 2))
    own = own if rw.attr(user, "auto_pad") == "NOTSET" else (0,) * len(own)
    return tuple(a + b for a, b in zip((*before[2:], *after[2:]), own))


def _window_attrs(attrs: dict, pads: Sequence[Dim]) -> dict:
    return {**{k: v for k, v in attrs.items() if k != "auto_pad"}, "pads": pads}


@rule("pad-into-conv", P.Conv(PADDED, w, opt(b)))
def pad_into_conv(
    rw: Rewriter, pad: Op, conv: Op, x: Value, amounts: Value, fill: Value, axes: Value, w: Value,
    b: Value | None,
) -> Value | None:  # fmt: skip
    """conv(pad(x, a), w, pads p) == conv(x, w, pads a + p) for zeros around the spatial axes."""
    pads = _spatial_pads(rw, pad, conv)
    return None if pads is None else rw.Conv(x, w, b, **_window_attrs(conv.attrs, pads))


@rule("pad-into-average-pool", P.AveragePool(PADDED))
def pad_into_average_pool(
    rw: Rewriter, pad: Op, pool: Op, x: Value, amounts: Value, fill: Value, axes: Value
) -> Value | None:
    """averagepool(pad(x, a)) == averagepool(x, pads a, padding counted) for zeros."""
    own = rw.attr(pool, "pads")
    if rw.attr(pool, "ceil_mode") or (own and any(own)):
        return rw.skip("the pool pads by itself")
    pads = _spatial_pads(rw, pad, pool)
    if pads is None:
        return None
    return rw.AveragePool(x, **{**_window_attrs(pool.attrs, pads), "count_include_pad": 1})


@rule("taps-in-padding", P.Conv(x, w, opt(b)))
def taps_in_padding(rw: Rewriter, conv: Op, x: Value, w: Value, b: Value | None) -> Value | None:
    """conv(x, w) == conv(x, w without taps that read zeros of the padding at every position)."""
    weights = array_of(w)
    if weights is None or not is_static(x):
        return rw.skip("the weights are not constant")
    given = {k: rw.attr(conv, k) for k in WINDOW}
    window = make_window(x.tensor.dims[2:], weights.shape[2:], pools=False, **given)
    kept = [_live_taps(axis) for axis in window]
    if all(len(taps) == axis.kernel for taps, axis in zip(kept, window)):
        return rw.skip("every tap reads elements of the input")
    if not np.isfinite(weights).all() or is_shared(w):
        return rw.skip("weights are not finite, or large and have other users")
    begin = [axis.begin - taps.start * axis.dilation for taps, axis in zip(kept, window)]
    end = [axis.end - (axis.kernel - taps.stop) * axis.dilation for taps, axis in zip(kept, window)]
    part = (slice(None), slice(None), *(slice(taps.start, taps.stop) for taps in kept))
    attrs = {k: v for k, v in conv.attrs.items() if k != "kernel_shape"}
    return rw.Conv(x, rw.constant(weights[part]), b, **_window_attrs(attrs, (*begin, *end)))


def _live_taps(axis: WindowAxis) -> range:
    """The taps from the first to the last that reads an element of the input somewhere, and those
    before and after without which the padding would be negative."""
    live, step = axis.trimmed(), axis.dilation
    static = (axis.kernel, live.kernel, axis.begin, axis.end, live.begin)
    taps, left, begin, end, live_begin = (n for n in static if isinstance(n, int))
    before = (begin - live_begin) // step
    after = taps - left - before
    return range(min(before, begin // step), taps - min(after, end // step))


def _computes_with_broadcast(op: Op) -> bool:
    makers = (v.producer for v in op.inputs if v is not None)
    return is_pointwise(op) and any(maker is not None and _repeats(maker) for maker in makers)


def _repeats(op: Op) -> bool:
    """Whether an op broadcasts elements. One that adds dims of 1 alone is a view: it costs nothing,
    and what follows has the shape that its readers compute in."""
    return bool(is_broadcast(op)) and not is_view(op)


@rule("expand-operand", P.where(_computes_with_broadcast)(rest("operands")))
def expand_operand(rw: Rewriter, op: Op, operands: list[Value]) -> Value | None:
    """f(expand(x), y) == f(x, y) if y broadcasts x as far as the Expand does."""
    if not all(v is None or is_static(v) for v in operands):
        return rw.skip("shapes are not static")
    needed = []
    for number, value in enumerate(operands):
        producer = None if value is None else value.producer
        if producer is None or not _repeats(producer):
            continue
        _, source = moved(producer)
        others = [*operands[:number], source, *operands[number + 1 :]]
        if broadcast(*(v.tensor.dims for v in others if v is not None)) == op.output.tensor.dims:
            return rw.again(op, *others)
        needed.append(producer)
    return rw.skip("without {} the result would be smaller", needed)


@rule("scale-before-conv", P.Conv(P.Mul(x, c).commutes().only_use(), w, opt(b)))
def scale_before_conv(
    rw: Rewriter, mul: Op, conv: Op, x: Value, c: Value, w: Value, b: Value | None
) -> Value | None:
    """conv(x * k, w) == conv(x, w * k) for one k per input channel of an ungrouped convolution."""
    factor, weights = array_of(c), array_of(w)
    if factor is None or weights is None or x.type != mul.output.type:
        return rw.skip("factor and weights are not both constants")
    shape = (1,) * (x.tensor.rank - factor.ndim) + factor.shape
    wide = weights.dtype.kind == "f" and weights.dtype.itemsize >= 4
    if factor.size != 1 and (rw.attr(conv, "group") != 1 or shape[1] != factor.size):
        return rw.skip("the factor is not one per input channel")
    if not wide or not is_normal(factor):
        return rw.skip("a factor is zero, huge, tiny or not finite, or weights are narrow")
    if is_shared(w):
        return rw.skip("the weights are large and have other users")
    per_channel = np.broadcast_to(factor.reshape(-1), x.tensor.static_shape[1:2]).astype(np.float64)
    if factor.size == 1:
        per_channel = per_channel[:1]
    spread = per_channel.reshape(1, -1, *(1,) * (weights.ndim - 2))
    moved = rw.constant((weights * spread).astype(weights.dtype))
    return rw.Conv(x, moved, b, **conv.attrs)
