"""Sums over windows in two steps: common subexpressions of overlapping windows are summed once.

A window loads x[n, c, h * s + i, w * s + j], which may be guarded. Summed indices that share no
dimension with others, and are in no guard (c), do not depend on the window: overlapping windows
have their sums in common. So these are taken first, into a map of points. The second step sums the
points of each window.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from graphc.ir.dtypes import boolean
from graphc.ir.expr import Call, Const, Expr, Index, Load, Reduce, free_indices, select
from graphc.ir.kernel import Buffer
from graphc.passes.analysis.computation import index_of
from graphc.passes.analysis.contraction import Match
from graphc.records import dataclass

WORTH = 1 << 16  # additions saved that pay for one kernel more


def sum_over_depth(match: Match, element: Expr, term: Callable[[Expr], Expr]) -> Expr:
    """The sum over the depth of a term of a factor's element; of a window in two steps, if that
    saves much: the first is asked for."""
    whole = Reduce("sum", term(element), tuple(match.depth))
    is_static = all(isinstance(x.extent, int) for x in free_indices(element))
    window = _window(match, element) if is_static else None
    if window is None or window.saved(match) < WORTH:
        return whole
    index = index_of(window.shape)
    contents = Reduce("sum", term(window.at(index)), tuple(window.alone))
    buffer = match.copied("point_sums", index, contents)
    return Reduce("sum", window.of(buffer, term), tuple(window.others))


@dataclass(frozen=True)
class _Window:
    """A load where `guard` holds, else `padding`. The indices `alone` move in dimensions of their
    own; the `others` of the depth in those `kept`, which have this `shape`."""

    guard: Expr
    load: Load
    padding: Expr
    alone: list[Index]
    others: list[Index]
    kept: list[int]
    shape: tuple[int, ...]

    def saved(self, match: Match) -> int:
        """The additions that two steps save."""
        used = free_indices(self.load) - set(match.depth)
        sums = math.prod(x.count for x in used)
        deep, wide = (math.prod(k.count for k in part) for part in (self.alone, self.others))
        return sums * deep * wide - math.prod(self.shape) * deep - sums * wide

    def at(self, point: tuple[Index, ...]) -> Load:
        """The element at a point."""
        index = list(self.load.index)
        for dim, position in zip(self.kept, point):
            index[dim] = position
        return Load(self.load.source, tuple(index), self.load.dtype)

    def of(self, sums: Buffer, term: Callable[[Expr], Expr]) -> Expr:
        """What a point adds to a window, given the sums over points."""
        inside = sums[tuple(self.load.index[dim] for dim in self.kept)]
        outside = term(self.padding) * math.prod(k.count for k in self.alone)
        return select(self.guard, inside, outside)


def _window(match: Match, element: Expr) -> _Window | None:
    """An element of a factor as a window; None if its summed indices do not move apart."""
    guard, load, padding = _parts(element)
    if not isinstance(load, Load):
        return None
    moving = [free_indices(position) for position in load.index]
    alone = set(match.depth) - free_indices(guard)
    while mixed := [m for m in moving if m & alone and not m <= alone]:
        alone = alone.difference(*mixed)
    kept = [dim for dim, indices in enumerate(moving) if not indices <= alone]
    shape = tuple(int(match.shapes[load.source][dim]) for dim in kept)
    inside = [k for k in match.depth if k in alone]
    others = [k for k in match.depth if k not in alone]
    if not (inside and others):
        return None
    return _Window(guard, load, padding, inside, others, kept, shape)


def _parts(element: Expr) -> tuple[Expr, Expr, Expr]:
    """Its guard, what is inside and what is outside."""
    if isinstance(element, Call) and element.op.name == "select":
        guard, inside, outside = element.args
        return guard, inside, outside
    return Const(True, boolean), element, Const(0, element.dtype)
