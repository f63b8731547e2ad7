"""Quantised operators: numpy in float64, with ties to even."""

from __future__ import annotations

import numpy as np
from judge import Case
from operands import integers, normal, uniform

from tables.windows import conv

BYTES = ("uint8", "int8")


def quantised(x, scale, zero, kind=np.uint8):
    """Rounded to the nearest, ties to even, and saturated."""
    info = np.iinfo(kind)
    return np.clip(np.rint(x / scale) + zero, info.min, info.max).astype(kind)


def along(values, rank: int, axis: int):
    return values.reshape([-1 if n == axis % rank else 1 for n in range(rank)])


def quantise(x, scale, zero, *, axis=1):
    kind = zero.dtype
    if scale.size > 1:
        scale, zero = (along(v, x.ndim, axis) for v in (scale, zero))
    return quantised(x, scale, zero.astype(np.int64), kind)


def dequantise(x, scale, zero, *, axis=1):
    if scale.size > 1:
        scale, zero = (along(v, x.ndim, axis) for v in (scale, zero))
    return (x.astype(np.float64) - zero) * scale


def blocks(x, scale, *, axis, block_size):
    return x * np.repeat(scale, block_size, axis)


def dynamic(x):
    """By the standard: the range is widened to hold 0, and the scale is float32."""
    low, high = min(x.min(), 0), max(x.max(), 0)
    scale = np.float32(np.float32(high) - np.float32(low)) / np.float32(255)
    zero = np.clip(np.rint(-low / scale), 0, 255)
    return quantised(x, scale, zero), np.float64(scale), zero.astype(np.uint8)


def matmul(a, sa, za, b, sb, zb, sy, zy):
    product = (a.astype(np.float64) - za) @ (b.astype(np.float64) - zb) * sa * sb
    return quantised(product, sy, zy.astype(np.int64), zy.dtype)


def convolved(x, sx, zx, w, sw, zw, sy, zy, b, *, pads):
    total = conv(x.astype(np.float64) - zx, w.astype(np.float64) - zw, b.astype(np.float64),
                 pads=pads)  # fmt: skip
    return quantised(total * sx * sw, sy, zy.astype(np.int64), zy.dtype)


def code(low, high):
    """A zero point."""
    return integers(low, high)


S, T, U = (np.float32(s) for s in (0.0123, 0.0456, 0.789))
CASES = [
    *(
        Case(f"QuantizeLinear_{kind}", "QuantizeLinear",
             [normal(4, 5, scale=3), np.float32(0.03), np.array(7, kind)], quantise,
             types=("float32",))
        for kind in ("uint8", "int8", "uint16", "int16")
    ),
    Case("QuantizeLinear_ties", "QuantizeLinear",
         [np.arange(-9, 10, dtype=np.float32) / 4, np.float32(0.5), np.array(3, np.uint8)],
         quantise, types=("float32",)),
    Case("QuantizeLinear_axis", "QuantizeLinear",
         [normal(3, 4, 5), uniform(0.01, 0.1, 4), integers(0, 9, 4, dtype=np.int8)], quantise,
         {"axis": -2}, types=("float32",)),
    Case("DequantizeLinear", "DequantizeLinear", [integers(0, 100, 4, 5), S, code(0, 9)],
         dequantise, types=("uint8", "int8", "uint16", "int16")),
    Case("DequantizeLinear_axis", "DequantizeLinear",
         [integers(0, 100, 3, 4), np.array([1, 3, 5, 9], np.float32) / 70,
          integers(0, 9, 4)], dequantise, types=BYTES),
    Case("DequantizeLinear_blocks", "DequantizeLinear",
         [integers(0, 100, 6, 4), np.array([[1, 2, 3, 4], [5, 6, 7, 8]], np.float32) / 16], blocks,
         {"axis": 0, "block_size": 3}, types=("int8", "uint8")),
    Case("DynamicQuantizeLinear", "DynamicQuantizeLinear", [normal(6, 7)], dynamic, outputs=3,
         types=("float32",)),
    Case("DynamicQuantizeLinear_positive", "DynamicQuantizeLinear", [uniform(2, 3, 6, 7)], dynamic,
         outputs=3, types=("float32",)),
    Case("QLinearMatMul", "QLinearMatMul",
         [integers(0, 100, 4, 30), S, code(0, 50), integers(0, 100, 30, 5), T, code(0, 50), U,
          code(0, 50)], matmul, types=BYTES),
    Case("QLinearConv", "QLinearConv",
         [integers(0, 100, 1, 3, 6, 7), S, code(0, 50), integers(0, 100, 4, 3, 3, 2), T,
          code(0, 50), U, code(0, 50), integers(-999, 999, 4, dtype=np.int32)], convolved,
         {"pads": [1, 0, 1, 1]}, types=BYTES),
    Case("MatMulIntegerToFloat", "MatMulIntegerToFloat",
         [integers(0, 100, 4, 30), integers(0, 100, 30, 5), S, T, code(0, 50), code(0, 50)],
         lambda a, b, sa, sb, za, zb: (a.astype(float) - za) @ (b.astype(float) - zb) * sa * sb,
         domain="com.microsoft", types=BYTES),
    Case("QLinearAdd", "QLinearAdd",
         [integers(0, 100, 4, 5), S, code(0, 50), integers(0, 100, 5), T, code(0, 50), U,
          code(0, 50)],
         lambda a, sa, za, b, sb, zb, sy, zy: quantised(
             (a.astype(float) - za) * sa + (b.astype(float) - zb) * sb, sy, zy.astype(int),
             zy.dtype),
         domain="com.microsoft", types=BYTES),
    Case("QLinearMul", "QLinearMul",
         [integers(0, 100, 4, 5), S, code(0, 50), integers(0, 100, 5), T, code(0, 50), U,
          code(0, 50)],
         lambda a, sa, za, b, sb, zb, sy, zy: quantised(
             (a.astype(float) - za) * sa * ((b.astype(float) - zb) * sb), sy, zy.astype(int),
             zy.dtype),
         domain="com.microsoft", types=BYTES),
]  # fmt: skip
