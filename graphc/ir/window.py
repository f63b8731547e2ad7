"""Sliding windows: the geometry of one spatial axis, shared by convolutions and poolings.

Output position `o` and tap `k` read input position `o * stride + k * dilation - begin`. A guard is
needed only where that can leave 0 .. extent-1; `inside` gives exactly the comparisons that the
geometry does not decide, so an unpadded window has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from graphc.errors import ModelError
from graphc.ir.expr import TRUE, Const, Expr, ExprLike, Index, as_expr, maximum, minimum
from graphc.ir.opdef import Operand
from graphc.ir.simplify import simplify
from graphc.ir.types import Dim, Shape
from graphc.records import dataclass

WINDOW = {"auto_pad": "NOTSET", "dilations": None, "pads": None, "strides": None}
"""The attributes that place a window, which convolutions and poolings have in common."""
POOL = {**WINDOW, "ceil_mode": 0}
"""Those of poolings."""


def dim(value: ExprLike) -> Dim:
    """A dimension in its simplest form: an int if it is constant."""
    if isinstance(value, Expr):
        value = simplify(value)
        return int(value.value) if isinstance(value, Const) else value
    return int(value)


@dataclass(frozen=True)
class WindowAxis:
    """One spatial axis: sizes and padding in elements, `out` positions, `kernel` taps."""

    extent: Dim
    kernel: Dim
    stride: int = 1
    dilation: int = 1
    begin: Dim = 0
    end: Dim = 0
    out: Dim = 0

    @property
    def span(self) -> Dim:
        """Input elements from the first tap to the last."""
        return (self.kernel - 1) * self.dilation + 1

    def position(self, o: Dim, k: Dim) -> Expr:
        """The input position that tap `k` of output `o` reads."""
        return as_expr(o * self.stride + k * self.dilation - self.begin)

    def inside(self, o: Dim, k: Dim) -> Expr:
        """Whether that position lies in the input."""
        position = self.position(o, k)
        never_before = isinstance(self.begin, int) and self.begin <= 0
        last = dim((self.out - 1) * self.stride + self.span - 1 - self.begin - self.extent)
        never_after = isinstance(last, int) and last < 0
        lower = TRUE if never_before else simplify(position >= 0)
        upper = TRUE if never_after else simplify(position < self.extent)
        return lower & upper

    def trimmed(self) -> WindowAxis:
        """The axis without the taps that read padding at every output (pooling ignores those)."""
        if not all(isinstance(v, int) for v in (self.extent, self.begin, self.out)):
            return self
        last = min(self.kernel - 1, (self.extent - 1 + self.begin) // self.dilation)
        first = max(0, -(((self.out - 1) * self.stride - self.begin) // self.dilation))
        if first > last or self.out < 1:
            return self
        return replace(self, kernel=last - first + 1, begin=self.begin - first * self.dilation)

    def count(self, o: Dim, *, padded: bool) -> Expr | Dim:
        """How many taps of output `o` lie in the input (`padded`: or in its padding)."""
        before, after = (self.begin, self.end) if padded else (0, 0)
        start = simplify(as_expr(o * self.stride - self.begin + before))
        room = self.extent + before + after - start
        first = -(minimum(start, 0) // self.dilation)
        last = minimum(-(-room // self.dilation), self.kernel)
        return dim(simplify(last - maximum(first, 0)))


def guard(window: Sequence[WindowAxis], where: Sequence, taps: Sequence[Index]) -> Expr:
    """Whether tap `taps` of output `where` lies in the input on every axis."""
    condition: Expr = TRUE
    for axis, o, k in zip(window, where, taps):
        condition = condition & axis.inside(o, k)
    return condition


def positions(window: Sequence[WindowAxis], where: Sequence, taps: Sequence) -> tuple[Expr, ...]:
    """The input position on every axis."""
    return tuple(axis.position(o, k) for axis, o, k in zip(window, where, taps))


def make_window(
    extents: Sequence[Dim],
    kernel: Sequence[Dim],
    *,
    auto_pad: str = "NOTSET",
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    ceil_mode: int = 0,
    pools: bool = True,
) -> tuple[WindowAxis, ...]:
    """The axes of a window from ONNX's attributes; ModelError if they do not fit together.

    With `ceil_mode` a last window may hang over the end, unless it would start in the padding.
    `pools`: whether this is a pooling, whose automatic padding may be negative (see
    `same_padding`), and whose only window may be larger than what it lies on (see `_floor_extent`).
    """
    rank = len(extents)
    strides = per_axis("strides", strides, rank, 1)
    dilations = per_axis("dilations", dilations, rank, 1)
    pads = per_axis("pads", pads, 2 * rank, 0)
    if len(kernel) != rank:
        raise ModelError(f"kernel_shape has {len(kernel)} dims, the input {rank} spatial ones")
    if any(isinstance(k, int) and k < 1 for k in kernel):
        raise ModelError(f"kernel_shape {tuple(kernel)} must be positive")
    if min((*strides, *dilations), default=1) < 1:
        raise ModelError(f"strides {strides} and dilations {dilations} must be positive")
    return tuple(
        _make_axis(
            WindowAxis(extents[a], kernel[a], strides[a], dilations[a], pads[a], pads[a + rank]),
            auto_pad, ceil_mode, pools,
        )
        for a in range(rank)
    )  # fmt: skip


def pooled_shape(
    x: Operand, *, kernel_shape: Sequence[Dim], **attrs: POOL,  # type: ignore[valid-type]
) -> Shape:  # fmt: skip
    """The shape of what windows over the spatial axes of x give: batch, channels, positions."""
    window = make_window(x.shape[2:], kernel_shape, **attrs)
    return (*x.shape[:2], *(axis.out for axis in window))


def per_axis(name: str, values: Sequence[int] | None, count: int, default: int) -> tuple[int, ...]:
    """An attribute with one integer per axis, filled in if absent."""
    if not values:
        return (default,) * count
    if len(values) != count:
        raise ModelError(f"attribute {name} has {len(values)} values, {count} are required")
    return tuple(int(v) for v in values)


def _make_axis(axis: WindowAxis, auto_pad: str, ceil_mode: int, pools: bool) -> WindowAxis:
    begin, end = axis.begin, axis.end
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        out = dim((axis.extent + axis.stride - 1) // axis.stride)
        begin, end = same_padding(axis, out, upper=auto_pad == "SAME_UPPER", crops=pools)
        return replace(axis, begin=begin, end=end, out=out)
    if auto_pad == "VALID":
        begin = end = 0
    elif auto_pad != "NOTSET":
        raise ModelError(f"auto_pad is NOTSET, VALID, SAME_UPPER or SAME_LOWER, not {auto_pad!r}")
    room = axis.extent + begin + end - axis.span
    out = _floor_extent(room, axis.stride, pools)
    if ceil_mode:
        out = _ceil_extent(axis, room, out)
    fits = not isinstance(room, int) or room > (-2 * axis.stride if pools else -1)
    if not fits and axis.extent >= 1:
        raise ModelError(
            f"window of {axis.span} does not fit into {axis.extent} + padding {begin} + {end}"
        )
    return replace(axis, begin=begin, end=end, out=out)


def _floor_extent(room: Dim, stride: int, pools: bool) -> Dim:
    """How many windows lie on an axis that has `room` more elements than one of them covers.

    ONNX Runtime rounds a quotient below 0 toward 0 in poolings: a window that is larger than its
    padded input by less than a stride is taken once, and by less than two strides not at all.
    """
    out = maximum(as_expr(room // stride + 1), 0)
    if pools and stride > 1:
        out = maximum(out, minimum(as_expr(room + stride), 1))
    return dim(out)


def _ceil_extent(axis: WindowAxis, room: Dim, floor_out: Dim) -> Dim:
    out = dim((room + axis.stride - 1) // axis.stride + 1)
    if isinstance(out, int) and isinstance(axis.extent, int) and isinstance(axis.begin, int):
        starts_after = (out - 1) * axis.stride >= axis.extent + axis.begin
        return floor_out if starts_after and out > floor_out else out
    ends_before = isinstance(axis.span, int) and axis.span >= axis.end + axis.stride
    if ends_before:  # so that no window which hangs over starts in the padding
        return out
    inside = (axis.extent + axis.begin - 1) // axis.stride + 1
    return dim(minimum(as_expr(out), maximum(as_expr(inside), floor_out)))


def same_padding(axis: WindowAxis, out: Dim, *, upper: bool, crops: bool) -> tuple[Dim, Dim]:
    """Padding that gives `out` positions; the odd element goes to the end if `upper`.

    Windows further apart than they are long leave elements over. ONNX's formula for poolings gives
    them a negative padding, so that they are left out at both ends; halves are rounded toward zero,
    as ONNX Runtime does. Convolutions, for which ONNX has no formula, are never cropped.
    """
    total = as_expr((out - 1) * axis.stride + axis.span - axis.extent)
    padding = maximum(total, 0)
    begin = padding // 2 if upper else padding - padding // 2
    if not crops:
        return dim(begin), dim(padding - begin)
    surplus = maximum(-total, 0)
    begin = begin - (surplus // 2 if upper else maximum(surplus - 1, 0) // 2)
    return dim(begin), dim(total - begin)
