"""Sliding windows: which computations are one.

A summed axis `slides` with an output index if moving the one by some steps and the other by some
steps back leaves the factor as it is, and outputs have elements in common. Other summed axes (the
channels of a group) do not slide.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from graphc.ir.addresses import flatten_loads, is_affine_in
from graphc.ir.expr import Call, Expr, Index, Reduce, free_indices, loads, substitute, walk
from graphc.ir.simplify import simplify
from graphc.passes.analysis.computation import Computation
from graphc.passes.analysis.spaces import drop_units, shapes_of, split_divided

MOST_TAPS = 1024  # of a slide: positions are listed to estimate the time
WIDE_GROUP = 16  # output channels of a group that fill a tile of a matrix product


@dataclass(frozen=True)
class Slide:
    """An output index and a summed axis that move along one dimension of the input: by `stride` and
    by `dilation` of the same steps."""

    index: Index
    axis: Index
    stride: int
    dilation: int

    def meetings(self, patch: int) -> list[list[tuple[int, int]]]:
        """For each input position that a patch of outputs needs: the (output, tap) that meet."""
        found: dict[int, list[tuple[int, int]]] = {}
        for output in range(patch):
            for tap in range(self.axis.count):
                at = output * self.stride + tap * self.dilation
                found.setdefault(at, []).append((output, tap))
        return [found[at] for at in sorted(found)]


@dataclass
class Windows:
    """A matched computation: reduction `hole` of `a` (times `b`, which does not slide) in `exprs`,
    stored at `offset`; `indices` end with the channels; `rest` are the axes that do not slide. The
    loads of `a` are flat."""

    computation: Computation
    indices: list[Index]
    offset: Expr
    exprs: list[Expr]
    hole: Reduce
    a: Expr
    b: Expr | None
    slides: list[Slide]
    rest: list[Index]

    @property
    def channels(self) -> Index:
        return self.indices[-1]


def match_windows(computation: Computation) -> Windows | str:
    """The sliding window that a computation is, or why it is none."""
    if not computation.has_one_space:
        return "window: outputs have different shapes"
    loops, offset, exprs = computation.over_loops()
    indices, (offset, *exprs) = drop_units(loops, [offset, *exprs])
    exprs = [_without_unit_axes(e) for e in exprs]
    indices, (offset, *exprs) = split_divided(indices, [offset, *exprs])
    sums = {n for e in exprs for n in walk(e) if isinstance(n, Reduce)}
    if len(sums) != 1:
        return f"window: {len(sums)} reductions instead of one"
    (hole,) = sums
    if not indices or any(x.count == 0 for x in (*indices, *hole.axes)):
        return "window: no outputs"
    if not free_indices(hole) <= set(indices):
        return "window: nested in another reduction"
    return _classify(computation, indices, offset, exprs, hole)


def _without_unit_axes(expr: Expr) -> Expr:
    """Reductions over axes of one element less these."""
    mapping: dict[Expr, Expr] = {}
    for node in walk(expr):
        if isinstance(node, Reduce) and any(a.extent == 1 for a in node.axes):
            axes, (body,) = drop_units(list(node.axes), [node.body])
            mapping[node] = Reduce(node.op, body, tuple(axes)) if axes else body
    return substitute(expr, mapping) if mapping else expr


def _classify(
    computation: Computation, indices: list[Index], offset: Expr, exprs: list[Expr], hole: Reduce
) -> Windows | str:
    factors, shapes = _factors(hole), shapes_of(computation.inputs)
    for a, b in (factors, factors[::-1]) if len(factors) == 2 else ((hole.term, None),):
        a = simplify(flatten_loads(a, shapes))
        slides = _slides(a, b, indices, hole)
        if not slides or not loads(a):
            continue
        if max(s.axis.count for s in slides) > MOST_TAPS:
            return f"window: more than {MOST_TAPS} taps"
        rest = [k for k in hole.axes if all(k is not s.axis for s in slides)]
        found = Windows(computation, indices, offset, exprs, hole, a, b, slides, rest)
        problem = _unsuitable(found)
        return problem if problem else found
    return "window: no summed axis slides with an output index"


def _factors(hole: Reduce) -> tuple[Expr, ...]:
    term = hole.term
    if hole.op == "sum" and isinstance(term, Call) and term.op.name == "mul":
        return term.args
    return (term,)


def _slides(a: Expr, b: Expr | None, indices: list[Index], hole: Reduce) -> list[Slide]:
    """The pairs of indices that slide, in the order of the output's indices."""
    fixed = free_indices(b) if b is not None else frozenset()
    left, found = list(hole.axes), []
    for index in indices[:-1]:
        if index in fixed:
            continue
        slide = next((s for s in (_slide(a, index, k) for k in left) if s), None)
        if slide is not None:
            left.remove(slide.axis)
            found.append(slide)
    return found


def _slide(a: Expr, index: Index, axis: Index) -> Slide | None:
    place = next((x.index[0] for x in loads(a) if {index, axis} <= free_indices(x)), None)
    if place is None:
        return None
    along, across = is_affine_in(place, index), is_affine_in(place, axis)
    if not along or not across or along < 0 or across < 0:
        return None
    unit = math.gcd(along, across)
    slide = Slide(index, axis, along // unit, across // unit)
    if slide.stride >= axis.count or slide.dilation >= index.count:
        return None  # no two outputs have an element in common
    moved = substitute(a, {index: index + slide.dilation, axis: axis - slide.stride})
    return slide if simplify(moved) is simplify(a) else None


def _unsuitable(found: Windows) -> str:
    channels = found.channels
    if channels not in free_indices(found.hole):
        return "window: it is one for all channels"
    steps = {is_affine_in(x.index[0], channels) for x in loads(found.a)}
    if not steps <= {0, 1}:
        return "window: channels are not neighbours in memory"
    if found.b is None or channels in free_indices(found.a):
        return ""
    shared = free_indices(found.a) & free_indices(found.b) - set(found.hole.axes)
    if not shared:
        return "window: one group"
    return "window: its groups fill tiles" if channels.count >= WIDE_GROUP else ""
