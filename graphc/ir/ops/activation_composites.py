"""Activations made of several operators: softmax and its logarithm, in the operand's own type."""

from __future__ import annotations

import numpy as np

from graphc.ir.build import Builder
from graphc.ir.dtypes import DType
from graphc.ir.graph import Value
from graphc.ir.opdef import Float, composite
from graphc.ir.ops.helpers import normal_axis


def convert(b: Builder, x: Value, dtype: DType) -> Value:
    """x in another dtype; x itself if it has that one."""
    return x if x.tensor.dtype is dtype else b.Cast(x, to=dtype.onnx)


def exponentials(b: Builder, x: Value, axis: int) -> tuple[Value, Value, Value]:
    """x less its maximum along the axis, its exponential, and the sum of that (kept dims)."""
    where = np.array([normal_axis(axis, x.tensor.rank)])
    shifted = b.Sub(x, b.ReduceMax(x, where, keepdims=1))
    powers = b.Exp(shifted)
    return shifted, powers, b.ReduceSum(powers, where, keepdims=1)


@composite("Softmax", traits=("finite",))
def softmax(b: Builder, x: Float, *, axis: int = -1) -> Value:
    """exp(x) divided by its sum along the axis; the maximum is subtracted first."""
    if x.tensor.rank == 0:
        return b.Div(x, x)
    _, powers, total = exponentials(b, x, axis)
    return b.Div(powers, total)


@composite("LogSoftmax")
def log_softmax(b: Builder, x: Float, *, axis: int = -1) -> Value:
    """The logarithm of softmax: x - max - log(sum(exp(x - max)))."""
    if x.tensor.rank == 0:
        return b.Sub(x, x)
    shifted, _, total = exponentials(b, x, axis)
    return b.Sub(shifted, b.Log(total))
