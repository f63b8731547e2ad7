"""Quantised values (integers with a scale and a zero point), and targets of quantisation."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from graphc.ir.dtypes import DType, i8, u8
from graphc.ir.graph import Op, Value
from graphc.passes.pattern import attribute
from graphc.passes.rewriter import Rewriter
from graphc.passes.rules.facts import array_of
from graphc.records import dataclass

GROUP = "quantised"
BYTES = (i8, u8)


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
        return self.scale.size == 1 and self.zero.size == 1

    @property
    def zero_point(self) -> int:
        return int(self.zero.reshape(-1)[0])

    @property
    def step(self) -> float:
        return float(self.scale.reshape(-1)[0])

    def reads_like(self, other: Quantised) -> bool:
        """Whether equal integers mean equal reals, for two values with one scale each."""
        mine = (self.dtype, self.step, self.zero_point)
        return mine == (other.dtype, other.step, other.zero_point)


@dataclass(frozen=True)
class Target:
    """What a result is quantised to, and the limits of an activation before that, as integers."""

    step: float
    zero_point: int
    low: int
    high: int
    dtype: DType

    @property
    def is_full(self) -> bool:
        """Whether the limits are those of the type."""
        return (self.low, self.high) == (self.dtype.min, self.dtype.max)

    def attrs(self) -> dict[str, int]:
        return {"low": self.low, "high": self.high, "to": self.dtype.onnx}

    def quantise(self, number: float) -> int:
        """A real number as the integer within the limits that is nearest to it."""
        if math.isinf(number):
            return self.low if number < 0 else self.high
        whole = round(number / self.step) + self.zero_point
        return min(max(whole, self.low), self.high)

    def clipped(self, whole: np.ndarray) -> np.ndarray:
        """Integers within the limits, as int64."""
        return np.clip(whole, self.low, self.high).astype(np.int64)

    def rounded(self, multiples: np.ndarray) -> np.ndarray:
        """Multiples of the step as the integers that QuantizeLinear gives, as int64."""
        return self.clipped(np.rint(multiples) + self.zero_point)

    def limited(self, low: float, high: float) -> Target:
        """The target with the limits of an activation."""
        return replace(self, low=self.quantise(low), high=self.quantise(high))


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
    source = dequantised(value)
    return source if source and source.per_tensor and source.dtype in BYTES else None


def target_of(rw: Rewriter, op: Op) -> Target | None:
    """What a QuantizeLinear quantises to, if that is 8 bits with one constant scale."""
    zero = op.inputs[2] if len(op.inputs) > 2 else None
    step, shift, dtype = array_of(op.inputs[1]), array_of(zero), op.output.tensor.dtype
    if step is None or step.size != 1 or (zero is not None and shift is None):
        return rw.skip("the scale is no constant number")
    if dtype not in BYTES:
        return rw.skip("{} is neither int8 nor uint8", dtype)
    number = float(step.reshape(-1)[0])
    if not (math.isfinite(number) and number > 0):
        return rw.skip("the scale {} is not a positive number", number)
    zero_point = 0 if shift is None else int(shift.reshape(-1)[0])
    return Target(number, zero_point, int(dtype.min), int(dtype.max), dtype)


def codes(value: Value) -> np.ndarray:
    """All values of an 8-bit type, in order."""
    dtype = value.tensor.dtype
    return np.arange(int(dtype.min), int(dtype.max) + 1).astype(dtype.np)


def quantised_like(rw: Rewriter, value: Value, op: Op) -> Value:
    """`value` quantised by the parameters of a QuantizeLinear."""
    return rw.QuantizeLinear(value, *op.inputs[1:], **op.attrs)


def dequantised_like(rw: Rewriter, value: Value, op: Op) -> Value:
    """`value` dequantised by the parameters of a DequantizeLinear."""
    return rw.DequantizeLinear(value, *op.inputs[1:], **op.attrs)
