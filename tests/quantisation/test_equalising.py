"""Cross-layer equalisation: what is scaled, that floats stay, and when it is kept."""

from __future__ import annotations

import numpy as np
import pytest
from commands import ok

import graphc
from graphc import dsl
from graphc.frontend.onnx_export import export_onnx
from graphc.ir.graph import clone_graph
from graphc.ir.interp import interpret
from graphc.observing import named_values, observe
from graphc.quantisation import equalising
from graphc.quantisation.quantiser import prepared

RNG = np.random.default_rng(3)
SPREAD = (2.0 ** np.arange(-4, 4)).astype(np.float32)  # of 8 channels


def f32(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def model(between, channels=8, depthwise=False):
    """A convolution whose channels differ in range, something, and a convolution."""
    with dsl.building("pair") as g:
        x = g.input("x", dsl.f32[1, 3, 8, 8])
        h = dsl.Conv(x, f32(8, 3, 3, 3) * SPREAD[:, None, None, None], f32(8) * SPREAD)
        h = between(h)
        if depthwise:
            h = dsl.Relu(dsl.Conv(h, f32(8, 1, 3, 3), f32(8), group=8))
        y = dsl.Conv(h, f32(4, channels, 1, 1) / SPREAD[:channels, None, None], f32(4))
        g.output(y=y)
    return g.graph


def residual(h):
    return dsl.Relu(h + dsl.Conv(dsl.Relu(h), f32(8, 8, 1, 1) / SPREAD[:, None, None]))


def flattened():
    with dsl.building("flat") as g:
        x = g.input("x", dsl.f32[1, 3, 8, 8])
        h = dsl.Relu(dsl.Conv(x, f32(8, 3, 3, 3) * SPREAD[:, None, None, None]))
        h = dsl.Flatten(dsl.MaxPool(h, kernel_shape=(2, 2), strides=(2, 2)))
        g.output(y=dsl.Gemm(h, f32(4, 72), f32(4), transB=1))
    return g.graph


def normalised():
    with dsl.building("norm") as g:
        x = g.input("x", dsl.f32[1, 6, 8])
        h = dsl.LayerNormalization(dsl.MatMul(x, f32(8, 8)), SPREAD, f32(8) * SPREAD)
        g.output(a=dsl.MatMul(h, f32(8, 5)), b=dsl.MatMul(h, f32(8, 3)))
    return g.graph


SCALED = {
    "identity": model(lambda h: h),
    "relu": model(dsl.Relu),
    "leaky": model(lambda h: dsl.LeakyRelu(h, alpha=0.1)),
    "clip at 0": model(lambda h: dsl.Clip(h, np.float32(0))),
    "pools": model(lambda h: dsl.AveragePool(dsl.Relu(h), kernel_shape=(2, 2))),
    "depthwise": model(dsl.Relu, depthwise=True),
    "residual": model(residual),
    "flattened": flattened(),
    "normalised": normalised(),
}
LEFT = {
    "relu6": model(lambda h: dsl.Clip(h, np.float32(0), np.float32(6))),
    "sigmoid": model(dsl.Sigmoid),
    "a constant added": model(lambda h: dsl.Relu(h) + np.float32(1)),
    "channels moved": model(lambda h: dsl.Transpose(h, perm=(0, 3, 2, 1)), channels=6),
}


def scaled(graph):
    """The graph with its channels scaled, if any are, and whether."""
    graph = prepared(graph)
    param = graph.params[0]
    samples = [{param.name: f32(*param.tensor.static_shape)} for _ in range(4)]
    made = clone_graph(graph)
    streams = equalising.streams_of(made)
    names = list(dict.fromkeys(layer.data.name for s in streams for layer in s.readers))
    seen = equalising.seen_by(streams, observe(graph, names, samples)) if names else {}
    return graph, made, equalising.equalise(made, streams, seen), samples


@pytest.mark.parametrize("name", SCALED)
def test_the_float_model_stays(name):
    graph, made, changed, samples = scaled(SCALED[name])
    assert changed and [op.name for op in made.ops] == [op.name for op in graph.ops]
    for sample in samples:
        feeds = list(sample.values())
        for want, found in zip(interpret(graph, feeds), interpret(made, feeds)):
            np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())
    names = [name for name in changed if name in named_values(made)]
    for want, found in zip(*(observe(each, names, samples) for each in (graph, made)), strict=True):
        for name in names:
            expected = want[name] / changed[name]
            np.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=1e-5 * expected.std())


@pytest.mark.parametrize("name", LEFT)
def test_what_is_not_homogeneous_stays(name):
    graph, made, changed, _ = scaled(LEFT[name])
    assert not changed and made == graph


def test_ranges_are_nearer_to_each_other():
    graph, made, _, samples = scaled(SCALED["relu"])
    (stream,) = equalising.streams_of(made)
    (name,) = {layer.data.name for layer in stream.readers}
    ratios = []
    for version in (graph, made):
        reach = max((s[name] for s in observe(version, [name], samples)), key=np.max)
        tops = reach[0].max((1, 2))
        ratios.append(tops.max() / tops.min())
    assert ratios[1] < ratios[0] / 8


@pytest.mark.parametrize("name", ["relu", "depthwise", "residual", "normalised"])
def test_it_helps_a_model_of_uneven_channels(name):
    graph = SCALED[name]
    shape = (128, *graph.params[0].tensor.static_shape[1:])
    data = {"x": np.random.default_rng(1).standard_normal(shape).astype(np.float32)}
    ratios = [
        min(graphc.quantise(clone_graph(graph), data, equalise=way).outputs.values())
        for way in (False, True)
    ]
    assert ratios[1] > ratios[0] + 3


def test_it_is_not_kept_where_it_does_not_help(monkeypatch):
    """Factors that spoil the model are measured, and dropped."""
    monkeypatch.setattr(equalising, "factors", lambda stream, seen: SPREAD.astype(np.float64) ** -3)
    data = {"x": f32(8, 3, 8, 8)}
    plain = graphc.quantise(clone_graph(SCALED["relu"]), data, equalise=False)
    tried = graphc.quantise(clone_graph(SCALED["relu"]), data)
    assert tried.outputs == plain.outputs and tried.graph == plain.graph


def test_compare_does_not_blame_scaled_layers(monkeypatch, tmp_path, capsys):
    """Scaled values have other names, so that they do not pair with those of the float model."""
    monkeypatch.chdir(tmp_path)
    export_onnx(clone_graph(SCALED["relu"]), "float.onnx")
    data = {"x": f32(8, 3, 8, 8)}
    np.savez("calib.npz", **data)
    quantised = graphc.quantise("float.onnx", data)
    assert any(value.name.endswith("_equalised") for value in quantised.graph.values())
    quantised.save("q.onnx")
    ok(capsys, "compare", "float.onnx", "--with", "q.onnx", "--data", "calib.npz")
