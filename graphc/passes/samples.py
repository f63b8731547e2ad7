"""One sample of a batch at a time, where its values fit a cache and those of the batch do not.

Layer by layer, a batch of images passes through memory: what a layer writes has left the caches
when the next one reads it. Where results of one sample are made of that sample alone
(analysis/parts.py), and weights are smaller than what is written between layers, a loop over
samples runs all of these layers for one after another. The loop is a Scan; its body is optimised
and lowered as any other, and memory is planned for one sample. What follows, with small results,
stays outside, so that products with few rows have those of all samples.
"""

from __future__ import annotations

from dataclasses import field

import numpy as np

from graphc.errors import GraphcError
from graphc.ir.extents import most
from graphc.ir.graph import Graph, Op, Region, Value, constant_op
from graphc.ir.infer import infer_op
from graphc.ir.opdef import lookup
from graphc.ir.types import Dim
from graphc.passes.analysis.parts import computes_alike, dims_along
from graphc.passes.analysis.structure import reductions
from graphc.passes.manager.base import Pass, register_pass
from graphc.passes.manager.context import Context
from graphc.records import dataclass

RULE = "samples-in-a-loop"
LARGE = 4  # of the cache: a value of a sample, the largest one, that is worth a loop, is a part
SMALL = 64  # likewise: a value that is no reason to be inside
FEW_LEFT = 4  # parts of what is written inside: what is read outside is at most one


@dataclass
class Batch:
    """Values with a sample at each place of their first dim, `size`, and the ops that make them
    `inside` of a loop."""

    size: Dim
    values: set[Value]
    inside: list[Op] = field(default_factory=list)

    def bytes_of(self, value: Value) -> int:
        """Those of one sample."""
        elements = 1
        for dim in value.tensor.dims[1:]:
            elements *= most(dim)
        return elements * value.tensor.dtype.size

    def takes(self, op: Op) -> bool:
        """Whether an op makes each sample of its result of the same samples of its operands."""
        if len(op.outputs) != 1 or op.regions or not op.output.is_ranked or op.output.layout:
            return False
        dims = op.output.tensor.dims
        if not dims or dims[0] != self.size or not any(v in self.values for v in op.inputs):
            return False
        along = dims_along(op, 0)
        return along is not None and all(
            value is None or self._is_part(value, dim) for value, dim in zip(op.inputs, along)
        )

    def _is_part(self, value: Value, dim: int | None) -> bool:
        if value in self.values:
            return dim == 0
        return value.constant is not None and dim is None

    def read(self) -> list[Value]:
        """What is read inside, and made outside."""
        made = {op.output for op in self.inside}
        used = [v for op in self.inside for v in op.inputs if v in self.values and v not in made]
        return list(dict.fromkeys(v for v in used if v is not None))

    def given(self) -> list[Value]:
        """What is made inside, and read outside."""
        inside = set(self.inside)
        return [op.output for op in self.inside if any(u not in inside for u in op.output.users)]


def batch_of(graph: Graph, cache: int) -> Batch | None:
    """The part of a graph to be run a sample at a time; None if none is worth it."""
    first = next((v for v in graph.params if v.is_ranked and v.tensor.rank > 1), None)
    if first is None or most(first.tensor.dims[0]) < 2:
        return None
    batch = Batch(first.tensor.dims[0], {first})
    ops = [op for op in graph.ops if op.name != "Constant"]
    taken = []
    for op in ops:
        if batch.takes(op):
            batch.values.add(op.output)
            taken.append(op)
    inside: set[Op] = set()
    for op in reversed(taken):
        large = batch.bytes_of(op.output) > cache // SMALL
        if large or not inside.isdisjoint(op.output.users):
            inside.add(op)
    for op in taken:
        if _shrinks(op, batch) and inside.issuperset(_makers(op, batch)):
            inside.add(op)
    batch.inside = [op for op in taken if op in inside]
    return batch if _pays(batch, cache) else None


def _makers(op: Op, batch: Batch) -> list[Op | None]:
    """The ops that make the operands that have samples; None for the input."""
    return [v.producer for v in op.inputs if v in batch.values and v is not None]


def _shrinks(op: Op, batch: Batch) -> bool:
    """Whether an op makes less of its operand, without products: a mean, say."""
    read = [batch.bytes_of(v) for v in op.inputs if v in batch.values and v is not None]
    multiplies = any(node.factors for node in reductions(op))
    return batch.bytes_of(op.output) < max(read) and not multiplies


def _pays(batch: Batch, cache: int) -> bool:
    sizes = [batch.bytes_of(op.output) for op in batch.inside]
    operands = {value: value.constant for op in batch.inside for value in op.inputs if value}
    weights = sum(array.nbytes for array in operands.values() if array is not None)
    left = sum(map(batch.bytes_of, batch.given()))
    is_large = max(sizes, default=0) >= cache // LARGE
    outgrows = max(sizes, default=0) * most(batch.size) > cache
    return is_large and outgrows and weights <= sum(sizes) and left * FEW_LEFT <= sum(sizes)


def _loop(batch: Batch) -> Op | None:
    """The loop, not yet in a graph, typed; None if ops have no such types for one sample."""
    body, read, given = Region(), batch.read(), batch.given()
    axis = body.append(constant_op(np.array([0], np.int64))).output
    known: dict[Value, Value] = {}
    for value in read:
        row = body.add_param(value.tensor.with_shape(value.tensor.dims[1:]), value.name)
        known[value] = _added(body, Op(lookup("Unsqueeze"), [row, axis]))
    try:
        if not all(_is_copied(op, body, known) for op in batch.inside):
            return None
    except GraphcError:
        return None
    rows = [_added(body, Op(lookup("Squeeze"), [known[value], axis])) for value in given]
    body.set_results(rows)
    loc = tuple(dict.fromkeys(x for op in batch.inside for x in op.loc))
    scan = Op(lookup("Scan"), read, {"num_scan_inputs": len(read)}, len(given), [body], loc)
    for made, value in zip(scan.outputs, given):
        made.type, made.name = value.type, value.name
    return scan


def _is_copied(op: Op, body: Region, known: dict[Value, Value]) -> bool:
    """Adds an op for one sample; whether it does the same as for all of them."""
    for value in op.inputs:
        if value is not None and value not in known:
            assert value.constant is not None
            known[value] = body.append(constant_op(value.constant)).output
    inputs = [None if value is None else known[value] for value in op.inputs]
    new = Op(op.defn, inputs, op.attrs, 1, (), op.loc)
    known[op.output] = _added(body, new)
    dims = (1, *op.output.tensor.dims[1:])
    return new.output.tensor.dims == dims and computes_alike(op, new)


def _added(body: Region, op: Op) -> Value:
    body.append(op)
    infer_op(op)
    return op.output


@register_pass
@dataclass
class Samples(Pass):
    """Puts layers of a batch that is larger than the cache into a loop over its samples."""

    name = "samples"
    requires = ("typed", "unfused", "decomposed")

    def run(self, graph: Graph, ctx: Context) -> bool:
        caches = ctx.target.machine.caches
        batch = batch_of(graph, caches[1]) if len(caches) > 1 else None
        loop = None if batch is None else _loop(batch)
        if batch is None or loop is None or not ctx.spend(RULE, batch.inside[0], batch.inside):
            return False
        graph.insert_before(batch.inside[0], loop)
        for value, new in zip(batch.given(), loop.outputs):
            value.replace_uses(new)
        for op in reversed(batch.inside):
            op.erase()
        return True
