"""Which part of the operands a part of a result is made of.

    dims_along(op, axis)      the dim of each operand that runs along an axis of the only result
    computes_alike(a, b)      whether b, of parts of a's operands, computes part of a's result
    is_resized(a, b, indices) whether b is a of other extents
    map_operand(op)           maps of which an op makes others linearly, each channel alone

An op given by a graph of others is followed through its body.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from graphc.ir.expr import (
    Call,
    Const,
    Expr,
    Index,
    Load,
    Reduce,
    Ref,
    free_indices,
    loads,
    reduce,
    substitute,
    transform,
)
from graphc.ir.graph import Graph, Op, Value
from graphc.ir.infer import expand, op_body
from graphc.ir.scalar import ops as scalar_ops
from graphc.ir.simplify import simplify
from graphc.passes.analysis.facts import fact, is_linear_in
from graphc.passes.analysis.structure import has_body, own_index

Dims = list[int | None]
NEAR = 1e-6


def dims_along(op: Op, axis: int) -> Dims | None:
    """The dim of each operand of which the elements at one place of an axis of the only result need
    those at that place alone, or None for an operand that they need at no place or all; None if
    there is more to it."""
    key = dims_along, axis
    if key not in op.memo:
        if not op.is_typed:
            return None
        op.memo[key] = _dims_along(op, axis)
    return op.memo[key]


def _dims_along(op: Op, axis: int) -> Dims | None:
    if len(op.outputs) != 1 or op.regions or axis >= op.output.tensor.rank:
        return None
    if op.defn.form == "composite":
        graph, results = expand(op)
        return _through(graph, results[0], axis)
    if not has_body(op):
        return None
    body, own = simplify(op_body(op)), own_index(op.output)[axis]
    along: dict[str, set[int | None]] = {}
    for load in loads(body):
        places = [d for d, place in enumerate(load.index) if own in free_indices(place)]
        if len(places) > 1 or any(load.index[d] is not own for d in places):
            return None
        along.setdefault(load.source, set()).add(places[0] if places else None)
    read: dict[Expr, Expr] = {load: Ref("element", load.dtype) for load in loads(body)}
    if own in free_indices(substitute(body, read)) or any(len(dims) > 1 for dims in along.values()):
        return None
    return [next(iter(along.get(str(n), {None}))) for n in range(len(op.inputs))]


def _through(graph: Graph, result: Value, axis: int) -> Dims | None:
    """`dims_along` of a graph's parameters."""
    along: dict[Value, set[int | None]] = {result: {axis}}
    for op in reversed(graph.ops):
        dims = along.get(op.outputs[0], set()) if op.outputs else set()
        if len(dims) > 1 or any(value in along for value in op.outputs[1:]):
            return None
        for dim in dims:
            below = [None] * len(op.inputs) if dim is None else dims_along(op, dim)
            if below is None:
                return None
            for value, place in zip(op.inputs, below):
                if value is not None:
                    along.setdefault(value, set()).add(place)
    cut = [along.get(p, {None}) for p in graph.params]
    return None if any(len(dims) > 1 for dims in cut) else [next(iter(dims)) for dims in cut]


def computes_alike(whole: Op, part: Op) -> bool:
    """Whether an op of the same operator on parts of the operands (`dims_along`) computes a part of
    the result: nothing in its body depends on extents that the parts lack."""
    if whole.defn.form == "composite":
        own, other = ([op for op in expand(op)[0].ops if op.inputs] for op in (whole, part))
        return len(own) == len(other) and all(map(computes_alike, own, other))
    if whole.defn is not part.defn or not (has_body(whole) and has_body(part)):
        return False
    extents = zip(own_index(whole.output), own_index(part.output))
    shorter: dict[Expr, Expr] = {a: b for a, b in extents if a is not b}
    body = simplify(op_body(whole), shorter)
    return body is simplify(op_body(part)) and all(
        _is_same_constant(whole.inputs[int(load.source)], part.inputs[int(load.source)])
        for load in loads(body)
    )


def is_resized(whole: Op, part: Op, indices: Mapping[Index, int]) -> bool:
    """Whether the body of one op is that of another, but for the extents of its own dims, and those
    given of indices that it reduces over."""
    own = zip(own_index(whole.output), own_index(part.output))
    sizes = {index: other for index, other in own}
    sizes |= {index: Index(index.name, extent) for index, extent in indices.items()}

    def resize(node: Expr) -> Expr | None:
        if isinstance(node, Reduce):
            return reduce(node.op, node.body, [sizes.get(axis, axis) for axis in node.axes])
        return sizes.get(node) if isinstance(node, Index) else None

    return simplify(transform(op_body(whole), resize)) is simplify(op_body(part))


def _is_same_constant(a: Value | None, b: Value | None) -> bool:
    """Whether two operands are not two constants that differ."""
    one, other = (None if v is None else v.constant for v in (a, b))
    return one is None or other is None or one.tobytes() == other.tobytes()


# ---------------------------------------------------------------- maps of one channel each


@fact
def map_operand(op: Op) -> int | None:
    """The one operand that is no constant, if it is maps (batch, channels, ...), and the only
    result is made of them, linearly, each channel alone and alike."""
    variable = [n for n, v in enumerate(op.inputs) if v is not None and v.known is None]
    if len(variable) != 1 or len(op.outputs) != 1 or not is_linear_in(op, variable[0]):
        return None
    before, after = op.operand(variable[0]).tensor, op.output.tensor
    if before.rank < 3 or before.rank != after.rank or before.dims[:2] != after.dims[:2]:
        return None
    for axis in range(2):
        own: Dims = [axis if n == variable[0] else None for n in range(len(op.inputs))]
        if after.dims[axis : axis + 1] != (1,) and dims_along(op, axis) != own:
            return None
    return variable[0]


def keeps_constants(op: Op, operand: int) -> bool:
    """Whether an op that is linear in an operand gives ones for ones."""
    total = _of_ones(op_body(op), str(operand))
    return total is not None and abs(total - 1) < NEAR


def _of_ones(node: Expr, operand: str) -> float | None:
    """What an expression is where all elements of an operand are 1, if it is one number."""
    if isinstance(node, Load) and node.source == operand:
        return 1.0
    if isinstance(node, Const):
        return float(node.value)  # type: ignore[arg-type]
    if isinstance(node, Reduce) and node.op == "sum":
        total = _of_ones(node.body, operand)
        count = math.prod([a.extent for a in node.axes if isinstance(a.extent, int)])
        return None if total is None else total * count
    if not isinstance(node, Call) or node.op.rule not in ("same", "cast"):
        return None
    args = [_of_ones(arg, operand) for arg in node.args]
    return None if None in args else float(scalar_ops.apply(node.op, node.dtype, *args))  # type: ignore[arg-type]
