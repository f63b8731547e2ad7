"""Operators on two or more values element by element."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphc.errors import ModelError, UnsupportedError
from graphc.frontend.tflite.node import Node
from graphc.frontend.tflite.registry import handles
from graphc.frontend.tflite.rescaling import NO_OFFSET, Factors, Span, rescaled, scaled
from graphc.frontend.tflite.sums import quantised_sum
from graphc.ir.dtypes import boolean, f32, i8, i16, i32, i64
from graphc.ir.graph import Value

PLAIN = (f32, i32, i64)
ARITHMETIC = {"ADD": "Add", "SUB": "Sub", "MUL": "Mul", "DIV": "Div"}
COMPARISONS = {
    "EQUAL": "Equal", "NOT_EQUAL": "Equal", "LESS": "Less", "LESS_EQUAL": "LessOrEqual",
    "GREATER": "Greater", "GREATER_EQUAL": "GreaterOrEqual",
}  # fmt: skip
LOGICAL = {"LOGICAL_AND": "And", "LOGICAL_OR": "Or"}


@handles(*ARITHMETIC)
def arithmetic(node: Node) -> None:
    (a, b), is_image = node.together([0, 1])
    kind, dtype = node.op.kind, node.dtype()
    if a.tensor.dtype is not b.tensor.dtype:
        raise ModelError(f"its operands are {a.tensor.dtype} and {b.tensor.dtype}")
    if dtype in PLAIN:
        made = node.activated(getattr(node.b, ARITHMETIC[kind])(a, b))
    elif dtype in (i8, i16) and node.result_dtype() is dtype and kind in ("ADD", "SUB"):
        made = quantised_sum(node, a, b)
    elif dtype in (i8, i16) and node.result_dtype() is dtype and kind == "MUL":
        made = _product(node, a, b)
    else:
        raise UnsupportedError(f"{kind} of {node.tensor().kind} is not supported")
    node.define_either(made, is_image)


def _product(node: Node, a: Value, b: Value) -> Value:
    """The product of both less their zero points, in int32, scaled once."""
    x, y = node.tensor(0), node.tensor(1)
    zeros, dtype = (node.zero_point(x), node.zero_point(y)), node.dtype()
    ends = [[int(e) - zero for e in (dtype.min, dtype.max)] for zero in zeros]
    corners = [p * q for p in ends[0] for q in ends[1]]
    wide = [centred(node, v, zero) for v, zero in zip((a, b), zeros)]
    factors = Factors.of(node.scale(x) * node.scale(y) / node.scale(node.result()))
    span = Span(np.array([min(corners)]), np.array([max(corners)]))
    total = node.b.Mul(*wide)
    return rescaled(node.b, total, NO_OFFSET, factors, span, 0, node.limits())


def centred(node: Node, value: Value, zero: int) -> Value:
    """An integer less its zero point, in int32."""
    wide = node.b.Cast(value, to=i32.onnx)
    return node.b.Sub(wide, node.b.constant(zero, i32)) if zero else wide


@handles("SQUARED_DIFFERENCE")
def squared_difference(node: Node) -> None:
    (a, b), is_image = node.together([0, 1])
    if node.dtype() not in (f32, i32):
        raise UnsupportedError(f"of {node.tensor().kind} it is not supported")
    difference = node.b.Sub(a, b)
    node.define_either(node.b.Mul(difference, difference), is_image)


@handles("MAXIMUM", "MINIMUM")
def extreme(node: Node) -> None:
    """Of integers as they are: all are quantised alike."""
    operands, is_image = node.together([0, 1])
    function = node.b.Max if node.op.kind == "MAXIMUM" else node.b.Min
    node.define_either(function(*operands), is_image)


@handles("ADD_N")
def many_terms(node: Node) -> None:
    if node.dtype() is not f32:
        raise UnsupportedError(f"of {node.tensor().kind} it is not supported")
    operands, is_image = node.together(range(node.count))
    total = operands[0]
    for term in operands[1:]:
        total = node.b.Add(total, term)
    node.define_either(total, is_image)


@handles("FLOOR_DIV", "FLOOR_MOD")
def floored(node: Node) -> None:
    (a, b), is_image = node.together([0, 1])
    if node.dtype() is not f32:
        raise UnsupportedError(f"of {node.tensor().kind} it is not supported")
    quotient = node.b.Floor(node.b.Div(a, b))
    if node.op.kind == "FLOOR_MOD":
        quotient = node.b.Sub(a, node.b.Mul(quotient, b))
    node.define_either(quotient, is_image)


@handles(*COMPARISONS)
def comparison(node: Node) -> None:
    """Of integers of 8 bits that are quantised alike as they are, of others by their scales."""
    (a, b), is_image = node.together([0, 1])
    if node.dtype() is i8:
        x, y = node.tensor(0), node.tensor(1)
        if (node.scale(x), node.zero_point(x)) != (node.scale(y), node.zero_point(y)):
            raise UnsupportedError("its operands are quantised differently")
    result = getattr(node.b, COMPARISONS[node.op.kind])(a, b)
    if node.op.kind == "NOT_EQUAL":
        result = node.b.Not(result)
    node.define_either(result, is_image)


@handles(*LOGICAL)
def logical(node: Node) -> None:
    operands, is_image = node.together([0, 1])
    if any(value.tensor.dtype is not boolean for value in operands):
        raise ModelError("its operands must be BOOL")
    node.define_either(getattr(node.b, LOGICAL[node.op.kind])(*operands), is_image)


@handles("SELECT_V2")
def select(node: Node) -> None:
    operands, is_image = node.together([0, 1, 2])
    node.define_either(node.b.Where(*operands), is_image)


@handles("PRELU")
def prelu(node: Node) -> None:
    """Slopes of their own for what is negative."""
    (x, slope), is_image = node.together([0, 1])
    b = node.b
    if node.dtype() is f32:
        node.define_either(b.PRelu(x, slope), is_image)
        return
    if node.dtype() is not i8:
        raise UnsupportedError(f"of {node.tensor().kind} it is not supported")
    inner, by, out = node.tensor(0), node.tensor(1), node.result()
    zero = node.zero_point(inner)
    plain = centred(node, x, zero)
    sloped = b.Mul(plain, centred(node, slope, node.zero_point(by)))
    factors: Any = (
        Factors.of(node.scale(inner) / node.scale(out)),
        Factors.of(node.scale(inner) * node.scale(by) / node.scale(out)),
    )
    limits = node.limits()
    parts = [
        scaled(b, total, NO_OFFSET, some, Span(np.array([-reach]), np.array([reach])), 0, limits)
        for total, some, reach in zip((plain, sloped), factors, (1 << 8, 1 << 17))
    ]
    below = b.Less(x, b.constant(zero, i8))
    node.define_either(b.Where(below, parts[1], parts[0]), is_image)
