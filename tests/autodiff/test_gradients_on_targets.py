"""Gradients as a model: written as ONNX, read again, and run on every target."""

from __future__ import annotations

import numpy as np
import pytest

import graphc
from graphc import backend, dsl

RNG = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return (RNG.standard_normal(shape) * 0.3).astype(np.float32)


@dsl.graph(outputs=["dx", "dw", "db", "dm"])
def gradients(
    x: dsl.f32[2, 3, 8, 8], w: dsl.f32[4, 3, 3, 3], b: dsl.f32[4], m: dsl.f32[64, 5]
):  # fmt: skip
    def loss(x, w, b, m):
        y = dsl.Relu(dsl.Conv(x, w, b, pads=[1, 1, 1, 1], strides=[2, 2]))
        y = dsl.MaxPool(y, kernel_shape=[2, 2], pads=[1, 1, 0, 0])
        z = dsl.Softmax(dsl.Flatten(y) @ m)
        return dsl.ReduceSum(z * z * z, keepdims=0)

    return graphc.grad(loss, argnums=(0, 1, 2, 3))(x, w, b, m)


@pytest.mark.parametrize("device", ["INTERP", "CPU", "C", "SIMULATOR"])
def test_a_model_of_gradients(device, tmp_path):
    values = [floats(*p.tensor.static_shape) for p in gradients.params]
    path = tmp_path / "gradients.onnx"
    graphc.export_onnx(gradients, path)
    try:
        found = backend.prepare(str(path), device).run(values)
    except graphc.UnsupportedError as error:
        pytest.skip(str(error))
    for result, wanted in zip(found, graphc.interpret(gradients, values), strict=True):
        np.testing.assert_allclose(result, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())
