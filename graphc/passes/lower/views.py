"""Views: outputs that lie in an operand's memory, as they are or at a constant offset."""

from __future__ import annotations

from graphc.ir.expr import Const, Load
from graphc.ir.simplify import bounds, flatten_index, simplify
from graphc.passes.lower.computation import Computation
from graphc.passes.lower.spaces import drop_units


def view_of(computation: Computation) -> tuple[str, int] | None:
    """(input name, offset in elements) if the only output is a contiguous piece of that input."""
    if len(computation.outputs) != 1:
        return None
    output = computation.outputs[0]
    load = output.expr
    if not isinstance(load, Load) or load.dtype is not output.buffer.dtype:
        return None
    source = computation.input(load.source)
    there = flatten_index(load.index, source.shape)
    here = flatten_index(output.index, output.extents)
    _, (difference,) = drop_units(list(output.index), [simplify(there - here)])
    if not isinstance(difference, Const) or difference.value < 0:
        return None
    last = bounds(here)[1] + difference.value
    total = bounds(flatten_index(load.index, source.shape))[1]
    return (load.source, difference.value) if last <= total else None
