"""How a cache of keys or values holds them: as they are, or as signed codes of 8 or 4 bits.

An element is code * scale, with one scale for all or one per feature of each head. Codes are
rounded to even and kept within their range. Of 4 bits, two share a byte, the first in the lower
half, each with 8 added. Reference: docs/ContribOperators.md of ONNX Runtime (GroupQueryAttention),
and its CPU kernel.
"""

from __future__ import annotations

import numpy as np

from graphc.errors import ModelError, UnsupportedError
from graphc.ir import dtypes
from graphc.ir.build import Builder
from graphc.ir.graph import Value
from graphc.ir.ops.activation_composites import convert
from graphc.records import dataclass

KINDS = ("NONE", "PER_TENSOR", "PER_CHANNEL")


@dataclass
class Codes:
    """A cache of (batch, heads, length, size): codes of `bits`, or elements if `scale` is None."""

    scale: Value | None
    bits: int

    def encoded(self, b: Builder, x: Value) -> Value:
        """x as a cache holds it."""
        if self.scale is None:
            return x
        highest = (1 << (self.bits - 1)) - 1
        steps = b.Round(b.Div(convert(b, x, dtypes.f32), self.scale))
        codes = b.Clip(steps, b.constant(-highest - 1, dtypes.f32), b.constant(highest, dtypes.f32))
        if self.bits == 8:
            return b.Cast(codes, to=dtypes.i8.onnx)
        return _packed(b, b.Cast(b.Add(codes, 8.0), to=dtypes.u8.onnx))

    def decoded(self, b: Builder, cache: Value) -> Value:
        """What a cache stands for: elements as they are, codes in float32."""
        if self.scale is None:
            return cache
        if self.bits == 8 and self.scale.tensor.size == 1:
            return b.DequantizeLinear(cache, b.Reshape(self.scale, np.empty(0, np.int64)))
        if self.bits == 8:
            return b.Mul(b.Cast(cache, to=dtypes.f32.onnx), self.scale)
        codes = b.Cast(_unpacked(b, cache), to=dtypes.f32.onnx)
        return b.Mul(b.Sub(codes, 8.0), self.scale)


def codes_of(
    b: Builder, kind: str, bits: int, scale: Value | None, like: Value, past: Value | None,
    name: str,
) -> Codes:  # fmt: skip
    """The codes of a cache of new keys or values `like` those given, by the operator's attributes
    and operands; `name` says which of k and v they are."""
    if kind not in KINDS:
        raise UnsupportedError(f"{name}_quant_type {kind!r} is not one of {', '.join(KINDS)}")
    if kind == "NONE":
        if scale is not None:
            raise ModelError(f"{name}_scale is given, {name}_quant_type is NONE")
        if past is not None and past.tensor.dtype is not like.tensor.dtype:
            raise UnsupportedError(f"a cache of {past.tensor.dtype} needs {name}_quant_type")
        return Codes(None, 0)
    if bits not in (8, 4):
        raise UnsupportedError(f"kv_cache_bit_width is {bits}, supported are 8 and 4")
    held = dtypes.i8 if bits == 8 else dtypes.u8
    if past is not None and past.tensor.dtype is not held:
        raise UnsupportedError(f"a cache of {bits} bits is of {held}, found {past.type}")
    _, heads, _, size = like.tensor.static_shape
    if bits == 4 and size % 2:
        raise UnsupportedError(f"two codes of 4 bits share a byte, found {size} of them in a row")
    if scale is None:
        raise ModelError(f"{name}_quant_type is {kind}, {name}_scale is missing")
    count = 1 if kind == "PER_TENSOR" else heads * size
    if scale.tensor.size != count:
        raise ModelError(f"{name}_scale must hold {count} elements, found {scale.type}")
    shape = (1, 1, 1, 1) if count == 1 else (1, heads, 1, size)
    return Codes(b.Reshape(scale, np.array(shape)), bits)


def _packed(b: Builder, codes: Value) -> Value:
    """Codes of 0 .. 15 along the last axis, two to a byte."""
    *outer, size = codes.tensor.static_shape
    pairs = b.Reshape(codes, np.array((*outer, size // 2, 2)))
    low, high = (b.Gather(pairs, np.array(n), axis=-1) for n in range(2))
    return b.BitwiseOr(low, b.BitShift(high, b.constant(4, dtypes.u8), direction="LEFT"))


def _unpacked(b: Builder, packed: Value) -> Value:
    """The codes of bytes that hold two each."""
    *outer, size = packed.tensor.static_shape
    low = b.BitwiseAnd(packed, b.constant(15, dtypes.u8))
    high = b.BitShift(packed, b.constant(4, dtypes.u8), direction="RIGHT")
    last = np.array([-1])
    pairs = b.Concat(b.Unsqueeze(low, last), b.Unsqueeze(high, last), axis=-1)
    return b.Reshape(pairs, np.array((*outer, 2 * size)))
