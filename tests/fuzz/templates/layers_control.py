"""Control flow around layers: what is captured, carried, stacked and chosen."""

from __future__ import annotations

import numpy as np
from generator import Generator

from graphc.ir.build import Builder
from graphc.ir.dtypes import boolean, f32, i64
from graphc.ir.graph import Region
from graphc.ir.types import TensorType
from templates.table import template


def inner_region(types: list[TensorType]) -> Region:
    inner = Region()
    for n, type in enumerate(types):
        inner.add_param(type, f"p{n}")
    return inner


@template(1, family="control")
def cell_in_loop(g: Generator) -> None:
    """A loop whose body multiplies with weights from outside and stacks its states."""
    size, batch, trips = g.extent(1, 33), g.integer(1, 4), g.integer(0, 5)
    state = g.data(batch, size)
    w = g.weights(size, size)
    step = g.data(batch, size)
    types = [TensorType(i64, ()), TensorType(boolean, ()), state.tensor, w.tensor, step.tensor]
    inner = inner_region(types)
    number, going, h, weight, added = inner.params
    b = Builder(inner)
    h = b.op("Tanh", b.op("Add", b.op("MatMul", h, weight), added))
    if g.chance(0.5):
        h = b.op("Mul", h, b.op("Cast", b.op("Add", number, np.array(1, np.int64)), to=f32.onnx))
    stacks = g.chance(0.6)
    inner.set_results([going, h, *([b.op("Relu", h)] if stacks else [])])
    g.emit("Loop", np.array(trips, np.int64), np.array(True), state, w, step, regions=[inner],
           captures=2, outputs=1 + stacks)  # fmt: skip


@template(1, family="control")
def layers_in_branches(g: Generator) -> None:
    x = g.data(g.extent(1, 33), g.choice((8, 33)))
    w = g.weights(x.tensor.dims[1], 16)
    condition = g.b.op("Greater", g.b.op("ReduceSum", x, keepdims=0), 0.0)
    regions = []
    for name in ("Relu", "Sigmoid"):
        inner = inner_region([x.tensor, w.tensor])
        b = Builder(inner)
        inner.set_results([b.op(name, b.op("MatMul", *inner.params))])
        regions.append(inner)
    y = g.emit("If", condition, x, w, regions=regions)
    g.emit("Softmax", y, axis=-1)


@template(1, family="control")
def scanned(g: Generator) -> None:
    """Scan over the first axis, with a captured value, from either end."""
    length, size = g.integer(1, 5), g.extent(1, 33)
    x, first, w = g.data(length, size), g.data(size), g.weights(size)
    inner = inner_region([first.tensor, TensorType(f32, (size,)), w.tensor])
    b = Builder(inner)
    state, row, scale = inner.params
    following = b.op("Add", b.op("Mul", state, scale), row)
    inner.set_results([following, b.op("Tanh", following)])
    g.emit("Scan", first, x, w, regions=[inner], captures=1, num_scan_inputs=1, outputs=2,
           scan_input_directions=[g.integer(0, 1)],
           scan_output_directions=[g.integer(0, 1)])  # fmt: skip
