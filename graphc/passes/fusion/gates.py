"""Fuses gates: an op that reads a product of a vector at several places joins the product.

A step of an LSTM multiplies its state by one matrix for all gates, and then reads a quarter of the
product for each gate. Fusion keeps the two apart, as the reader does not read at its own index. If
nobody else reads the product, and no element of it is read twice, this pass makes them one loop
nest with several sums per element. This pays where each sum is a row reduction of its own, as in
products of one vector or of very few, and not where products are computed in tiles. So this pass is
for targets that have a strategy for rows of many sums.
"""

from __future__ import annotations

import math

from graphc.ir.addresses import flatten_loads
from graphc.ir.dtypes import bf16, f16, f32, f64
from graphc.ir.expr import Expr, loads
from graphc.ir.graph import Graph, Op, Value
from graphc.ir.types import elements_of, largest
from graphc.passes.analysis import structure
from graphc.passes.analysis.compose import computation, input_names
from graphc.passes.analysis.contraction import match_contraction
from graphc.passes.analysis.core import reductions_in
from graphc.passes.analysis.spaces import shapes_of
from graphc.passes.fusion.merge import merged_group, replace_group
from graphc.passes.manager.base import Pass, register_pass
from graphc.passes.manager.context import Context
from graphc.passes.reasons import Reason
from graphc.records import dataclass

RULE = "fuse-gates"


def fuse_gates(graph: Graph, ctx: Context) -> bool:
    """Merges products of few vectors (see Machine) with their readers; whether there were any."""
    changed, vectors = False, ctx.target.machine.reduced_vectors
    for op in list(graph.ops):
        products = _products(graph, op, ctx, vectors)
        if products is not None and ctx.spend(RULE, op):
            replace_group(graph, [products, op], merged_group(graph, [products, op], "gates"))
            changed = True
    return changed


def _products(graph: Graph, op: Op, ctx: Context, vectors: int) -> Op | None:
    """The op whose products `op` alone reads, each at most once."""
    if op.name != "fused":
        return None
    for value in dict.fromkeys(op.inputs):
        producer = None if value is None else value.producer
        if value is None or producer is None or not _is_private(graph, value, op):
            continue
        reason = _why_not_once(op, value) or _why_not_few(producer, vectors)
        if reason is None:
            return producer
        ctx.decline(RULE, op, reason, producer)
    return None


def _is_private(graph: Graph, value: Value, op: Op) -> bool:
    """Whether a value is all that its producer makes, and only `op` reads it."""
    producer = value.producer
    assert producer is not None
    if len(producer.outputs) != 1 or value in graph.results or set(value.users) != {op}:
        return False
    return producer.name == "fused" or structure.has_body(producer)


def _why_not_once(op: Op, value: Value) -> Reason | None:
    """Why an op does not read a value at several places, no element twice, without reductions."""
    whole = computation(op)
    outputs = whole.outputs
    if any(o.extents != outputs[0].extents or o.index != outputs[0].index for o in outputs):
        return Reason("{} gives results of several shapes", op)
    if reductions_in(o.expr for o in outputs):
        return Reason("{} reduces what it reads", op)
    source = next(name for name, v in input_names(op).items() if v is value)
    shapes = shapes_of(whole.inputs)
    places: set[Expr] = {
        x.index[0] for o in outputs for x in loads(flatten_loads(o.expr, shapes))
        if x.source == source
    }  # fmt: skip
    size = largest(elements_of(outputs[0].extents))
    if len(places) > 1 and len(places) * size <= value.tensor.most:
        return None
    return Reason("{} reads {} at one place for each element, or elements several times", op, value)


def _why_not_few(op: Op, vectors: int) -> Reason | None:
    """Why an op is no product of at most so many vectors."""
    match = match_contraction(computation(op), types=(f16, bf16, f32, f64))
    if isinstance(match, str):
        return Reason(match)
    count = min(math.prod(largest(x.extent) for x in side) for side in (match.rows, match.cols))
    return None if count <= vectors else Reason("{} multiplies {} vectors", op, count)


@register_pass
@dataclass
class FuseGates(Pass):
    """Makes one op of products of as few vectors as the machine reduces row by row and an op that
    reads each product once, several per element."""

    name = RULE
    requires = ("fused",)

    def run(self, graph: Graph, ctx: Context) -> bool:
        return fuse_gates(graph, ctx)
