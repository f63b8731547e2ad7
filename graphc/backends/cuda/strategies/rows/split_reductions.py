"""Split reductions: a kernel of partial results, and a kernel that combines them.

    partial[i, s] = reduce over part s of x[i, k]        out[i] = f(reduce over s of partial[i, s])

Parts are equally long. A remainder that they do not divide is reduced by the second kernel. Unlike
atomic operations, this gives the same bits in every run. Split-K uses it for contractions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from graphc.backends.cuda.strategies.contraction.operands import stride
from graphc.backends.cuda.strategies.rows.online_reductions import OnePass
from graphc.backends.cuda.strategies.rows.row_reductions import lower_rows
from graphc.ir.addresses import flatten_loads
from graphc.ir.expr import Call, Expr, Index, Reduce, cast, substitute
from graphc.ir.kernel import Buffer
from graphc.ir.simplify import simplify
from graphc.passes.analysis.computation import Computation, Output
from graphc.passes.analysis.spaces import shapes_of
from graphc.passes.lower.lowered import Lowered
from graphc.passes.lower.strategies.nest import NestOptions, lower_nest

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


def cut_evenly(whole: Computation, hole: Reduce, wanted: int) -> Cut:
    """The axis that is cut into the most parts, at most so many, far longer than what is left; of
    several the one along which elements lie farthest apart, so that parts do not share what is
    contiguous."""
    term = simplify(flatten_loads(hole.term, shapes_of(whole.inputs)))
    cuts = (_cut(axis, wanted) for axis in hole.axes)
    return max(cuts, key=lambda c: (c.parts, stride(term, c.axis)))


def _cut(axis: Index, wanted: int) -> Cut:
    """An axis in at most so many parts: of those that are more than half as many, aligned ones that
    leave least."""
    most = min(wanted, axis.count)
    cuts = [Cut(axis, 1, axis.count)]
    for parts in range(most, most // 2, -1):
        length = axis.count // parts
        cuts += [Cut(axis, parts, n) for n in (length, length // ALIGNED * ALIGNED)]
    fair = (c for c in cuts if c.length and c.length >= c.left * SLACK)
    return max(fair, key=lambda c: (c.parts > most // 2, c.length % ALIGNED == 0, -c.left))


def in_parts(
    whole: Computation,
    holes: Sequence[Reduce],
    cut: Cut,
    are_last: bool,
    one_pass: OnePass | None = None,
) -> Lowered:
    """The kernel that brings together partial results of all reductions of a computation, which
    have the same axes or are those of `one_pass`. Parts are the last dimension of these
    results, or else the first."""
    first = whole.outputs[0]
    part = Index("part", cut.parts)
    index = (*first.index, part) if are_last else (part, *first.index)
    extents = tuple(x.count for x in index)
    if one_pass is None:
        partials = [_partial(hole, cut, part) for hole in holes]
    else:
        partials = _partials_of(one_pass, cut, part)
    outputs = [
        Output(Buffer(f"parts{n or ''}_of_{first.buffer.name}", x.dtype, extents, "out"), index, x)
        for n, x in enumerate(partials)
    ]
    label = f"parts of {whole.label}"
    preparation = replace(whole.restricted(outputs), label=label)
    buffers = [replace(o.buffer, access="in") for o in outputs]
    partial = [buffer[index] for buffer in buffers]
    if one_pass is None:
        own = (Reduce(hole.op, x, (part,)) for hole, x in zip(holes, partial))
        totals = {hole: _total(hole, cut, total) for hole, total in zip(holes, own)}
    else:
        totals = _totals_of(one_pass, cut, part, partial)
    rest = tuple(replace(o, expr=substitute(o.expr, totals)) for o in whole.outputs)
    final = replace(whole, inputs=(*whole.inputs, *buffers)).restricted(rest)
    lowered = lower_rows(final, "total")
    if isinstance(lowered, str):
        lowered = lower_nest(final, NestOptions(flat=True), "total")
    flops = 2 * math.prod(first.extents) * math.prod(a.count for a in holes[0].axes)
    return replace(lowered, prepare=[preparation], temporaries=buffers, flops=flops, inplace=[])


def _partials_of(one_pass: OnePass, cut: Cut, part: Index) -> list[Reduce]:
    """Both results of a part, the second relative to the first."""
    first, second = one_pass.first, one_pass.second
    own = _partial(first, cut, part, first.body)
    shift = one_pass.shifted_by(own, _elements(first, cut))
    term = substitute(second.term, {one_pass.shift: shift})
    return [own, _partial(second, _of_second(one_pass, cut), part, term)]


def _elements(reduction: Reduce, cut: Cut) -> int:
    """Those of a part."""
    return math.prod(cut.length if a is cut.axis else a.count for a in reduction.axes)


def _of_second(one_pass: OnePass, cut: Cut) -> Cut:
    """The same cut of the axes of the second reduction."""
    return replace(cut, axis=one_pass.second.axes[one_pass.first.axes.index(cut.axis)])


def _totals_of(
    one_pass: OnePass, cut: Cut, part: Index, partial: Sequence[Expr]
) -> dict[Reduce, Expr]:
    """The same of all parts."""
    first, second, elements = one_pass.first, one_pass.second, _elements(one_pass.first, cut)
    other = Index("other_part", cut.parts)
    of_part = substitute(partial[0], {part: other})
    result = _total(first, cut, Reduce(first.op, of_part, (other,)))
    own, whole = (cast(x, second.dtype.compute) for x in (partial[0], result))
    sum_ = Reduce("sum", one_pass.moved(partial[1], own, whole, elements), (part,))
    shift = one_pass.shifted_by(result, one_pass.elements)
    left = Reduce(second.op, substitute(second.body, {one_pass.shift: shift}), second.axes)
    all_ = _total(left, _of_second(one_pass, cut), sum_)
    return {second: one_pass.finished(whole, all_), first: result}


def _partial(hole: Reduce, cut: Cut, part: Index, term: Expr | None = None) -> Reduce:
    """The reduction of one part, of its terms or others."""
    term = hole.term if term is None else term
    inner = Index(cut.axis.name, cut.length)
    if cut.length == 1 and len(hole.axes) > 1:  # nothing is left to reduce of this axis
        axes = tuple(a for a in hole.axes if a is not cut.axis)
        return _moved(hole.op, term, cut, part, axes)
    axes = tuple(inner if a is cut.axis else a for a in hole.axes)
    return _moved(hole.op, term, cut, part * cut.length + inner, axes)


def _moved(op: str, term: Expr, cut: Cut, place: Expr, axes: tuple[Index, ...]) -> Reduce:
    return Reduce(op, simplify(term, {cut.axis: place}), axes)


def _total(hole: Reduce, cut: Cut, total: Expr) -> Expr:
    """All parts, and what is in none."""
    if cut.left:
        inner = Index(cut.axis.name, cut.left)
        axes = tuple(inner if a is cut.axis else a for a in hole.axes)
        more = _moved(hole.op, hole.term, cut, inner + cut.parts * cut.length, axes)
        total = Call(hole.combine, (cast(total, more.dtype), more), more.dtype)
    return cast(total, hole.dtype)
