"""What a factor of a product is: a conversion, a byte less a zero point, or codes below a byte."""

from __future__ import annotations

import math
from collections.abc import Sequence

from graphc.ir.dtypes import DType, i8, i32, i64, u8
from graphc.ir.expr import (
    Call,
    Const,
    Expr,
    Index,
    Load,
    cast,
    free_indices,
    loads,
    select,
)
from graphc.ir.simplify import simplify
from graphc.passes.analysis.computation import Computation
from graphc.records import dataclass

BYTES = (i8, u8)


@dataclass(frozen=True)
class Centred:
    """A factor: a byte less a zero point, both as expressions."""

    byte: Expr
    zero: Expr

    @property
    def is_plain(self) -> bool:
        return is_zero(self.zero)

    @property
    def padding(self) -> Expr | None:
        """The zero point as a byte, if it is the same everywhere."""
        zero = self.zero
        if isinstance(zero, Const):
            return Const(zero.value, self.byte.dtype)
        if free_indices(zero) or not isinstance(zero, Call) or zero.op.name != "cast":
            return None
        return zero.args[0] if zero.args[0].dtype is self.byte.dtype else None


def centred(expr: Expr) -> Centred | None:
    """A factor of int32 as a byte less a zero point; None if it is none."""
    if isinstance(expr, Call) and expr.op.name == "select":
        guard, value, other = expr.args
        inner = centred(value)
        padding = None if inner is None else inner.padding
        if inner is None or padding is None or not is_zero(other):
            return None
        return Centred(select(guard, inner.byte, padding), inner.zero)
    if not isinstance(expr, Call) or expr.dtype is not i32:
        return None
    if expr.op.name == "cast":
        byte = expr.args[0]
        return Centred(byte, Const(0, i32)) if byte.dtype in BYTES else None
    if expr.op.name != "sub":
        return None
    inner, zero = centred(expr.args[0]), expr.args[1]
    if inner is None or not inner.is_plain:
        return None
    if isinstance(zero, Const) and not inner.byte.dtype.min <= zero.value <= inner.byte.dtype.max:
        return None
    return Centred(inner.byte, zero)


def narrowed(expr: Expr, dtype: DType) -> Expr | None:
    """A factor of int32 that is a byte less a byte, or 0 under a guard, in a type that holds all of
    its values (9 bits and a sign); None if it is none."""
    if isinstance(expr, Call) and expr.op.name == "select":
        guard, value, other = expr.args
        inner = narrowed(value, dtype)
        return (
            select(guard, inner, Const(0, dtype)) if inner is not None and is_zero(other) else None
        )
    factor = centred(expr)
    if factor is None:
        return None
    byte, zero = cast(factor.byte, dtype), factor.zero
    if is_zero(zero):
        return byte
    if isinstance(zero, Const):
        return byte - Const(zero.value, dtype)
    if not isinstance(zero, Call) or zero.op.name != "cast" or zero.args[0].dtype not in BYTES:
        return None
    return byte - cast(zero.args[0], dtype)


@dataclass(frozen=True)
class Codes:
    """A factor of constants of `bits` bits, less a zero point: `load` is of the byte that holds
    them, which `byte` counts along the depth; `place` says which of its codes, the first in the
    lowest bits, or is None if it holds one."""

    load: Load
    zero: Expr
    bits: int
    byte: Index
    place: Index | None


def centred_codes(factor: Expr, depth: Sequence[Index]) -> Codes | None:
    """A factor of int32, over one or two summed indices, as codes; None if it is none."""
    is_centred = isinstance(factor, Call) and factor.op.name == "sub"
    code, zero = factor.args if is_centred else (factor, Const(0, i32))  # type: ignore[attr-defined]
    if free_indices(zero) & {*depth}:
        return None
    inner = [x for x in depth if x.extent != 1]
    load = converted(code)
    if isinstance(load, Load) and load.dtype is u8 and len(inner) == 1:
        return Codes(load, zero, 8, inner[0], None)
    unpacked = _unpacked(code)
    if unpacked is None or len(inner) != 2:
        return None
    load, shift, bits = unpacked
    for byte, place in (inner, inner[::-1]):
        shifts = [simplify(shift, {place: Const(n, i64)}) for n in range(place.count)]
        if shifts == [Const(n, i32) for n in range(0, 8, bits)] and place not in free_indices(load):
            return Codes(load, zero, bits, byte, place)
    return None


def _unpacked(code: Expr) -> tuple[Load, Expr, int] | None:
    """(load, shift, bits) of some bits of a byte."""
    if not isinstance(code, Call) or code.op.name != "band" or not isinstance(code.args[1], Const):
        return None
    shifted, mask = code.args[0], code.args[1].value
    if not isinstance(shifted, Call) or shifted.op.name != "shr" or mask not in (1, 3, 15):
        return None
    load = converted(shifted.args[0])
    if not isinstance(load, Load) or load.dtype is not u8:
        return None
    return load, shifted.args[1], mask.bit_length()


def is_zero(expr: Expr) -> bool:
    """Whether an expression is the number 0."""
    return isinstance(expr, Const) and expr.value == 0


def centred_byte(factor: Expr) -> tuple[Load, int] | None:
    """(load, centre) of a byte less a constant, widened to i32."""
    byte = centred(factor)
    if byte is None or not isinstance(byte.byte, Load) or not isinstance(byte.zero, Const):
        return None
    return byte.byte, int(byte.zero.value)


def converted(factor: Expr) -> Expr:
    """What a factor is converted from, if it is a conversion."""
    is_cast = isinstance(factor, Call) and factor.op.name == "cast"
    return factor.args[0] if is_cast else factor  # type: ignore[attr-defined]


def is_below_a_byte(factor: Expr, computation: Computation) -> bool:
    """Whether a factor is made of constants that together take fewer bytes than it has elements: of
    several codes to a byte, which are not to be stored apart."""
    sources = {x.source for x in loads(factor)}
    if isinstance(factor, Load) or not sources <= computation.constants:
        return False
    elements = math.prod(x.count for x in free_indices(factor))
    read = (b for b in computation.inputs if b.name in sources)
    return sum(b.dtype.size * math.prod(b.shape) for b in read) < elements
