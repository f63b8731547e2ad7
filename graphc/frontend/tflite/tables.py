"""Functions of one value: of 8 bits by a table of all results, of floats by operators."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from graphc.errors import UnsupportedError
from graphc.frontend.tflite.arithmetic import (
    hard_swish_table,
    logistic_table,
    multiply,
    quantise_multiplier,
    tanh_table,
)
from graphc.frontend.tflite.node import Node
from graphc.frontend.tflite.registry import handles
from graphc.frontend.tflite.rescaling import Limits, by_table
from graphc.ir.dtypes import boolean, f32, i8, i32, i64
from graphc.ir.graph import Value

FLOATS = {  # what there is for float32, by the operator of ONNX
    "ABS": "Abs", "CEIL": "Ceil", "COS": "Cos", "EXP": "Exp", "FLOOR": "Floor", "LOG": "Log",
    "NEG": "Neg", "ROUND": "Round", "SIN": "Sin", "SQRT": "Sqrt",
}  # fmt: skip
MORE_FLOATS: dict[str, Callable[[Node, Value], Value]] = {
    "RSQRT": lambda node, x: node.b.Reciprocal(node.b.Sqrt(x)),
    "SQUARE": lambda node, x: node.b.Mul(x, x),
    "LOGISTIC": lambda node, x: node.b.Sigmoid(x),
    "TANH": lambda node, x: node.b.Tanh(x),
    "ELU": lambda node, x: node.b.Elu(x),
    "RELU": lambda node, x: node.b.Relu(x),
    "RELU6": lambda node, x: node.b.Min(node.b.Relu(x), node.b.constant(6, f32)),
    "RELU_N1_TO_1": lambda node, x: node.b.Clip(
        x, node.b.constant(-1, f32), node.b.constant(1, f32)
    ),
    "LEAKY_RELU": lambda node, x: node.b.LeakyRelu(x, alpha=float(node.option("Alpha"))),
    "HARD_SWISH": lambda node, x: node.b.HardSwish(x),
    "LOG_SOFTMAX": lambda node, x: node.b.LogSoftmax(x, axis=-1),
}
OF_INTEGERS = ("ABS", "NEG", "SQUARE")  # without scales


@handles(*FLOATS, *MORE_FLOATS)
def function(node: Node) -> None:
    """A function of each element."""
    kind, dtype = node.op.kind, node.dtype()
    (x,), is_image = node.together([0])
    quantised = node.tensor().quantisation is not None
    if dtype is i8 and quantised and kind in TABLES:
        node.define_either(by_table(node.b, x, TABLES[kind](node)), is_image)
        return
    plain = dtype in (i32, i64) and kind in OF_INTEGERS
    if dtype is not f32 and not plain:
        raise UnsupportedError(f"{kind} of {node.tensor().kind} is not supported")
    if kind == "LOG_SOFTMAX":
        x, is_image = node.value(), False
    value = MORE_FLOATS[kind](node, x) if kind in MORE_FLOATS else getattr(node.b, FLOATS[kind])(x)
    node.define_either(value, is_image)


@handles("LOGICAL_NOT")
def negation(node: Node) -> None:
    if node.dtype() is not boolean:
        raise UnsupportedError(f"the negation of {node.tensor().kind} is not supported")
    node.define(node.b.Not(node.value()))


# ---------------------------------------------------------------- tables


def _whole(node: Node) -> np.ndarray:
    """All values of the operand, in order, less the zero point."""
    return np.arange(-128, 128) - node.zero_point(node.tensor())


def _scales(node: Node) -> tuple[np.float32, np.float32]:
    return np.float32(node.scale(node.tensor())), np.float32(node.scale(node.result()))


def _clipped(whole: np.ndarray, limits: Limits) -> np.ndarray:
    """Results less the zero point, as the result's type holds them."""
    inside = np.clip(whole + limits.zero_point, limits.low, limits.high)
    return inside.astype(limits.dtype.np)


def _result_limits(node: Node) -> Limits:
    if node.result_dtype() is not i8:
        raise UnsupportedError(f"a result of {node.result().kind} is not supported")
    return node.limits()


def _logistic(node: Node) -> np.ndarray:
    if node.zero_point(node.result()) != -128:
        raise UnsupportedError("its result must have zero point -128")
    return logistic_table(_whole(node), node.scale(node.tensor())).astype(np.int8)


def _tanh(node: Node) -> np.ndarray:
    return tanh_table(_whole(node), node.scale(node.tensor())).astype(np.int8)


def _hard_swish(node: Node) -> np.ndarray:
    sx, sy = _scales(node)
    if quantise_multiplier(float(np.float32(1 / 128) * sx / sy))[1] > 0:
        raise UnsupportedError("the scale of its result is too small for that of its operand")
    return _clipped(hard_swish_table(_whole(node), float(sx), float(sy)), _result_limits(node))


def _leaky_relu(node: Node) -> np.ndarray:
    sx, sy = _scales(node)
    alpha = np.float32(node.option("Alpha"))
    x = _whole(node)
    slope = float(sx) * float(alpha) / float(sy)
    below = multiply(x, *quantise_multiplier(abs(slope)))
    above = multiply(x, *quantise_multiplier(float(sx / sy)))
    return _clipped(np.where(x >= 0, above, -below if slope < 0 else below), _result_limits(node))


def _relu(node: Node) -> np.ndarray:
    sx, sy = _scales(node)
    whole = multiply(_whole(node), *quantise_multiplier(float(sx / sy)))
    return _clipped(np.maximum(whole, 0), _result_limits(node))


def _relu6(node: Node) -> np.ndarray:
    """Limits of the operand, which is not scaled."""
    node.same_scales()
    zero = node.zero_point(node.tensor())
    six = zero + int(np.floor(np.float32(6) / _scales(node)[0] + np.float32(0.5)))
    return np.clip(np.arange(-128, 128), zero, min(six, 127)).astype(np.int8)


def _elu(node: Node) -> np.ndarray:
    """In float32, as the kernel computes its table."""
    sx, sy = _scales(node)
    real = sx * _whole(node).astype(np.float32)
    bent = np.where(real < 0, np.exp(np.minimum(real, np.float32(0))) - np.float32(1), real)
    scaled = bent * (np.float32(1) / sy)
    whole = np.trunc(scaled + np.copysign(np.float32(0.5), scaled)).astype(np.int64)
    return _clipped(whole, _result_limits(node))


TABLES: dict[str, Callable[[Node], np.ndarray]] = {
    "LOGISTIC": _logistic, "TANH": _tanh, "HARD_SWISH": _hard_swish, "LEAKY_RELU": _leaky_relu,
    "RELU": _relu, "RELU6": _relu6, "ELU": _elu,
}  # fmt: skip
