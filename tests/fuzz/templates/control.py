"""If and Loop."""

from __future__ import annotations

import numpy as np
from generator import Decline, Generator

from graphc.ir.build import Builder
from graphc.ir.dtypes import boolean, f32, i64
from graphc.ir.graph import Region
from graphc.ir.types import TensorType
from templates.table import (
    SMOOTH,
    is_f32,
    positions,
    template,
)


def region(types: list, names: str) -> Region:
    inner = Region()
    for type, name in zip(types, names):
        inner.add_param(type, name)
    return inner


@template(0.5)
def branch(g: Generator) -> None:
    x = g.pick(is_f32, exact=True, filled=True)
    condition = g.b.op("Greater", g.b.op("ReduceMax", x, keepdims=0), g.choice((0.0, 1.0)))
    g.exact.add(condition)
    regions = []
    for _ in range(2):
        inner = region([x.tensor], "x")
        b = Builder(inner)
        first = b.op(g.choice(SMOOTH), inner.params[0])
        inner.set_results([b.op("Add", first, g.array(f32, x.tensor.dims, small=True))])
        regions.append(inner)
    g.emit("If", condition, x, regions=regions)


@template(0.5)
def loop(g: Generator) -> None:
    """A loop that ends by its trip count and stacks what it computes, or by its condition."""
    x = g.pick(is_f32, filled=True)
    counted = g.chance(0.5)
    limit = np.array(g.integer(0, 6), np.int64)
    trips = g.b.constant(limit) if counted else positions(g, limit, 6)
    if trips.tensor.dtype is not i64:
        raise Decline
    inner = region([TensorType(i64, ()), TensorType(boolean, ()), x.tensor, x.tensor], "icsx")
    b = Builder(inner)
    number, going, state, step = inner.params
    following = b.op("Tanh", b.op("Add", state, step))
    if g.chance(0.5):
        following = b.op("Mul", following, b.op("Cast", number, to=f32.onnx))
    if not counted:
        going = b.op("Less", number, np.array(g.integer(0, 9), np.int64))
    inner.set_results([going, following, *([b.op("Neg", following)] if counted else [])])
    g.emit("Loop", trips, np.array(True), x, g.operand(f32, x.tensor.dims), regions=[inner],
           captures=1, outputs=1 + counted)  # fmt: skip
