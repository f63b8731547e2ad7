"""How scalar operations and types are spelled in LLVM IR.

A `Typed` is an SSA name or literal with its element type and lane count. Booleans are i1 in
registers and i8 in memory; float8, float4 and sub-byte integers are i8 in both, holding their bits
or their value.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from graphc.ir.dtypes import DType, boolean
from graphc.records import dataclass

_FLOATS = {"f64": "double", "f32": "float", "f16": "half", "bf16": "bfloat"}


def storage_type(dtype: DType) -> str:
    """The LLVM type of an element in memory."""
    return _FLOATS.get(dtype.name) or f"i{dtype.size * 8}"


def register_type(dtype: DType) -> str:
    """The LLVM type of an element in a register."""
    return "i1" if dtype is boolean else storage_type(dtype)


def vector_of(element: str, lanes: int) -> str:
    """The type of a vector; of one lane, the element itself."""
    return element if lanes == 1 else f"<{lanes} x {element}>"


def suffix(element: str, lanes: int) -> str:
    """The overload suffix of an intrinsic: f32, v16f32, i64."""
    names = {"double": "f64", "float": "f32", "half": "f16", "bfloat": "bf16"}
    scalar = names.get(element, element)
    return scalar if lanes == 1 else f"v{lanes}{scalar}"


def literal(value: Any, dtype: DType) -> str:
    """A constant of a register type."""
    if dtype is boolean:
        return "true" if value else "false"
    if dtype.name == "f16":
        return f"0xH{np.float16(value).view(np.uint16):04X}"
    if dtype.name == "bf16":
        return f"0xR{np.asarray(value, dtype.np).view(np.uint16):04X}"
    if dtype.name in _FLOATS:
        return f"0x{struct.unpack('<Q', struct.pack('<d', float(value)))[0]:016X}"
    if dtype.is_float:  # float8, float4: their bits
        return str(int(np.asarray(value, dtype.np).view(np.uint8)))
    return str(int(value))


@dataclass(frozen=True)
class Typed:
    """An operand: `text` is an SSA name or a literal of `element` (splat when lanes is 1)."""

    text: str
    dtype: DType
    lanes: int = 1

    @property
    def element(self) -> str:
        return register_type(self.dtype)

    @property
    def type(self) -> str:
        return vector_of(self.element, self.lanes)


INTRINSICS = {  # float operation -> intrinsic
    "floor": "llvm.floor",
    "ceil": "llvm.ceil",
    "trunc": "llvm.trunc",
    "round": "llvm.rint",
    "sqrt": "llvm.sqrt",
    "abs": "llvm.fabs",
    "min": "llvm.minimum",
    "max": "llvm.maximum",
    "fma": "llvm.fma",
}
SIGN_BLIND = ("llvm.minimum", "llvm.maximum")
"""Those that need not tell zeros apart by sign, which takes x86 as long as the rest. With constants
they do, so that a Relu has no negative zeros."""
LIBM = {"exp", "log", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh",
        "asinh", "acosh", "atanh", "erf", "pow"}  # fmt: skip
FLOAT_BINARY = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
INT_BINARY = {"add": "add", "sub": "sub", "mul": "mul", "band": "and", "bor": "or", "bxor": "xor"}
LOGIC = {"and": "and", "or": "or", "xor": "xor"}
FLOAT_COMPARE = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}
INT_COMPARE = {"eq": "eq", "ne": "ne", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge"}


def libm_name(name: str, element: str) -> str:
    """The C library function of an operation for float or double."""
    base = {"rem": "fmod"}.get(name, name)
    return base if element == "double" else base + "f"


def global_name(name: str) -> str:
    """A name as LLVM takes it for functions and globals."""
    return "@" + "".join(c if c.isalnum() or c in "._" else "_" for c in name)
