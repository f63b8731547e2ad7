"""Weights in float16, in graphc and in ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from commands import DIGITS, ok

import graphc
from graphc import dsl
from graphc.frontend.onnx_export import export_onnx

RNG = np.random.default_rng(1)


def f32(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def model(table=None):
    """A table of embeddings, a layer and a bias."""
    with dsl.building("words") as g:
        words = g.input("words", dsl.i64[1, 5])
        h = dsl.Gather(f32(40, 16) if table is None else table, words)
        g.output(y=dsl.MatMul(h, f32(16, 8)) + f32(8))
    return export_onnx(g.graph)


def words(count=8):
    return {"words": RNG.integers(0, 40, (count, 5))}


def test_tables_and_layers_are_halved_and_biases_stay():
    source, data = model(), words()
    quantised = graphc.quantise(source, data, weights="float16")
    assert [(x.operator, x.weight_bits, x.activation_bits) for x in quantised.layers] == [
        ("MatMul", 16, 32)
    ]
    assert quantised.layers[0].sqnr > 60
    made = quantised.to_onnx()
    onnx.checker.check_model(made, full_check=True)
    kinds = {tuple(t.dims): t.data_type for t in made.graph.initializer}
    half, single = onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT
    assert (kinds[40, 16], kinds[16, 8], kinds[8,]) == (half, half, single)
    runs = [ort.InferenceSession(m.SerializeToString()) for m in (source, made)]
    feeds = {"words": data["words"][:1]}
    want, theirs = (run.run(None, feeds)[0] for run in runs)
    for found in (theirs, graphc.compile(made).run(feeds)[0]):
        assert 0 < np.abs(found - want).max() < 1e-2


def test_what_float16_cannot_hold_stays():
    table = f32(40, 16)
    table[3, 3] = 1e5
    made = graphc.quantise(model(table), words(), weights="float16").to_onnx()
    kinds = {tuple(t.dims): t.data_type for t in made.graph.initializer}
    assert kinds[40, 16] == onnx.TensorProto.FLOAT
    assert kinds[16, 8] == onnx.TensorProto.FLOAT16


def test_layers_that_are_left_out_stay_float():
    (layer,) = graphc.quantise(model(), words(), weights="float16").layers
    quantised = graphc.quantise(model(), words(), weights="float16", left_out=[layer.name])
    assert quantised.layers == [] and quantised.left_out == [layer.name]
    kinds = {tuple(t.dims): t.data_type for t in quantised.to_onnx().graph.initializer}
    assert kinds[16, 8] == onnx.TensorProto.FLOAT


def test_what_does_not_go_with_it_is_told():
    with pytest.raises(graphc.ModelError, match="weights of float16 go without integers"):
        graphc.quantise(model(), words(), weights="float16", whole=True)


def test_on_the_command_line(capsys, elsewhere):
    np.savez("calib.npz", image=RNG.random((4, 1, 8, 8), np.float32))
    argv = ("quantise", DIGITS, "--data", "calib.npz", "--weights", "float16", "-o", "h.onnx")
    assert "16 bits" in ok(capsys, *argv)
    assert Path("h.onnx").stat().st_size < 0.6 * Path(DIGITS).stat().st_size
