"""Operators on single elements: scipy and numpy, on ordinary and special values."""

from __future__ import annotations

import numpy as np
from judge import Case
from operands import nasty, nasty_pairs
from scipy import special

X = nasty()
UNARY = {
    "Abs": np.abs, "Neg": np.negative, "Ceil": np.ceil, "Floor": np.floor, "Round": np.rint,
    "Sqrt": np.sqrt, "Reciprocal": np.reciprocal, "Sign": np.sign, "Exp": np.exp, "Log": np.log,
    "Sin": np.sin, "Cos": np.cos, "Tan": np.tan, "Asin": np.arcsin, "Acos": np.arccos,
    "Atan": np.arctan, "Sinh": np.sinh, "Cosh": np.cosh, "Tanh": np.tanh, "Asinh": np.arcsinh,
    "Acosh": np.arccosh, "Atanh": np.arctanh, "Erf": special.erf, "Sigmoid": special.expit,
}  # fmt: skip
BINARY = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Pow": np.power}
CASES = [
    *(Case(name, name, [X], f, signed=True) for name, f in UNARY.items()),
    *(
        Case(name, name, [nasty_pairs(True), nasty_pairs(False)], f, signed=True)
        for name, f in BINARY.items()
    ),
]
