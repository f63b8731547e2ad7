"""What compiled code can take: values, operators, and control flow.

An If, a Loop or a Scan is compiled as branches and loops if everything inside it can be compiled,
and the number of its iterations is known to be at most so many or can be counted. Its types may be
over sizes. Others run on the host.
"""

from __future__ import annotations

from graphc.errors import ModelError
from graphc.ir.graph import Graph, Op, Region
from graphc.ir.imperative.lowering import is_bounded
from graphc.ir.ops.control import MAX_ITERATIONS
from graphc.ir.ops.counts import is_counted
from graphc.ir.types import TensorType, Type
from graphc.passes.checks import FLOW, add_checks
from graphc.passes.iterations import at_most, can_be_counted
from graphc.passes.partition import part_graph

FOREIGN = ("string", "complex")  # kinds of elements that compiled code has not


def is_native(type: Type | None) -> bool:
    """Whether compiled code can hold values of a type: tensors of numbers, of static shape."""
    return holds(type) and type.is_static  # type: ignore[union-attr]


def holds(type: Type | None) -> bool:
    """As `is_native`, or of a shape over sizes that are known once what comes before has run."""
    tensor = isinstance(type, TensorType) and type.shape is not None
    return tensor and type.dtype.kind not in FOREIGN  # type: ignore[union-attr]


def natively(op: Op) -> bool:
    """Whether an op can be part of a compiled graph."""
    values = [v for v in (*op.inputs, *op.outputs) if v is not None]
    if not all(holds(v.type) for v in values):
        return False
    if op.defn.form == "imperative":
        return not is_bounded(op) or is_counted(op)
    return op.name == "fused" or op.defn.form in ("elementwise", "indexed", "composite")


def is_hosted(op: Op) -> bool:
    """Whether an op runs on the host whatever the sizes are: it has no definition that can be
    compiled, or works on what compiled code cannot hold, as far as types are known."""
    if op.defn.form == "host" or any(map(is_hosted, (o for r in op.regions for o in r.ops))):
        return True
    types = [v.type for v in (*op.inputs, *op.outputs) if v is not None and v.type is not None]
    return not all(isinstance(t, TensorType) and t.dtype.kind not in FOREIGN for t in types)


def as_flow(op: Op, most: int, is_outer: bool = True) -> str:
    """Why an op of control flow, in no other one if it `is_outer`, is not compiled as loops and
    branches of at most so many iterations; empty if it can be."""
    if op.name not in FLOW:
        return f"a program has no {op.name}"
    inside = [value for region in op.regions for value in (*region.params, *region.results)]
    for value in (*op.inputs, *op.outputs, *inside):
        if value is not None and not holds(value.type):
            return f"{value.name!r} has no type that compiled code holds"
    for value in op.inputs:
        if value is not None and value.producer is not None and is_bounded(value.producer):
            return f"the shape of {value.name!r} depends on data"
    for region in op.regions:
        for inner in region.ops:
            why = as_flow(inner, most, False) if inner.regions else ""
            if why or not (inner.regions or inner.name == "Constant" or natively(inner)):
                return why or f"{inner.where()} runs on a host only"
        if _fails(region):
            return "what is constant inside it is not as it has to be, which matters if it is run"
    if is_outer and not _ends(op, most):
        return "its iterations may be more than allowed, and cannot be counted while it runs"
    return ""


def _ends(op: Op, most: int) -> bool:
    """Whether the iterations of an op are known to be few enough, or can be counted. Nothing
    interrupts a program: more than the usual limit are left to the host."""
    bound = at_most(op)
    few = bound is not None and bound <= min(most, MAX_ITERATIONS)
    return few or (most <= MAX_ITERATIONS and can_be_counted(op))


def _fails(region: Region) -> bool:
    """Whether an op of a region is known not to get what it asks for, which only matters if the
    region is run."""
    body = part_graph(Graph("body"), region.ops, region.params, region.results)
    try:
        add_checks(body)
    except ModelError:
        return True
    return False
