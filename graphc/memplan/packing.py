"""One pool of a `Problem` in the form the planners work on: arrays, in granules.

The granule g is the least alignment in the pool.  Alignments are powers of two, so every offset
is a multiple of g and rounding every size up to g costs nothing except behind the topmost
buffer.  Peaks and bounds therefore count rounded sizes.  Empty buffers conflict with nobody and
are left out.

Invariant: `allowed[i][j] == (low, high)` iff `allowed[j][i] == (-high, -low)`: i and j may
overlap while `low <= offset[j] - offset[i] <= high`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable

from graphc.memplan.in_place import Edge, matched_weight
from graphc.memplan.problem import Buffer, Problem
from graphc.records import dataclass


@dataclass(frozen=True)
class Packing:
    """Buffers 0..n-1 of one pool; all numbers but the steps in units of `granule` bytes."""

    names: tuple[str, ...]
    granule: int
    sizes: tuple[int, ...]
    aligns: tuple[int, ...]
    firsts: tuple[int, ...]
    lasts: tuple[int, ...]
    allowed: tuple[dict[int, tuple[int, int]], ...]

    def __len__(self) -> int:
        return len(self.sizes)

    def conflict(self, i: int, j: int) -> bool:
        """Whether i and j are live together."""
        return self.firsts[i] <= self.lasts[j] and self.firsts[j] <= self.lasts[i]

    def peak(self, offsets: Iterable[int]) -> int:
        """Granules in use below the highest end."""
        return max((o + s for o, s in zip(offsets, self.sizes, strict=True)), default=0)


def round_up(value: int, multiple: int) -> int:
    """The least multiple of `multiple` that is >= value."""
    return -(-value // multiple) * multiple


def packing_of(problem: Problem, pool: str) -> Packing:
    """The non-empty buffers of `pool`, in the order of the problem."""
    buffers = [b for b in problem.buffers if b.pool == pool and b.size > 0]
    granule = min((b.align for b in buffers), default=1)
    return Packing(
        names=tuple(b.name for b in buffers),
        granule=granule,
        sizes=tuple(-(-b.size // granule) for b in buffers),
        aligns=tuple(b.align // granule for b in buffers),
        firsts=tuple(b.first for b in buffers),
        lasts=tuple(b.last for b in buffers),
        allowed=_allowed(problem, buffers, granule),
    )


def _allowed(
    problem: Problem, buffers: list[Buffer], granule: int
) -> tuple[dict[int, tuple[int, int]], ...]:
    """Allowances between buffers live together; of several for a pair, the first counts."""
    index = {b.name: i for i, b in enumerate(buffers)}
    allowed: tuple[dict[int, tuple[int, int]], ...] = tuple({} for _ in buffers)
    for overlap in problem.overlaps:
        if overlap.a not in index or overlap.b not in index:
            continue
        i, j = index[overlap.a], index[overlap.b]
        low, high = -(-overlap.low // granule), overlap.high // granule
        meet = buffers[i].first <= buffers[j].last and buffers[j].first <= buffers[i].last
        if meet and low <= high and j not in allowed[i]:
            allowed[i][j], allowed[j][i] = (low, high), (-high, -low)
    return allowed


def live_bound(packing: Packing) -> int:
    """Granules that must exist at the busiest step: the sum of what is live, less what may be
    shared.

    No plan can need less: apart from allowed overlaps, live buffers occupy disjoint bytes.
    """
    change: dict[int, int] = defaultdict(int)
    for size, first, last in zip(packing.sizes, packing.firsts, packing.lasts, strict=True):
        change[first] += size
        change[last + 1] -= size
    steps = sorted(change)
    pairs = _pairs_by_step(packing, steps)
    live = bound = 0
    for step in steps:
        live += change[step]
        if live > bound:
            bound = max(bound, live - _shared(packing, pairs.get(step, [])))
    return bound


def _pairs_by_step(packing: Packing, steps: list[int]) -> dict[int, list[tuple[int, int]]]:
    """For each of `steps`, the allowed pairs (i < j) live together in it."""
    pairs: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for i, partners in enumerate(packing.allowed):
        for j in partners:
            if i < j:
                start = max(packing.firsts[i], packing.firsts[j])
                stop = min(packing.lasts[i], packing.lasts[j])
                for step in steps[bisect_left(steps, start) : bisect_right(steps, stop)]:
                    pairs[step].append((i, j))
    return pairs


def _shared(packing: Packing, pairs: list[tuple[int, int]]) -> int:
    """An upper bound on the granules that `pairs`, all live, can share.

    Exact (a matching) where every pair must start at one place and no three may coincide; else the
    sum over pairs, by Bonferroni's inequality |union| >= sum |A_i| - sum |A_i & A_j|.
    """
    edges: list[Edge] = [(i, j, max_shared(packing, i, j)) for i, j in pairs]
    same_place = all(packing.allowed[i][j] == (0, 0) for i, j in pairs)
    if same_place and not _has_triangle(pairs):
        return matched_weight(edges)
    return sum(weight for _, _, weight in edges)


def max_shared(packing: Packing, i: int, j: int) -> int:
    """The most granules i and j can share under their allowance."""
    low, high = packing.allowed[i][j]
    return shared_at_best(packing.sizes[i], packing.sizes[j], low, high)


def shared_at_best(size_a: int, size_b: int, low: int, high: int) -> int:
    """The largest intersection of [0, size_a) and [d, d + size_b) over low <= d <= high.

    It is largest where one contains the other, so for d nearest to the range from 0 to a - b.
    """
    inner = sorted((0, size_a - size_b))
    delta = min(max(low, inner[0]), inner[1]) if low <= inner[1] else low
    delta = min(delta, high)
    return max(0, min(size_a, delta + size_b) - max(0, delta))


def _has_triangle(pairs: list[tuple[int, int]]) -> bool:
    known = set(pairs)
    return any((i, k) in known for i, j in pairs for jj, k in pairs if jj == j)
