"""Operators that ONNX lacks are written as graphs of its own: ONNX Runtime gives what they give."""

import numpy as np
import pytest

import graphc
from graphc import dsl, train
from graphc.errors import UnsupportedError
from graphc.frontend.onnx_export import export_onnx
from graphc.ir import dtypes
from graphc.ir.build import Builder, new_graph
from graphc.ir.interp import interpret
from graphc.ir.types import TensorType
from graphc.train.step_graph import step_graph

runtime = pytest.importorskip("onnxruntime")
RNG = np.random.default_rng(0)
DOMAINS = {"", "ai.onnx"}


def judged(graph, feeds, tolerance=1e-5):
    """The results of ONNX Runtime, which are those of the interpreter."""
    made = export_onnx(graph)
    assert {node.domain for node in made.graph.node} <= DOMAINS
    session = runtime.InferenceSession(made.SerializeToString())
    found = session.run(None, {p.name: feeds[p.name] for p in graph.params})
    wanted = interpret(graph, [feeds[p.name] for p in graph.params])
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        scale = np.abs(other).max(initial=0) or 1
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * scale)
    return found


BODIES = {
    "moved": ("$0[i1, i0 + 1]", (3, 2)),
    "window": ("max(k0<2: $0[i0 * 2 + k0, i1])", (2, 4)),
    "guarded window": ("sum(k0<3: select(i0 + k0 >= 1 && i0 + k0 < 5, $0[i0 + k0 - 1, i1], 0))",
                       (4, 4)),
    "product": ("sum(k0<4: $0[i0, k0] * $1[k0, i1])", (4, 3)),
    "constants": ("$0[i0, i1] + cast<f32>(i0 * 4 + i1)", (4, 4)),
    "all at once": ("sum(k0<4, k1<4: $0[k0, k1])", ()),
    "not read": ("sum(k0<5: $0[i0, 0])", (4,)),
    "by data": ("$0[$2[i0], i1]", (3, 4)),
    "shared index": ("$0[i0, i0]", (4,)),
    "nested": ("sum(k0<4: exp($0[i0, k0] - max(k1<4: $0[i0, k1])))", (4,)),
    "quotients": ("cast<f32>($2[i0] // 2) + cast<f32>($2[i0] % 2) + trunc($0[i0, 0] * 3)", (3,)),
    "no elements": ("$0[i0, i1]", (0, 4)),
}  # fmt: skip


@pytest.mark.suite("all")
@pytest.mark.parametrize("name", BODIES)
def test_bodies(name):
    body, shape = BODIES[name]
    feeds = {
        "x": RNG.standard_normal((4, 4)).astype(np.float32),
        "y": RNG.standard_normal((4, 3)).astype(np.float32),
        "n": np.array([3, 0, 2]),
    }
    graph = new_graph("g", **{k: TensorType(dtypes.of(a.dtype), a.shape) for k, a in feeds.items()})
    made = Builder(graph).op("Generic", *graph.params, domain="graphc", body=body, shape=shape)
    graph.set_results([made])
    judged(graph, feeds)


def test_gradients_of_a_network():
    w, v = (RNG.standard_normal(s).astype(np.float32) for s in ((6, 3, 3, 3), (6, 5)))

    @dsl.graph
    def gradients(x: dsl.f32[2, 3, 8, 8], w: dsl.f32[6, 3, 3, 3], v: dsl.f32[6, 5]):
        def loss(w, v):
            y = dsl.MaxPool(dsl.Conv(x, w, strides=[2, 2]), kernel_shape=[2, 2])
            y = dsl.ReduceMean(dsl.Gelu(y), np.array([2, 3]), keepdims=0) @ v
            picked = dsl.Gather(dsl.LogSoftmax(y), np.array([1, 3]), axis=1)
            return dsl.ReduceSum(picked, keepdims=0)

        return graphc.grad(loss, (0, 1))(w, v)

    x = RNG.standard_normal((2, 3, 8, 8)).astype(np.float32)
    judged(gradients, {"x": x, "w": w, "v": v})


def test_a_training_step():
    step = train.Step("models/digits_cnn.onnx", optimizer=train.AdamW(1e-3), clip_norm=1.0)
    batch = {"x": RNG.random((4, 1, 8, 8), np.float32), "target": np.arange(4)}
    batch = step._feeds(list(batch.values()))
    made = step_graph(step.recipe, step.trained(), step._batches.types(batch))
    known = {**step.everything(), **batch, **step._numbers()}
    feeds = {p.name: np.asarray(known[p.name]) for p in made.graph.params}
    # the bias before a normalisation has a gradient of zero but for rounding
    kept = [n for n, name in enumerate(made.graph.output_names) if "conv1.bias" not in name]
    made.graph.set_results([made.graph.results[n] for n in kept])
    made.graph.output_names = [made.graph.output_names[n] for n in kept]
    judged(made.graph, feeds, 1e-4)


def test_what_cannot_be_written_is_named():
    graph = new_graph("g", x=TensorType(dtypes.f32, (3,)))
    body = "bitcast<i32>($0[i0])"
    made = Builder(graph, loc=("bits",)).op(
        "Generic", graph.params[0], domain="graphc", body=body, shape=(3,)
    )
    graph.set_results([made])
    with pytest.raises(UnsupportedError, match='Generic "bits": graphc.Generic computes bitcast'):
        export_onnx(graph)
