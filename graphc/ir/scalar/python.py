"""Scalar operations as Python source: the spelling table of the kernel interpreter.

Values are Python scalars that their dtype can hold: ints, floats, bools, complex numbers, strings.
`spell` gives the text of one operation with the result wrapped or rounded to its dtype; operations
without a spelling become a call of the table of ops.py on 0-d arrays, which is what defines
all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from ctypes import c_float
from functools import lru_cache
from typing import Any

import numpy as np

from graphc.ir import dtypes
from graphc.ir.dtypes import DType
from graphc.ir.expr import Call
from graphc.ir.scalar import ops as scalar_ops
from graphc.ir.scalar.ops import TABLE
from graphc.ir.simplify import bounds

# ---------------------------------------------------------------- literals and rounding


def literal(value: Any, dtype: DType) -> str:
    """A constant as Python text."""
    if dtype.is_float and not math.isfinite(value):
        return "nan" if value != value else "inf" if value > 0 else "(-inf)"
    text = repr(value)
    return f"({text})" if text.startswith("-") else text


def rounded(text: str, dtype: DType) -> str:
    """`text`, a float computed in double from values of `dtype`, rounded to it."""
    if dtype is dtypes.f64 or not dtype.is_float:
        return text
    single = f"f32({text}).value"
    return single if dtype is dtypes.f32 else f"narrow_{dtype.name}({single})"


def wrapped(text: str, dtype: DType) -> str:
    """`text`, an unbounded int, wrapped to `dtype`."""
    mask = (1 << dtype.bits) - 1
    if dtype.kind == "uint":
        return f"({text} & {mask})"
    half = 1 << (dtype.bits - 1)
    return f"(({text} + {half} & {mask}) - {half})"


def _narrowing(dtype: DType) -> Callable[[float], float]:
    kind = dtype.np.type

    def run(x: float) -> float:
        with np.errstate(over="ignore"):
            return float(np.float64(x).astype(kind))

    return run


# ---------------------------------------------------------------- helpers the text calls


def _int_div(a: int, b: int) -> int:
    if b == 0:
        return 0
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def _int_rem(a: int, b: int) -> int:
    return 0 if b == 0 else a - b * _int_div(a, b)


def _div(a: float, b: float) -> float:
    if b:
        return a / b
    return math.nan if a != a or a == 0 else math.copysign(math.inf, a) * math.copysign(1, b)


def _min(a: float, b: float) -> float:
    return a if a < b or a != a else b


def _max(a: float, b: float) -> float:
    return a if a > b or a != a else b


def _sqrt(a: float) -> float:
    return math.sqrt(a) if a >= 0 else math.nan if a != a or a < 0 else a


def _whole(function: Callable[[float], int]) -> Callable[[float], float]:
    def run(a: float) -> float:
        return math.copysign(float(function(a)), a) if math.isfinite(a) else a

    return run


def _to_int(a: float, low: int, high: int) -> int:
    """Truncated, NaN as 0, saturated to low..high."""
    if a != a:
        return 0
    if math.isinf(a):
        return high if a > 0 else low
    return max(low, min(high, int(a)))


def _int_to_f32(a: int) -> float:
    return f32_round(a) if -(1 << 53) <= a <= 1 << 53 else float(np.float32(np.asarray(a)))


def f32_round(a: float) -> float:
    """The nearest float32."""
    return c_float(a).value


HELPERS: dict[str, object] = {
    "inf": math.inf, "nan": math.nan, "f32": c_float, "int_div": _int_div, "int_rem": _int_rem,
    "fdiv": _div, "fmin": _min, "fmax": _max, "fsqrt": _sqrt, "to_int": _to_int,
    "int_to_f32": _int_to_f32, "ffloor": _whole(math.floor), "fceil": _whole(math.ceil),
    "ftrunc": _whole(math.trunc), "fround": _whole(round), "isinf": math.isinf,
    **{f"narrow_{d.name}": _narrowing(d) for d in dtypes.BY_NAME.values()
       if d.is_float and d.bits < 32},
}  # fmt: skip


@lru_cache(maxsize=1024)
def table_function(name: str, dtype: DType, operands: tuple[DType, ...]) -> Callable:
    """A row of the scalar table on Python scalars."""
    op = TABLE[name]

    def run(*values: Any) -> Any:
        arrays = [np.asarray(v).astype(d.np) for v, d in zip(values, operands)]
        result = scalar_ops.apply(op, dtype, *arrays)
        if dtype.is_float:
            return float(result)
        return int(result) if dtype.is_integer else np.asarray(result).item()

    return run


# ---------------------------------------------------------------- spelling

_COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_LOGIC = {"and": "({0} and {1})", "or": "({0} or {1})", "xor": "({0} != {1})", "not": "(not {0})"}
_INT = {
    "add": "({0} + {1})", "sub": "({0} - {1})", "mul": "({0} * {1})", "neg": "(-{0})",
    "abs": "abs({0})", "div": "int_div({0}, {1})", "fma": "({0} * {1} + {2})",
}  # fmt: skip
_INT_EXACT = {  # cannot leave the range of their operands
    "min": "min({0}, {1})", "max": "max({0}, {1})", "rem": "int_rem({0}, {1})",
    "band": "({0} & {1})", "bor": "({0} | {1})", "bxor": "({0} ^ {1})",
    "floor": "{0}", "ceil": "{0}", "round": "{0}", "trunc": "{0}",
    "sign": "(({0} > 0) - ({0} < 0))",
}  # fmt: skip
_FLOAT = {
    "add": "({0} + {1})", "sub": "({0} - {1})", "mul": "({0} * {1})",
    "div": "fdiv({0}, {1})", "sqrt": "fsqrt({0})",
}  # fmt: skip
_FLOAT_EXACT = {
    "neg": "(-{0})", "abs": "abs({0})", "min": "fmin({0}, {1})", "max": "fmax({0}, {1})",
    "floor": "ffloor({0})", "ceil": "fceil({0})", "trunc": "ftrunc({0})", "round": "fround({0})",
}  # fmt: skip


def spell(node: Call, args: list[str], constants: dict[str, object]) -> str:
    """The Python text of an operation; functions it needs are added to `constants`."""
    name, dtype = node.op.name, node.dtype
    text = None
    if name in _COMPARE:
        text = f"({args[0]} {_COMPARE[name]} {args[1]})"
    elif name in _LOGIC:
        text = _LOGIC[name].format(*args)
    elif name == "cast":
        text = _cast(args[0], node.args[0].dtype, dtype)
    elif name == "isnan" and node.args[0].dtype.is_float:
        text = f"({args[0]} != {args[0]})"
    elif name == "isinf" and node.args[0].dtype.is_float:
        text = f"isinf({args[0]})"
    elif dtype.is_integer:
        text = _integer(node, args)
    elif dtype.is_float:
        text = _float(name, dtype, args)
    if text is not None:
        return text
    operands = tuple(a.dtype for a in node.args)
    function = "_".join([name, dtype.name, *(d.name for d in operands)])
    constants[function] = table_function(name, dtype, operands)
    return f"{function}({', '.join(args)})"


def _integer(node: Call, args: list[str]) -> str | None:
    name, dtype = node.op.name, node.dtype
    if name in _INT_EXACT:
        return _INT_EXACT[name].format(*args)
    if name in ("floordiv", "mod"):
        divided = f"{args[0]} {'//' if name == 'floordiv' else '%'} {args[1]}"
        if args[1].isdigit() and args[1] != "0":
            return f"({divided})"
        return wrapped(f"({divided} if {args[1]} else 0)", dtype)
    if name not in _INT:
        return None
    text = _INT[name].format(*args)
    if dtype is dtypes.i64:
        low, high = bounds(node)
        if dtype.min <= low and high <= dtype.max:
            return text
    return wrapped(text, dtype)


def _float(name: str, dtype: DType, args: list[str]) -> str | None:
    if name in _FLOAT_EXACT:
        return _FLOAT_EXACT[name].format(*args)
    if name == "fma":
        product = rounded(_FLOAT["mul"].format(args[0], args[1]), dtype.compute)
        return rounded(_FLOAT["add"].format(product, args[2]), dtype)
    return rounded(_FLOAT[name].format(*args), dtype) if name in _FLOAT else None


def _cast(text: str, source: DType, target: DType) -> str | None:
    if target is dtypes.boolean and source.kind != "string":
        return f"({text} != 0)"
    if target.is_integer:
        return _cast_to_int(text, source, target)
    if target.is_float and source.is_float:
        return text if target is dtypes.f64 else rounded_directly(text, target)
    if target is dtypes.f64 and source.kind in ("int", "uint", "bool"):
        return f"float({text})"
    if target is dtypes.f32 and source.kind in ("int", "uint", "bool"):
        return f"int_to_f32({text})"
    return None


def rounded_directly(text: str, dtype: DType) -> str:
    """A conversion of any float to a narrower one, rounding once."""
    return f"f32({text}).value" if dtype is dtypes.f32 else f"narrow_{dtype.name}({text})"


def _cast_to_int(text: str, source: DType, target: DType) -> str | None:
    if source is dtypes.boolean:
        return f"int({text})"
    if source.is_integer:
        fits = target.min <= source.min and source.max <= target.max
        return text if fits else wrapped(text, target)
    if not source.is_float:
        return None
    wide = target if target.bits in (32, 64) else dtypes.i32
    whole = f"to_int({text}, {wide.min}, {wide.max})"
    return whole if wide is target else wrapped(whole, target)
