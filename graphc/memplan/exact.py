"""Exact offset assignment by branch and bound, for when greedy stays above the lower bound.

After Moffitt, "MiniMalloc: A Lightweight Memory Allocator for Hardware-Accelerated Machine
Learning" (ASPLOS 2023) and Maas et al., "TelaMalloc: Efficient On-Chip Memory Allocation for
Production Machine Learning Accelerators" (ASPLOS 2023); the general problem is dynamic storage
allocation, NP-complete (Garey and Johnson, SR2).

*Canonical plans.*  Among the plans of least peak take one of least sum of offsets: every buffer
lies at 0 or directly on one that is live with it.  So buffers are placed in order of offset
(then index), each at its floor, the highest end of the placed buffers it conflicts with; nothing
else is tried.

*Pruning.*  (1) In each section (a maximal run of steps with the same live set) the floor plus all
that is still to come must stay below the best peak so far.  (2) If an unplaced buffer would fit
wholly below the next offset, every completion could be improved by moving it there: such a next
offset is not tried.

*Decomposition.*  Buffers live together with all others go to the bottom; the rest falls apart
into components in time that never meet, solved one by one.

*In-place allowances.*  A buffer may also be placed exactly at the start of an allowed partner.
For other allowances (a shift, a range) the search tries the lowest permitted offset; its plans
are valid but exhaustion then proves nothing, and no proof is claimed.

*Budget.*  Work is counted in touched array cells, not in seconds: the result is deterministic.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from graphc.memplan.greedy import Packed, pack_greedily
from graphc.memplan.packing import Packing, live_bound, round_up
from graphc.records import dataclass

DEFAULT_BUDGET = 6_000_000
"""Work units per pool, about a second or two of Python."""

MOST_BUFFERS = 512
"""Buffers of a component that is worth the search."""

UNPROVEN_BUDGET = 500_000
"""Work units where exhaustion would prove nothing, since some allowances are ranges."""

GAP = "gap left: search budget spent"


@dataclass(frozen=True)
class Solved:
    """The best plan known, the peak (granules) proven unbeatable, and why the search ended."""

    packed: Packed
    bound: int
    note: str


def solve(
    packing: Packing, start: Packed, bound: int | None = None, budget: int = DEFAULT_BUDGET
) -> Solved:
    """Improve on `start` until the bound is met or the search or its budget is exhausted."""
    bound = live_bound(packing) if bound is None else bound
    if start.peak <= bound:
        return Solved(start, bound, "meets the bound")
    bottom = _always_live(packing)
    base = sum(packing.sizes[i] for i in bottom)
    offsets = list(start.offsets)
    height = 0
    for i in bottom:
        offsets[i], height = height, height + packing.sizes[i]
    reached = proven = bound
    for component in _components(packing, set(bottom)):
        part = _restrict(packing, component)
        own = live_bound(part)
        proven = max(proven, base + own)
        goal = max(own, reached - base)
        if base + own >= start.peak:
            return Solved(start, start.peak, "meets the bound of one component")
        outcome = _solve_component(part, start.peak - base - 1, goal, budget)
        budget = max(0, budget - outcome.work)
        if outcome.best is None:
            if outcome.exhausted:
                return Solved(start, start.peak, "proven optimal by exhaustive search")
            return Solved(start, proven, GAP)
        for i, offset in zip(component, outcome.best, strict=True):
            offsets[i] = base + offset
        peak = base + part.peak(outcome.best)
        reached = max(reached, peak)
        if outcome.exhausted:
            proven = max(proven, peak)
    packed = Packed(tuple(offsets), packing.peak(offsets), "branch and bound")
    if packed.peak > proven:
        return Solved(packed, proven, GAP)
    return Solved(packed, packed.peak, "proven optimal by branch and bound")


def _always_live(packing: Packing) -> list[int]:
    """Buffers in conflict with every other: swapping them to the bottom loses nothing.

    Only where all alignments are equal (else the swap could misalign what lay below them).
    """
    if len(set(packing.aligns)) > 1:
        return []
    latest_birth, earliest_death = max(packing.firsts), min(packing.lasts)
    return [
        i
        for i in range(len(packing))
        if packing.firsts[i] <= earliest_death
        and packing.lasts[i] >= latest_birth
        and not packing.allowed[i]
    ]


def _components(packing: Packing, without: set[int]) -> list[list[int]]:
    """Groups of buffers that meet in time, directly or through others."""
    rest = [i for i in range(len(packing)) if i not in without]
    rest.sort(key=packing.firsts.__getitem__)
    groups: list[list[int]] = []
    horizon = 0
    for i in rest:
        if not groups or packing.firsts[i] > horizon:
            groups.append([])
            horizon = packing.lasts[i]
        groups[-1].append(i)
        horizon = max(horizon, packing.lasts[i])
    return groups


def _restrict(packing: Packing, items: list[int]) -> Packing:
    number = {item: i for i, item in enumerate(items)}
    return Packing(
        names=tuple(packing.names[i] for i in items),
        granule=packing.granule,
        sizes=tuple(packing.sizes[i] for i in items),
        aligns=tuple(packing.aligns[i] for i in items),
        firsts=tuple(packing.firsts[i] for i in items),
        lasts=tuple(packing.lasts[i] for i in items),
        allowed=tuple(
            {number[j]: span for j, span in packing.allowed[i].items() if j in number}
            for i in items
        ),
    )


@dataclass(frozen=True)
class _Outcome:
    """The best plan found (None: none within the cap); `exhausted`: proven that none is better."""

    best: tuple[int, ...] | None
    exhausted: bool
    work: int


def _solve_component(part: Packing, cap: int, goal: int, budget: int) -> _Outcome:
    """The least peak <= cap of one component; anything <= goal will do.

    Tries three branching orders, each with a share of the budget.
    """
    greedy = pack_greedily(part, goal)
    best = greedy.offsets if greedy.peak <= cap else None
    if best is not None and greedy.peak <= goal:
        return _Outcome(best, False, 0)
    work = len(part) ** 2
    if work > budget or len(part) > MOST_BUFFERS:
        return _Outcome(best, False, 0)
    cap = min(cap, greedy.peak - 1)
    exact = all(span == (0, 0) for partners in part.allowed for span in partners.values())
    budget = budget if exact else min(budget, UNPROVEN_BUDGET)
    neighbours = _neighbours(part)
    for ranks, share in zip(_branching_orders(part), (6, 3, 2), strict=True):
        search = _Search(part, neighbours, ranks, cap, goal, budget // share)
        ended = search.run()
        work += search.work
        if search.best is not None:
            best, cap = tuple(search.best), search.cap
        if ended:
            return _Outcome(best, exact and cap >= goal, work)
    return _Outcome(best, False, work)


def _neighbours(part: Packing) -> list[list[int]]:
    """For each buffer, those live together with it that it may never overlap."""
    spans = list(zip(part.firsts, part.lasts, strict=True))
    return [
        [
            j
            for j, (born, dies) in enumerate(spans)
            if born <= last and first <= dies and j != i and j not in part.allowed[i]
        ]
        for i, (first, last) in enumerate(spans)
    ]


def _branching_orders(packing: Packing) -> list[list[int]]:
    """Ranks of the buffers (least first) among candidates of equal offset."""
    sizes, firsts, lasts = packing.sizes, packing.firsts, packing.lasts
    keys = (
        [-s * (b - a + 1) for s, a, b in zip(sizes, firsts, lasts, strict=True)],
        [a - b for a, b in zip(firsts, lasts, strict=True)],
        [-s for s in sizes],
    )
    orders = []
    for key in keys:
        ranks = [0] * len(packing)
        for rank, (_, _, i) in enumerate(sorted(zip(key, firsts, range(len(key)), strict=True))):
            ranks[i] = rank
        orders.append(ranks)
    return orders


class _Search:
    """Depth-first search over canonical plans of one component.

    Invariants between nodes: `floor[b]` is the highest end of placed buffers that conflict with b
    and are not its partners; per section, `section_floor` is the highest placed end and
    `section_left` what unplaced buffers add to it at the least.
    """

    def __init__(
        self,
        packing: Packing,
        neighbours: list[list[int]],
        ranks: list[int],
        cap: int,
        goal: int,
        budget: int,
    ) -> None:
        count = len(packing)
        self.packing, self.neighbours, self.ranks = packing, neighbours, ranks
        self.cap, self.goal, self.budget = cap, goal, budget
        self.work = 0
        self.best: list[int] | None = None
        self.offset = [-1] * count
        self.floor = [0] * count
        self.unplaced = set(range(count))
        births = sorted(set(packing.firsts))
        self.spans = [
            range(bisect_left(births, first), bisect_right(births, last))
            for first, last in zip(packing.firsts, packing.lasts, strict=True)
        ]
        self.section_floor = [0] * len(births)
        self.section_left = [0] * len(births)
        for i, span in enumerate(self.spans):
            for section in span:
                self.section_left[section] += self._adds(i, section)
        self.cost = count + len(births)
        self.trail: list[tuple[int, list[tuple[int, int]], list[int]]] = []

    def _adds(self, i: int, section: int) -> int:
        """What i adds at least to the height of a section, however its partners lie."""
        own = adds = self.packing.sizes[i]
        for j, span in self.packing.allowed[i].items():
            if section in self.spans[j]:
                adds = min(adds, own - self.packing.sizes[j] if span == (0, 0) else 0)
        return max(0, adds)

    def run(self) -> bool:
        """True if the search ran to its end, so that nothing better than `best`/`cap` exists."""
        stack = [self._candidates(0, -1)]
        while stack:
            if self.work > self.budget:
                return False
            choice = next(stack[-1], None)
            if choice is None:
                stack.pop()
                if self.trail:
                    self._undo()
                continue
            item, offset = choice
            if not self._place(item, offset):
                self._undo()
            elif self.unplaced:
                stack.append(self._candidates(offset, item))
            else:
                self.best = list(self.offset)
                self.cap = self.packing.peak(self.best) - 1
                if self.cap < self.goal:
                    return True
                self._undo()
        return True

    def _candidates(self, least: int, after: int) -> Iterator[tuple[int, int]]:
        """(buffer, offset) to branch on: offsets >= `least`, at equal offsets indices > `after`."""
        allowed, sizes, aligns = self.packing.allowed, self.packing.sizes, self.packing.aligns
        candidates: list[tuple[int, int, int]] = []
        limit = self.cap + 1
        for b in self.unplaced:
            floor = self.floor[b]
            if aligns[b] > 1:
                floor = round_up(floor, aligns[b])
            if allowed[b]:
                candidates += [(o, self.ranks[b], b) for o in self._partner_offsets(b, least)]
                continue
            limit = min(limit, floor + sizes[b])
            if floor > least or (floor == least and b > after):
                candidates.append((floor, self.ranks[b], b))
        self.work += len(self.unplaced)
        candidates.sort()
        return iter([(b, offset) for offset, _, b in candidates if offset < limit])

    def _partner_offsets(self, b: int, least: int) -> list[int]:
        """Where b may go given its partners: clear of all, or as low as one of them allows."""
        align, size = self.packing.aligns[b], self.packing.sizes[b]
        base = self.floor[b]
        spans = []
        for j, (low, high) in self.packing.allowed[b].items():
            at = self.offset[j]
            if at >= 0:
                spans.append((at, at + self.packing.sizes[j], at - high, at - low))
        starts = {base, *(end for _, end, _, _ in spans), *(low for _, _, low, _ in spans)}
        offsets = {round_up(max(start, base, 0), align) for start in starts}
        return sorted(
            o
            for o in offsets
            if o >= least
            and all(o >= end or o + size <= at or low <= o <= high for at, end, low, high in spans)
        )

    def _place(self, item: int, offset: int) -> bool:
        """Place and propagate; False if the best peak is out of reach (undo all the same)."""
        end = offset + self.packing.sizes[item]
        span = self.spans[item]
        saved = self.section_floor[span.start : span.stop]
        raised: list[tuple[int, int]] = []
        self.trail.append((item, raised, saved))
        self.offset[item] = offset
        self.unplaced.discard(item)
        self.work += self.cost
        fits = end <= self.cap
        for b in self.neighbours[item]:
            if self.offset[b] < 0 and self.floor[b] < end:
                raised.append((b, self.floor[b]))
                self.floor[b] = end
                fits = fits and end + self.packing.sizes[b] <= self.cap
        for section in span:
            self.section_floor[section] = max(self.section_floor[section], end)
            self.section_left[section] -= self._adds(item, section)
        return fits and self._sections_fit(offset)

    def _sections_fit(self, least: int) -> bool:
        cap = self.cap
        for floor, left in zip(self.section_floor, self.section_left, strict=True):
            if left and (floor if floor > least else least) + left > cap:
                return False
        return True

    def _undo(self) -> None:
        item, raised, saved = self.trail.pop()
        for b, floor in raised:
            self.floor[b] = floor
        span = self.spans[item]
        self.section_floor[span.start : span.stop] = saved
        for section in span:
            self.section_left[section] += self._adds(item, section)
        self.offset[item] = -1
        self.unplaced.add(item)
