"""Elementwise operators: a scalar expression; the shape follows by broadcasting."""

from __future__ import annotations

from graphc.ir.expr import call, exp, select
from graphc.ir.opdef import Any_, Bool, Float, Number, op


@op("Add")
def add(i, a: Number, b: Number):
    """a + b."""
    return a[i] + b[i]


@op("Relu")
def relu(i, x: Number):
    """x above 0, else 0; NaN stays."""
    return select(x[i] < 0, 0, x[i])


@op("Sigmoid")
def sigmoid(i, x: Float):
    """1 / (1 + exp(-x))."""
    return 1 / (1 + exp(-x[i]))


@op("Where")
def where(i, condition: Bool, a: Any_, b: Any_):
    """a where the condition holds, else b."""
    return select(condition[i], a[i], b[i])


@op("Sub")
def sub(i, a: Number, b: Number):
    """a - b."""
    return a[i] - b[i]


@op("Mul")
def mul(i, a: Number, b: Number):
    """a * b."""
    return a[i] * b[i]


@op("Div")
def div(i, a: Number, b: Number):
    """a / b; integers truncate towards zero."""
    return a[i] / b[i]


@op("Exp")
def exponential(i, x: Float):
    """e to the power x."""
    return exp(x[i])


@op("Tanh")
def tanh(i, x: Float):
    """Hyperbolic tangent."""
    return call("tanh", x[i])
