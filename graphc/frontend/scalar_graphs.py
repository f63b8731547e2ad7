"""Scalar bodies as graphs of ONNX's operators, for exporting operators that ONNX does not have.

Every expression becomes a tensor over the indices that it depends on, in one order; operands of an
operation are broadcast over the indices of both. What reads no operand is a constant. A load is a
Transpose where its indices are whole dims, one Gather for each dim where dims have indices of their
own (windows, slices), and else a Gather from the flat operand; indices out of range, legal where a
`select` does not choose them, read some element. A sum of products is an Einsum of its factors, so
that no tensor has the indices of all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from graphc.errors import UnsupportedError
from graphc.ir.build import Builder
from graphc.ir.dtypes import i64
from graphc.ir.expr import (
    Call,
    Expr,
    Index,
    Load,
    Reduce,
    as_expr,
    cast,
    free_indices,
    loads,
    maximum,
    minimum,
)
from graphc.ir.graph import Graph, Op, Value
from graphc.ir.infer import op_body
from graphc.ir.interp import evaluate, factors
from graphc.ir.ops.generic import with_plain_names
from graphc.ir.simplify import simplify

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
LARGEST = 1 << 30  # elements of a tensor between operands and results

NODES = {
    "neg": "Neg", "abs": "Abs", "sign": "Sign", "floor": "Floor", "ceil": "Ceil", "round": "Round",
    "sqrt": "Sqrt", "exp": "Exp", "log": "Log", "sin": "Sin", "cos": "Cos", "tan": "Tan",
    "asin": "Asin", "acos": "Acos", "atan": "Atan", "sinh": "Sinh", "cosh": "Cosh", "tanh": "Tanh",
    "asinh": "Asinh", "acosh": "Acosh", "atanh": "Atanh", "erf": "Erf", "isnan": "IsNaN",
    "isinf": "IsInf", "not": "Not", "bnot": "BitwiseNot", "add": "Add", "sub": "Sub", "mul": "Mul",
    "pow": "Pow", "min": "Min", "max": "Max", "band": "BitwiseAnd", "bor": "BitwiseOr",
    "bxor": "BitwiseXor", "eq": "Equal", "lt": "Less", "le": "LessOrEqual", "gt": "Greater",
    "ge": "GreaterOrEqual", "and": "And", "or": "Or", "xor": "Xor", "select": "Where",
}  # fmt: skip
REDUCTIONS = {"sum": "ReduceSum", "prod": "ReduceProd", "max": "ReduceMax", "min": "ReduceMin"}


def has_scalar_bodies(op: Op) -> bool:
    """Whether the results of an op are expressions over indices."""
    return op.defn.form in ("elementwise", "indexed")


def as_graph(op: Op) -> Graph:
    """The results of a typed op with scalar bodies, whose shapes are static, by operators of ONNX;
    the parameters stand for its operands. UnsupportedError names what has no counterpart."""
    graph = Graph(op.name)
    params = [graph.add_param(None if v is None else v.type) for v in op.inputs]
    if not all(v.is_static for v in (*op.inputs, *op.outputs) if v is not None):
        raise UnsupportedError(f"{op.where()}: {op.defn.full_name} is exported for static shapes")
    made = _Tensors(Builder(graph, None, op.loc), op, params)
    results = []
    for number, output in enumerate(op.outputs):
        space = [Index(f"i{d}", extent) for d, extent in enumerate(output.tensor.static_shape)]
        results.append(made.over(simplify(op_body(op, number)), space))
    graph.set_results(results)
    return graph


class _Tensors:
    """The tensors of the expressions about one op."""

    def __init__(self, b: Builder, op: Op, operands: Sequence[Value]):
        self.b, self.op, self.operands = b, op, operands
        self.order: dict[Index, int] = {}
        self.made: dict[Expr, Value] = {}

    def own(self, node: Expr) -> list[Index]:
        """The indices of a node's tensor."""
        for index in sorted(free_indices(node), key=lambda x: x.name):
            self.order.setdefault(index, len(self.order))
        return sorted(free_indices(node), key=lambda x: self.order[x])

    def over(self, node: Expr, space: Sequence[Index]) -> Value:
        """The tensor of an expression with a dim for each index of `space`."""
        for index in space:
            self.order.setdefault(index, len(self.order))
        shape = np.array([index.extent for index in space], np.int64)
        value = self.spread(node, space)
        return value if value.tensor.static_shape == tuple(shape) else self.b.Expand(value, shape)

    def spread(self, node: Expr, space: Sequence[Index]) -> Value:
        """The tensor of an expression, with dims of 1 for indices that it does not depend on."""
        value, own = self.run(node), self.own(node)
        if own == list(space):
            return value
        dims = [index.extent if index in own else 1 for index in space]
        return self.b.Reshape(value, np.array(dims, np.int64), allowzero=int(0 in dims) or None)

    def run(self, node: Expr) -> Value:
        """The tensor of an expression over its own indices."""
        if node not in self.made:
            shape = tuple(index.count for index in self.own(node))
            if math.prod(shape) > LARGEST:
                raise self.refused(f"takes a tensor of shape {list(shape)} in between")
            if not loads(node):
                self.made[node] = self.b.constant(self.contents(node))
            elif isinstance(node, Load):
                self.made[node] = self.load(node)
            elif isinstance(node, Reduce):
                self.made[node] = self.reduced(node)
            else:
                assert isinstance(node, Call)
                self.made[node] = self.called(node)
        return self.made[node]

    def contents(self, node: Expr) -> np.ndarray:
        """The elements of what reads no operand."""
        own = self.own(node)
        return evaluate(with_plain_names(node, own), tuple(index.count for index in own), {})

    def refused(self, why: str) -> UnsupportedError:
        return UnsupportedError(f"{self.op.where()}: {self.op.defn.full_name} {why}")

    # ------------------------------------------------------------ loads

    def load(self, node: Load) -> Value:
        value = self.operands[int(node.source)]
        dims = value.tensor.static_shape
        used = [free_indices(position) for position in node.index]
        apart = sum(map(len, used)) == len(frozenset[Index]().union(*used))
        if not apart or any(loads(position) for position in node.index):
            return self.picked(node, value)
        order: list[Index] = []
        axis = 0
        for position, extent in zip(node.index, dims):
            own = self.own(position)
            if not isinstance(position, Index) or position.extent != extent:
                where = np.clip(self.contents(position), 0, max(extent - 1, 0)).astype(np.int64)
                value = self.b.Gather(value, where, axis=axis)
            order += own
            axis += len(own)
        perm = [order.index(index) for index in self.own(node)]
        return value if perm == sorted(perm) else self.b.Transpose(value, perm=perm)

    def picked(self, node: Load, value: Value) -> Value:
        """Elements at positions that data decides, or that share indices."""
        place: Expr = as_expr(0, i64)
        for position, extent in zip(node.index, value.tensor.static_shape):
            inside = minimum(maximum(cast(position, i64), 0), max(extent - 1, 0))
            place = place * extent + inside
        flat = self.b.Reshape(value, np.array([-1]))
        return self.b.Gather(flat, self.spread(place, self.own(node)))

    # ------------------------------------------------------------ reductions

    def reduced(self, node: Reduce) -> Value:
        product = factors(node) if node.op == "sum" else None
        every = self.own(node.body)
        if product is not None and len(every) <= len(LETTERS):
            letters = dict(zip(every, LETTERS))
            terms = ["".join(letters[x] for x in self.own(factor)) for factor in product]
            result = "".join(letters[x] for x in self.own(node))
            values = [self.run(factor) for factor in product]
            return self.b.Einsum(*values, equation=f"{','.join(terms)}->{result}")
        space = [*self.own(node), *node.axes]
        value = self.over(node.body, space)
        axes = np.arange(len(space) - len(node.axes), len(space))
        return self.b.op(REDUCTIONS[node.op], value, axes, keepdims=0)

    # ------------------------------------------------------------ calls

    def called(self, node: Call) -> Value:
        space = self.own(node)
        args = [self.spread(child, space) for child in node.args]
        name = node.op.name
        if name in ("cast", "cast_sat"):
            return self.b.Cast(args[0], to=node.dtype.onnx)
        if name in OTHERS:
            return OTHERS[name](self.b, *args)
        if name == "div" and node.dtype.is_float:
            return self.b.Div(*args)
        if name not in NODES:
            raise self.refused(f"computes {name}, which has no counterpart in ONNX")
        return self.b.op(NODES[name], *args)


def _trunc(b: Builder, x: Value) -> Value:
    return b.Mul(b.Sign(x), b.Floor(b.Abs(x)))


def _floordiv(b: Builder, x: Value, y: Value) -> Value:
    if x.tensor.dtype.is_float:
        return b.Floor(b.Div(x, y))
    return _guarded(b, x, y, lambda d: b.Div(b.Sub(x, b.Mod(x, d)), d))


def _mod(b: Builder, x: Value, y: Value) -> Value:
    if x.tensor.dtype.is_float:
        return b.Sub(x, b.Mul(y, b.Floor(b.Div(x, y))))
    return _guarded(b, x, y, lambda d: b.Mod(x, d))


def _rem(b: Builder, x: Value, y: Value) -> Value:
    return _guarded(b, x, y, lambda d: b.Mod(x, d, fmod=1))


def _div(b: Builder, x: Value, y: Value) -> Value:
    return _guarded(b, x, y, lambda d: b.Div(x, d))


def _guarded(b: Builder, x: Value, y: Value, divide: Callable[[Value], Value]) -> Value:
    """A division; of integers, x by 0 is 0."""
    dtype = x.tensor.dtype
    if dtype.is_float or (y.constant is not None and y.constant.all()):
        return divide(y)
    zero = b.Equal(y, b.constant(0, dtype))
    return b.Where(zero, b.constant(0, dtype), divide(b.Where(zero, b.constant(1, dtype), y)))


def _clamp(b: Builder, x: Value, low: Value, high: Value) -> Value:
    return b.Min(b.Max(x, low), high)


OTHERS: dict[str, Callable[..., Value]] = {
    "trunc": _trunc, "floordiv": _floordiv, "mod": _mod, "rem": _rem, "div": _div, "clamp": _clamp,
    "fma": lambda b, x, y, z: b.Add(b.Mul(x, y), z),
    "ne": lambda b, x, y: b.Not(b.Equal(x, y)),
}  # fmt: skip
