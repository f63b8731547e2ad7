"""Signals: Fourier transforms, window functions, the mel scale.

A short transform along an axis is one product with a constant matrix whose rows are the (real,
imaginary) inputs and whose columns are the (real, imaginary) outputs; a short-time transform is the
same matrix, times the window, as the filters of a strided convolution. Longer ones are fast (see
fourier.py). One of open length is a product with a matrix that is computed when it runs.
"""

from __future__ import annotations

import math

import numpy as np

from graphc.errors import ModelError
from graphc.ir import dtypes
from graphc.ir.build import Builder
from graphc.ir.dtypes import f64
from graphc.ir.expr import Expr, cast, cos, sin
from graphc.ir.extents import as_dim, most
from graphc.ir.graph import Value
from graphc.ir.opdef import Float, Int, Known, Number, Operand, OutIndex, composite, op
from graphc.ir.ops.activation_composites import convert
from graphc.ir.ops.fourier import (
    Transform,
    fourier_matrix,
    half_spectrum_matrix,
    is_direct,
    mirrored,
)
from graphc.ir.ops.helpers import (
    check_table,
    counted,
    dims_of,
    joined,
    normal_axis,
    shaped,
    shorter,
    sliced,
)
from graphc.ir.types import Dim, Shape


@composite("DFT")
def dft(
    b: Builder, x: Float, dft_length: Known(Int) | None = None, axis: Known(Int) | None = None, *,
    inverse: int = 0, onesided: int = 0,
) -> Value:  # fmt: skip
    """The discrete Fourier transform along an axis; the last axis holds real and imaginary parts.

    One-sided: only the first half of the bins forwards, and a real signal from those backwards.
    """
    rank, parts = x.tensor.rank, x.tensor.dims[-1]
    where = normal_axis(-2 if axis is None else int(axis.item()), rank)
    if where == rank - 1 or not isinstance(parts, int) or parts not in (1, 2):
        raise ModelError(f"cannot transform axis {where} of shape {list(x.tensor.dims)}")
    extent = x.tensor.dims[where]
    to_real = bool(inverse and onesided)
    default = as_dim((extent - 1) * 2) if to_real else extent
    (length,) = (default,) if dft_length is None else dims_of(dft_length, 0)
    half = as_dim(length // 2 + 1)
    used = shorter(extent, half if to_real else length)
    columns = half if onesided and not to_real else length
    order = [d for d in range(rank - 1) if d != where] + [where, rank - 1]
    moved = sliced(b, b.Transpose(x, perm=order), 0, used, rank - 2)
    if isinstance(length, int) and isinstance(used, int) and isinstance(columns, int):
        result = _of_length(b, moved, length, columns, bool(inverse), to_real)
    else:
        result = _of_open_length(b, moved, length, columns, bool(inverse), to_real)
    return b.Transpose(result, perm=[order.index(d) for d in range(rank)])


def _of_length(
    b: Builder, x: Value, length: int, columns: int, inverse: bool, to_real: bool
) -> Value:
    """The transform of x (..., up to the length, parts)."""
    used, parts = x.tensor.dims[-2:]
    assert isinstance(used, int) and isinstance(parts, int)
    check_table(max(length, 0), 2)
    if not is_direct(length):
        return _fast(b, x, Transform(length, inverse, columns, 1 if to_real else 2))
    if to_real:
        return _multiply(b, x, half_spectrum_matrix(length, used)[:, :parts])
    return _multiply(b, x, fourier_matrix(length, used, columns, parts, inverse))


def _of_open_length(
    b: Builder, x: Value, length: Dim, columns: Dim, inverse: bool, to_real: bool
) -> Value:
    """As `_of_length`, by a matrix that is computed when it runs."""
    *outer, used, parts = x.tensor.dims
    check_table(most(used), most(columns), 2, most(parts))
    numbers = b.Mul(counted(b, used, shape=(-1, 1)), counted(b, columns))
    angles = b.Mul(b.Cast(b.Mod(numbers, length), to=f64.onnx), 2 * np.pi)
    angles = b.Div(angles, b.Cast(b.dims([length]), to=f64.onnx))
    last = np.array([-1])
    real, imaginary = (b.Unsqueeze(f, last) for f in (b.Cos(angles), b.Sin(angles)))
    if inverse:
        of_real, of_imaginary = [real, imaginary], [b.Neg(imaginary), real]
    else:
        of_real, of_imaginary = [real, b.Neg(imaginary)], [imaginary, real]
    results = 1 if to_real else 2
    rows = [b.Unsqueeze(joined(b, row[:results], -1), np.array([1]))
            for row in (of_real, of_imaginary)[:parts]]  # fmt: skip
    matrix = joined(b, rows, 1)
    if to_real:
        matrix = b.Mul(matrix, _mirrored(b, used, length))
    if inverse:
        matrix = b.Div(matrix, b.Cast(b.dims([length]), to=f64.onnx))
    weights = shaped(b, b.Cast(matrix, to=x.tensor.dtype.onnx), used * parts, columns * results)
    flat = shaped(b, x, math.prod(outer), used * parts)
    return shaped(b, b.MatMul(flat, weights), *outer, columns, results)


def _mirrored(b: Builder, bins: Dim, length: Dim) -> Value:
    """`fourier.mirrored`, (bins, 1, 1, 1), where the length is open."""
    number = counted(b, bins, shape=(-1, 1, 1, 1))
    single = b.Or(b.Equal(number, 0), b.Equal(b.Mul(number, 2), length))
    return b.Where(single, np.float64(1), np.float64(2))


def _fast(b: Builder, x: Value, transform: Transform) -> Value:
    """The transform of x (..., up to its length, parts), or the real signal whose spectrum begins
    with x, in float32 at least."""
    *outer, used, parts = x.tensor.dims
    assert isinstance(used, int)
    dtype = x.tensor.dtype
    wide = convert(b, x, dtype.compute)
    if transform.parts == 1:  # bins stand for their mirror images too, whose imaginary part differs
        wide = b.Mul(wide, b.constant(mirrored(transform.length, used)[:, None], dtype.compute))
    flat = shaped(b, wide, math.prod(outer), used, parts)
    if used < transform.length:
        flat = b.Pad(flat, np.array([0, 0, 0, 0, transform.length - used, 0]))
    result = transform.of(b, flat)
    whole = shaped(b, result, *outer, transform.columns, transform.parts)
    return convert(b, whole, dtype)


def _multiply(b: Builder, x: Value, matrix: np.ndarray) -> Value:
    """x (..., rows, parts) times the matrix (rows, parts, columns, parts of the result)."""
    rows, parts, *columns = matrix.shape
    outer = x.tensor.dims[:-2]
    flat = shaped(b, x, math.prod(outer), rows * parts)
    weights = matrix.reshape(rows * parts, math.prod(columns)).astype(x.tensor.dtype.np)
    return shaped(b, b.MatMul(flat, b.constant(weights)), *outer, *columns)


@composite("STFT")
def stft(
    b: Builder, signal: Float, frame_step: Known(Int), window: Float | None = None,
    frame_length: Known(Int) | None = None, *, onesided: int = 1,
) -> Value:  # fmt: skip
    """Fourier transforms of windowed frames, `frame_step` apart: (batch, frames, bins, 2)."""
    batch, samples, parts = signal.tensor.dims
    if frame_length is not None:
        length = int(frame_length.item())
    else:
        length = samples if window is None else window.tensor.dims[0]
    if not isinstance(length, int) or not isinstance(parts, int):
        raise ModelError(f"frames of {length} samples of {parts} parts: both must be known")
    bins = length // 2 + 1 if onesided else length
    step = int(frame_step.item())
    check_table(max(length, 0), 2)
    if not is_direct(length):
        frames = b.op("Frames", signal, domain="graphc", length=length, step=step)
        if window is not None:
            frames = b.Mul(frames, b.Unsqueeze(window, np.array([1])))
        return _fast(b, frames, Transform(length, False, bins))
    matrix = fourier_matrix(length, length, bins, parts, inverse=False)
    dtype = signal.tensor.dtype
    filters = b.constant(matrix.transpose(2, 3, 1, 0).reshape(2 * bins, parts, length), dtype)
    if window is not None:
        filters = b.Mul(filters, window)
    spectra = b.Conv(b.Transpose(signal, perm=(0, 2, 1)), filters, strides=(step,))
    split = shaped(b, spectra, batch, bins, 2, spectra.tensor.dims[-1])
    return b.Transpose(split, perm=(0, 3, 1, 2))


def _frames_shape(signal: Operand, *, length: Dim, step: int) -> Shape:
    batch, samples, parts = signal.shape
    if step < 1 or length < 1 or samples < length:
        raise ModelError(f"no frames of {length} samples, {step} apart, in {samples} samples")
    return (batch, (samples - length) // step + 1, length, parts)


@op("Frames", infer=_frames_shape, domain="graphc")
def frames(i: OutIndex, signal: Number, *, length: Dim, step: int) -> Expr:
    """Pieces of `length` samples of (batch, samples, parts), whose starts are `step` apart."""
    return signal[i[0], i[1] * step + i[2], i[3]]


# ---------------------------------------------------------------- windows


def _window_shape(size: np.ndarray) -> Shape:
    return (int(size.item()),)


def _angle(i: OutIndex, size: np.ndarray, periodic: int) -> Expr:
    """2 pi n / N, where a periodic window has N = size and a symmetric one N = size - 1.

    In float64: what is nearly zero at the ends of a window is the rest of terms that cancel.
    """
    count = int(size.item()) - (0 if periodic else 1)
    return cast(i[0], dtypes.f64) * (2 * math.pi / max(count, 1))


@op("HannWindow", infer=_window_shape)
def hann_window(
    i: OutIndex, size: Known(Int), *, output_datatype: int = 1, periodic: int = 1
) -> Expr:
    """sin(pi n / N) squared."""
    root = sin(_angle(i, size, periodic) * 0.5)
    return cast(root * root, dtypes.of(output_datatype))


@op("HammingWindow", infer=_window_shape)
def hamming_window(
    i: OutIndex, size: Known(Int), *, output_datatype: int = 1, periodic: int = 1
) -> Expr:
    """25/46 - 21/46 cos(2 pi n / N)."""
    value = 25 / 46 - cos(_angle(i, size, periodic)) * (21 / 46)
    return cast(value, dtypes.of(output_datatype))


@op("BlackmanWindow", infer=_window_shape)
def blackman_window(
    i: OutIndex, size: Known(Int), *, output_datatype: int = 1, periodic: int = 1
) -> Expr:
    """0.42 - 0.5 cos(2 pi n / N) + 0.08 cos(4 pi n / N)."""
    angle = _angle(i, size, periodic)
    value = 0.42 - cos(angle) * 0.5 + cos(angle * 2) * 0.08
    return cast(value, dtypes.of(output_datatype))


# ---------------------------------------------------------------- mel scale


@composite("MelWeightMatrix")
def mel_weight_matrix(
    b: Builder, num_mel_bins: Known(Int), dft_length: Known(Int), sample_rate: Known(Int),
    lower_edge_hertz: Known(Number), upper_edge_hertz: Known(Number), *, output_datatype: int = 1,
) -> Value:  # fmt: skip
    """(spectrogram bins, mel bins): triangles equally spaced on the mel scale.

    The scale is 2595 log10(1 + f / 700); centres are rounded down to spectrogram bins.
    """
    count, length = int(num_mel_bins.item()), int(dft_length.item())
    low, high = (
        2595 * math.log10(1 + float(edge.item()) / 700)
        for edge in (lower_edge_hertz, upper_edge_hertz)
    )
    check_table(max(count, 0), max(length // 2 + 1, 0))
    mel = np.arange(count + 2) * ((high - low) / (count + 2)) + low
    hertz = 700 * (10 ** (mel / 2595) - 1)
    edges = ((length + 1) * hertz // int(sample_rate.item())).astype(np.int64)
    bins = np.arange(length // 2 + 1)[:, None]
    left, centre, right = edges[:-2], edges[1:-1], edges[2:]
    rising = np.where(left == centre, 1.0, (bins - left) / np.maximum(centre - left, 1))
    falling = (right - bins) / np.maximum(right - centre, 1)
    weights = np.where((bins >= left) & (bins <= centre), rising, 0.0)
    weights = np.where((bins >= centre) & (bins < right) & (right > centre), falling, weights)
    return b.constant(weights, dtypes.of(output_datatype))
