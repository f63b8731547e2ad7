"""Operators on single elements: numpy, scipy and PyTorch, on ordinary and special values."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import torch.nn.functional as F
from by_torch import by_torch
from judge import FLOATS, Case
from onnx import TensorProto
from operands import booleans, nasty, nasty_pairs, normal
from scipy import special

X = nasty()
PAIR = [nasty_pairs(True), nasty_pairs(False)]
UNARY = {
    "Abs": np.abs, "Neg": np.negative, "Ceil": np.ceil, "Floor": np.floor, "Round": np.rint,
    "Sqrt": np.sqrt, "Reciprocal": np.reciprocal, "Sign": np.sign, "Exp": np.exp, "Log": np.log,
    "Sin": np.sin, "Cos": np.cos, "Tan": np.tan, "Asin": np.arcsin, "Acos": np.arccos,
    "Atan": np.arctan, "Sinh": np.sinh, "Cosh": np.cosh, "Tanh": np.tanh, "Asinh": np.arcsinh,
    "Acosh": np.arccosh, "Atanh": np.arctanh, "Erf": special.erf, "Sigmoid": special.expit,
    "IsNaN": np.isnan, "IsInf": np.isinf, "Relu": by_torch(F.relu), "Identity": np.positive,
}  # fmt: skip
BINARY = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Pow": np.power,
    "Equal": np.equal, "Less": np.less, "Greater": np.greater, "LessOrEqual": np.less_equal,
    "GreaterOrEqual": np.greater_equal,
}  # fmt: skip
LOGIC = {"And": np.logical_and, "Or": np.logical_or, "Xor": np.logical_xor}


def activation(name: str, reference, suffix: str = "", terms: float = 0.0, **attrs) -> Case:
    """Of finite values: PyTorch and the standard differ on what becomes of infinities times 0.

    The standard writes exp(x) - 1 and 1 + erf(x), which are as exact as 1 is, times x.
    """
    return Case(f"{name}{suffix}", name, [nasty(low=-1e4, high=1e4)], reference, attrs, terms=terms,
                note="exp(x) - 1 and 1 + erf(x) are as exact as 1 is" if terms else "")  # fmt: skip


def selu(x):
    """With the constants of the standard's attributes, which are float32."""
    alpha, gamma = (
        float(np.float32(c)) for c in (1.67326319217681884765625, 1.05070102214813232421875)
    )
    return gamma * np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


def softplus(x):
    return np.logaddexp(x, 0)


def shrink(x, *, lambd, bias):
    return np.where(x < -lambd, x + bias, np.where(x > lambd, x - bias, 0))


def clip(x, low, high):
    return np.minimum(np.maximum(x, low), high)


def largest(*operands):
    return np.maximum.reduce(np.broadcast_arrays(*operands))


def smallest(*operands):
    return np.minimum.reduce(np.broadcast_arrays(*operands))


def is_infinite(x, *, detect_negative, detect_positive):
    return np.isposinf(x) & bool(detect_positive) | np.isneginf(x) & bool(detect_negative)


ACTIVATIONS = [
    activation("LeakyRelu", by_torch(F.leaky_relu, negative_slope=0.25), alpha=0.25),
    activation("Elu", by_torch(F.elu, alpha=1.5), terms=1.5, alpha=1.5),
    activation("Celu", by_torch(F.celu, alpha=0.75), terms=1.0, alpha=0.75),
    activation("Selu", selu, terms=2.0),
    activation("Gelu", lambda x: x * special.ndtr(x), terms=6.0),
    activation("Gelu", by_torch(F.gelu, approximate="tanh"), "_tanh", 6.0, approximate="tanh"),
    activation("HardSigmoid", lambda x, *, alpha, beta: np.clip(alpha * x + beta, 0, 1),
               alpha=0.25, beta=0.5),
    activation("HardSwish", by_torch(F.hardswish)),
    activation("Mish", by_torch(F.mish)),
    activation("Softplus", softplus),
    activation("Softsign", by_torch(F.softsign)),
    activation("ThresholdedRelu", lambda x, *, alpha: np.where(x > alpha, x, 0),
               alpha=1.25),
    activation("Shrink", shrink, lambd=0.75, bias=0.25),
    activation("Swish", lambda x, *, alpha: x * special.expit(alpha * x), alpha=1.5),
    Case("PRelu", "PRelu", [normal(2, 3, 4), normal(3, 1)], lambda x, s: np.where(x < 0, x * s, x)),
]  # fmt: skip
OTHERS = [
    Case("Clip", "Clip", [X, np.float32(-1.5), np.float32(2.0)], clip, types=["float32"],
         signed=True),
    Case("Clip_crossed", "Clip", [X, np.float32(2.0), np.float32(-1.5)], clip, types=["float32"],
         note="The lower bound above the upper one: min(max(x, low), high)."),
    Case("IsInf_positive", "IsInf", [X], is_infinite,
         {"detect_negative": 0, "detect_positive": 1}),
    Case("Max", "Max", [*PAIR, normal(1)], largest),
    Case("Min", "Min", [*PAIR, normal(1)], smallest),
    Case("Sum", "Sum", [normal(3, 1, 4), normal(2, 1), normal(4)], lambda *x: sum(x), share=1.0),
    Case("Mean", "Mean", [normal(3, 1, 4), normal(2, 1), normal(4)],
         lambda *x: sum(x) / len(x), share=1.0),
    Case("Mod_fmod", "Mod", [normal(5, 1, scale=9), normal(7)], np.fmod, {"fmod": 1}, signed=True),
    Case("Where", "Where", [booleans(4, 1, 3), normal(2, 3), normal(3)], np.where),
    Case("Not", "Not", [booleans(3, 4)], np.logical_not, types=["bool"]),
    *(Case(n, n, [booleans(4, 1), booleans(5)], f, types=["bool"]) for n, f in LOGIC.items()),
]  # fmt: skip


def cast_case(name: str) -> Case:
    """Rounded once, to the nearest, ties to even; what is too large becomes infinite."""
    kind = np.dtype(getattr(ml_dtypes, name, name))
    return Case(f"Cast_to_{name}", "Cast", [X], lambda x: x.astype(kind).astype(np.float64),
                {"to": getattr(TensorProto, kind.name.upper(), 0) or NUMBERS[name]}, signed=True,
                roundings=0.0)  # fmt: skip


NUMBERS = {"float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE}
CASTS = [
    *(cast_case(name) for name in FLOATS),
    *(
        Case(f"Cast_to_{name}", "Cast", [nasty(0, 100, nan=False)], lambda x: np.trunc(x),
             {"to": getattr(TensorProto, name.upper())})
        for name in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
    ),
    Case("Cast_to_bool", "Cast", [X], lambda x: x != 0, {"to": TensorProto.BOOL}),
]  # fmt: skip
CASES = [
    *(Case(name, name, [X], f, signed=True) for name, f in UNARY.items()),
    *(Case(name, name, PAIR, f, signed=True) for name, f in BINARY.items()),
    *ACTIVATIONS,
    *OTHERS,
    *CASTS,
]
