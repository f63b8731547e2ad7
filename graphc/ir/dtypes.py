"""Element types: every dtype of ONNX, one row each.

A `DType` is an interned object compared by identity. Elements narrower than a byte (int4, uint2,
float4 ...) are stored one per byte, as ml_dtypes does in numpy; only files pack them.
Arithmetic on narrow floats (float16, bfloat16, float8, float4) is done in float32 and rounded to
the narrow type after each scalar operation: `compute` names the type in which it is done.
Operators do not round in between (wide_bodies.py, wide_graphs.py).
"""

from __future__ import annotations

from functools import cached_property

import numpy

from graphc.records import dataclass


@dataclass(frozen=True, eq=False)
class DType:
    """One element type. `kind` is float, int, uint, bool, string or complex; `bits` is logical."""

    name: str
    kind: str
    bits: int
    onnx: int  # onnx.TensorProto.DataType
    numpy_name: str  # of the scalar type in numpy, or in ml_dtypes, which has those that it lacks

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple:
        return (of, (self.name,))

    @cached_property
    def np(self) -> numpy.dtype:
        """The dtype of arrays of it."""
        if self.numpy_name not in _NARROW:
            return numpy.dtype(getattr(numpy, self.numpy_name))
        import ml_dtypes  # loading it takes longer than a small model does

        return numpy.dtype(getattr(ml_dtypes, self.numpy_name))

    @cached_property
    def size(self) -> int:
        """Bytes one element takes in memory."""
        return self.np.itemsize

    @cached_property
    def is_float(self) -> bool:
        return self.kind == "float"

    @cached_property
    def is_integer(self) -> bool:
        return self.kind in ("int", "uint")

    @cached_property
    def is_signed(self) -> bool:
        return self.kind in ("int", "float")

    @cached_property
    def is_number(self) -> bool:
        return self.kind in ("int", "uint", "float")

    @cached_property
    def compute(self) -> DType:
        """The type scalar arithmetic is carried out in."""
        if self.is_float and self.bits < 32:
            return f32
        if self.is_integer and self.bits < 8:
            return i8 if self.kind == "int" else u8
        return self

    @cached_property
    def min(self) -> int | float:
        """The smallest value; -inf for floats that have infinities."""
        if self.is_integer:
            return -(1 << (self.bits - 1)) if self.kind == "int" else 0
        return float("-inf") if self.has_inf else -self.largest_finite

    @cached_property
    def max(self) -> int | float:
        """The largest value; inf for floats that have infinities."""
        if self.is_integer:
            return (1 << (self.bits - (self.kind == "int"))) - 1
        return float("inf") if self.has_inf else self.largest_finite

    @cached_property
    def largest_finite(self) -> float:
        """The largest value of a float that is no infinity."""
        import ml_dtypes

        return float(ml_dtypes.finfo(self.np).max)

    @cached_property
    def has_inf(self) -> bool:
        return self.is_float and self.name in ("f64", "f32", "f16", "bf16", "f8e5m2")


def _row(name: str, kind: str, bits: int, numpy_name: str, onnx: int) -> DType:
    dtype = BY_NAME[name] = BY_ONNX[onnx] = DType(name, kind, bits, onnx, numpy_name)
    if not hasattr(numpy, numpy_name):
        _NARROW[numpy_name] = dtype
    elif kind != "string":
        _BY_NUMPY[dtype.np] = dtype
    return dtype


BY_NAME: dict[str, DType] = {}
BY_ONNX: dict[int, DType] = {}
_BY_NUMPY: dict[numpy.dtype, DType] = {}
_NARROW: dict[str, DType] = {}  # those that numpy lacks, by the names that ml_dtypes gives them

f32 = _row("f32", "float", 32, "float32", 1)
u8 = _row("u8", "uint", 8, "uint8", 2)
i8 = _row("i8", "int", 8, "int8", 3)
u16 = _row("u16", "uint", 16, "uint16", 4)
i16 = _row("i16", "int", 16, "int16", 5)
i32 = _row("i32", "int", 32, "int32", 6)
i64 = _row("i64", "int", 64, "int64", 7)
string = _row("string", "string", 0, "object_", 8)
boolean = _row("bool", "bool", 8, "bool_", 9)
f16 = _row("f16", "float", 16, "float16", 10)
f64 = _row("f64", "float", 64, "float64", 11)
u32 = _row("u32", "uint", 32, "uint32", 12)
u64 = _row("u64", "uint", 64, "uint64", 13)
c64 = _row("c64", "complex", 64, "complex64", 14)
c128 = _row("c128", "complex", 128, "complex128", 15)
bf16 = _row("bf16", "float", 16, "bfloat16", 16)
f8e4m3fn = _row("f8e4m3fn", "float", 8, "float8_e4m3fn", 17)
f8e4m3fnuz = _row("f8e4m3fnuz", "float", 8, "float8_e4m3fnuz", 18)
f8e5m2 = _row("f8e5m2", "float", 8, "float8_e5m2", 19)
f8e5m2fnuz = _row("f8e5m2fnuz", "float", 8, "float8_e5m2fnuz", 20)
u4 = _row("u4", "uint", 4, "uint4", 21)
i4 = _row("i4", "int", 4, "int4", 22)
f4e2m1 = _row("f4e2m1", "float", 4, "float4_e2m1fn", 23)
f8e8m0 = _row("f8e8m0", "float", 8, "float8_e8m0fnu", 24)
u2 = _row("u2", "uint", 2, "uint2", 25)
i2 = _row("i2", "int", 2, "int2", 26)
f6e2m3 = _row("f6e2m3", "float", 6, "float6_e2m3fn", 27)
f6e3m2 = _row("f6e3m2", "float", 6, "float6_e3m2fn", 28)


def of(what: DType | str | int | numpy.dtype | type) -> DType:
    """The DType with this graphc name, ONNX number or numpy dtype; KeyError if there is none."""
    if isinstance(what, DType):
        return what
    if isinstance(what, str) and what in BY_NAME:
        return BY_NAME[what]
    if isinstance(what, int) and not isinstance(what, bool):
        return BY_ONNX[what]
    if isinstance(what, str) and what in _NARROW:
        return _NARROW[what]
    numpy_type = numpy.dtype(what)  # type: ignore[arg-type]
    if numpy_type.kind in "OUS":
        return string
    known = _BY_NUMPY.get(numpy_type) or _NARROW.get(numpy_type.name)
    if known is None or known.np != numpy_type:
        raise KeyError(what)
    return known
