"""Smaller operators of all domains: numpy in float64."""

from __future__ import annotations

import numpy as np
from judge import WIDE, Case
from operands import bits, integers, normal
from scipy import special

from tables.linear import gemm
from tables.quantised import quantised
from tables.runtime import RUNTIME, case, fast_gelu
from tables.windows import conv

ML = "ai.onnx.ml"


def scaled(x, *, offset, scale):
    return (x - np.array(offset)) * np.array(scale)


def unit_rows(x, *, norm):
    size = {"L1": np.abs(x).sum(1), "L2": np.sqrt((x * x).sum(1)), "MAX": x.max(1)}[norm]
    return x / size[:, None]


def affine_regression(x, *, coefficients, intercepts, targets):
    return x @ np.reshape(coefficients, (targets, -1)).T + np.array(intercepts)


def unpacked(codes, scale, zero):
    return (codes.astype(np.float64) - zero) * scale


def channels_last(x, w, b, *, pads):
    """Of x and the result; weights are as Conv has them."""
    return np.moveaxis(conv(np.moveaxis(x, -1, 1), w, b, pads=pads), 1, -1)


def elementwise(function):
    """A function of what codes stand for, quantised again."""

    def reference(x, sx, zx, sy, zy):
        return quantised(function(unpacked(x, sx, zx)), sy, zy.astype(int), zy.dtype)

    return reference


def on_rows(name: str, x, reference, types=("float32",), **attrs) -> Case:
    return Case(name, name.split("_")[0], [x], reference, attrs, types, ML, share=2.0)


S, U = np.float32(0.0456), np.float32(0.0123)
CODES = [integers(0, 100, 4, 5), S, integers(0, 50), U, integers(0, 50)]
BYTES = ("uint8", "int8")
ROWS = normal(6, 4)
CASES = [
    on_rows("Scaler", ROWS, scaled, offset=[0.5, -1.0, 2.0, 0.0], scale=[2.0, 0.25, 1.0, -4.0]),
    *(on_rows(f"Normalizer_{n}", lambda rng, _: rng.random((5, 4)).astype(np.float32) + 0.1,
              unit_rows, norm=n) for n in ("L1", "L2", "MAX")),
    on_rows("Binarizer", ROWS, lambda x, *, threshold: (x > threshold) * 1.0, threshold=0.25),
    on_rows("Imputer", lambda rng, dtype: np.array([[1, np.nan, 3], [np.nan, 5, 6]], dtype),
            lambda x: np.where(np.isnan(x), [0.5, 1.5, 2.5], x),
            imputed_value_floats=[0.5, 1.5, 2.5], replaced_value_float=float("nan")),
    on_rows("LinearRegressor", ROWS, affine_regression, intercepts=[0.5, -2.0], targets=2,
            coefficients=[0.5, 1.0, -2.0, 3.0, 0.25, -1.0, 4.0, 2.0]),
    Case("ArrayFeatureExtractor", "ArrayFeatureExtractor", [ROWS, np.array([2, 0])],
         lambda x, where: x[:, where], types=WIDE, domain=ML, roundings=0),
    Case("Dropout", "Dropout", [normal(3, 4)], lambda x: x, roundings=0),
    Case("CastLike", "CastLike", [normal(3, 4), np.zeros(1)], lambda x, _: x, roundings=0),
    Case("BitCast", "BitCast", [bits(3, 4)], lambda x: x.view(np.uint32), {"to": 12},
         ("int32",), opset=26),
    case("BiasAdd", [normal(2, 3, 8), normal(8), normal(2, 3, 8)], lambda x, b, skip: x + b + skip),
    case("BiasSoftmax", [normal(2, 3, 4, 6), normal(2, 1, 1, 6)],
         lambda x, b: special.softmax(x + b, -1), axis=3, is_inner_broadcast=0),
    case("GemmFastGelu", [normal(3, 5), normal(5, 4), normal(4)],
         lambda x, w, b: fast_gelu(gemm(x, w), b)),
    case("NhwcConv", [normal(1, 6, 5, 3), normal(2, 3, 3, 3), normal(2)], channels_last,
         pads=[1, 0, 1, 0]),
    *(Case(f"QLinear{name}", f"QLinear{name}", CODES, elementwise(function), attrs, BYTES, RUNTIME)
      for name, function, attrs in (
          ("Sigmoid", special.expit, {}),
          ("LeakyRelu", lambda x: np.where(x < 0, 0.25 * x, x), {"alpha": 0.25}))),
    Case("QLinearGlobalAveragePool", "QLinearGlobalAveragePool",
         [integers(0, 100, 2, 3, 4, 4), *CODES[1:]],
         elementwise(lambda x: x.mean((2, 3), keepdims=True)), {"channels_last": 0}, BYTES,
         RUNTIME),
]  # fmt: skip
