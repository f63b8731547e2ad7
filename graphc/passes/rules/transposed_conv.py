"""Transposed convolutions become plain ones, which every backend has fast code for.

Along one axis, y[o] sums x[p] w[k] over p*s + k = o + begin. Write o + begin = q*s + r.
Only the taps k = r + s*j reach it, with p = q - j: so the outputs of one phase r are an ordinary
convolution of x with the taps r, r+s, .., flipped; the phases are then interleaved and the padding
is cut off. If the kernel is a multiple of the stride, all phases are one convolution with s times
the channels; with kernel = stride it is a matrix product. (See Shi et al., "Is the deconvolution
layer the same as a convolutional layer?", 2016.)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np

from graphc.errors import ModelError
from graphc.ir.extents import as_dim
from graphc.ir.graph import Op, Value
from graphc.ir.infer import arguments
from graphc.ir.ops.convolution import transposed_window
from graphc.ir.types import Dim
from graphc.passes.pattern import P, opt, var
from graphc.passes.rewriter import Rewriter, rule
from graphc.passes.rules.facts import array_of
from graphc.passes.rules.views import reshaped, sliced
from graphc.records import dataclass

x, w, b = var("x w b")
GROUP = "lowering"


@dataclass(frozen=True)
class Axis:
    """One spatial axis: input extent, kernel, stride, dilation, first padding, output extent."""

    extent: Dim
    kernel: int
    stride: int
    dilation: int
    begin: int
    out: Dim

    @property
    def more(self) -> int:
        """Outputs of each phase that are computed beyond one for each input: enough for all."""
        return max(_constant(-(-(self.begin + self.out) // self.stride) - self.extent), 0)

    @property
    def rows(self) -> Dim:
        """Outputs of each phase that are computed."""
        return as_dim(self.extent + self.more)

    def taps(self, phase: int) -> range:
        return range(phase, self.kernel, self.stride)


def _constant(difference: Dim) -> int:
    """A difference of extents. ModelError if it is not the same at all sizes."""
    number = as_dim(difference)
    if not isinstance(number, int):
        raise ModelError(f"{number} is not the same at all sizes")
    return number


def _axes(op: Op, x: Value, w: Value) -> list[Axis]:
    bound = arguments(op)
    window = transposed_window(bound.positional[0], bound.positional[1], **bound.keywords)
    return [
        Axis(extent, w.tensor.static_shape[2 + n], axis.stride, axis.dilation,
             _constant(axis.begin), as_dim(axis.extent))
        for n, (axis, extent) in enumerate(zip(window, x.tensor.dims[2:]))
    ]  # fmt: skip


@rule("conv-transpose-to-conv", P.ConvTranspose(x, w, opt(b)), group=GROUP)
def conv_transpose_to_conv(
    rw: Rewriter, op: Op, x: Value, w: Value, b: Value | None
) -> Value | None:
    """y[q*s + r - begin] == sum over j of x[q - j] w[r + s*j]: a convolution per phase r."""
    weights = array_of(w)
    if weights is None:
        return rw.skip("the weights are not constant")
    return as_convolutions(rw, op, x, weights, b, rw.constant)


def as_convolutions(
    rw: Rewriter,
    op: Op,
    x: Value,
    weights: np.ndarray,
    b: Value | None,
    constant: Callable[[np.ndarray], Value],
) -> Value | None:
    """A ConvTranspose as convolutions and moves; `constant` makes the weights of each, from the
    rearranged elements of `weights`, which may be of any type."""
    axes, group = _axes(op, x, op.inputs[1]), rw.attr(op, "group") or 1  # type: ignore[arg-type]
    if any(a.dilation > 1 and a.stride > 1 for a in axes):
        return rw.skip("it has both strides and dilations")
    if any(a.kernel < a.stride for a in axes):
        return rw.skip("the stride is larger than the kernel: some outputs get nothing")
    rows, columns = weights.shape[:2]
    forward = weights.reshape(group, rows // group, columns, *weights.shape[2:]).swapaxes(1, 2)
    phases = _Phases(rw, x, b, axes, constant)
    if all(a.stride == 1 for a in axes):
        return phases.without_strides(forward) or phases.interleaved(forward)
    return phases.interleaved(forward)


@dataclass
class _Phases:
    """Makes the convolutions of x with weights [group, out, in, taps..]."""

    rw: Rewriter
    x: Value
    b: Value | None
    axes: list[Axis]
    constant: Callable[[np.ndarray], Value]

    def conv(self, kernel: np.ndarray, b: Value | None, pads: tuple) -> Value:
        """The Conv whose taps are those of the kernel, flipped."""
        flipped = np.flip(kernel, tuple(range(3, kernel.ndim)))
        weights = np.ascontiguousarray(flipped.reshape(-1, *kernel.shape[2:]))
        dilations = tuple(a.dilation for a in self.axes)
        return self.rw.Conv(
            self.x, self.constant(weights), b,
            pads=pads if any(pads) else None,
            group=kernel.shape[0] if kernel.shape[0] > 1 else None,
            dilations=dilations if any(d > 1 for d in dilations) else None,
        )  # fmt: skip

    def without_strides(self, forward: np.ndarray) -> Value | None:
        """Without strides there is one phase, whose padding a Conv can do itself."""
        axes = self.axes
        spans = [(a.kernel - 1) * a.dilation for a in axes]
        begins = [span - a.begin for a, span in zip(axes, spans)]
        ends = [
            _constant(a.out - a.extent) + span - begin
            for a, span, begin in zip(axes, spans, begins)
        ]
        if min(*begins, *ends) < 0:
            return None
        return self.conv(forward, self.b, (*begins, *ends))

    def interleaved(self, forward: np.ndarray) -> Value:
        """The phases as convolutions, interleaved and cut."""
        group, channels = forward.shape[0], forward.shape[1]
        phases = list(itertools.product(*(range(a.stride) for a in self.axes)))
        whole = [slice(None)] * 3
        kernels = [
            forward[tuple(whole + [slice(r, None, a.stride) for r, a in zip(phase, self.axes)])]
            for phase in phases
        ]
        if len({kernel.shape for kernel in kernels}) == 1:
            stacked = np.stack(kernels, 1)  # group, phase, out, in, taps
            merged = stacked.reshape(group, -1, *stacked.shape[3:])
            parts = [self.phase(merged, len(phases))]
        else:
            parts = [self.phase(kernel, 1) for kernel in kernels]
        result = _interleaved(self.rw, parts, group, channels, self.axes)
        for n, axis in enumerate(self.axes):
            result = sliced(self.rw, result, n + 2, axis.begin, axis.out)
        return result

    def phase(self, kernel: np.ndarray, copies: int) -> Value:
        """The convolution for one phase (or `copies` phases, stacked within each group)."""
        rw, b = self.rw, self.b
        group, taps = kernel.shape[0], kernel.shape[3:]
        begins = [(t - 1) * a.dilation for t, a in zip(taps, self.axes)]
        ends = [a.more for a in self.axes]
        if b is not None and copies > 1:
            per_group = rw.Reshape(b, np.array((group, 1, -1), np.int64))
            tiled = rw.Tile(per_group, np.array((1, copies, 1), np.int64))
            b = rw.Reshape(tiled, np.array((-1,), np.int64))
        return self.conv(kernel, b, (*begins, *ends))


def _interleaved(
    rw: Rewriter, parts: list[Value], group: int, channels: int, axes: list[Axis]
) -> Value:
    """[N, group * phases * channels, rows..] to [N, group * channels, rows * stride..]."""
    batch, dims = parts[0].tensor.dims[0], len(axes)
    strides, rows = [a.stride for a in axes], [a.rows for a in axes]
    if math.prod(strides) == 1:
        return parts[0]
    if len(parts) > 1:
        parts = [reshaped(rw, p, (batch, group, 1, channels, *rows)) for p in parts]
        parts = [rw.Concat(*parts, axis=2)]
    split = reshaped(rw, parts[0], (batch, group, *strides, channels, *rows))
    first = 3 + dims
    pairs = [axis for n in range(dims) for axis in (first + n, 2 + n)]
    mixed = rw.Transpose(split, perm=(0, 1, 2 + dims, *pairs))
    full = [as_dim(r * s) for r, s in zip(rows, strides)]
    return reshaped(rw, mixed, (batch, group * channels, *full))
