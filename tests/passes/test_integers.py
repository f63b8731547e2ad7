"""Integer inference: within one unit of ONNX Runtime, exact almost everywhere; no floats left."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from quantised_models import QuantisedModel, convolution, dense, residual

import graphc
from graphc import driver
from graphc.ir.interp import interpret
from graphc.passes.manager.context import Context
from graphc.passes.manager.journal import Journal

CASES = {
    "padded": lambda t: convolution(t, pads=[1, 1, 1, 1]),
    "strided": lambda t: convolution(t, strides=[2, 2], pads=[0, 1, 1, 1]),
    "pointwise": lambda t: convolution(t, weights=(8, 3, 1, 1)),
    "depthwise": lambda t: convolution(t, (1, 4, 6, 6), (4, 1, 3, 3), pads=[1] * 4, group=4),
    "gemm": lambda t: dense("Gemm", t),
    "matmul": lambda t: dense("MatMul", t),
    "residual": residual,
}


def rewritten(model):
    settings = driver.Settings(context=Context(journal=Journal()))
    graph = driver.optimise(driver.typed(model), settings, "integers, fold, dce")
    return graph, settings.context


def reference(model: QuantisedModel) -> list[np.ndarray]:
    """Operator by operator: fused, ONNX Runtime reads a bias as if scaled as the products are."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        model.result.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, dict(zip((i.name for i in session.get_inputs()), model.feeds)))


@pytest.mark.suite("all")
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("name", CASES)
def test_matches_the_reference(name, dtype):
    model = CASES[name](dtype)
    graph, _ = rewritten(model.result)
    found = interpret(graph, model.feeds)
    for ours, theirs in zip(found, reference(model)):
        difference = np.abs(ours.astype(int) - theirs.astype(int))
        assert difference.max() <= 1 and (difference == 0).mean() >= 0.99
        assert np.unique(theirs).size > 3


@pytest.mark.suite("all")
@pytest.mark.parametrize("name", CASES)
def test_leaves_integers_only(name):
    graph, _ = rewritten(CASES[name](np.int8).result)
    types = {v.tensor.dtype.name for op in graph.ops for v in op.outputs}
    assert not types & {"f32", "f64"}, str(graph)


def test_says_why_not():
    model = QuantisedModel()
    total = model.node("LpNormalization", model.activation((1, 5)))
    graph, context = rewritten(model.build(model.quantise(total, 0.01, -128)))
    assert "LpNormalization has no integer form" in context.explain("integer-inference")


def test_values_used_elsewhere_stay():
    model = QuantisedModel()
    total = model.node("Conv", model.activation((1, 2, 4, 4)), model.weights((3, 2, 1, 1)))
    one, two = model.quantise(total, 0.1), model.quantise(total, 0.3)
    graph, context = rewritten(model.build(one, two))
    assert any(op.name == "Conv" for op in graph.ops)
    assert "used elsewhere" in context.explain("integer-inference")


MASKED = """graph @masked(%a: i8[256,1], %b: i8[1,256]) -> i8[256,256] phase typed {
  const %s : f32[] = 0.0404
  const %t : f32[] = 2.6793887e+36
  const %z : i8[] = 0
  %scores = DequantizeLinear(%a, %s) : f32[256,1]
  %mask = DequantizeLinear(%b, %t) : f32[1,256]
  %sum = Sub(%scores, %mask) : f32[256,256]
  %y = QuantizeLinear(%sum, %t, %z) : i8[256,256]
  return %y
}
"""


def test_masks_of_the_lowest_float():
    """Some codes of a mask that was quantised symmetrically stand for an infinity."""
    graph = graphc.parse(MASKED)
    codes = np.arange(-128, 128).astype(np.int8)
    inputs = [codes[:, None], codes[None]]
    (expected,) = interpret(graph, inputs)
    driver.optimise(graph, passes="integers")
    assert "DequantizeLinear" not in [op.name for op in graph.ops]
    assert (interpret(graph, inputs)[0] == expected).all()
