"""Fast Fourier transforms against numpy's, in double precision."""

from __future__ import annotations

import math

import numpy as np
import pytest
from every_target import agree_everywhere
from ort_compare import agree
from single_op import run_op

from graphc.errors import UnsupportedError
from graphc.ir import dtypes
from graphc.ir.build import Builder, new_graph
from graphc.ir.ops.fourier import is_direct, prime_factors, radices, smooth_length
from graphc.ir.types import TensorType

rng = np.random.default_rng(11)


def pairs(values: np.ndarray) -> np.ndarray:
    """Real and imaginary parts."""
    return np.stack([values.real, values.imag], axis=-1)


def signal(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def close(found: np.ndarray, expected: np.ndarray, tolerance: float = 3e-6) -> None:
    """Errors are relative to the mean of squares."""
    assert found.shape == expected.shape
    size = math.sqrt((np.abs(expected) ** 2).mean())
    assert np.abs(found - expected).max() < tolerance * size


LENGTHS = [129, 144, 257, 4 * 257, 1000, 1024, 2187, 4099, 1 << 15]


@pytest.mark.parametrize("length", LENGTHS)
def test_complex_signals(length):
    x = signal(2, length, 2)
    values = x[..., 0] + 1j * x[..., 1].astype(np.float64)
    close(run_op("DFT", x), pairs(np.fft.fft(values)))
    close(run_op("DFT", x, inverse=1), pairs(np.fft.ifft(values)))


@pytest.mark.parametrize("length", [150, 1009, 2048, 3375])
def test_real_signals_and_halves_of_spectra(length):
    x = signal(3, length, 1)
    half = np.fft.rfft(x[..., 0].astype(np.float64))
    close(run_op("DFT", x, onesided=1), pairs(half))
    close(run_op("DFT", x), pairs(np.fft.fft(x[..., 0].astype(np.float64))))
    given = pairs(half).astype(np.float32)
    close(run_op("DFT", given, np.int64(length), inverse=1, onesided=1), x.astype(np.float64))


@pytest.mark.parametrize("length", [300, 500, 1013])
def test_signals_cut_or_filled_with_zeros(length):
    x = signal(2, 400, 3, 2)
    values = x[..., 0] + 1j * x[..., 1].astype(np.float64)
    expected = np.fft.fft(values, length, axis=1)
    close(run_op("DFT", x, np.int64(length), np.int64(1)), pairs(expected))
    spectrum = np.fft.irfft(values, length, axis=1)[..., None]
    back = run_op("DFT", x, np.int64(length), np.int64(1), inverse=1, onesided=1)
    close(back, spectrum)


def test_other_precisions():
    x = rng.standard_normal((1, 600, 2))
    values = x[..., 0] + 1j * x[..., 1]
    close(run_op("DFT", x), pairs(np.fft.fft(values)), 1e-14)
    narrow = x.astype(np.float16)
    found = run_op("DFT", narrow)
    assert found.dtype == np.float16
    values = narrow[..., 0].astype(np.float64) + 1j * narrow[..., 1]
    close(found.astype(np.float64), pairs(np.fft.fft(values)), 4e-3)


@pytest.mark.parametrize("frame, onesided, parts", [(256, 1, 1), (263, 1, 1), (200, 0, 2)])
def test_long_frames(frame, onesided, parts):
    window = np.hanning(frame).astype(np.float32)
    x = signal(2, 900, parts)
    agree("STFT", x, np.int64(70), window, np.int64(frame), onesided=onesided, tolerance=1e-3)
    values = x[..., 0].astype(np.float64) + (1j * x[..., 1] if parts == 2 else 0)
    starts = range(0, 900 - frame + 1, 70)
    frames = np.stack([values[:, s : s + frame] * window for s in starts], axis=1)
    expected = np.fft.fft(frames)[..., : frame // 2 + 1 if onesided else frame]
    found = run_op("STFT", x, np.int64(70), window, np.int64(frame), onesided=onesided)
    close(found, pairs(expected))


@pytest.mark.parametrize("length", [360, 521])
def test_on_every_target(length):
    x = signal(2, length, 2)
    graph = new_graph(x=TensorType(dtypes.f32, x.shape))
    graph.set_results([Builder(graph).DFT(*graph.params)])
    graph.phase = "typed"
    values = x[..., 0] + 1j * x[..., 1].astype(np.float64)
    agree_everywhere(graph, [x], [pairs(np.fft.fft(values))], 3e-6)


def test_factors():
    assert prime_factors(360) == [2, 2, 2, 3, 3, 5] and prime_factors(1009) == [1009]
    assert radices(1024) == (32, 32) and radices(1 << 20) == (32, 32, 32, 32)
    assert radices(1000) == (40, 25) and radices(151) == (151,)
    assert is_direct(128) and is_direct(151) and not is_direct(144) and not is_direct(1009)
    for least in (1, 2, 11, 513, 2017, 1_000_003):
        found = smooth_length(least)
        assert found >= least and prime_factors(found)[-1:] <= [5]
        assert all(prime_factors(n)[-1] > 5 for n in range(max(least, 2), found))


def test_no_table_is_made_for_a_length_beyond_all_measure():
    with pytest.raises(UnsupportedError, match="needs a table"):
        run_op("DFT", signal(1, 8, 1), np.int64(1 << 40))
