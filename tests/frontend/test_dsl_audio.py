"""Features of sound against numpy, in ONNX Runtime; and hop by hop, from samples to a decision."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

import graphc
from graphc import dsl

rng = np.random.default_rng(0)
RATE, LENGTH, STEP, FFT = 8000, 200, 80, 256
SAMPLES = FFT + 5 * STEP
signal = rng.standard_normal((1, SAMPLES)).astype(np.float32)


def reference(graph, x: np.ndarray) -> np.ndarray:
    model = graphc.export_onnx(graph).SerializeToString()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


def spectra(x: np.ndarray) -> np.ndarray:
    window = np.hanning(LENGTH + 1)[:-1]
    starts = range(0, x.shape[1] - FFT + 1, STEP)
    return np.abs([np.fft.rfft(x[0, t : t + LENGTH] * window, FFT) for t in starts]) ** 2


def bands(bins: int) -> np.ndarray:
    """Triangles between points that are equally spaced on the mel scale, as ONNX has them."""
    low, high = (2595 * np.log10(1 + f / 700) for f in (20, RATE / 2))
    points = 700 * (10 ** ((low + np.arange(bins + 2) * (high - low) / (bins + 2)) / 2595) - 1)
    places = ((FFT + 1) * points // RATE).astype(int)
    matrix = np.zeros((FFT // 2 + 1, bins))
    for n in range(bins):
        left, centre, right = places[n : n + 3]
        for k in range(left, centre):
            matrix[k, n] = (k - left) / (centre - left)
        matrix[centre, n] = 1
        for k in range(centre, right):
            matrix[k, n] = (right - k) / (right - centre)
    return matrix


@dsl.graph
def power(x: dsl.f32[1, SAMPLES]):
    return dsl.audio.power(x, LENGTH, STEP)


@dsl.graph
def cepstrum(x: dsl.f32[1, SAMPLES]):
    return dsl.audio.mfcc(x, RATE, LENGTH, STEP, count=6, bins=12)


def test_power():
    wanted = spectra(signal)[None]
    for given in (reference(power, signal), graphc.compile(power).run({"x": signal})[0]):
        np.testing.assert_allclose(given, wanted, rtol=1e-3, atol=1e-3)


def test_mel_and_cepstrum():
    logs = np.log(spectra(signal) @ bands(12) + 1e-6)
    n = np.arange(12)
    wanted = logs @ (np.cos(np.pi / 12 * (n[:, None] + 0.5) * n[:6]) * np.sqrt(2 / 12))
    wanted[:, 0] /= np.sqrt(2)
    for given in (reference(cepstrum, signal), graphc.compile(cepstrum).run({"x": signal})[0]):
        np.testing.assert_allclose(given[0], wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.suite("all")
@pytest.mark.parametrize(
    ("arguments", "told"),
    [((300, 80, 256), "length 300"), ((200, 0, 256), "step 0"), ((0, 80, 256), "length 0")],
)
def test_lengths_that_do_not_fit(arguments, told):
    with pytest.raises(graphc.ModelError, match=told):

        @dsl.graph
        def net(x: dsl.f32[1, SAMPLES]):
            return dsl.audio.power(x, *arguments)


def test_from_samples_to_a_decision_hop_by_hop():
    w, dense = rng.standard_normal((4, 12, 3)), rng.standard_normal((4, 3))

    @dsl.graph
    def net(x: dsl.f32[1, SAMPLES]):
        features = dsl.audio.log_mel(x, RATE, LENGTH, STEP, bins=12)
        y = dsl.Relu(dsl.Conv(dsl.Transpose(features, perm=[0, 2, 1]), w.astype(np.float32)))
        return dsl.Softmax(dsl.ReduceMean(y, np.array([2]), keepdims=0) @ dense.astype(np.float32))

    streamed = graphc.stream(net, "x:1")
    assert streamed.hop == STEP and streamed.window == SAMPLES
    transforms = [w for w in streamed.work if w.name.startswith("STFT")]
    assert [(w.frames, w.all) for w in transforms] == [(1, 6)]
    run = graphc.compile(streamed.graph).run
    state = {p.name: np.zeros(p.tensor.dims, np.float32) for p in streamed.graph.params[1:]}
    sound = rng.standard_normal((1, SAMPLES + 4 * STEP)).astype(np.float32)
    for end in range(STEP, sound.shape[1] + 1, STEP):
        outputs = run({"x": sound[:, end - STEP : end], **state})
        results = dict(zip(streamed.graph.output_names, outputs))
        state = {name: results[output] for name, output in streamed.state.items()}
        if end >= SAMPLES + STEP:  # the window begins at a multiple of hops
            wanted = reference(net, sound[:, end - SAMPLES : end])
            np.testing.assert_allclose(outputs[0], wanted, rtol=1e-3, atol=1e-4)
