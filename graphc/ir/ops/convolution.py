"""Convolutions: sums of products over a window, written so that contraction matchers see them.

The body of Conv is literally `sum(x-load * w-load) + bias`. The load of x is guarded only on axes
where padding can be read, and its channel index holds group arithmetic only if there are groups.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from graphc.errors import ModelError
from graphc.ir.build import Builder
from graphc.ir.dtypes import i32
from graphc.ir.expr import TRUE, Expr, Index, as_expr, maximum, minimum, reduce, select
from graphc.ir.extents import as_dim
from graphc.ir.graph import Value
from graphc.ir.opdef import Float, Int, Operand, OutIndex, axes, composite, op
from graphc.ir.simplify import simplify
from graphc.ir.types import Dim, Shape
from graphc.ir.window import (
    WINDOW,
    WindowAxis,
    dim,
    guard,
    make_window,
    per_axis,
    positions,
)

CONV = {**WINDOW, "group": 1, "kernel_shape": None}
"""The attributes of convolutions."""


def conv_window(
    x: Operand, w: Operand, *, group: int, kernel_shape: Sequence[int] | None = None, **attrs: Any
) -> tuple[WindowAxis, ...]:
    """The window of a convolution, after checking its operands against each other."""
    if x.rank < 3 or w.rank != x.rank:
        raise ModelError(f"takes x and w of equal rank 3 or more, found {x.rank} and {w.rank}")
    channels, expected = x.shape[1], w.shape[1] * group
    if isinstance(channels, int) and isinstance(expected, int) and channels != expected:
        raise ModelError(
            f"input has {channels} channels, weight expects {expected} "
            f"(= W.shape[1] {w.shape[1]} * group {group})"
        )
    if as_dim(w.shape[0] % group) != 0:
        raise ModelError(f"{w.shape[0]} output channels do not divide into {group} groups")
    if kernel_shape and tuple(kernel_shape) != tuple(w.shape[2:]):
        raise ModelError(f"kernel_shape {tuple(kernel_shape)} differs from W's {w.shape[2:]}")
    return make_window(x.shape[2:], w.shape[2:], pools=False, **attrs)


def conv_shape(x: Operand, w: Operand, *_: object, **attrs: Any) -> Shape:
    """N, output channels, and one extent per window axis."""
    return (x.shape[0], w.shape[0], *(axis.out for axis in conv_window(x, w, **attrs)))


def group_channel(oc: Index, ic: Index, w: Operand, group: int) -> Expr:
    """The input channel that output channel `oc` reads at position `ic` within its group."""
    if group == 1:
        return ic
    per_group = w.shape[0] // group
    own_group = oc if per_group == 1 else oc // per_group
    return own_group if w.shape[1] == 1 else own_group * w.shape[1] + ic


def _convolve(
    i: OutIndex, x: Operand, w: Operand, load_x: Callable, load_w: Callable, **attrs: Any
) -> Expr:
    """The sum over channels and taps; `load_x(index)`, `load_w(index)` give the factors."""
    window, group = conv_window(x, w, **attrs), attrs["group"]
    n, oc, *where = i
    ic, *taps = axes(w.shape[1], *w.shape[2:])
    factor = load_x((n, group_channel(oc, ic, w, group), *positions(window, where, taps)))
    inside = guard(window, where, taps)
    if inside is not TRUE:
        factor = select(inside, factor, 0)
    return reduce("sum", factor * load_w((oc, ic, *taps)), (ic, *taps))


@op("Conv", infer=conv_shape)
def conv(i: OutIndex, x: Float, w: Float, b: Float | None = None, **attrs: CONV) -> Expr:
    """Sum over input channels and window taps of x * w, plus a bias per output channel."""
    total = _convolve(i, x, w, x.__getitem__, w.__getitem__, **attrs)
    return total if b is None else total + b[i[1]]


@op("ConvInteger", infer=conv_shape)
def conv_integer(
    i: OutIndex, x: Int, w: Int, x_zero_point: Int | None = None, w_zero_point: Int | None = None,
    **attrs: CONV,
) -> Expr:  # fmt: skip
    """Convolution of 8-bit integers less their zero points, in int32; padding counts as zero."""

    def load_x(index: Sequence[Expr]) -> Expr:
        return centred(x, index, x_zero_point)

    def load_w(index: Sequence[Index]) -> Expr:
        return centred(w, index, w_zero_point, axis=0)

    return _convolve(i, x, w, load_x, load_w, **attrs)


def centred(x: Operand, index: tuple, zero_point: Operand | None, axis: int = 0) -> Expr:
    """x[index] minus its zero point (one for all, or one per position on `axis`), in int32."""
    value = x[index].cast(i32)
    if zero_point is None:
        return value
    if zero_point.rank == 0 or zero_point.size == 1:
        return value - zero_point[(0,) * zero_point.rank].cast(i32)
    return value - zero_point[index[axis]].cast(i32)


@composite("QLinearConv")
def qlinear_conv(
    b: Builder, x: Int, x_scale: Float, x_zero_point: Int, w: Int, w_scale: Float,
    w_zero_point: Int, y_scale: Float, y_zero_point: Int, bias: Int | None = None, **attrs: CONV,
) -> Value:  # fmt: skip
    """Integer convolution, its sum scaled by x_scale * w_scale / y_scale and rounded."""
    total = b.ConvInteger(x, w, x_zero_point, w_zero_point, **attrs)
    spatial = (1,) * (x.tensor.rank - 2)
    if bias is not None:
        total = b.Add(total, b.Reshape(bias, np.array((1, -1, *spatial))))
    scale = b.Div(b.Mul(x_scale, w_scale), y_scale)
    if scale.tensor.rank == 1 and scale.tensor.dims[0] != 1:
        scale = b.Reshape(scale, np.array((1, -1, *spatial)))
    return requantize(b, total, scale, y_zero_point)


def requantize(b: Builder, total: Value, scale: Value, zero_point: Value) -> Value:
    """round(total * scale) + zero_point, saturated to the zero point's type."""
    dtype = zero_point.tensor.dtype
    scaled = b.Round(b.Mul(b.Cast(total, to=scale.tensor.dtype.onnx), scale))
    shifted = b.Add(scaled, b.Cast(zero_point, to=scale.tensor.dtype.onnx))
    limits = [b.constant(bound, scale.tensor.dtype) for bound in (dtype.min, dtype.max)]
    return b.Cast(b.Min(b.Max(shifted, limits[0]), limits[1]), to=dtype.onnx)


# ---------------------------------------------------------------- transposed


def transposed_window(
    x: Operand, w: Operand, *, auto_pad: str, dilations: Sequence[int] | None,
    output_padding: Sequence[int] | None, output_shape: Sequence[int] | None,
    pads: Sequence[int] | None, strides: Sequence[int], **_: object,
) -> tuple[WindowAxis, ...]:  # fmt: skip
    """Per axis, the window whose forward convolution this transposes: extent is *our* output."""
    if x.rank < 3 or w.rank != x.rank:
        raise ModelError(f"takes x and w of equal rank 3 or more, found {x.rank} and {w.rank}")
    if x.shape[1] != w.shape[0]:
        raise ModelError(f"input has {x.shape[1]} channels, weight expects {w.shape[0]}")
    rank = x.rank - 2
    strides = per_axis("strides", strides, rank, 1)
    dilations = per_axis("dilations", dilations, rank, 1)
    extra = per_axis("output_padding", output_padding, rank, 0)
    pads = per_axis("pads", pads, 2 * rank, 0)
    wanted = tuple(output_shape)[-rank:] if output_shape else (None,) * rank
    return tuple(
        _transposed_axis(
            WindowAxis(0, w.shape[2 + a], strides[a], dilations[a], pads[a], pads[a + rank],
                       x.shape[2 + a]),
            extra[a], wanted[a], auto_pad,
        )
        for a in range(rank)
    )  # fmt: skip


def _transposed_axis(axis: WindowAxis, extra: int, wanted: Dim | None, auto_pad: str) -> WindowAxis:
    """The axis with its padding and extent; a `wanted` extent decides the padding."""
    unpadded = (axis.out - 1) * axis.stride + axis.span + extra
    begin, end = (0, 0) if auto_pad == "VALID" else (axis.begin, axis.end)
    if auto_pad in ("SAME_UPPER", "SAME_LOWER") and wanted is None:
        wanted = dim(minimum(as_expr(axis.out * axis.stride), unpadded))  # it pads, and never adds
    if wanted is None:
        return replace(axis, extent=dim(unpadded - begin - end), begin=begin, end=end)
    total = dim(maximum(as_expr(unpadded - wanted), 0))
    less, more = dim(total // 2), dim(total - total // 2)
    begin, end = (less, more) if auto_pad == "SAME_UPPER" else (more, less)
    return replace(axis, extent=dim(wanted), begin=begin, end=end)


def _transposed_shape(x: Operand, w: Operand, *_: object, group: int, **attrs: Any) -> Shape:
    window = transposed_window(x, w, **attrs)
    return (x.shape[0], w.shape[1] * group, *(axis.extent for axis in window))


@op("ConvTranspose", infer=_transposed_shape)
def conv_transpose(
    i: OutIndex, x: Float, w: Float, b: Float | None = None, *, group: int = 1,
    output_padding: Sequence[int] | None = None, output_shape: Sequence[int] | None = None,
    kernel_shape: Sequence[int] | None = None, **attrs: WINDOW,
) -> Expr:  # fmt: skip
    """The gradient of Conv with respect to its input: tap k of x[p] lands on p*s + k*d - begin."""
    window = transposed_window(
        x, w, output_padding=output_padding, output_shape=output_shape, **attrs
    )
    n, oc, *where = i
    (ic,), taps = axes(x.shape[1] // group), axes(*w.shape[2:], name="t")
    own = oc if group == 1 else oc % w.shape[1]
    channel = ic if group == 1 else (oc // w.shape[1]) * (x.shape[1] // group) + ic
    landed, inside = _sources(window, where, taps)
    factor = x[(n, channel) + landed]
    if inside is not TRUE:
        factor = select(inside, factor, 0)
    total = reduce("sum", factor * w[(channel, own) + taps], (ic, *taps))
    return total if b is None else total + b[oc]


def _sources(
    window: Sequence[WindowAxis], where: Sequence[Index], taps: Sequence[Index]
) -> tuple[tuple[Expr, ...], Expr]:
    """The input positions whose tap lands here, and whether there is one."""
    landed: tuple[Expr, ...] = ()
    inside: Expr = TRUE
    for axis, o, k in zip(window, where, taps):
        scaled = simplify(o + axis.begin - k * axis.dilation)
        source = scaled if axis.stride == 1 else scaled // axis.stride
        if axis.stride != 1:
            inside = inside & simplify((scaled % axis.stride).eq(0))
        inside = inside & simplify(scaled >= 0) & simplify(source < axis.out)
        landed += (source,)
    return landed, inside
