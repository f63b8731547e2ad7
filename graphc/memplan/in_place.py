"""In-place pairs: which output takes the place of which input, a maximum-weight matching.

A dying buffer can be replaced by one newborn and a newborn can take one place, so the bytes that a
step saves by working in place are a matching.  Steps have a handful of pairs; up to `EXACT_EDGES`
of them are searched exhaustively.
"""

from __future__ import annotations

from collections.abc import Sequence

EXACT_EDGES = 12

Edge = tuple[int, int, int]
"""(node, node, weight), weight >= 0."""


def matched_weight(edges: Sequence[Edge]) -> int:
    """The weight of a best matching; for many edges an upper bound (each left node at its best)."""
    if len(edges) == 1:
        return edges[0][2]
    if len(edges) <= EXACT_EDGES:
        return _best(edges, 0, frozenset())[0]
    best_of_left: dict[int, int] = {}
    for left, _, weight in edges:
        best_of_left[left] = max(weight, best_of_left.get(left, 0))
    return sum(best_of_left.values())


def choose_matching(edges: Sequence[Edge]) -> tuple[int, ...]:
    """Indices of the edges of a best matching; heaviest-first greedy where there are many."""
    if len(edges) <= EXACT_EDGES:
        return _best(edges, 0, frozenset())[1]
    chosen: list[int] = []
    used: set[int] = set()
    for index in sorted(range(len(edges)), key=lambda i: (-edges[i][2], i)):
        left, right, _ = edges[index]
        if left not in used and right not in used:
            used |= {left, right}
            chosen.append(index)
    return tuple(sorted(chosen))


def _best(edges: Sequence[Edge], at: int, used: frozenset[int]) -> tuple[int, tuple[int, ...]]:
    """Best (weight, edge indices) from edge `at` on; of equal ones, the earliest edges win."""
    if at == len(edges):
        return 0, ()
    without = _best(edges, at + 1, used)
    left, right, weight = edges[at]
    if left in used or right in used:
        return without
    rest_weight, rest = _best(edges, at + 1, used | {left, right})
    taken = weight + rest_weight
    return (taken, (at, *rest)) if taken >= without[0] else without
