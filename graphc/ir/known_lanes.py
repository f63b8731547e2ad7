"""Loads whose lanes read elements at distances that are known when code is made.

A slice with steps, a reversed row, an image that is enlarged or taken apart: offsets are not one
apart from lane to lane, but their differences are numbers. Instead of an element for each lane,
the few vectors that hold all of them are loaded, and their lanes shuffled into place.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from graphc.ir.dtypes import i64
from graphc.ir.expr import Const, Expr, Index, free_indices, substitute
from graphc.ir.simplify import from_poly, simplify, to_poly
from graphc.records import dataclass

LANES_PER_VECTOR = 2  # that is loaded, at the least; else elements are read one by one


@dataclass(frozen=True)
class KnownLanes:
    """Vectors of `width` elements at `starts`, relative to the first lane's element; lane n is
    element `picks[n][1]` of vector `picks[n][0]`. Nothing is read but what lies between elements
    of lanes."""

    width: int
    starts: tuple[int, ...]
    picks: tuple[tuple[int, int], ...]

    def shuffle(self, number: int) -> list[int]:
        """The lanes to pick of two vectors: one that has the lanes found in vectors before this
        number (for number 1, vector 0 itself), and this vector. Those still to come are -1."""
        lanes, chosen = len(self.picks), []
        for lane, (vector, element) in enumerate(self.picks):
            if vector < number:
                chosen.append(element if number == 1 else lane)
            else:
                chosen.append(lanes + element if vector == number else -1)
        return chosen


@lru_cache(maxsize=256)
def known_lanes(offset: Expr, lane: Index, lanes: int) -> KnownLanes | None:
    """How to load from `offset` in a vector loop over `lane`; None if distances are not known, or
    so far apart that there were as good as a vector for each."""
    distances = lane_distances(offset, lane, lanes)
    if distances is None:
        return None
    low, high = min(distances), max(distances)
    width = min(lanes, high - low + 1)
    starts: list[int] = []
    for distance in sorted(set(distances)):
        if not starts or distance >= starts[-1] + width:
            starts.append(min(distance, high - width + 1))
    if len(starts) * LANES_PER_VECTOR > lanes:
        return None
    holding = [max(n for n, s in enumerate(starts) if s <= d) for d in distances]
    picks = tuple((n, d - starts[n]) for n, d in zip(holding, distances))
    return KnownLanes(width, tuple(starts), picks)


def lane_distances(offset: Expr, lane: Index, lanes: int) -> Sequence[int] | None:
    """How far each lane's element is from that of the first; None if that is not known."""
    terms = to_poly(simplify(offset))
    moving = from_poly({k: v for k, v in terms.items() if any(lane in free_indices(x) for x in k)})
    first = simplify(moving, {lane: Const(0, i64)})
    distances = []
    for n in range(lanes):
        distance = simplify(substitute(moving, {lane: Const(n, i64)}) - first)
        if not isinstance(distance, Const):
            return None
        distances.append(int(distance.value))
    return distances
