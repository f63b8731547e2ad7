"""Type conversions: Cast, CastLike, BitCast, and rounding to TF32.

Casts between numbers are one `cast` or `cast_sat` of the scalar table; casts to float8e8m0, whose
values are the powers of two, are done on the bits of a float32, with any of three roundings.
"""

from __future__ import annotations

from graphc.errors import ModelError
from graphc.ir import dtypes
from graphc.ir.build import Builder
from graphc.ir.dtypes import DType, f32, u8, u32
from graphc.ir.expr import Const, Expr, bitcast, call, cast, select
from graphc.ir.graph import Value
from graphc.ir.opdef import Any_, Float, Operand, OutIndex, composite, op

_INCREMENTS = {"up": 0x7FFFFF, "down": 0, "nearest": 0x400000}  # added to the bits, then cut
_LARGEST, _NAN = 0xFE, 0xFF  # codes of 2^127 and NaN


@op("Cast")
def cast_op(i: OutIndex, x: Any_, *, to: int, saturate: int = 1, round_mode: str = "up") -> Expr:
    """x converted to the ONNX element type `to`.

    `saturate` chooses the largest finite float8 over inf or NaN; `round_mode` (up, down, nearest)
    matters for float8e8m0 alone.
    """
    return converted(x[i], dtypes.of(to), bool(saturate), round_mode)


def converted(value: Expr, to: DType, saturate: bool = True, round_mode: str = "up") -> Expr:
    """`value` cast to `to` by the rules of ONNX Cast."""
    if to is dtypes.f8e8m0 and value.dtype is not to:
        return _power_of_two(value.cast(f32), saturate, round_mode)
    return cast(value, to, saturate=saturate and to.is_float and to.bits <= 8)


def _power_of_two(value: Expr, saturate: bool, round_mode: str) -> Expr:
    """A float32 rounded to a power of two: its exponent bits, after an increment that carries."""
    if round_mode not in _INCREMENTS:
        raise ModelError(f"round_mode must be up, down or nearest, found {round_mode!r}")
    bits = bitcast(value, u32) & 0x7FFFFFFF
    code = (bits + _INCREMENTS[round_mode]) >> 23
    special = bits >= 0x7F800000
    if saturate:
        top = select(bits > 0x7F800000, Const(_NAN, u32), Const(_LARGEST, u32))
        code = select(special | (code > _LARGEST), top, code)
    else:
        code = select(special | (bits.eq(0)), _NAN, code)
    return bitcast(code.cast(u8), dtypes.f8e8m0)


@op("RoundToTF32", domain="graphc")
def round_to_tf32(i: OutIndex, x: Float) -> Expr:
    """The nearest value of TF32, in float32."""
    _require_float32(x)
    return call("round_tf32", x[i])


@op("CutToTF32", domain="graphc")
def cut_to_tf32(i: OutIndex, x: Float) -> Expr:
    """What matrix cores take for x."""
    _require_float32(x)
    return call("cut_tf32", x[i])


@op("Rounded", domain="graphc")
def rounded(i: OutIndex, x: Float, *, type: str) -> Expr:
    """A float32 as the type (tf32, f16 or bf16) holds it, in float32."""
    _require_float32(x)
    if type == "tf32":
        return call("cut_tf32", call("add_half_tf32", x[i]))
    if type not in ("f16", "bf16"):
        raise ModelError(f"type must be tf32, f16 or bf16, found {type!r}")
    return cast(cast(x[i], dtypes.of(type)), f32)


def _require_float32(x: Operand) -> None:
    if x.dtype is not f32:
        raise ModelError(f"takes float32, found {x.dtype}")


@composite("CastLike")
def cast_like(
    b: Builder, x: Any_, target: Any_, *, saturate: int = 1, round_mode: str = "up"
) -> Value:
    """x converted to the element type of `target`."""
    to = target.tensor.dtype.onnx
    return b.Cast(x, to=to, saturate=saturate, round_mode=round_mode)


@op("BitCast")
def bit_cast(i: OutIndex, x: Any_, *, to: int) -> Expr:
    """The bits of x read as the ONNX element type `to` of the same width."""
    target = dtypes.of(to)
    if target.bits != x.dtype.bits or dtypes.string in (target, x.dtype):
        raise ModelError(f"takes types of one width, found {x.dtype} and {target}")
    return bitcast(x[i], target)
