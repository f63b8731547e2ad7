"""Reductions in parts: a computation of partial results, and the kernel that brings them together.

    partial[i, s] = reduce over part s of x[i, k]        out[i] = f(reduce over s of partial[i, s])

Parts are equally long. What is left of a length that they do not divide is reduced by the second
kernel. Unlike atomic operations this gives the same bits every time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from graphc.backends.cuda.strategies.operands import stride
from graphc.backends.cuda.strategies.rows import lower_rows
from graphc.ir.expr import Call, Expr, Index, Reduce, cast, loads, substitute
from graphc.ir.kernel import Buffer
from graphc.ir.simplify import simplify
from graphc.passes.lower.computation import Computation, Lowered, Output
from graphc.passes.lower.nest import NestOptions, lower_nest
from graphc.passes.lower.spaces import flatten_loads, shapes_of

ALIGNED = 16  # elements of which parts have a multiple, if they are neighbours in memory
SLACK = 4  # times that a part is longer than what is left, at least


@dataclass(frozen=True)
class Cut:
    """An axis in so many parts of a length each."""

    axis: Index
    parts: int
    length: int

    @property
    def left(self) -> int:
        """How much of the axis is in no part."""
        return self.axis.count - self.parts * self.length


def cut_exactly(whole: Computation, hole: Reduce, wanted: int) -> Cut:
    """The axis that divides into the most parts, at most so many; of several the one along which
    elements lie farthest apart, so that parts do not share what is contiguous."""

    def cut(x: Index) -> Cut:
        parts = max(d for d in range(1, min(wanted, x.count) + 1) if x.count % d == 0)
        return Cut(x, parts, x.count // parts)

    return _best(whole, hole, [cut(x) for x in hole.axes])


def cut_evenly(whole: Computation, hole: Reduce, wanted: int) -> Cut:
    """The same of cuts that may leave some of an axis, if parts are far longer than that."""

    def cut(x: Index) -> Cut:
        most = min(wanted, x.count)
        cuts = [Cut(x, 1, x.count)]
        for parts in range(most, most // 2, -1):
            length = x.count // parts
            cuts += [Cut(x, parts, n) for n in {length, length // ALIGNED * ALIGNED}]
        fair = (c for c in cuts if c.length >= c.left * SLACK and c.length)
        return max(fair, key=lambda c: (c.parts > most // 2, c.length % ALIGNED == 0, -c.left))

    return _best(whole, hole, [cut(x) for x in hole.axes])


def _best(whole: Computation, hole: Reduce, cuts: list[Cut]) -> Cut:
    term = simplify(flatten_loads(hole.term, shapes_of(whole.inputs)))
    return max(cuts, key=lambda c: (c.parts, stride(term, c.axis)))


def in_parts(whole: Computation, holes: Sequence[Reduce], cut: Cut, are_last: bool) -> Lowered:
    """The kernel that brings together partial results of all reductions of a computation, which
    have the same axes. Parts are the last dimension of these results, or else the first."""
    first = whole.outputs[0]
    part = Index("part", cut.parts)
    index = (*first.index, part) if are_last else (part, *first.index)
    extents = tuple(x.count for x in index)
    outputs: list[Output] = []
    totals: dict[Expr, Expr] = {}
    for n, hole in enumerate(holes):
        reduced = _partial(hole, cut, part)
        name = f"parts{n or ''}_of_{first.buffer.name}"
        buffer = Buffer(name, reduced.dtype, extents)
        outputs.append(Output(replace(buffer, access="out"), index, reduced))
        totals[hole] = _total(hole, cut, Reduce(hole.op, buffer[index], (part,)))
    label = f"parts of {whole.label}"
    preparation = restricted(replace(whole, outputs=tuple(outputs), label=label))
    buffers = [replace(o.buffer, access="in") for o in outputs]
    rest = tuple(replace(o, expr=substitute(o.expr, totals)) for o in whole.outputs)
    final = restricted(replace(whole, inputs=(*whole.inputs, *buffers), outputs=rest))
    lowered = lower_rows(final, "total")
    if isinstance(lowered, str):
        lowered = lower_nest(final, NestOptions(flat=True), "total")
    flops = 2 * math.prod(first.extents) * math.prod(a.count for a in holes[0].axes)
    return replace(lowered, prepare=[preparation], temporaries=buffers, flops=flops, inplace=[])


def restricted(computation: Computation) -> Computation:
    """The same less the inputs that it does not read."""
    read = {x.source for o in computation.outputs for x in loads(o.expr)}
    inputs = tuple(b for b in computation.inputs if b.name in read)
    return replace(computation, inputs=inputs)


def _partial(hole: Reduce, cut: Cut, part: Index) -> Reduce:
    """The reduction of one part."""
    inner = Index(cut.axis.name, cut.length)
    if cut.length == 1 and len(hole.axes) > 1:  # nothing is left to reduce of this axis
        axes = tuple(a for a in hole.axes if a is not cut.axis)
        return _moved(hole, cut, part, axes)
    axes = tuple(inner if a is cut.axis else a for a in hole.axes)
    return _moved(hole, cut, part * cut.length + inner, axes)


def _moved(hole: Reduce, cut: Cut, place: Expr, axes: tuple[Index, ...]) -> Reduce:
    at: dict[Expr, Expr] = {cut.axis: place}
    return Reduce(hole.op, simplify(substitute(hole.term, at)), axes)


def _total(hole: Reduce, cut: Cut, total: Expr) -> Expr:
    """All parts, and what is in none."""
    if cut.left:
        inner = Index(cut.axis.name, cut.left)
        axes = tuple(inner if a is cut.axis else a for a in hole.axes)
        more = _moved(hole, cut, inner + cut.parts * cut.length, axes)
        total = Call(hole.combine, (total, more), total.dtype)
    return cast(total, hole.dtype)
