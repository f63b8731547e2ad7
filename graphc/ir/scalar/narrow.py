"""Element types that a machine lacks, in terms of those it has: bits in and out of float32.

`Narrow(types).lower(expr)` gives an expression in which values of the narrow `types` occur only in
storage form: a float as its code in a u8 or u16 (as ml_dtypes keeps it), an integer below a byte as
its value in an i8 or u8. Loads are decoded where they are used; arithmetic is done in float32 (or
8-bit integers) and brought back into the type after every operation, which is what ops.py says.
Encoding rounds to nearest even, exactly as ml_dtypes does; both ways are branch-free arithmetic on
32-bit integers, so that they vectorise.

Decoding shifts a code to where float32 has its exponent and multiplies by 2**(127 - bias), which
is exact and right for subnormals too. Encoding adds half a unit in the last place that is kept,
minus one, plus that place's bit (ties to even), and cuts; subnormals are aligned by adding a power
of two (after F. Giesen, Float->half variants, 2016). A float64 is first rounded to float32 "to
odd", so that rounding a second time does the same as rounding once.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from graphc.ir import dtypes
from graphc.ir.dtypes import DType, boolean, f32, f64, i8, u8, u16, u32, u64
from graphc.ir.expr import Call, Const, Expr, Load, Ref, bitcast, call, cast, select, walk
from graphc.records import dataclass

FLOAT8 = frozenset(d for d in dtypes.BY_NAME.values() if d.is_float and d.bits <= 8)
SUB_BYTE = frozenset(d for d in dtypes.BY_NAME.values() if d.is_integer and d.bits < 8)
BELOW_BYTES = FLOAT8 | SUB_BYTE  # what hardly any machine computes in
_SIZE, _INFINITY, _MANTISSA = 0x7FFFFFFF, 0x7F800000, 23


@dataclass(frozen=True)
class Format:
    """A binary float: mantissa bits, exponent bias, and what the codes above `top` (the largest
    finite one) mean: "ieee" infinity then NaN, "fn" NaN, "fnuz" nothing (NaN is the code of
    negative zero), "finite" nothing (NaN becomes a zero)."""

    mantissa: int
    bias: int
    top: int
    kind: str

    @property
    def shift(self) -> int:
        return _MANTISSA - self.mantissa

    @property
    def overflow(self) -> int:
        """The code of |x| where x is too large."""
        return self.top + 1 if self.kind != "finite" else self.top

    @property
    def nan(self) -> int:
        """The code of NaN without its sign."""
        quiet = 1 << (self.mantissa - 1)
        return {"ieee": self.top + 1 + quiet, "finite": 0}.get(self.kind, self.top + 1)


FORMATS = {
    dtypes.f16: Format(10, 15, 0x7BFF, "ieee"),
    dtypes.bf16: Format(7, 127, 0x7F7F, "ieee"),
    dtypes.f8e4m3fn: Format(3, 7, 0x7E, "fn"),
    dtypes.f8e4m3fnuz: Format(3, 8, 0x7F, "fnuz"),
    dtypes.f8e5m2: Format(2, 15, 0x7B, "ieee"),
    dtypes.f8e5m2fnuz: Format(2, 16, 0x7F, "fnuz"),
    dtypes.f6e2m3: Format(3, 1, 0x1F, "finite"),
    dtypes.f6e3m2: Format(2, 3, 0x1F, "finite"),
    dtypes.f4e2m1: Format(1, 1, 0x07, "finite"),
}


def _u32(value: int) -> Const:
    return Const(value, u32)


def _f32(value: float) -> Const:
    return Const(value, f32)


# ---------------------------------------------------------------- floats


def decode(code: Expr, dtype: DType) -> Expr:
    """The float32 value of a code."""
    bits = cast(code, u32)
    if dtype is dtypes.f8e8m0:
        return _decode_power(bits)
    if dtype is dtypes.bf16:  # the upper half of a float32
        return bitcast(bits << 16, f32)
    form = FORMATS[dtype]
    half = 1 << (dtype.bits - 1)  # the sign bit
    size, sign = bits & (half - 1), (bits & half) << (32 - dtype.bits)
    value = size << form.shift
    if form.bias != 127:
        value = bitcast(bitcast(value, f32) * _f32(2.0 ** (127 - form.bias)), u32)
    if form.kind == "ieee" and form.bias != 127:
        value = select(size > form.top, (size << form.shift) | _INFINITY, value)
    elif form.kind == "fn":
        value = select(size.eq(form.nan), _u32(0x7FC00000), value)
    elif form.kind == "fnuz":
        value = select(bits.eq(half), _u32(0x7FC00000), value)
    return bitcast(value | sign, f32)


def _decode_power(bits: Expr) -> Expr:
    """float8e8m0: 2**(code - 127); 255 is NaN."""
    value = select(bits.eq(0), _u32(0x00400000), bits << _MANTISSA)
    return bitcast(select(bits.eq(0xFF), _u32(0x7FC00000), value), f32)


def encode(value: Expr, dtype: DType, saturate: bool = False) -> Expr:
    """The code of a float32, rounded to nearest even; beyond the range inf, NaN or the largest
    value as the format has it, and always the largest if `saturate`."""
    storage = storage_of(dtype)
    bits = bitcast(value, u32)
    if dtype is dtypes.f8e8m0:
        return cast(_encode_power(bits, saturate), storage)
    form = FORMATS[dtype]
    size, half = bits & _SIZE, 1 << (dtype.bits - 1)
    sign = (bits >> (32 - dtype.bits)) & half
    code = _rounded(size, form)
    code = select(code > form.top, _u32(form.top if saturate else form.overflow), code)
    nan = size > _INFINITY
    if form.kind == "fnuz":
        code = select(nan, _u32(form.nan), select(code.eq(0), code, code | sign))
    elif form.kind == "finite":  # NaN becomes the zero of the other sign
        code = select(nan, sign ^ half, code | sign)
    else:
        code = select(nan, _u32(form.nan), code) | sign
    return cast(code, storage)


def _rounded(size: Expr, form: Format) -> Expr:
    """The code of a magnitude, not limited above."""
    shift = form.shift
    even = (size >> shift) & 1
    kept = (size + ((1 << (shift - 1)) - 1) + even) >> shift
    normal = kept - ((127 - form.bias) << form.mantissa)
    if form.bias == 127:
        return normal
    unit = _f32(2.0 ** (24 - form.bias - form.mantissa))
    small = bitcast(bitcast(size, f32) + unit, u32) - bitcast(unit, u32)
    return select(size < ((128 - form.bias) << _MANTISSA), small, normal)


def _encode_power(bits: Expr, saturate: bool) -> Expr:
    """float8e8m0: the exponent, halfway cases up; NaN for what is not a positive number."""
    code = select(bits > 0x400000, (bits + 0x400000) >> _MANTISSA, _u32(0))
    largest = _u32(0xFE)
    code = select(code > 0xFE, largest if saturate else _u32(0xFF), code)
    number = (bits > 0) & ((bits <= _INFINITY) if saturate else (bits < _INFINITY))
    return select(number, code, _u32(0xFF))


def round_to_odd(value: Expr) -> Expr:
    """A float64 as float32, such that rounding it to fewer bits is rounding `value` directly."""
    nearest = cast(value, f32)
    back, bits = cast(nearest, f64), bitcast(nearest, u32)
    there, here = (bitcast(x, u64) & 0x7FFFFFFFFFFFFFFF for x in (back, value))
    away = cast(there > here, u32)
    exact = back.eq(value) | call("isnan", value) | call("isinf", nearest)
    return bitcast(select(exact, bits, (bits - away) | 1), f32)


# ---------------------------------------------------------------- types


def storage_of(dtype: DType) -> DType:
    """The type that holds an element of a narrow type, of the same size in memory."""
    if dtype.is_integer:
        return i8 if dtype.kind == "int" else u8
    return u8 if dtype.bits <= 8 else u16


def wrap(value: Expr, dtype: DType) -> Expr:
    """An 8-bit integer kept within the width of an integer type below a byte."""
    if dtype.kind == "uint":
        return value & dtype.max
    left = 8 - dtype.bits
    return (value << left) >> left


class Narrow:
    """Lowers expressions without Reduce for a machine that lacks some types.

    Besides, a float64 becomes a float16 in one rounding, and a bfloat16 in two, on any machine.
    """

    def __init__(self, types: Collection[DType] = BELOW_BYTES):
        self.types = frozenset(types)
        self._plain: set[Expr] = set()  # what needs no change, as far as it was looked at

    def storage(self, dtype: DType) -> DType:
        """The type of a buffer or variable of type `dtype`."""
        return storage_of(dtype) if dtype in self.types else dtype

    def concerns(self, root: Expr) -> bool:
        """Whether `lower` would change the expression."""
        plain, types = self._plain, self.types
        if root in plain:
            return False
        for node in walk(root, plain):
            if node.dtype in types or _rounds_twice(node):
                return True
            plain.add(node)
        return False

    def lower(self, root: Expr) -> Expr:
        """The expression with narrow values in storage form."""
        if not self.concerns(root):
            return root
        done: dict[Expr, Expr] = {}
        for node in walk(root):
            done[node] = self._node(node, [done[c] for c in node.children])
        return done[root]

    def stored(self, value: Expr, dtype: DType) -> Expr:
        """What is stored for a lowered value of type `dtype`: signed integers lose their sign."""
        if dtype in self.types and dtype.kind == "int":
            return value & ((1 << dtype.bits) - 1)
        return value

    def _node(self, node: Expr, children: list[Expr]) -> Expr:
        narrow = node.dtype in self.types
        if isinstance(node, Const) and narrow:
            return _constant(node)
        if isinstance(node, Load) and narrow:
            raw = Load(node.source, tuple(children), storage_of(node.dtype))
            return wrap(raw, node.dtype) if node.dtype.kind == "int" else raw
        if isinstance(node, Ref):
            same = self.storage(node.dtype) is node.dtype
            return node if same else Ref(node.name, self.storage(node.dtype))
        if isinstance(node, Call):
            return self._call(node, children)
        return _rebuilt(node, children)

    def _call(self, node: Call, children: list[Expr]) -> Expr:
        concerned = node.dtype in self.types or any(a.dtype in self.types for a in node.args)
        if node.op.rule == "cast" and (concerned or _rounds_twice(node)):
            (child,) = children
            if node.op.name == "bitcast":
                return self._from_bits(self.stored(child, node.args[0].dtype), node.dtype)
            wide = self.widened(child, node.args[0].dtype)
            return self._converted(wide, node.dtype, node.op.name == "cast_sat")
        if not concerned:
            return _rebuilt(node, children)
        if node.op.name == "select":
            return call("select", *children)
        operands = [self.widened(c, a.dtype) for c, a in zip(children, node.args)]
        result = call(node.op.name, *operands)
        if node.dtype not in self.types:
            return result
        return wrap(result, node.dtype) if node.dtype.is_integer else encode(result, node.dtype)

    def widened(self, value: Expr, dtype: DType) -> Expr:
        """A lowered value of type `dtype` in the type that arithmetic on it is done in."""
        return decode(value, dtype) if dtype in self.types and dtype.is_float else value

    def _converted(self, wide: Expr, dtype: DType, saturate: bool) -> Expr:
        if dtype.is_float and dtype.bits <= 16:
            once = dtype is dtypes.f16 and wide.dtype is f64
            wide = round_to_odd(wide) if once else cast(wide, f32)
        if dtype not in self.types:
            return cast(wide, dtype, saturate=saturate)
        if dtype.is_float:
            return encode(wide, dtype, saturate)
        return wrap(cast(wide, storage_of(dtype)), dtype)

    def _from_bits(self, raw: Expr, dtype: DType) -> Expr:
        if dtype not in self.types:
            return bitcast(raw, dtype)
        storage = bitcast(raw, storage_of(dtype)) if raw.dtype is not boolean else cast(raw, u8)
        return wrap(storage, dtype) if dtype.is_integer else storage


def _rebuilt(node: Expr, children: list[Expr]) -> Expr:
    same = all(a is b for a, b in zip(node.children, children))
    return node if same else node.rebuild(children)


def _rounds_twice(node: Expr) -> bool:
    """A conversion from float64 to 16 bits, which machines do in one step or in two."""
    to16 = isinstance(node, Call) and node.op.rule == "cast" and node.dtype.is_float
    return to16 and node.dtype.bits == 16 and node.args[0].dtype is f64  # type: ignore[attr-defined]


def _constant(node: Const) -> Const:
    storage = storage_of(node.dtype)
    if node.dtype.is_integer:
        return Const(node.value, storage)
    return Const(int(np.asarray(node.value, node.dtype.np).view(storage.np)), storage)
