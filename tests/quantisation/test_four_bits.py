"""Weights of 4 bits, in graphc and in ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import graphc
from graphc import dsl
from graphc.frontend.onnx_export import export_onnx

RNG = np.random.default_rng(0)


def f32(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.fixture(scope="module")
def source():
    with dsl.building("products") as g:
        x = g.input("x", dsl.f32[1, 6, 64])
        h = dsl.Relu(dsl.MatMul(x, f32(64, 96)) + f32(96))
        flat = dsl.Reshape(h, np.array([6, 96]))
        g.output(y=dsl.Gemm(flat, f32(5, 96), f32(5), transB=1))
    return export_onnx(g.graph)


def test_both_engines_are_near_the_float_model(source):
    data = {"x": f32(32, 6, 64)}
    quantised = graphc.quantise(source, data, weights="int4")
    assert [layer.weight_bits for layer in quantised.layers] == [4, 4]
    made = quantised.to_onnx()
    onnx.checker.check_model(made, full_check=True)
    kinds = [tensor.data_type for tensor in made.graph.initializer]
    assert kinds.count(onnx.TensorProto.INT4) == 2
    runs = [ort.InferenceSession(m.SerializeToString()) for m in (source, made)]
    want, theirs = (run.run(None, {"x": data["x"][:1]})[0] for run in runs)
    own = graphc.compile(made).run({"x": data["x"][:1]})[0]
    for found in (theirs, own):
        assert np.linalg.norm(found - want) < 0.15 * np.linalg.norm(want)
    # ONNX Runtime's kernel rounds activations to 8 bits per block
    assert np.linalg.norm(own - theirs) < 0.03 * np.linalg.norm(want)


def test_mistakes_are_told(source):
    data = {"x": f32(4, 6, 64)}
    with pytest.raises(graphc.ModelError, match="go without"):
        graphc.quantise(source, data, weights="int4", whole=True)
    with pytest.raises(graphc.ModelError, match="one of int8, int4"):
        graphc.quantise(source, data, weights="int3")
    with dsl.building("small") as g:
        x = g.input("x", dsl.f32[1, 7])
        g.output(y=dsl.MatMul(x, f32(7, 3)))
    with pytest.raises(graphc.ModelError, match="no layer for weights of 4 bits"):
        graphc.quantise(g.graph, {"x": f32(4, 7)}, weights="int4")
