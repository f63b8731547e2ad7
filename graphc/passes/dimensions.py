"""Arithmetic on dimensions of open size: what exporters leave in graphs for shapes.

The contents of a small tensor that depend on dimensions alone (Shape, Gather, Concat, Mul, ... of
such) are expressions over the sizes, found from the bodies of the ops. An i64 tensor of them
becomes one op that gives dimensions (ir/ops/sizes.py), which Reshape, Expand, Slice and Range take
as known.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping

import numpy as np

from graphc.ir import dtypes
from graphc.ir.expr import REDUCTIONS, Const, Expr, Index, Load, Reduce, call
from graphc.ir.graph import Op, Region, Value, constant_op, sizes_op
from graphc.ir.infer import expand, op_body
from graphc.ir.simplify import simplify
from graphc.ir.types import TensorType

FORMS = ("elementwise", "indexed", "composite")
MOST = 64  # elements of a tensor that is taken for one of dimensions
MOST_TERMS = 64  # of a reduction that is written out


class Dimensions:
    """The contents of values that depend on dimensions alone: arrays of expressions."""

    def __init__(self) -> None:
        self.contents: dict[Value, np.ndarray] = {}

    def of(self, value: Value | None) -> np.ndarray | None:
        """The contents of a value, of numbers or expressions, if they are known."""
        if value is None:
            return None
        return self.contents.get(value, value.known)

    def enter(self, region: Region, captures: Iterable[tuple[Value, Value | None]]) -> None:
        """Makes what is known of values that a region captures known inside, given the parameters
        that stand for them."""
        for param, value in captures:
            contents = self.of(value)
            if contents is not None:
                self.contents[param] = contents
            if param.uses and value is not None and value.constant is None:
                dims = value.known
                if dims is not None:
                    first = region.ops[0] if region.ops else None
                    op = region.insert_before(first, sizes_op(dims, param.name))
                    param.replace_uses(op.output)

    def replacement(self, op: Op) -> Op | None:
        """The op that gives the result of another, if that is a small tensor of dimensions;
        otherwise what is known of it is noted."""
        if len(op.outputs) != 1 or op.defn.form not in FORMS:
            return None
        value = op.output
        if value.known is not None or not isinstance(value.type, TensorType):
            return None
        if not value.type.is_static or value.type.size > MOST:
            return None
        contents = self.evaluated(op)
        if contents is None:
            return None
        self.contents[value] = contents
        flat = list(contents.flat)
        if value.type.dtype.kind != "string" and all(isinstance(x, Const) for x in flat):
            array = np.array([x.value for x in flat], value.type.dtype.np)
            return constant_op(array.reshape(contents.shape), value.name, op.loc)
        if value.type.dtype is not dtypes.i64:
            return None
        for place, x in enumerate(flat):
            contents.flat[place] = x.value if isinstance(x, Const) else x
        return sizes_op(contents, value.name, op.loc)

    def evaluated(self, op: Op) -> np.ndarray | None:
        """The elements of the result of an op; None if one depends on data."""
        if op.defn.form == "composite":
            return self._inside(op)
        shape = op.output.tensor.static_shape
        known = {
            str(n): array for n, v in enumerate(op.inputs) if (array := self.of(v)) is not None
        }
        contents = np.empty(shape, object)
        body = op_body(op)
        for place in np.ndindex(shape):
            index: dict[Expr, Expr] = {
                Index(f"i{d}", n): Const(x) for d, (n, x) in enumerate(zip(shape, place))
            }
            element = _element(body, index, known)
            if element is None:
                return None
            contents[place] = element
        return contents

    def _inside(self, op: Op) -> np.ndarray | None:
        """The elements of the result of a composite op, by those of its body."""
        if any(v is not None and self.of(v) is None for v in op.inputs):
            return None
        body, (result,) = expand(op)
        inner = Dimensions()
        inner.contents = {
            param: contents
            for param, value in zip(body.params, op.inputs)
            if (contents := self.of(value)) is not None
        }
        for part in body.ops:
            if part.name == "Constant":
                continue
            contents = None if len(part.outputs) > 1 else inner.evaluated(part)
            if contents is None:
                return None
            inner.contents[part.output] = contents
        return inner.of(result)


def _element(
    body: Expr, index: Mapping[Expr, Expr], known: Mapping[str, np.ndarray]
) -> Expr | None:
    """A body at an index, over sizes; None if it reads what is not known."""
    done: dict[Expr, Expr] = {}

    def visit(node: Expr) -> Expr:
        if node not in done:
            if isinstance(node, Reduce):
                done[node] = _terms(node, known)
            else:
                new = node.rebuild([visit(child) for child in node.children])
                done[node] = _loaded(new, known) if isinstance(new, Load) else new
        return done[node]

    try:
        return simplify(visit(simplify(body, index)))
    except _UnknownError:
        return None


class _UnknownError(Exception):
    """An element depends on data."""


def _loaded(load: Load, known: Mapping[str, np.ndarray]) -> Expr:
    array = known.get(load.source)
    places = [simplify(x) for x in load.index]
    if array is None or not all(isinstance(x, Const) for x in places):
        raise _UnknownError
    place = tuple(x.value for x in places)  # type: ignore[attr-defined]
    if any(not 0 <= x < extent for x, extent in zip(place, array.shape)):
        raise _UnknownError
    element = array[place]
    return element if isinstance(element, Expr) else Const(element, load.dtype)


def _terms(node: Reduce, known: Mapping[str, np.ndarray]) -> Expr:
    """A reduction over few terms, written out."""
    extents = [a.extent for a in node.axes if isinstance(a.extent, int)]
    if len(extents) < len(node.axes) or math.prod(extents) > MOST_TERMS:
        raise _UnknownError
    total: Expr = node.identity
    for place in itertools.product(*map(range, extents)):
        term = _element(node.body, {a: Const(x) for a, x in zip(node.axes, place)}, known)
        if term is None:
            raise _UnknownError
        total = call(REDUCTIONS[node.op], total, term)
    return total
