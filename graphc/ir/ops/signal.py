"""Signals: Fourier transforms as matrix products, window functions, the mel scale.

A transform of length n along an axis is one product with a constant matrix whose rows are the
(real, imaginary) inputs and whose columns are the (real, imaginary) outputs; a short-time transform
is the same matrix, times the window, as the filters of a strided convolution.
"""

from __future__ import annotations

import math

import numpy as np

from graphc.errors import ModelError
from graphc.ir import dtypes
from graphc.ir.build import Builder
from graphc.ir.expr import Expr, cast, cos, sin
from graphc.ir.graph import Value
from graphc.ir.opdef import Float, Int, Known, Number, composite, op
from graphc.ir.ops.helpers import check_table, normal_axis


def fourier_matrix(length: int, rows: int, columns: int, parts: int, inverse: bool) -> np.ndarray:
    """(rows, parts, columns, 2): what input `n` (real, then imaginary part) adds to output `k`.

    exp(-2 pi j k n / length), or its conjugate / length for the inverse. Angles are reduced
    modulo a full turn in integers, so that they are exact for any length.
    """
    check_table(rows, columns, 2, parts)
    turns = np.outer(np.arange(rows), np.arange(columns)) % length / length
    cosine, sine = np.cos(2 * np.pi * turns), np.sin(2 * np.pi * turns)
    if inverse:
        cosine, sine = cosine / length, -sine / length
    of_real = np.stack([cosine, -sine], axis=-1)
    of_imaginary = np.stack([sine, cosine], axis=-1)
    return np.stack([of_real, of_imaginary][:parts], axis=1)


def half_spectrum_matrix(length: int, rows: int) -> np.ndarray:
    """(rows, 2, length, 1): a real signal from the first half of its spectrum.

    Bins other than the first and (of even lengths) the last stand for their mirror images too.
    """
    whole = fourier_matrix(length, rows, length, 2, inverse=True)
    mirrored = np.full((rows, 1, 1, 1), 2.0)
    mirrored[0] = 1
    if length % 2 == 0 and rows == length // 2 + 1:
        mirrored[-1] = 1
    return (whole * mirrored)[..., :1]


@composite("DFT")
def dft(
    b, x: Float, dft_length: Known(Int) | None = None, axis: Known(Int) | None = None, *,
    inverse=0, onesided=0,
):  # fmt: skip
    """The discrete Fourier transform along an axis; the last axis holds real and imaginary parts.

    One-sided: only the first half of the bins forwards, and a real signal from those backwards.
    """
    rank, parts = x.tensor.rank, x.tensor.static_shape[-1]
    where = normal_axis(-2 if axis is None else int(axis.item()), rank)
    if where == rank - 1 or parts not in (1, 2):
        raise ModelError(f"cannot transform axis {where} of shape {list(x.tensor.dims)}")
    found = x.tensor.static_shape[where]
    to_real = bool(inverse and onesided)
    default = 2 * (found - 1) if to_real else found
    length = default if dft_length is None else int(dft_length.item())
    half = length // 2 + 1
    used = min(found, half if to_real else length)
    if to_real:
        matrix = half_spectrum_matrix(length, used)[:, :parts]
    else:
        columns = half if onesided else length
        matrix = fourier_matrix(length, used, columns, parts, bool(inverse))
    order = [d for d in range(rank - 1) if d != where] + [where, rank - 1]
    moved = b.Transpose(x, perm=order)
    if used < found:
        moved = b.Slice(moved, np.array([0]), np.array([used]), np.array([rank - 2]))
    result = _multiply(b, moved, matrix)
    return b.Transpose(result, perm=[order.index(d) for d in range(rank)])


def _multiply(b: Builder, x: Value, matrix: np.ndarray) -> Value:
    """x (..., rows, parts) times the matrix (rows, parts, columns, parts of the result)."""
    rows, parts, *columns = matrix.shape
    outer = x.tensor.static_shape[:-2]
    flat = b.Reshape(x, np.array((math.prod(outer), rows * parts)))
    weights = matrix.reshape(rows * parts, math.prod(columns)).astype(x.tensor.dtype.np)
    return b.Reshape(b.MatMul(flat, b.constant(weights)), np.array((*outer, *columns)))


@composite("STFT")
def stft(
    b, signal: Float, frame_step: Known(Int), window: Float | None = None,
    frame_length: Known(Int) | None = None, *, onesided=1,
):  # fmt: skip
    """Fourier transforms of windowed frames, `frame_step` apart: (batch, frames, bins, 2)."""
    batch, samples, parts = signal.tensor.static_shape
    if frame_length is not None:
        length = int(frame_length.item())
    else:
        length = samples if window is None else window.tensor.static_shape[0]
    bins = length // 2 + 1 if onesided else length
    matrix = fourier_matrix(length, length, bins, parts, inverse=False)
    dtype = signal.tensor.dtype
    filters = b.constant(matrix.transpose(2, 3, 1, 0).reshape(2 * bins, parts, length), dtype)
    if window is not None:
        filters = b.Mul(filters, window)
    step = int(frame_step.item())
    spectra = b.Conv(b.Transpose(signal, perm=(0, 2, 1)), filters, strides=(step,))
    split = b.Reshape(spectra, np.array((batch, bins, 2, -1)))
    return b.Transpose(split, perm=(0, 3, 1, 2))


# ---------------------------------------------------------------- windows


def _window_shape(size):
    return (int(size.item()),)


def _angle(i, size: np.ndarray, periodic: int) -> Expr:
    """2 pi n / N, where a periodic window has N = size and a symmetric one N = size - 1."""
    count = int(size.item()) - (0 if periodic else 1)
    return cast(i[0], dtypes.f32) * (2 * math.pi / max(count, 1))


@op("HannWindow", infer=_window_shape)
def hann_window(i, size: Known(Int), *, output_datatype=1, periodic=1):
    """sin(pi n / N) squared."""
    root = sin(_angle(i, size, periodic) * 0.5)
    return cast(root * root, dtypes.of(output_datatype))


@op("HammingWindow", infer=_window_shape)
def hamming_window(i, size: Known(Int), *, output_datatype=1, periodic=1):
    """25/46 - 21/46 cos(2 pi n / N)."""
    value = 25 / 46 - cos(_angle(i, size, periodic)) * (21 / 46)
    return cast(value, dtypes.of(output_datatype))


@op("BlackmanWindow", infer=_window_shape)
def blackman_window(i, size: Known(Int), *, output_datatype=1, periodic=1):
    """0.42 - 0.5 cos(2 pi n / N) + 0.08 cos(4 pi n / N)."""
    angle = _angle(i, size, periodic)
    value = 0.42 - cos(angle) * 0.5 + cos(angle * 2) * 0.08
    return cast(value, dtypes.of(output_datatype))


# ---------------------------------------------------------------- mel scale


@composite("MelWeightMatrix")
def mel_weight_matrix(
    b, num_mel_bins: Known(Int), dft_length: Known(Int), sample_rate: Known(Int),
    lower_edge_hertz: Known(Number), upper_edge_hertz: Known(Number), *, output_datatype=1,
):  # fmt: skip
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
