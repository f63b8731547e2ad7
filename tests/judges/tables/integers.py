"""Operators on integers: exact, in Python's integers taken modulo the width of the type."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import numpy as np
from judge import INTEGERS, SIGNED, UNSIGNED, Case
from operands import bits, integers

A, B = bits(6, 1, 5), bits(4, 5)


def wrapped(value: int, dtype: np.dtype) -> int:
    """An integer modulo the width of a type."""
    width = 8 * dtype.itemsize
    value &= (1 << width) - 1
    return value - (1 << width) if dtype.kind == "i" and value >> (width - 1) else value


def exact(function: Callable[..., int]) -> Callable:
    """Elementwise in Python's integers."""

    def reference(*operands):
        dtype, arrays = operands[0].dtype, np.broadcast_arrays(*operands)
        values = [wrapped(function(*map(int, xs)), dtype) for xs in zip(*(a.flat for a in arrays))]
        return np.array(values, dtype).reshape(arrays[0].shape)

    return reference


def folded(function: Callable[[int, int], int], start: int) -> Callable:
    """A reduction of the middle axis in Python's integers."""

    def reference(x, _axes):
        rows = np.moveaxis(x, 1, -1).reshape(-1, x.shape[1])
        values = [wrapped(reduce(function, map(int, row), start), x.dtype) for row in rows]
        return np.array(values, x.dtype).reshape(x.shape[0], 1, x.shape[2])

    return reference


def divided(a: int, b: int) -> int:
    """Towards zero."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def not_zero(*shape: int):
    return lambda rng, dtype: np.where((b := bits(*shape)(rng, dtype)) == 0, 3, b).astype(dtype)


def product(a, b):
    """A matrix product in Python's integers."""
    wide = np.matmul(a.astype(object), b.astype(object))
    return np.array([wrapped(int(v), a.dtype) for v in wide.flat], a.dtype).reshape(wide.shape)


TWO = {
    "Add": lambda a, b: a + b, "Sub": lambda a, b: a - b, "Mul": lambda a, b: a * b,
    "Max": max, "Min": min, "BitwiseAnd": lambda a, b: a & b, "BitwiseOr": lambda a, b: a | b,
    "BitwiseXor": lambda a, b: a ^ b,
}  # fmt: skip
COMPARED = {"Equal": np.equal, "Less": np.less, "Greater": np.greater,
            "LessOrEqual": np.less_equal, "GreaterOrEqual": np.greater_equal}  # fmt: skip
ONE = {"Abs": abs, "Neg": lambda a: -a, "Sign": lambda a: (a > 0) - (a < 0),
       "BitwiseNot": lambda a: ~a}  # fmt: skip
CHOSEN = ("int8", "uint8", "int32", "int64")
MIDDLE = np.array([1])
CASES = [
    *(Case(f"{n}_integers", n, [A, B], exact(f), types=INTEGERS) for n, f in TWO.items()),
    *(Case(f"{n}_integers", n, [A, B], f, types=INTEGERS) for n, f in COMPARED.items()),
    *(Case(f"{n}_integers", n, [bits(30)], exact(f), types=SIGNED) for n, f in ONE.items()),
    Case("Div_integers", "Div", [A, not_zero(4, 5)], exact(divided), types=INTEGERS),
    Case("Mod_integers", "Mod", [A, not_zero(4, 5)], exact(lambda a, b: a % b), types=INTEGERS),
    Case("Mod_fmod_integers", "Mod", [A, not_zero(4, 5)],
         exact(lambda a, b: a - b * divided(a, b)), {"fmod": 1}, types=INTEGERS),
    Case("Pow_integers", "Pow", [integers(0, 6, 4, 5), integers(0, 3, 5)],
         exact(lambda a, b: a**b), types=("int32", "int64")),
    *(
        Case(f"BitShift_{way}", "BitShift", [bits(40), integers(0, 8, 40)], exact(shift),
             {"direction": way}, types=UNSIGNED)
        for way, shift in (("LEFT", lambda a, b: a << b), ("RIGHT", lambda a, b: a >> b))
    ),
    Case("MatMul_integers", "MatMul", [bits(2, 3, 40), bits(40, 5)], product,
         types=("int32", "int64", "uint32", "uint64")),
    Case("ReduceSum_integers", "ReduceSum", [bits(3, 7, 2), MIDDLE],
         folded(lambda a, b: a + b, 0), types=("int32", "int64", "uint32", "uint64")),
    Case("ReduceProd_integers", "ReduceProd", [bits(3, 4, 2), MIDDLE],
         folded(lambda a, b: a * b, 1), types=("int32", "int64", "uint32", "uint64")),
    Case("ReduceMax_integers", "ReduceMax", [bits(3, 7, 2), MIDDLE],
         folded(max, -(2**70)), types=("int8", "uint8", "int32", "int64", "uint64")),
    Case("ReduceMin_integers", "ReduceMin", [bits(3, 7, 2), MIDDLE],
         folded(min, 2**70), types=("int8", "uint8", "int32", "int64", "uint64")),
    Case("CumSum_integers", "CumSum", [bits(3, 9), np.array(1)],
         lambda x, _: np.cumsum(x, 1, dtype=x.dtype), types=("int32", "int64", "uint32", "uint64")),
    Case("ArgMax_integers", "ArgMax", [integers(0, 4, 3, 9, 2)],
         lambda x: np.argmax(x, 1)[:, None], {"axis": 1}, types=CHOSEN),
    Case("ArgMin_integers", "ArgMin", [integers(0, 4, 3, 9, 2)],
         lambda x: np.argmin(x, 1)[:, None], {"axis": 1}, types=CHOSEN),
    Case("Clip_integers", "Clip", [bits(50), integers(20, 30), integers(90, 99)],
         lambda x, a, b: np.clip(x, a, b), types=INTEGERS),
    Case("MatMulInteger", "MatMulInteger",
         [bits(3, 50), bits(50, 4), integers(0, 99), integers(0, 99, 4)],
         lambda a, b, p, q: (a.astype(np.int64) - p) @ (b.astype(np.int64) - q),
         types=("int8", "uint8")),
    Case("Range_integers", "Range", [np.array(7), np.array(-8), np.array(-3)],
         lambda a, b, s: np.arange(a, b, s), types=("int64",)),
]  # fmt: skip
