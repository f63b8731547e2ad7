"""Integer inference of models whose reals are not float32: the same rules, the same results."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from quantised_models import QuantisedModel

from graphc import driver
from graphc.frontend.onnx_import import import_onnx
from graphc.ir.interp import interpret
from graphc.targets import lookup

LAYERS = {  # shapes of the activation, weights and bias; attributes
    "Conv": ((1, 3, 7, 6), (5, 3, 3, 3), (5,), {}),
    "ConvTranspose": ((1, 3, 5, 4), (3, 4, 3, 3), (4,), {"strides": [2, 2]}),
    "Gemm": ((4, 9), (9, 7), (7,), {}),
    "MatMul": ((4, 9), (9, 7), None, {}),
}
PAIRS = ("Add", "Sub", "Mul", "Div", "Concat", "MatMul")
FUNCTIONS = {
    "GlobalAveragePool": {}, "AveragePool": {"kernel_shape": [2, 2]},
    "MaxPool": {"kernel_shape": [2, 2]}, "Softmax": {}, "Sigmoid": {},
    "Relu": {}, "LeakyRelu": {}, "Tanh": {}, "HardSwish": {}, "Gelu": {}, "Transpose": {},
}  # fmt: skip
REALS = (np.float16, ml_dtypes.bfloat16, np.float64)
TARGETS = ("cpu", "c", "cuda")


def check(model: QuantisedModel, result: str) -> None:
    """Asserts that the passes of every target leave what the model gives; bfloat16 has fewer bits
    than a sum of products in integers."""
    proto = model.build(model.quantise(result))
    (expected,) = interpret(import_onnx(proto), model.feeds)
    assert np.unique(expected).size > 3
    for target in TARGETS:
        graph = driver.optimise(driver.typed(proto), target=lookup(target)())
        (found,) = interpret(graph, model.feeds)
        most = np.abs(found.astype(int) - expected.astype(int)).max()
        assert most <= (2 if model.real == ml_dtypes.bfloat16 else 1), target


@pytest.mark.parametrize("real", REALS)
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("kind", LAYERS)
def test_layers(kind, per_channel, real):
    model = QuantisedModel(real=real)
    shape, weights, bias, attrs = LAYERS[kind]
    axis = 0 if kind == "Conv" else 1
    operands = [model.activation(shape), model.weights(weights, axis if per_channel else None)]
    if bias:
        operands.append(model.weights(bias, None, bits=32))
    check(model, model.node("Relu", model.node(kind, *operands, **attrs)))


@pytest.mark.suite("all")
@pytest.mark.parametrize("real", REALS)
@pytest.mark.parametrize("kind", PAIRS)
def test_pairs(kind, real):
    model = QuantisedModel(real=real)
    operands = [model.activation((6, 6), scale, 5) for scale in (0.02, 0.03)]
    check(model, model.node(kind, *operands, **({"axis": 0} if kind == "Concat" else {})))


@pytest.mark.suite("all")
@pytest.mark.parametrize("real", REALS)
@pytest.mark.parametrize("kind", FUNCTIONS)
def test_functions(kind, real):
    model = QuantisedModel(real=real)
    check(model, model.node(kind, model.activation((1, 8, 6, 6)), **FUNCTIONS[kind]))
