"""Offsets by greedy packing: several deterministic orders, the best plan kept.

Invariant: after each placement the placed buffers form a valid plan; a buffer is never moved within
a pass.  Algorithm: take the buffers in some order and put each at an offset that no placed buffer,
live at the same time, forbids: the lowest one (first fit), or the tightest gap (best fit).

The orders follow Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference"
(2020; by size, by breadth), Sekiyama, Imai, Negishi, "Profile-guided memory optimization for deep
neural networks" (2018; longest lifetime first), and the by-conflicts order of TVM's memory planner.
What stays above the bound is then squeezed: buffers that reach the peak move ahead in the order, as
in the hill-climbing allocator of Arm's Vela compiler.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate

from graphc.memplan.packing import Packing, live_bound, round_up
from graphc.records import dataclass

ORDER_WORK = 5_000_000
"""Pairs of buffers live together that all orders of one pool may compare; one order is tried."""

SQUEEZE_WORK = 10_000_000
"""Placed-against-placed comparisons that all squeezing passes of one pool may take."""

MOST_ROUNDS = 500
"""Squeezing passes at most, however small the pool."""

FEW = 256
"""Buffers up to which all placed ones are looked at for every other."""

FRONT_ROUNDS = 32
"""Squeezing passes that move everything at the peak to the front of the order."""


@dataclass(frozen=True)
class Packed:
    """Offsets in granules, the peak they reach, and what found them."""

    offsets: tuple[int, ...]
    peak: int
    method: str


Span = tuple[int, int, int, int, int]
"""A placed buffer: (offset, end, first step, last step, index)."""

_Boxes = dict[int, list[Span]]


def pack_greedily(packing: Packing, bound: int | None = None) -> Packed:
    """The best greedy plan.  Stops early at `bound` granules (default: the live-bytes bound)."""
    bound = live_bound(packing) if bound is None else bound
    best: Packed | None = None
    best_order: list[int] = []
    meetings, work = _meetings(packing), 0
    for name, order in _orders(packing):
        for fit in ("first", "best"):
            limit = math.inf if best is None else best.peak
            offsets = place_below(packing, order, limit, best_fit=fit == "best")
            if offsets is not None:
                best = Packed(offsets, packing.peak(offsets), f"{fit} fit by {name}")
                best_order = order
            work += meetings
            if best is not None and (best.peak <= bound or work > ORDER_WORK):
                return best
    assert best is not None
    return _squeeze(packing, best, best_order, bound)


def _orders(packing: Packing) -> Iterator[tuple[str, list[int]]]:
    """The orders to try, most promising first.  Ties break by birth, then by index."""
    sizes, firsts, lasts = packing.sizes, packing.firsts, packing.lasts

    def ordered(key: Callable[[int], tuple[int, ...]]) -> list[int]:
        return sorted(range(len(packing)), key=lambda i: (*key(i), firsts[i], i))

    yield "size", ordered(lambda i: (-sizes[i], firsts[i] - lasts[i]))
    yield "lifetime", ordered(lambda i: (firsts[i] - lasts[i], -sizes[i]))
    yield "area", ordered(lambda i: (sizes[i] * (firsts[i] - lasts[i] - 1),))
    breadth = _breadths(packing)
    yield "breadth", ordered(lambda i: (-breadth[i], -sizes[i]))
    weight = _conflicts(packing)
    yield "conflicts", ordered(lambda i: (-weight[i], -sizes[i]))
    yield "birth", ordered(lambda i: (firsts[i], -sizes[i]))


def _meetings(packing: Packing) -> int:
    """How many pairs of buffers are ever live together, at most; each counts twice."""
    firsts, lasts = sorted(packing.firsts), sorted(packing.lasts)
    return sum(
        bisect_right(firsts, last) - bisect_left(lasts, first)
        for first, last in zip(packing.firsts, packing.lasts, strict=True)
    )


def _breadths(packing: Packing) -> list[int]:
    """For each buffer, the most granules live at any step of its life in which a buffer is born."""
    steps = sorted(set(packing.firsts))
    live = [0] * (len(steps) + 1)
    for size, first, last in zip(packing.sizes, packing.firsts, packing.lasts, strict=True):
        live[bisect_left(steps, first)] += size
        live[bisect_right(steps, last)] -= size
    for at in range(1, len(live)):
        live[at] += live[at - 1]
    return [
        max(live[bisect_left(steps, first) : bisect_right(steps, last)])
        for first, last in zip(packing.firsts, packing.lasts, strict=True)
    ]


def _conflicts(packing: Packing) -> list[int]:
    """For each buffer, the granules of all buffers ever live together with it, its own included."""
    by_first = sorted(zip(packing.firsts, packing.sizes, strict=True))
    by_last = sorted(zip(packing.lasts, packing.sizes, strict=True))
    born = list(accumulate((size for _, size in by_first), initial=0))
    dead = list(accumulate((size for _, size in by_last), initial=0))
    return [
        born[bisect_left(by_first, (last + 1, 0))] - dead[bisect_left(by_last, (first, 0))]
        for first, last in zip(packing.firsts, packing.lasts, strict=True)
    ]


def place_in_order(
    packing: Packing, order: list[int], *, best_fit: bool = False
) -> tuple[int, ...]:
    """Place the buffers one by one; returns the offset of each in granules."""
    offsets = place_below(packing, order, math.inf, best_fit=best_fit)
    assert offsets is not None
    return offsets


def place_below(
    packing: Packing, order: list[int], limit: float, *, best_fit: bool = False
) -> tuple[int, ...] | None:
    """As `place_in_order`, but None as soon as a buffer does not end below so many granules."""
    offsets = [0] * len(packing)
    placed = _Placed() if len(packing) > FEW else _FewPlaced()
    for i in order:
        met = placed.met(packing.firsts[i], packing.lasts[i])
        if packing.allowed[i]:
            offset = _place_with_allowances(packing, met, i)
        else:
            offset = _fit(packing, met, i, best_fit)
        end = offset + packing.sizes[i]
        if end >= limit:
            return None
        offsets[i] = offset
        placed.add((offset, end, packing.firsts[i], packing.lasts[i], i))
    return tuple(offsets)


class _FewPlaced:
    """Placed buffers by offset."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def add(self, span: Span) -> None:
        insort(self.spans, span)

    def met(self, born: int, dies: int) -> Iterable[Span]:
        """What is placed, by offset; those who ask leave out what is not live from `born` to
        `dies`."""
        return self.spans


class _Placed(_FewPlaced):
    """Placed buffers, found by when they live.

    A buffer that lives for less than 2**n steps is on level n, whose boxes are of 2**n steps each:
    in the box that it is born in, and with those that `came` into the next if it dies there. So
    what meets a short life is in a few boxes, of however many buffers.
    """

    def __init__(self) -> None:
        self.levels: dict[int, tuple[_Boxes, _Boxes]] = {}

    def add(self, span: Span) -> None:
        _, _, first, last, _ = span
        level = (last - first).bit_length()
        born, came = self.levels.setdefault(level, ({}, {}))
        insort(born.setdefault(first >> level, []), span)
        if last >> level != first >> level:
            insort(came.setdefault(last >> level, []), span)

    def met(self, born: int, dies: int) -> Iterable[Span]:
        """What is placed and live at a step from `born` to `dies`, by offset."""
        spans_met: list[Span] = []
        for level, (starting, came) in self.levels.items():
            first, last = born >> level, dies >> level
            for spans in (came.get(first, ()), starting.get(first, ())):
                spans_met += [span for span in spans if span[3] >= born and span[2] <= dies]
            between: Iterable[int] = range(first + 1, last)
            if last - first > len(starting):
                between = [number for number in starting if first < number < last]
            for number in between:
                spans_met += starting.get(number, ())
            if last != first:
                spans_met += [span for span in starting.get(last, ()) if span[2] <= dies]
        spans_met.sort()  # of a few runs that are in order
        return spans_met


def _fit(packing: Packing, placed: Iterable[Span], i: int, best: bool) -> int:
    """The lowest free offset for i (first fit), or `best`: the one in the smallest gap that holds
    it, else on top of everything live with it. `placed` is sorted by offset."""
    size, align = packing.sizes[i], packing.aligns[i]
    born, dies = packing.firsts[i], packing.lasts[i]
    floor, best_gap, best_at = 0, -1, -1
    for offset, end, first, last, _ in placed:
        if first <= dies and born <= last:
            gap = offset - floor
            if gap >= size:
                if not best:
                    return floor
                if best_gap < 0 or gap < best_gap:
                    best_gap, best_at = gap, floor
            if end > floor:
                floor = end if align == 1 else round_up(end, align)
    return floor if best_gap < 0 else best_at


def _place_with_allowances(packing: Packing, placed: Iterable[Span], i: int) -> int:
    """The lowest offset outside every open range a placed buffer forbids to i."""
    size, align = packing.sizes[i], packing.aligns[i]
    forbidden: list[tuple[int, int]] = []
    for offset, end, first, last, j in placed:
        if first <= packing.lasts[i] and packing.firsts[i] <= last:
            start = offset - size + 1
            if j in packing.allowed[i]:
                low, high = packing.allowed[j][i]
                forbidden.append((start, min(end, offset + low)))
                forbidden.append((max(start, offset + high + 1), end))
            else:
                forbidden.append((start, end))
    at = 0
    for start, stop in sorted(forbidden):
        if start <= at < stop:
            at = round_up(stop, align)
    return at


def _squeeze(packing: Packing, best: Packed, order: list[int], bound: int) -> Packed:
    """Improve the order: first all that reach the peak go to its front, then hill climbing.

    The number of rounds depends on the number of buffers alone.
    """
    rounds = min(MOST_ROUNDS, SQUEEZE_WORK // (len(packing) ** 2 + 1))
    offsets = best.offsets
    for _ in range(min(FRONT_ROUNDS, rounds // 2)):
        peak = packing.peak(offsets)
        top = {i for i in order if offsets[i] + packing.sizes[i] == peak}
        order = sorted(order, key=lambda i: i not in top)
        offsets = place_in_order(packing, order)
        if packing.peak(offsets) < best.peak:
            best = Packed(offsets, packing.peak(offsets), "first fit, squeezed")
        if best.peak <= bound:
            return best
    order = sorted(order, key=lambda i: (best.offsets[i], i))
    return _climb(packing, best, order, bound, rounds - min(FRONT_ROUNDS, rounds // 2))


def _climb(packing: Packing, best: Packed, order: list[int], bound: int, rounds: int) -> Packed:
    """A buffer at the peak goes ahead of one it conflicts with; kept unless the peak rises.

    Pseudo-random with a fixed seed.
    """
    dice = random.Random(0)
    offsets = place_in_order(packing, order)
    peak = packing.peak(offsets)
    for _ in range(rounds):
        if peak < best.peak:
            best = Packed(offsets, peak, "first fit, hill climbing")
        top = dice.choice([i for i in order if offsets[i] + packing.sizes[i] == peak])
        ahead = [i for i in order[: order.index(top)] if packing.conflict(i, top)]
        if best.peak <= bound or not ahead:
            break
        trial = [i for i in order if i != top]
        trial.insert(trial.index(dice.choice(ahead)), top)
        placed = place_below(packing, trial, peak + 1)
        if placed is not None:
            order, offsets, peak = trial, placed, packing.peak(placed)
    return best if best.peak <= peak else Packed(offsets, peak, "first fit, hill climbing")
