"""What follows from shapes that data decides. Such values have no types here: these are known when
the graph has run."""

from __future__ import annotations

from typing import Any

import numpy as np
from generator import FOREIGN, Generator

from graphc.ir import dtypes
from graphc.ir.dtypes import f32
from graphc.ir.graph import Op, Value
from graphc.ir.opdef import lookup
from templates.layers_regions import given
from templates.table import template

FAMILY = "counted"
POINTWISE = ("Neg", "Abs", "Relu", "Sigmoid", "Exp", "Sqrt", "Floor")
SUMS = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceL1", "ReduceProd")


def untyped(g: Generator, name: str, *operands: Any, outputs: int = 1, **attrs: Any) -> Value:
    """The first result of an operator that is added without its types."""
    values = [g.b.constant(v) if isinstance(v, (np.ndarray, np.generic)) else v for v in operands]
    op = Op(lookup(name), values, attrs, outputs, (), (FOREIGN,))
    g.graph.insert_before(None, op)
    return op.outputs[0]


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def sparse(g: Generator, *dims: int) -> Value:
    """An input of small numbers, many or all of which may be zero."""
    share = g.choice((0.0, 0.3, 0.5, 0.9, 1.0))
    values = np.where(g.rng.random(dims) < share, g.rng.integers(-8, 9, dims) / 4, 0)
    return given(g, values, f32)


@template(2, family=FAMILY)
def places(g: Generator) -> None:
    """Elements that are not zero, and what lies at their places."""
    dims = [g.choice((1, 2, 3, 5, 8, 17)) for _ in range(g.choice((1, 1, 2, 2, 3)))]
    x = sparse(g, *dims)
    mask = untyped(g, "Greater", x, np.float32(0.3))
    found = untyped(g, "NonZero", g.choice((x, mask)))
    rows = untyped(g, "Transpose", found, perm=(1, 0))
    if len(dims) == 1 and g.chance(0.6):
        index = untyped(g, "Squeeze", found, ints(0))
        other = sparse(g, dims[0], g.choice((1, 3, 8)))
        chain(g, untyped(g, "Gather", other, index, axis=0), 2)
        values = untyped(g, "Gather", x, index, axis=0)
        if g.chance(0.4):
            name = untyped(g, "Neg", values)
            result(g, untyped(g, "ScatterElements", x, index, name, axis=0))
    else:
        values = untyped(g, "GatherND", x, rows)
        if g.chance(0.4):
            result(g, untyped(g, "ScatterND", x, rows, untyped(g, "Abs", values)))
    chain(g, values, 1)


@template(2, family=FAMILY)
def kept_rows(g: Generator) -> None:
    """Rows of a table that a mask keeps."""
    count, width = g.choice((1, 2, 5, 8, 17, 33)), g.choice((1, 2, 3, 8, 16))
    x, scores = sparse(g, count, width), sparse(g, count)
    mask = untyped(g, "Greater", scores, np.float32(0))
    rows = untyped(g, "Compress", x, mask, axis=0)
    if g.chance(0.3):
        kept = untyped(g, "Compress", scores, mask, axis=0)
        column = untyped(g, "Unsqueeze", kept, ints(1))
        rows = untyped(g, g.choice(("Add", "Mul")), rows, column)
    if g.chance(0.3):
        weight = g.array(f32, (width, g.choice((1, 4, 9))), small=True)
        rows = untyped(g, "MatMul", rows, weight)
    if g.chance(0.2):
        rows = untyped(g, "MatMul", rows, untyped(g, "Transpose", rows, perm=(1, 0)))
    chain(g, rows, 2)


@template(1, family=FAMILY)
def kept_elements(g: Generator) -> None:
    """Elements of all rows, or different ones."""
    dims = (g.choice((1, 3, 8)), g.choice((1, 2, 7, 16)))
    x = sparse(g, *dims)
    if g.chance(0.5):
        chain(g, untyped(g, "Unique", x, outputs=4, sorted=g.integer(0, 1)), 1)
    else:
        mask = given(g, g.rng.random(dims[0] * dims[1]) < 0.5, dtypes.boolean)
        chain(g, untyped(g, "Compress", x, mask), 1)


def chain(g: Generator, value: Value, rank: int) -> None:
    """A few operators on a value whose first extent data decides."""
    for _ in range(g.integer(0, 3)):
        if g.chance(0.25):
            result(g, value)
        value, rank = g.choice(LINKS)(g, value, rank)
        if rank == 0:
            break
    result(g, value)


def result(g: Generator, value: Value) -> None:
    if value not in g.final:
        g.final.append(value)


def pointwise(g: Generator, value: Value, rank: int) -> tuple[Value, int]:
    return untyped(g, g.choice(POINTWISE), value), rank


def scaled(g: Generator, value: Value, rank: int) -> tuple[Value, int]:
    name = g.choice(("Add", "Mul", "Sub", "Max"))
    return untyped(g, name, value, g.choice((value, g.array(f32, (), small=True)))), rank


def reduced(g: Generator, value: Value, rank: int) -> tuple[Value, int]:
    axis, kept = g.integer(0, rank - 1), g.integer(0, 1)
    made = untyped(g, g.choice(SUMS), value, ints(axis), keepdims=kept)
    return made, rank if kept else rank - 1


def normalised(g: Generator, value: Value, rank: int) -> tuple[Value, int]:
    return untyped(g, g.choice(("Softmax", "LogSoftmax")), value, axis=g.integer(0, rank - 1)), rank


def joined(g: Generator, value: Value, rank: int) -> tuple[Value, int]:
    return untyped(g, "Concat", value, value, axis=g.integer(0, rank - 1)), rank


def part(g: Generator, value: Value, rank: int) -> tuple[Value, int]:
    start, end = g.choice((0, 1, -2)), g.choice((-1, 3, 1000))
    return untyped(g, "Slice", value, ints(start), ints(end), ints(0)), rank


def padded(g: Generator, value: Value, rank: int) -> tuple[Value, int]:
    pads = [g.integer(0, 2) for _ in range(2 * rank)]
    return untyped(g, "Pad", value, ints(*pads)), rank


def running(g: Generator, value: Value, rank: int) -> tuple[Value, int]:
    return untyped(g, "CumSum", value, np.int64(0), reverse=g.integer(0, 1)), rank


def flat(g: Generator, value: Value, rank: int) -> tuple[Value, int]:
    return untyped(g, "Reshape", value, ints(-1)), 1


def again(g: Generator, value: Value, rank: int) -> tuple[Value, int]:
    """Those of them that are positive."""
    first = value if rank == 1 else untyped(g, "ReduceMax", value, ints(1), keepdims=0)
    mask = untyped(g, "Greater", first, np.float32(0))
    return untyped(g, "Compress", value, mask, axis=0), rank


def expanded(g: Generator, value: Value, rank: int) -> tuple[Value, int]:
    """As many rows of a constant."""
    shape = untyped(g, "Shape", value)
    return untyped(g, "Expand", np.float32(1), shape), rank


def best(g: Generator, value: Value, rank: int) -> tuple[Value, int]:
    """The largest of them and of two zeros."""
    more = untyped(g, "Pad", value, ints(2, *[0] * (2 * rank - 1)))
    return untyped(g, "TopK", more, ints(g.choice((1, 2))), axis=0, outputs=2), rank


LINKS = (pointwise, pointwise, scaled, reduced, normalised, joined, part, padded, running, flat,
         again, expanded, best)  # fmt: skip
