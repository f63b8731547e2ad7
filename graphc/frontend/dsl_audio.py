"""Features of sound, `dsl.audio`: what listening models are given, as part of the model.

    @dsl.graph
    def wake_word(samples: dsl.f32[1, 16000]):
        features = dsl.audio.log_mel(samples, rate=16000, length=480, step=320, bins=40)
        ...

A signal is (batch, samples), features are (batch, frames, numbers of each frame). They are made of
ONNX operators (STFT, MelWeightMatrix), so they export, run on every target, and are part of what
`graphc.stream` makes a step of: a hop of samples is framed and transformed once.
"""

from __future__ import annotations

import numpy as np

from graphc.errors import ModelError
from graphc.frontend.dsl_tensor import Tensor, apply

FLOOR = 1e-6  # added to powers before the logarithm


def power(
    signal: Tensor, length: int, step: int, fft: int | None = None, window: np.ndarray | None = None
) -> Tensor:
    """The power spectrogram (batch, frames, fft / 2 + 1) of a signal (batch, samples).

    A frame begins every `step` samples. Its `length` samples are weighted by `window` (default: a
    periodic Hann window) and followed by zeros up to `fft` samples (default: the least power of two
    that is enough). There are as many frames as fit, of `fft` samples each. ModelError if lengths
    do not fit together.
    """
    fft = 1 << (length - 1).bit_length() if fft is None else fft
    if not 0 < length <= fft or step < 1:
        raise ModelError(
            f"audio: frames take 0 < length <= fft samples and a step above 0, found length "
            f"{length}, fft {fft}, step {step}"
        )
    if window is None:
        window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(length) / length)
    window = np.asarray(window, np.float32)
    if window.shape != (length,):
        raise ModelError(f"audio: a window of {length} samples is required, found {window.shape}")
    weights = np.concatenate([window, np.zeros(fft - length, np.float32)])
    samples, sizes = apply("Unsqueeze", signal, np.array([2])), (np.int64(step), np.int64(fft))
    parts = apply("STFT", samples, sizes[0], weights, sizes[1], onesided=1)
    return apply("ReduceSumSquare", parts, np.array([3]), keepdims=0)


def log_mel(
    signal: Tensor, rate: int, length: int, step: int, bins: int = 40, low: float = 20.0,
    high: float | None = None, fft: int | None = None, floor: float = FLOOR,
) -> Tensor:  # fmt: skip
    """The logarithms of the power in mel bands (batch, frames, bins), of a signal of `rate` samples
    a second: ln(power + floor). Bands lie between `low` and `high` Hz (default: half of the rate),
    as ONNX's MelWeightMatrix places them. Frames are as for `power`."""
    spectrum = power(signal, length, step, fft)
    size = 1 << (length - 1).bit_length() if fft is None else fft
    edges = np.float32(low), np.float32(rate / 2 if high is None else high)
    bands = apply("MelWeightMatrix", np.int64(bins), np.int64(size), np.int64(rate), *edges)
    return apply("Log", spectrum @ bands + np.float32(floor))


def mfcc(signal: Tensor, rate: int, length: int, step: int, count: int = 10, bins: int = 40,
         **options: float) -> Tensor:  # fmt: skip
    """The first `count` mel-frequency cepstral coefficients (batch, frames, count): the orthonormal
    DCT-II of `log_mel`, whose arguments the others are."""
    if not 0 < count <= bins:
        raise ModelError(f"audio: of {bins} mel bands there are 1 to {bins} coefficients: {count}")
    features = log_mel(signal, rate, length, step, bins, **options)  # type: ignore[arg-type]
    places, numbers = np.arange(bins)[:, None] + 0.5, np.arange(count)
    transform = np.cos(np.pi / bins * places * numbers) * np.sqrt(2 / bins)
    transform[:, 0] /= np.sqrt(2)
    return features @ transform.astype(np.float32)
