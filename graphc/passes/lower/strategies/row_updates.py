"""Row updates: an operand with some of its rows replaced, which alone are written.

    out[.., r, .., c] = value if low <= r < high else old[.., r, .., c]

Where the output starts out as a copy of the operand, or lies in its memory, the rest is there
already: a cache of keys that is longer by a few, say.
"""

from __future__ import annotations

from dataclasses import replace

from graphc.ir.addresses import flatten_loads, unflatten_index
from graphc.ir.expr import Call, Expr, Index, Load, loads, reduces
from graphc.ir.extents import points
from graphc.ir.kernel import Body, Buffer, Kernel, KernelBuilder
from graphc.ir.simplify import simplify
from graphc.passes.analysis.computation import Computation, flat_buffer
from graphc.passes.analysis.guards import Range, conjuncts, within
from graphc.passes.analysis.spaces import shapes_of
from graphc.passes.lower.lowered import Lowered

NAME = "row_updates"


def lower_row_updates(computation: Computation, vector_bytes: int) -> tuple[Lowered, str] | str:
    """The kernel that writes rows into an output which holds what an input does, and the name of
    this input; or why a computation is no such update."""
    whole = computation.outputs[0].expr
    is_select = isinstance(whole, Call) and whole.op.name == "select"
    if len(computation.outputs) != 1 or not is_select:
        return "an update has one output, of new or old elements"
    loops, offset, exprs = computation.over_loops()
    shapes = shapes_of(computation.inputs)
    expr, here = simplify(flatten_loads(exprs[0], shapes)), simplify(offset)
    if not isinstance(expr, Call) or expr.op.name != "select" or len(loops) < 2:
        return "an update is of rows"
    condition, value, old = expr.args
    output = computation.outputs[0].buffer
    if not isinstance(old, Load) or simplify(old.index[0]) is not here:
        return "old elements must be read where they are written"
    if shapes[old.source] != output.shape or any(not isinstance(x, int) for x in output.shape):
        return f"old and new must have one static shape, found {output.shape}"
    read = {x.source for e in (condition, value) for x in loads(e)}
    if old.source in read or reduces(expr):
        return "new elements must depend on no others, and be no sums"
    rows = _rows(condition, loops)
    if rows is None:
        return "the condition must pick rows"
    body = _body(loops, rows, here, value, output.name, vector_bytes)
    inputs = [flat_buffer(b) for b in computation.inputs if b.name in read]
    target = replace(flat_buffer(output), access="inout")
    kernel = Kernel("update", (*inputs, target), body, computation.label)
    return Lowered(kernel, strategy=NAME), old.source


def _rows(condition: Expr, loops: list[Index]) -> tuple[Index, Range] | None:
    """The dimension whose rows a condition picks, and which these are in terms of those before."""
    atoms = conjuncts(condition)
    for n, axis in enumerate(loops[:-1]):
        inside = within(atoms, axis, frozenset(loops[:n]))
        if inside is not None and set(inside[1]) == set(atoms):
            return axis, inside[0]
    return None


def _body(
    loops: list[Index], rows: tuple[Index, Range], offset: Expr, value: Expr, output: str,
    vector_bytes: int,
) -> Body:  # fmt: skip
    k = KernelBuilder()
    axis, where = rows
    place = loops.index(axis)
    before, after, last = loops[:place], loops[place + 1 : -1], loops[-1]
    target = Buffer(output, value.dtype, (points(loops),), "inout")
    lanes = max(1, vector_bytes // max(value.dtype.size, 4))
    extents = tuple(x.extent for x in before)
    with k.loop(points(before), "parallel", name="p") as p:
        at: dict[Expr, Expr] = dict(zip(before, unflatten_index(p, extents)))
        low, count = (k.let(simplify(x, at)) for x in (where.low, where.extent))
        inner = (count, *(x.extent for x in after))
        with k.loops(*inner) as (row, *rest):
            at |= {axis: low + row, **dict(zip(after, rest))}
            for start in range(0, last.count, lanes):
                width = min(lanes, last.count - start)
                with k.loop(width, "vector", width=width) as v:
                    here = {**at, last: v + start}
                    k.store(target, simplify(offset, here), simplify(value, here))
    return k.body()
