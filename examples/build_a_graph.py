"""Builds a small network in Python, compiles it, and writes it as an ONNX model."""

import tempfile
from pathlib import Path

import numpy as np
import onnx

import graphc
from graphc import dsl

rng = np.random.default_rng(0)
w1, b1 = rng.standard_normal((64, 32), np.float32), np.zeros(32, np.float32)
w2, b2 = rng.standard_normal((32, 10), np.float32), np.zeros(10, np.float32)


@dsl.graph
def classify(image: dsl.f32["N", 64]):  # noqa: F821  ("N" names a dimension)
    hidden = dsl.Relu(image @ w1 + b1)
    return {"scores": dsl.Softmax(hidden @ w2 + b2, axis=-1)}


images = rng.standard_normal((3, 64), np.float32)
(scores,) = graphc.compile(classify).run({"image": images})
print("sums of the scores:", scores.sum(1))
assert np.allclose(scores.sum(1), 1)

with tempfile.TemporaryDirectory() as folder:
    graphc.export_onnx(classify, Path(folder, "classify.onnx"))
    onnx.checker.check_model(onnx.load(Path(folder, "classify.onnx")))
