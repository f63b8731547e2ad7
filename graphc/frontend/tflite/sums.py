"""Sums and differences of two quantised values.

The kernels scale both operands to a common unit, 2**-20 (of int16, 2**-15) of the larger scale,
add them, and scale the sum; each of the three is rounded twice. Of two values of 8 bits there are
65536 sums, so one form

    (a * a_multiplier + b * b_multiplier + offset) >> shift

is compared with all of them. Where it has no offset that is right for all, the kernels' own
arithmetic is built.
"""

from __future__ import annotations

import math

import numpy as np

from graphc.errors import UnsupportedError
from graphc.frontend.tflite.arithmetic import multiply, quantise_multiplier
from graphc.frontend.tflite.node import Node
from graphc.frontend.tflite.rescaling import NO_OFFSET, Factors, Limits, Span, scaled
from graphc.ir.dtypes import i8, i16, i32
from graphc.ir.graph import Value
from graphc.ir.ops.fixed_point import DOMAIN

BITS = {i8: 20, i16: 15}  # below the larger scale
NEAR = sorted(
    range(-4, 5), key=abs
)  # multiples of the last bit that decides, for other multipliers
WORD = 31


def quantised_sum(node: Node, a: Value, b: Value) -> Value:
    """a + b, or a - b, quantised as the result is."""
    limits, dtype, sign = node.limits(), node.dtype(), -1 if node.op.kind == "SUB" else 1
    tensors = node.tensor(0), node.tensor(1)
    zeros = [node.zero_point(tensor) for tensor in tensors]
    scales = [np.float32(node.scale(tensor)) for tensor in (*tensors, node.result())]
    real = _real_factors(scales, BITS[dtype], node.op.kind == "SUB")
    if not all(0 < number < 1 for number in real):
        raise UnsupportedError(f"its scales {[float(s) for s in scales]} are too far apart")
    if dtype is i8:
        form = _one_form(real, zeros, sign, limits)
        if form is not None:
            by, offset, shift = form
            return node.b.op(
                "RescaledSum", a, b, domain=DOMAIN, a_multiplier=by[0], b_multiplier=by[1],
                offset=offset, shift=shift, low=limits.low, high=limits.high, to=dtype.onnx,
            )  # fmt: skip
    return _as_kernels_do(node, (a, b), real, zeros, sign, limits)


def _real_factors(scales: list[np.float32], bits: int, floats: bool) -> list[float]:
    """Those of both operands and of the sum, in float64 or as float32 has them."""
    kind = np.float32 if floats else np.float64
    sa, sb, sy = (kind(s) for s in scales)
    twice = kind(2) * max(sa, sb)
    return [float(sa / twice), float(sb / twice), float(twice / (kind(1 << bits) * sy))]


def _as_kernels_do(
    node: Node, operands: tuple[Value, Value], real: list[float], zeros: list[int], sign: int,
    limits: Limits,
) -> Value:  # fmt: skip
    b, dtype = node.b, node.dtype()
    bits, parts = BITS[dtype], []
    anything = Limits(0, int(i32.min), int(i32.max), i32)
    for value, number, zero in zip(operands, real, zeros):
        wide = b.Mul(b.Cast(value, to=i32.onnx), b.constant(1 << bits, i32))
        offset = np.array([-zero << bits])
        reach = np.array([max(int(dtype.max) - zero, zero - int(dtype.min)) << bits])
        parts.append(scaled(b, wide, offset, Factors.of(number), Span(-reach, reach), 0, anything))
    total = b.Add(*parts) if sign > 0 else b.Sub(*parts)
    reach = np.array([1 << 31])
    return scaled(b, total, NO_OFFSET, Factors.of(real[2]), Span(-reach, reach), 0, limits)


def _expected(real: list[float], zeros: list[int], sign: int, limits: Limits) -> np.ndarray:
    """What the kernel gives for all pairs of values of 8 bits."""
    parts = [
        multiply((np.arange(-128, 128) - zero) << BITS[i8], *quantise_multiplier(number))
        for number, zero in zip(real, zeros)
    ]
    total = parts[0][:, None] + sign * parts[1]
    whole = multiply(total, *quantise_multiplier(real[2])) + limits.zero_point
    return np.clip(whole, limits.low, limits.high)


def _one_form(
    real: list[float], zeros: list[int], sign: int, limits: Limits
) -> tuple[tuple[int, int], int, int] | None:
    """Multipliers, offset and shift that give the same for all pairs; None if none are found."""
    expected = _expected(real, zeros, sign, limits)
    scale = real[2] * (1 << BITS[i8])
    a, b = real[0] * scale, sign * real[1] * scale
    shift = WORD - 2 - math.frexp(max(abs(a), abs(b)))[1]
    if not 12 <= shift <= 50:
        return None
    one, values = 1 << shift, np.arange(-128, 128)
    unit = max(one >> 22, 1)
    for left in NEAR:
        for right in NEAR:
            by = round(a * one) + left * unit, round(b * one) + right * unit
            total = values[:, None] * by[0] + values * by[1]
            room = expected * one - total
            least = room[expected > limits.low].max(initial=-(1 << 60))
            most = (room + one - 1)[expected < limits.high].min(initial=1 << 60)
            if least <= most and least > -(1 << 60) and most < 1 << 60:
                return by, int(least + most >> 1), shift
    return None
