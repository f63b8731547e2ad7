"""Quantised operators in integers: q(op(d(x), d(w))) with d(x) = (x - zx) * sx, q(r) = r / sy + zy.

Sums of products are taken in int32, with the bias and the zero points in one integer per channel,
and rescaled once by sx * sw / sy in fixed point (graphc.ir.ops.fixed_point). Relu and Clip before
the quantisation become the limits of the result. Results are within one unit of the exactly
rounded ones: the multiplier has 31 bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from graphc.ir.dtypes import DType, i8, u8
from graphc.ir.graph import Op, Value
from graphc.ir.ops.fixed_point import DOMAIN
from graphc.passes.pattern import P, attribute, opt, var
from graphc.passes.rewriter import Rewriter, rule
from graphc.passes.rules.facts import array_of

GROUP = "quantised"
MULTIPLIER_BITS = 31
LARGEST_SUM = (1 << 31) - 1
MOVEMENTS = ("Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Slice", "Identity")

y, scale, zero = var("y scale zero")


@dataclass(frozen=True)
class Quantised:
    """An integer value and how to read it: real = (value - zero) * scale, along `axis` if the
    scale has several elements."""

    value: Value
    scale: np.ndarray
    zero: np.ndarray
    axis: int

    @property
    def dtype(self) -> DType:
        return self.value.tensor.dtype

    @property
    def per_tensor(self) -> bool:
        return self.scale.size == 1

    @property
    def zero_point(self) -> int:
        return int(self.zero.reshape(-1)[0])

    @property
    def step(self) -> float:
        return float(self.scale.reshape(-1)[0])


@dataclass(frozen=True)
class Target:
    """What a result is quantised to, and the limits of an activation before that, as integers."""

    step: float
    zero_point: int
    low: int
    high: int
    dtype: DType

    def attrs(self) -> dict[str, int]:
        return {"low": self.low, "high": self.high, "to": self.dtype.onnx}


def dequantised(value: Value | None) -> Quantised | None:
    """What a value was dequantised from, if by constant parameters."""
    op = value.producer if value is not None else None
    if op is None or op.name != "DequantizeLinear" or attribute(op, "block_size"):
        return None
    source, scales = op.inputs[0], array_of(op.inputs[1])
    shift = op.inputs[2] if len(op.inputs) > 2 else None
    zeros = np.zeros(1, np.int64) if shift is None else array_of(shift)
    if source is None or scales is None or zeros is None or scales.ndim > 1:
        return None
    if not source.tensor.dtype.is_integer:
        return None
    axis = attribute(op, "axis") % max(source.tensor.rank, 1)
    return Quantised(source, scales.astype(np.float64), zeros.astype(np.int64), axis)


def activation(value: Value | None) -> Quantised | None:
    """A dequantised value of 8 bits with one scale."""
    found = dequantised(value)
    return found if found and found.per_tensor and found.dtype in (i8, u8) else None


# ---------------------------------------------------------------- the rule


@rule("integer-inference", P.QuantizeLinear(y, scale, opt(zero)), group=GROUP)
def integer_inference(rw, op, y, scale, zero):
    """q(f(d(x), d(w))) == rescale(f(x - zx, w - zw)) for sums of products, sums, means, moves."""
    target = _target(rw, op, scale, zero)
    if target is None:
        return None
    value, target = _activated(y, target)
    inner = value.producer
    if inner is None or inner.name not in RULES:
        return rw.skip(f"{inner.name if inner else 'an input'} has no integer form")
    if len(y.uses) != 1 or len(value.uses) != 1:
        return rw.skip("the value before the quantisation is used elsewhere")
    return RULES[inner.name](rw, inner, target)


def _target(rw: Rewriter, op: Op, scale: Value, zero: Value | None) -> Target | None:
    step, shift, dtype = array_of(scale), array_of(zero), op.output.tensor.dtype
    if step is None or step.size != 1 or (zero is not None and shift is None):
        return rw.skip("the scale is no constant number")
    if dtype not in (i8, u8):
        return rw.skip(f"{dtype} is neither int8 nor uint8")
    zero_point = 0 if shift is None else int(shift.reshape(-1)[0])
    return Target(float(step.reshape(-1)[0]), zero_point, int(dtype.min), int(dtype.max), dtype)


def _activated(value: Value, target: Target) -> tuple[Value, Target]:
    """The value before a Relu or Clip, which narrows the limits."""
    op = value.producer
    bounds: tuple[float, float] | None = None
    if op is not None and op.name == "Relu":
        bounds = (0.0, math.inf)
    elif op is not None and op.name == "Clip":
        found = [array_of(v) for v in (*op.inputs[1:], None, None)[:2]]
        given = [v is not None for v in (*op.inputs[1:], None, None)[:2]]
        if all(a is not None for a, g in zip(found, given) if g):
            low, high = (None if a is None else float(a.reshape(-1)[0]) for a in found)
            bounds = (-math.inf if low is None else low, math.inf if high is None else high)
    if op is None or bounds is None or len(value.uses) != 1 or op.inputs[0] is None:
        return value, target
    low, high = (_quantise(b, target) for b in bounds)
    inner = Target(target.step, target.zero_point, low, high, target.dtype)
    return op.inputs[0], inner


def _quantise(number: float, target: Target) -> int:
    if math.isinf(number):
        return target.low if number < 0 else target.high
    whole = round(number / target.step) + target.zero_point
    return min(max(whole, target.low), target.high)


# ---------------------------------------------------------------- sums of products


def _rescaled(
    rw: Rewriter, total: Value, bias: np.ndarray, factors: np.ndarray, axis: int, target: Target
) -> Value | None:
    """(total + bias) * factors, per position of `axis`, quantised."""
    if not (np.isfinite(factors).all() and (factors > 0).all()):
        return rw.skip("a scale is not a positive number")
    shift = MULTIPLIER_BITS - 1 - math.frexp(float(factors.max()))[1]
    if not 1 <= shift <= 62:
        return rw.skip(f"a scale of {factors.max()} is out of reach of fixed point")
    if bias.any():
        shape = [1] * total.tensor.rank
        shape[axis] = bias.size
        total = rw.Add(total, rw.constant(bias.astype(np.int32).reshape(shape)))
    multipliers = np.rint(np.ldexp(factors, shift)).astype(np.int32)
    return rw.op(
        "Requantize", total, rw.constant(multipliers.reshape(-1)), domain=DOMAIN, axis=axis,
        shift=shift, zero_point=target.zero_point, even=_gives_halves(multipliers, shift),
        **target.attrs(),
    )  # fmt: skip


def _gives_halves(multipliers: np.ndarray, shift: int) -> int:
    """1 if a sum of less than 2**24 can come to exactly one half."""
    zeros = max(0, shift - 1 - 24)
    return int(zeros < MULTIPLIER_BITS and bool((multipliers % (1 << zeros) == 0).any()))


def _biases(rw: Rewriter, bias: Value | None, steps: np.ndarray) -> np.ndarray | None:
    """A constant real bias in units of `steps` (one per channel, or one for all)."""
    if bias is None:
        return np.zeros(1)
    found = dequantised(bias)
    if found is not None and array_of(found.value) is not None:
        real = (array_of(found.value).astype(np.float64) - found.zero) * found.scale  # type: ignore[union-attr]
    else:
        plain = array_of(bias)
        if plain is None:
            return rw.skip("the bias is not constant")
        real = plain.astype(np.float64)
    return np.rint(real.reshape(-1) / steps.reshape(-1))


def _product(
    rw: Rewriter, x: Quantised, weights: np.ndarray, steps: np.ndarray, bias: Value | None,
    axis: int, target: Target, total: Callable[[bool], Value], padded: bool = False,
) -> Value | None:
    """A sum of x * weights (output channels first); `total(centred)` builds it in int32."""
    channels = weights.shape[0]
    units = np.broadcast_to(x.step * steps.reshape(-1), (channels,))
    own = _biases(rw, bias, units)
    if own is None or not np.isfinite(own).all():
        return rw.skip("the bias is not a finite constant")
    sums = weights.reshape(channels, -1).astype(np.int64)
    largest = np.abs(sums).sum(1).max(initial=0) * 255 + np.abs(own).max(initial=0)
    if largest > LARGEST_SUM:
        return rw.skip(f"sums up to {largest:.0f} do not fit int32")
    centred = padded and x.zero_point != 0
    if not centred:
        own = own - x.zero_point * sums.sum(1)
    offsets = np.broadcast_to(own, (channels,)).astype(np.int64)
    return _rescaled(rw, total(centred), offsets, units / target.step, axis, target)


def _weights(rw: Rewriter, value: Value | None, axis: int) -> tuple[np.ndarray, Quantised] | None:
    """Constant weights in 8 bits without a zero point, scaled along `axis` or as a whole."""
    found = dequantised(value)
    if found is None or found.dtype not in (i8, u8):
        return rw.skip("the weights are not dequantised from 8 bits")
    contents = array_of(found.value)
    if contents is None or found.zero.any():
        return rw.skip("the weights are not constant, or have a zero point")
    if not found.per_tensor and found.axis != axis:
        return rw.skip("the weights' scales do not belong to the output channels")
    return contents, found


def _convolution(rw: Rewriter, conv: Op, target: Target) -> Value | None:
    x, weights = activation(conv.inputs[0]), _weights(rw, conv.inputs[1], 0)
    if x is None or weights is None:
        return rw.skip("an operand is not dequantised from 8 bits with one scale")
    contents, w = weights
    bias = conv.inputs[2] if len(conv.inputs) > 2 else None
    pads, auto = conv.attrs.get("pads"), conv.attrs.get("auto_pad", "NOTSET")
    padded = auto.startswith("SAME") or any(pads or ())

    def total(centred: bool) -> Value:
        zero = rw.constant(np.array(x.zero_point, x.dtype.np)) if centred else None
        return rw.ConvInteger(x.value, w.value, zero, **conv.attrs)

    return _product(rw, x, contents, w.scale, bias, 1, target, total, padded)


def _matrix_product(rw: Rewriter, op: Op, target: Target, bias: Value | None = None):
    x, weights = activation(op.inputs[0]), _weights(rw, op.inputs[1], 1)
    if x is None or weights is None or weights[0].ndim != 2:
        return rw.skip("an operand is not dequantised from 8 bits with one scale")
    contents, w = weights
    axis = op.output.tensor.rank - 1
    return _product(
        rw, x, contents.T, w.scale, bias, axis, target,
        lambda _: rw.MatMulInteger(x.value, w.value),
    )  # fmt: skip


def _gemm(rw: Rewriter, op: Op, target: Target) -> Value | None:
    transposed = bool(attribute(op, "transB"))
    if attribute(op, "alpha") != 1 or attribute(op, "beta") != 1 or attribute(op, "transA"):
        return rw.skip("Gemm has factors, or transposes its first operand")
    x, weights = activation(op.inputs[0]), _weights(rw, op.inputs[1], 0 if transposed else 1)
    if x is None or weights is None:
        return rw.skip("an operand is not dequantised from 8 bits with one scale")
    contents, w = weights
    rows = contents if transposed else contents.T
    bias = op.inputs[2] if len(op.inputs) > 2 else None
    if bias is not None and bias.tensor.size not in (1, rows.shape[0]):
        return rw.skip("the bias has more than one row")
    return _product(
        rw, x, rows, w.scale, bias, 1, target,
        lambda _: rw.MatMulInteger(x.value, rw.constant(np.ascontiguousarray(rows.T))),
    )  # fmt: skip


# ---------------------------------------------------------------- sums and means


def _sum(rw: Rewriter, op: Op, target: Target) -> Value | None:
    """A sum of two dequantised values, or a matrix product and its bias."""
    a, b = (activation(v) for v in op.inputs)
    for product, bias in (op.inputs, op.inputs[::-1]):
        if product is not None and product.producer is not None:
            inner, rest = product.producer, op.output.tensor
            if inner.name == "MatMul" and product.tensor == rest and len(product.uses) == 1:
                if bias is not None and bias.tensor.size in (1, rest.static_shape[-1]):
                    return _matrix_product(rw, inner, target, bias)
    if a is None or b is None:
        return rw.skip("an operand is not dequantised from 8 bits with one scale")
    factors = [q.step / target.step for q in (a, b)]
    shift = MULTIPLIER_BITS - 1 - math.frexp(max(factors))[1]
    if not (1 <= shift <= 48 and min(factors) > 0):
        return rw.skip(f"factors {factors} are out of reach of fixed point")
    by = [round(math.ldexp(f, shift)) for f in factors]
    offset = (target.zero_point << shift) + (1 << shift - 1)
    offset -= a.zero_point * by[0] + b.zero_point * by[1]
    return rw.op(
        "RescaledSum", a.value, b.value, domain=DOMAIN, a_multiplier=by[0], b_multiplier=by[1],
        offset=offset, shift=shift, even=_gives_halves(np.array(by), shift), **target.attrs(),
    )  # fmt: skip


def _mean(rw: Rewriter, op: Op, target: Target) -> Value | None:
    """A mean over all positions of every channel."""
    x = activation(op.inputs[0])
    if x is None:
        return rw.skip("the operand is not dequantised from 8 bits with one scale")
    shape, result = x.value.tensor.static_shape, op.output.tensor.static_shape
    pads = op.attrs.get("pads")
    if any(extent != 1 for extent in result[2:]) or pads and any(pads):
        return rw.skip("it is no mean over all positions")
    if op.name == "AveragePool" and tuple(op.attrs["kernel_shape"]) != shape[2:]:
        return rw.skip("it is no mean over all positions")
    count = math.prod(shape[2:])
    if count * 255 > LARGEST_SUM:
        return rw.skip("the sum does not fit int32")
    total = rw.op("ChannelSum", x.value, domain=DOMAIN)
    offset = np.full(shape[1], -count * x.zero_point, np.int64)
    factors = np.array([x.step / target.step / count])
    return _rescaled(rw, total, offset, factors, 1, target)


def _movement(rw: Rewriter, op: Op, target: Target) -> Value | None:
    """Moving elements does not change them, if they are quantised as they were."""
    x = activation(op.inputs[0])
    if x is None or x.dtype is not target.dtype:
        return rw.skip("the operand is not dequantised from the same type")
    full = (target.low, target.high) == (target.dtype.min, target.dtype.max)
    if x.zero_point != target.zero_point or x.step != target.step or not full:
        return rw.skip("the parameters before and after differ")
    return rw.op(op.name, x.value, *op.inputs[1:], **op.attrs)


RULES: dict[str, Callable[[Rewriter, Op, Target], Value | None]] = {
    "Conv": _convolution,
    "MatMul": _matrix_product,
    "Gemm": _gemm,
    "Add": _sum,
    "AveragePool": _mean,
    "GlobalAveragePool": _mean,
    **{name: _movement for name in MOVEMENTS},
}
