"""Few rows of very many elements: reductions in kernels of their own, each of which fills the GPU.

A block per row leaves most of a GPU idle. So whatever is the same for all elements of a row is
hoisted out of the computation (loop-invariant code motion), innermost reductions first,

    values[i] = f(reduce over k of x[i, k])        out[i, j] = g(x[i, j], values[i])

until rows are independent elements, for which the other strategies have threads enough. The
reductions that remain are cut into parts (split_reductions.py): the mean of an image, the norm of a
vector, the position of its largest element.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from graphc.backends.cuda.machines import Machine
from graphc.backends.cuda.strategies.rows.online_reductions import find_one_pass
from graphc.backends.cuda.strategies.rows.row_plans import by_groups
from graphc.backends.cuda.strategies.rows.row_reductions import plan_of
from graphc.backends.cuda.strategies.rows.split_reductions import cut_evenly, in_parts
from graphc.ir.addresses import flatten_loads, is_affine_in
from graphc.ir.dtypes import i64
from graphc.ir.expr import Const, Expr, Index, Reduce, free_indices, loads, substitute
from graphc.ir.kernel import Buffer
from graphc.ir.simplify import simplify
from graphc.passes.analysis.computation import Computation, Output, flat_buffer
from graphc.passes.analysis.core import reductions_in
from graphc.passes.analysis.spaces import merge_reductions, shapes_of
from graphc.passes.lower.lowered import Lowered
from graphc.passes.lower.strategies.reductions import ready_reductions

IDLE = 5  # parts of the GPU, of which a grid that is cut leaves all but one idle
PART = 256  # elements of a part, at least
LONG = 4096  # elements of a row that are worth two kernels
WORTH = 1 << 17  # elements of a block that are worth several kernels, each of which reads them
LANES = 32  # rows of a block where rows are neighbours
LARGE = 1 << 24  # elements from which reading them takes far longer than a launch
RESIDENT = 4  # blocks of a multiprocessor that keep memory busy

Lower = Callable[[Computation], Lowered]


@dataclass(frozen=True)
class RowReductions:
    """Reductions over as many elements of the same rows, the first of which needs no others."""

    indices: tuple[Index, ...]
    reductions: list[Reduce]

    @property
    def count(self) -> int:
        return math.prod(x.count for x in self.indices)

    @property
    def elements(self) -> int:
        """How many of a row are reduced."""
        return math.prod(a.count for a in self.reductions[0].axes)

    @property
    def are_along_memory(self) -> bool:
        """Whether neighbouring values of the last axis are neighbours in memory, so that a block
        takes a row."""
        return all(
            is_affine_in(x.index[-1], r.axes[-1]) == 1
            for r in self.reductions
            for x in loads(r.body)
            if x.index and free_indices(x) & {*r.axes}
        )

    def parts(self, gpu: Machine) -> int:
        """Into how many parts each row should be cut."""
        blocks = self.count if self.are_along_memory else -(-self.count // LANES)
        is_large = self.count * self.elements >= LARGE
        wanted = gpu.multiprocessors * (RESIDENT if is_large else 1)
        if self.elements < LONG or blocks * (2 if is_large else IDLE) > wanted:
            return 1
        return min(wanted // blocks, self.elements // PART)


def lower_long_rows(computation: Computation, gpu: Machine, lower: Lower) -> Lowered | str:
    """The kernel of what is left when reductions have kernels of their own, by `lower`; or the
    kernel that brings the parts of a reduction together; or why neither is a gain."""
    computation = by_groups(computation)
    extents = computation.outputs[0].extents
    if not computation.has_one_space or 0 in extents:
        return "long rows: outputs must have one shape and elements, found others"
    if not reductions_in(o.expr for o in computation.outputs):
        return "long rows: it must have reductions, found none"
    merged = _merged(computation)
    levels = _rows(merged)
    cuts = [rows for rows in levels if rows.parts(gpu) > 1]
    if not cuts:
        return (
            "long rows: rows must be few for the GPU and have several parts of at least "
            f"{PART} elements, found none"
        )
    merged, rows = _in_one_pass(merged, cuts[0])
    exprs = [o.expr for o in merged.outputs]
    one_pass = find_one_pass(rows.reductions[0], exprs) if len(rows.reductions) == 1 else None
    if one_pass is not None:
        rows = RowReductions(rows.indices, [one_pass.first, one_pass.second])
    is_alone = len(reductions_in(exprs)) == len(rows.reductions)
    if is_alone and rows.count == math.prod(extents):
        cut = cut_evenly(merged, rows.reductions[0], rows.parts(gpu))
        if cut.parts < 2:
            return "long rows: an index of the reduction must divide into parts, found none"
        return in_parts(merged, rows.reductions, cut, rows.are_along_memory, one_pass)
    problem = _is_filling(merged, rows, gpu)
    return problem or _apart(merged, rows, lower)


def _merged(computation: Computation) -> Computation:
    """The same over flat inputs, with as few axes of reductions as possible."""
    inputs = tuple(
        b if b.name in computation.constants else flat_buffer(b) for b in computation.inputs
    )
    variable = (b for b in computation.inputs if b.name not in computation.constants)
    shapes = shapes_of(tuple(variable))

    def merged(output: Output) -> Expr:
        units: dict[Expr, Expr] = {x: Const(0, i64) for x in output.index if x.extent == 1}
        expr = flatten_loads(substitute(output.expr, units), shapes)
        return merge_reductions(simplify(expr))

    outputs = tuple(replace(o, expr=merged(o)) for o in computation.outputs)
    return replace(computation, inputs=inputs, outputs=outputs)


def _rows(computation: Computation) -> list[RowReductions]:
    """The reductions that depend on no others, by the extents of their axes and by rows."""
    index = computation.outputs[0].index
    exprs = [o.expr for o in computation.outputs]
    groups: dict[tuple, list[Reduce]] = {}
    for r in ready_reductions(exprs, frozenset(index)):
        if not reductions_in([r.body]) and all(a.count for a in r.axes):
            rows = tuple(x for x in index if x in free_indices(r))
            groups.setdefault((rows, *(a.count for a in r.axes)), []).append(r)
    return [RowReductions(rows, reductions) for (rows, *_), reductions in groups.items()]


def _in_one_pass(
    computation: Computation, rows: RowReductions
) -> tuple[Computation, RowReductions]:
    """The same with reductions of rows over the same axes."""
    axes = tuple(Index(f"row{d}", a.count) for d, a in enumerate(rows.reductions[0].axes))
    if len({r.axes for r in rows.reductions}) == 1:
        return computation, rows
    moved = [Reduce(r.op, substitute(r.body, dict(zip(r.axes, axes))), axes)
             for r in rows.reductions]  # fmt: skip
    mapping: dict[Expr, Expr] = dict(zip(rows.reductions, moved))
    outputs = tuple(replace(o, expr=substitute(o.expr, mapping)) for o in computation.outputs)
    same = RowReductions(rows.indices, list(dict.fromkeys(moved)))
    return replace(computation, outputs=outputs), same


def _is_filling(computation: Computation, rows: RowReductions, gpu: Machine) -> str:
    """Why the computation as a whole does as well, if it does."""
    plan = plan_of(computation)
    if isinstance(plan, str):
        return f"long rows: {plan}"
    elements = rows.count * rows.elements
    if plan.blocks * (2 if elements >= LARGE else IDLE) > gpu.multiprocessors:
        return (
            f"long rows: most of {gpu.multiprocessors} multiprocessors must be idle, found a grid "
            f"of {plan.blocks} blocks"
        )
    if elements >= WORTH * plan.blocks:
        return ""
    return (
        f"long rows: a block must have {WORTH} elements to be worth several launches, found "
        f"{elements // max(plan.blocks, 1)}"
    )


def _apart(computation: Computation, rows: RowReductions, lower: Lower) -> Lowered:
    """The kernel of a computation less the values of rows, which are computed before it."""
    values = _values([o.expr for o in computation.outputs], rows)
    taken, extents = {b.name for b in computation.inputs}, tuple(x.count for x in rows.indices)
    outputs: list[Output] = []
    known: dict[Expr, Expr] = {}
    for value in values:
        name = next(n for n in (f"row{m}" for m in range(len(taken) + 1)) if n not in taken)
        taken.add(name)
        buffer = Buffer(name, value.dtype, extents, "out")
        outputs.append(Output(buffer, rows.indices, value))
        known[value] = buffer[rows.indices]
    preparation = computation.restricted(outputs)
    buffers = [replace(o.buffer, access="in") for o in outputs]
    rest = tuple(replace(o, expr=substitute(o.expr, known)) for o in computation.outputs)
    inputs = (*computation.inputs, *buffers)
    lowered = lower(replace(computation, inputs=inputs, outputs=rest))
    return replace(
        lowered,
        prepare=[preparation, *lowered.prepare],
        temporaries=[*buffers, *lowered.temporaries],
    )


def _values(exprs: list[Expr], rows: RowReductions) -> list[Expr]:
    """The largest terms of nothing but some reductions and what else belongs to their rows."""
    own, values = {*rows.reductions}, dict[Expr, None]()
    left, seen = list(reversed(exprs)), set()
    while left:
        node = left.pop()
        if node in seen:
            continue
        seen.add(node)
        inside = reductions_in([node])
        if inside and own.issuperset(inside) and free_indices(node) <= {*rows.indices}:
            values[node] = None
        else:
            left += reversed(node.children)
    return list(values)
