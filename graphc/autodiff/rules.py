"""Gradients written by hand: of operators without a body, and where that is better than what is
derived. Each takes a Builder, the op and the gradients of its results (None: zero), and gives those
of its operands (None: zero, or not a number).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from graphc.autodiff.values import zeros_like
from graphc.errors import UnsupportedError
from graphc.ir.build import Builder
from graphc.ir.graph import Op, Value

Rule = Callable[[Builder, Op, Sequence[Value | None]], list[Value | None]]
RULES: dict[tuple[str, str], Rule] = {}


def rule(*names: str, domain: str = "") -> Callable[[Rule], Rule]:
    """Declares the gradient of operators."""

    def declare(function: Rule) -> Rule:
        RULES.update({(domain, name): function for name in names})
        return function

    return declare


def _only(cotangents: Sequence[Value | None]) -> Value:
    """The gradient of the first result."""
    value = cotangents[0]
    assert value is not None
    return value


@rule("StopGradient", domain="graphc")
def _stopped(b: Builder, op: Op, cotangents: Sequence[Value | None]) -> list[Value | None]:
    return [None]


@rule("Relu")
def _relu(b: Builder, op: Op, cotangents: Sequence[Value | None]) -> list[Value | None]:
    """Zero at 0, as PyTorch has it; it reads the result, which is kept anyway."""
    g = _only(cotangents)
    zero = b.constant(0, g.tensor.dtype)
    return [b.Where(b.Greater(op.output, zero), g, zero)]


@rule("Sigmoid")
def _sigmoid(b: Builder, op: Op, cotangents: Sequence[Value | None]) -> list[Value | None]:
    """g * y * (1 - y): what is derived is 0 * inf where exp(-x) overflows."""
    y = op.output
    return [b.Mul(_only(cotangents), b.Mul(y, b.Sub(b.constant(1, y.tensor.dtype), y)))]


@rule("Softmax")
def _softmax(b: Builder, op: Op, cotangents: Sequence[Value | None]) -> list[Value | None]:
    """y * (g - sum(g * y)): nothing of the maximum is left, which what is derived computes."""
    g, y = _only(cotangents), op.output
    axis = np.array([op.attrs.get("axis", -1)])
    return [b.Mul(y, b.Sub(g, b.ReduceSum(b.Mul(g, y), axis, keepdims=1)))]


@rule("LogSoftmax")
def _log_softmax(b: Builder, op: Op, cotangents: Sequence[Value | None]) -> list[Value | None]:
    """g - exp(y) * sum(g)."""
    g, y = _only(cotangents), op.output
    axis = np.array([op.attrs.get("axis", -1)])
    return [b.Sub(g, b.Mul(b.Exp(y), b.ReduceSum(g, axis, keepdims=1)))]


@rule("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def _reshaped(b: Builder, op: Op, cotangents: Sequence[Value | None]) -> list[Value | None]:
    """A view, as the operator is."""
    shape = np.array(op.operand(0).tensor.dims, np.int64)
    zero_dims = {"allowzero": 1} if 0 in shape else {}
    return [b.Reshape(_only(cotangents), shape, **zero_dims)]


@rule("CumSum")
def _cumulated(b: Builder, op: Op, cotangents: Sequence[Value | None]) -> list[Value | None]:
    """The sum from the other end."""
    attrs = {**op.attrs, "reverse": 1 - op.attrs.get("reverse", 0)}
    return [b.CumSum(_only(cotangents), op.operand(1), **attrs), None]


@rule("TopK")
def _largest(b: Builder, op: Op, cotangents: Sequence[Value | None]) -> list[Value | None]:
    """Each value's gradient goes where the value is from."""
    zeros = zeros_like(b, op.operand(0))
    axis = op.attrs.get("axis", -1)
    return [b.ScatterElements(zeros, op.outputs[1], _only(cotangents), axis=axis), None]


@rule("ScatterND", "ScatterElements")
def _scattered(b: Builder, op: Op, cotangents: Sequence[Value | None]) -> list[Value | None]:
    """Updates get the gradient where they are stored; data, where nothing replaced it. Of several
    updates of one element all get it, though the last one wins."""
    g, indices = _only(cotangents), op.operand(1)
    axis = {"axis": op.attrs.get("axis", 0)} if op.name == "ScatterElements" else {}
    picked = b.op("GatherElements" if axis else "GatherND", g, indices, **axis)
    if op.attrs.get("reduction", "none") == "add":
        return [g, None, picked]
    if op.attrs.get("reduction", "none") in ("min", "max"):
        return _extremes(b, op, g, axis)
    require_plain(op)
    return [b.op(op.name, g, indices, zeros_like(b, op.operand(2)), **axis), None, picked]


def _extremes(b: Builder, op: Op, g: Value, axis: dict[str, Any]) -> list[Value | None]:
    """Equal parts to all that are equal to the extreme, data and updates alike, as in PyTorch."""
    data, indices, updates = op.operand(0), op.operand(1), op.operand(2)
    gather = "GatherElements" if axis else "GatherND"
    dtype = g.tensor.dtype

    def reached(operand: Value, result: Value) -> Value:
        one, zero = b.constant(1, dtype), b.constant(0, dtype)
        return b.Where(b.Equal(operand, result), one, zero)

    of_data = reached(data, op.output)
    of_updates = reached(updates, b.op(gather, op.output, indices, **axis))
    count = b.op(op.name, of_data, indices, of_updates, reduction="add", **axis)
    share = b.Div(g, count)
    return [
        b.Mul(share, of_data), None, b.Mul(b.op(gather, share, indices, **axis), of_updates)
    ]  # fmt: skip


def require_plain(op: Op) -> None:
    """UnsupportedError of a scatter that multiplies, or takes extremes."""
    if op.attrs.get("reduction", "none") not in ("none", "add"):
        how = op.attrs["reduction"]
        raise UnsupportedError(f"{op.where()}: {op.name} with reduction {how!r} has no derivative")


@rule("MaxUnpool")
def _unpooled(b: Builder, op: Op, cotangents: Sequence[Value | None]) -> list[Value | None]:
    """What is at the places where the values are put, which count through the whole result."""
    flat = np.array([-1])
    x, places = op.operand(0), b.Reshape(op.operand(1), flat)
    picked = b.GatherElements(b.Reshape(_only(cotangents), flat), places, axis=0)
    rest: list[Value | None] = [None] * (len(op.inputs) - 1)
    return [b.Reshape(picked, np.array(x.tensor.dims, np.int64)), *rest]


@rule("Det")
def _determinant(b: Builder, op: Op, cotangents: Sequence[Value | None]) -> list[Value | None]:
    """det(x) times the transposed inverse; infinite or NaN where x is singular."""
    scale = b.Unsqueeze(b.Mul(_only(cotangents), op.output), np.array([-2, -1]))
    return [b.Mul(scale, inverse_transposed(b, op.operand(0)))]


def inverse_transposed(b: Builder, x: Value) -> Value:
    """The transposed inverse of square matrices."""
    rank = x.tensor.rank
    inverse = b.op("Inverse", x, domain="com.microsoft")
    return b.Transpose(inverse, perm=(*range(rank - 2), rank - 1, rank - 2))
