"""Views: outputs that lie in an operand's memory, as they are or at a constant offset."""

from __future__ import annotations

from graphc.ir.addresses import flatten_index
from graphc.ir.expr import Const, Load
from graphc.ir.graph import Value
from graphc.ir.simplify import bounds, simplify
from graphc.passes.analysis import structure
from graphc.passes.analysis.compose import computation, input_names
from graphc.passes.analysis.computation import Computation
from graphc.passes.analysis.spaces import drop_units


def view_of(part: Computation) -> tuple[str, int] | None:
    """(input name, offset in elements) if the only output is a contiguous piece of that input."""
    if len(part.outputs) != 1:
        return None
    output = part.outputs[0]
    load = output.expr
    if not isinstance(load, Load) or load.dtype is not output.buffer.dtype:
        return None
    source = part.input(load.source)
    there = flatten_index(load.index, source.shape)
    here = flatten_index(output.index, output.extents)
    _, (difference,) = drop_units(list(output.index), [simplify(there - here)])
    if not isinstance(difference, Const) or difference.value < 0:
        return None
    last = bounds(here)[1] + difference.value
    total = bounds(flatten_index(load.index, source.shape))[1]
    return (load.source, difference.value) if last <= total else None


def whole_source(value: Value) -> Value:
    """The value, the first of a chain, whose memory holds the elements of this one in their order:
    itself, unless a view makes it."""
    op = value.producer
    if op is None or len(op.outputs) != 1:
        return value
    if op.name != "fused" and not structure.has_body(op):
        return value
    view = view_of(computation(op))
    source = None if view is None else input_names(op)[view[0]]
    if source is None or source.producer is None or source.tensor.count != value.tensor.count:
        return value
    return whole_source(source)
