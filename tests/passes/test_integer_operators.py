"""Operators between DequantizeLinear and QuantizeLinear, in integers, as ONNX Runtime has them.

Every case runs for int8 and uint8 with zero points anywhere in the type, also at its ends, and
scales for which many results saturate. ONNX Runtime runs with its default options.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnxruntime
import pytest
from onnx import helper
from quantised_models import QuantisedModel
from saturation import LARGEST_WEIGHT

from graphc import driver
from graphc.ir.interp import interpret

IMAGE = (1, 8, 9, 10)
BUILDS: dict[str, Callable[[QuantisedModel], str]] = {}
TARGETS = {"Sigmoid": (1 / 256, -128), "Softmax": (1 / 256, -128), "Conv": (0.3, 3)}


def builds(name: str) -> Callable:
    def declare(function: Callable) -> Callable:
        BUILDS[name] = function
        return function

    return declare


def value(m: QuantisedModel, shape=IMAGE, end: int | None = None) -> str:
    """An activation with a random zero point, or one end of the type."""
    info = np.iinfo(m.dtype)
    anywhere = int(m.random.integers(info.min, info.max + 1))
    zero = anywhere if end is None else (info.min, info.max)[end]
    return m.activation(shape, float(m.random.uniform(0.01, 0.1)), zero)


def unary(kind: str, **attrs) -> Callable:
    return lambda m: m.node(kind, value(m), **attrs)


def binary(kind: str, shape=IMAGE, ends=(None, None)) -> Callable:
    return lambda m: m.node(kind, value(m, end=ends[0]), value(m, shape, ends[1]))


for kind in ("Abs", "Elu", "Exp", "HardSigmoid", "HardSwish", "LeakyRelu", "Log", "Neg", "Relu",
             "Sigmoid", "Softplus", "Sqrt", "Tanh"):  # fmt: skip
    BUILDS[kind] = unary(kind)
for kind in ("Add", "Sub", "Mul"):
    BUILDS[kind] = binary(kind)
    BUILDS[f"{kind} of channels"] = binary(kind, (8, 1, 1))
    BUILDS[f"{kind} of extremes"] = binary(kind, ends=(0, 1))
BUILDS["Max"] = binary("Max")
BUILDS["Softmax"] = lambda m: m.node("Softmax", value(m, (16, 20)))
BUILDS["Softmax, axis 1"] = lambda m: m.node("Softmax", value(m, (3, 20, 4)), axis=1)
BUILDS["Softmax of many"] = lambda m: m.node("Softmax", value(m, (2, 2000)))
BUILDS["MaxPool"] = unary("MaxPool", kernel_shape=[3, 3], pads=[1] * 4)
BUILDS["AveragePool"] = unary("AveragePool", kernel_shape=[3, 3], pads=[1] * 4, strides=[2, 2])
BUILDS["AveragePool, padding counts"] = unary(
    "AveragePool", kernel_shape=[3, 2], pads=[1] * 4, count_include_pad=1
)
BUILDS["GlobalAveragePool"] = unary("GlobalAveragePool")
BUILDS["Transpose"] = unary("Transpose", perm=[0, 2, 3, 1])
BUILDS["LeakyRelu of a vector"] = lambda m: m.node("LeakyRelu", value(m, (50,)))
BUILDS["Flatten"] = unary("Flatten")


@builds("ReduceMean")
def _(m):
    return m.node("ReduceMean", value(m), m.constant([2, 3]), keepdims=0)


@builds("x * sigmoid(x)")
def _(m):
    x = value(m)
    return m.node("Mul", x, m.node("Sigmoid", x))


@builds("Clip")
def _(m):
    return m.node("Clip", value(m), m.constant(np.float32(0)), m.constant(np.float32(6)))


def slopes(m: QuantisedModel) -> str:
    return m.constant(m.random.uniform(-0.5, 1, (8, 1, 1)).astype(np.float32))


@builds("PRelu")
def _(m):
    return m.node("PRelu", value(m), slopes(m))


@builds("Conv and PRelu")
def _(m):
    return m.node("PRelu", m.node("Conv", value(m), m.weights((8, 8, 3, 3))), slopes(m))


@builds("Conv and Clip")
def _(m):
    total = m.node("Conv", value(m), m.weights((4, 8, 3, 3)), pads=[1] * 4)
    return m.node("Clip", total, m.constant(np.float32(0)), m.constant(np.float32(6)))


@builds("Conv, Reshape")
def _(m):
    return m.node("Reshape", m.node("Conv", value(m), m.weights((4, 8, 3, 3))), m.constant([4, -1]))


@builds("Conv of padded")
def _(m):
    padded = m.node("Pad", value(m), m.constant([0, 0, 1, 1, 0, 0, 2, 0]))
    return m.node("Conv", padded, m.weights((4, 8, 3, 3)))


@builds("Conv with a bias of floats")
def _(m):
    bias = m.constant(m.random.normal(0, 1, 4).astype(np.float32))
    return m.node("Conv", value(m), m.weights((4, 8, 3, 3)), bias)


@builds("Conv with zero points")
def _(m):
    integers = m.random.integers(0, 256, (4, 8, 3, 3)).astype(np.uint8)
    scale = m.random.uniform(0.001, 0.01, 4).astype(np.float32)
    parameters = [integers, scale, np.array([128, 0, 255, 77], np.uint8)]
    weights = m.node("DequantizeLinear", *map(m.constant, parameters), axis=0)
    return m.node("Conv", value(m), weights, pads=[1] * 4)


@builds("ConvTranspose")
def _(m):
    attrs = {"strides": [2, 2], "pads": [1] * 4}
    return m.node("ConvTranspose", value(m), m.weights((8, 5, 4, 4), 1), **attrs)


@builds("ConvTranspose, unequal phases")
def _(m):
    bias = m.weights((5,), None, bits=32)
    attrs = {"strides": [2, 2], "output_padding": [1, 1]}
    return m.node("ConvTranspose", value(m), m.weights((8, 5, 3, 3), None), bias, **attrs)


@builds("MatMul of activations")
def _(m):
    return m.node("MatMul", value(m, (2, 6, 9)), value(m, (2, 9, 5)))


@builds("MatMul of a batch")
def _(m):
    return m.node("MatMul", value(m, (2, 6, 9)), m.weights((9, 5), 1))


@builds("MatMul, weights turned")
def _(m):
    return m.node("MatMul", value(m, (6, 9)), m.node("Transpose", m.weights((5, 9), None)))


@builds("Concat")
def _(m):
    return m.node("Concat", value(m), value(m, end=0), value(m, end=1), axis=1)


@builds("Split and Add")
def _(m):
    parts = ["left", "right"]
    m.nodes.append(helper.make_node("Split", [value(m)], parts, axis=1, num_outputs=2))
    return m.node("Add", *parts)


@builds("Pad, Slice")
def _(m):
    padded = m.node("Pad", value(m), m.constant([0, 0, 1, 1, 0, 0, 2, 0]))
    return m.node("Slice", padded, m.constant([1]), m.constant([5]), m.constant([1]))


@builds("Resize")
def _(m):
    scales = m.constant(np.array([1, 1, 2, 3], np.float32))
    where = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return m.node("Resize", value(m), "", scales, mode="nearest", **where)


def quantised(build: Callable, kind: str, dtype, seed: int) -> QuantisedModel:
    model = QuantisedModel(dtype, seed, largest_weight=LARGEST_WEIGHT)
    scale, zero = TARGETS.get(kind.split()[0].rstrip(","), (0.04, (3, -128, 127)[seed]))
    model.result = model.build(model.quantise(build(model), scale, zero))
    return model


def by_onnx_runtime(model: QuantisedModel) -> np.ndarray:
    session = onnxruntime.InferenceSession(
        model.result.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, dict(zip((i.name for i in session.get_inputs()), model.feeds)))[0]


@pytest.mark.suite("all")
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("kind", BUILDS)
def test_as_onnx_runtime(kind, dtype):
    for seed in range(3):
        model = quantised(BUILDS[kind], kind, dtype, seed)
        graph = driver.optimise(driver.typed(model.result), passes="integers, fold, dce")
        floats = [op.name for op in graph.ops for v in op.outputs if v.tensor.dtype.is_float]
        assert all(name == "Constant" for name in floats), str(graph)
        (found,), expected = interpret(graph, model.feeds), by_onnx_runtime(model)
        difference = np.abs(found.astype(int) - expected.astype(int))
        assert difference.max() <= 1 and (difference == 0).mean() >= 0.99


# ---------------------------------------------------------------- halves


POOLS = {"mean": (0.0371, 0.0371), "mean and scale": (0.02, 0.03), "global mean": (0.1, 0.1)}


def halves(kind: str, dtype, zero: int) -> QuantisedModel:
    """A model many of whose results are exactly between two integers."""
    model = QuantisedModel(dtype)
    low = np.iinfo(model.dtype).min
    if kind in POOLS:
        x = model.activation((1, 16, 12, 12), POOLS[kind][0], low + 128 + zero)
        attrs = {"kernel_shape": [2, 2], "pads": [0, 1, 1, 0]} if kind != "global mean" else {}
        result = model.node("AveragePool" if attrs else "GlobalAveragePool", x, **attrs)
        model.result = model.build(model.quantise(result, POOLS[kind][1], zero))
        return model
    x = [model.activation((1, 16, 12, 12), s, low + 128 + zero) for s in (0.5, 0.25)]
    model.result = model.build(model.quantise(model.node(kind, *x), 1.0, zero))
    return model


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("zero", [-128, 3, 4])
@pytest.mark.parametrize("kind", ["Add", "Sub", "Mul", *POOLS])
def test_halves_as_onnx_runtime(kind, zero, dtype):
    model = halves(kind, dtype, zero)
    graph = driver.optimise(driver.typed(model.result), passes="integers, fold, dce")
    (found,) = interpret(graph, model.feeds)
    np.testing.assert_array_equal(found, by_onnx_runtime(model))


MOVES: dict[str, Callable[[QuantisedModel, str], str]] = {
    "Transpose": lambda m, x: m.node("Transpose", x, perm=[0, 2, 3, 1]),
    "MaxPool": lambda m, x: m.node("MaxPool", x, kernel_shape=[2, 2]),
    "Flatten": lambda m, x: m.node("Flatten", x),
    "Gather": lambda m, x: m.node("Gather", x, m.constant([1, 0, 2]), axis=1),
    "Concat": lambda m, x: m.node("Concat", x, x, axis=1),
}


@pytest.mark.suite("all")
@pytest.mark.parametrize("kind", MOVES)
def test_halves_after_moves(kind):
    """ONNX Runtime looks behind some moves for a kernel of integers, and not behind others."""
    model = QuantisedModel(np.uint8)
    x = [model.activation(IMAGE, scale, zero) for scale, zero in ((0.5, 30), (0.25, 70))]
    total = model.node("Add", *(MOVES[kind](model, v) for v in x))
    model.result = model.build(model.quantise(total, 1.0, 3))
    graph = driver.optimise(driver.typed(model.result), passes="integers, fold, dce")
    (found,) = interpret(graph, model.feeds)
    np.testing.assert_array_equal(found, by_onnx_runtime(model))


def test_halves_of_a_pool_of_floats():
    """A pool is no kernel of its own where its result is moved before it is dequantised."""
    model = QuantisedModel(np.int8)
    x = model.activation((1, 64, 4, 4), 0.031, 3)
    again = model.dequantise(model.quantise(model.node("Relu", x), 0.0371, 3), 0.0371, 3)
    pool = model.node("AveragePool", again, kernel_shape=[2, 2], strides=[2, 2])
    moved = model.node("Reshape", model.quantise(pool, 0.0371, 3), model.constant([1, -1]))
    total = model.node("MatMul", model.dequantise(moved, 0.0371, 3), model.weights((256, 8), 1))
    pooled = model.quantise(total, 0.5)
    model.result = model.build(pooled)
    graph = driver.optimise(driver.typed(model.result), passes="integers, fold, dce")
    assert [op.attrs["added"] for op in graph.ops if op.name == "RoundedAverage"] == [0]
    (found,) = interpret(graph, model.feeds)
    np.testing.assert_array_equal(found, by_onnx_runtime(model))


# ---------------------------------------------------------------- all pairs of values

SCALES = {
    "irregular": (0.0839, 0.2172, 0.1271),
    "round": (0.05, 0.07, 0.02),
    "tenths": (0.1, 0.3, 0.4),
}


def all_pairs(kind: str, dtype, scales, before: bool, limited: bool) -> QuantisedModel:
    """`kind` of every pair of values; `before`: of operands that the model quantises itself."""
    model = QuantisedModel(dtype)
    zeros = [np.iinfo(model.dtype).min + n for n in (166, 126)]
    x = [model.activation((256, 256), s, z) for s, z in zip(scales, zeros)]
    every = np.arange(256, dtype=np.uint8).astype(model.dtype)
    model.feeds = [np.repeat(every, 256).reshape(256, 256), np.tile(every, (256, 1))]
    if before:
        parts = [model.quantise(model.node("Neg", v), s, -100) for v, s in zip(x, scales)]
        zero = np.iinfo(model.dtype).min + 28
        x = [model.dequantise(v, s, zero) for v, s in zip(parts, scales)]
    result = model.node(kind, *x)
    result = model.node("Relu", result) if limited else result
    model.result = model.build(model.quantise(result, scales[2], -90))
    return model


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("kind", ["Add", "Sub", "Mul"])
def test_all_pairs_as_onnx_runtime(kind, scales, dtype):
    for before, limited in ((False, False), (True, False), (False, True)):
        model = all_pairs(kind, dtype, SCALES[scales], before, limited)
        graph = driver.optimise(driver.typed(model.result), passes="integers, fold, dce")
        (found,), expected = interpret(graph, model.feeds), by_onnx_runtime(model)
        difference = np.abs(found.astype(int) - expected.astype(int))
        assert difference.max(initial=0) <= 1
        assert (difference != 0).sum() <= (0 if scales == "irregular" else 655)


# ---------------------------------------------------------------- constants


def test_channels_without_weights():
    """Their factor is tiny next to the others', their bias is huge."""
    model = QuantisedModel(np.int8)
    weights = model.random.integers(-127, 128, (3, 8, 1, 1)).astype(np.int8)
    weights[1] = 0
    scale = np.array([0.004, 1e-12, 0.002], np.float32)
    bias = np.array([100, 1 << 30, -50], np.int32)
    x = model.activation(IMAGE, 0.03, 3)
    zeros = [np.zeros(3, t) for t in (np.int8, np.int32)]
    operands = [weights, scale, zeros[0]], [bias, scale * np.float32(0.03), zeros[1]]
    parts = [model.node("DequantizeLinear", *map(model.constant, p), axis=0) for p in operands]
    step = float(np.float32(scale[1] * np.float32(0.03)) * 2.0**30 / 2.49)  # a result of 2.49
    model.result = model.build(model.quantise(model.node("Conv", x, *parts), step))
    graph = driver.optimise(driver.typed(model.result), passes="integers, fold, dce")
    (found,) = interpret(graph, model.feeds)
    np.testing.assert_array_equal(found, by_onnx_runtime(model))
    assert np.unique(found[:, 1]).tolist() == [2 - 5]


def test_biases_of_floats():
    """They become whole numbers of units, however coarse."""
    model = QuantisedModel(np.int8)
    integers = model.random.integers(-3, 4, (6, 8, 1, 1)).astype(np.int8)
    parameters = [integers, np.float32(0.25), np.int8(0)]
    weights = model.node("DequantizeLinear", *map(model.constant, parameters))
    bias = model.constant(model.random.uniform(-1, 1, 6).astype(np.float32))
    total = model.node("Conv", model.activation(IMAGE, 1.0), weights, bias)
    model.result = model.build(model.quantise(total, 1.0))
    graph = driver.optimise(driver.typed(model.result), passes="integers, fold, dce")
    (found,) = interpret(graph, model.feeds)
    np.testing.assert_array_equal(found, by_onnx_runtime(model))
