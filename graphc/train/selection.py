"""Which of the values that are kept to compute again, so that so many bytes are free, for few
operations.

A dropped value is computed from its sources, those of them that are dropped from theirs, and so on:
its chain. The cost of a choice is the work of the chains of all its values, each counted by itself:
values in a row are thus dear, which would lie in memory together while they are computed again.

The cost only grows with a choice, by at least the own work of what is added. So a choice that holds
some values and not others costs at least what those cost that it holds, and, for the bytes that are
still wanted, the work of the cheapest parts of those it may hold: a bound for branch and bound,
which here takes the choice with the least bound next (Land and Doig, 1960). It starts from what is
taken one by one, the cheapest for its bytes first, and ends after a number of choices. How much
dearer than the best what is found then may be is known from the bound.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from graphc.memplan.steps import bits

WORK = 400_000  # chains that are computed, at most, in the search


@dataclass(frozen=True)
class Candidate:
    """A value that may be dropped: the bytes that this frees, the operations that compute it from
    its sources, and those of these that are candidates, by number; they come before it."""

    nbytes: int
    work: int
    sources: tuple[int, ...] = ()


@dataclass(frozen=True)
class Selection:
    """The numbers of the values that are dropped, their cost, and what no choice that frees as much
    costs less than."""

    chosen: tuple[int, ...]
    cost: int
    bound: int


def cost(candidates: Sequence[Candidate], chosen: int) -> int:
    """What a choice costs, given as the ones of a number."""
    total = 0
    chains: dict[int, int] = {}
    works: dict[int, int] = {}
    for number in bits(chosen):
        chain, given = 1 << number, [s for s in candidates[number].sources if s in chains]
        work = candidates[number].work
        for source in given:
            work += works[source]
            if chain & chains[source]:
                work -= sum(candidates[n].work for n in bits(chain & chains[source]))
            chain |= chains[source]
        chains[number], works[number] = chain, work
        total += work
    return total


def selected(candidates: Sequence[Candidate], wanted: int, work: int = WORK) -> Selection:
    """The choice that frees at least the bytes that are wanted, or all there are."""
    wanted = min(wanted, sum(c.nbytes for c in candidates))
    order = sorted(range(len(candidates)), key=lambda n: _ratio(candidates[n]))
    best = _one_by_one(candidates, wanted)
    least = cost(candidates, best)
    root = _fractional(candidates, order, wanted) or 0
    queue = [(root, 0, 0, 0, 0)]  # bound, minus bytes, place in the order, chosen, cost
    while queue and work > 0:
        bound, freed, place, chosen, _ = queue[0]
        if bound >= least:
            break
        heapq.heappop(queue)
        if -freed >= wanted:
            best, least = chosen, bound
            continue
        if place == len(order):
            continue
        number = order[place]
        for taken in (chosen | 1 << number, chosen):
            price = cost(candidates, taken)
            work -= max(taken.bit_count(), 1)
            more = freed - candidates[number].nbytes * (taken != chosen)
            rest = _fractional(candidates, order[place + 1 :], wanted + more)
            if rest is not None and price + rest < least:
                heapq.heappush(queue, (price + rest, more, place + 1, taken, price))
    proven = min([least, *(entry[0] for entry in queue[:1])])
    return Selection(tuple(bits(best)), least, proven)


def _one_by_one(candidates: Sequence[Candidate], wanted: int) -> int:
    """A choice made of what is cheapest for its bytes, given what was taken before."""
    chosen = freed = now = 0
    queue = [(_ratio(c), n) for n, c in enumerate(candidates)]
    heapq.heapify(queue)
    while freed < wanted and queue:
        _, number = heapq.heappop(queue)
        price = cost(candidates, chosen | 1 << number)
        ratio = (price - now) / max(candidates[number].nbytes, 1)
        if queue and ratio > queue[0][0]:  # it has become dearer
            heapq.heappush(queue, (ratio, number))
            continue
        chosen, freed, now = chosen | 1 << number, freed + candidates[number].nbytes, price
    return _without_spare(candidates, chosen, freed - wanted)


def _without_spare(candidates: Sequence[Candidate], chosen: int, spare: int) -> int:
    """A choice less what it frees for nothing, the dearest first."""
    for number in sorted(bits(chosen), key=lambda n: (-candidates[n].work, n)):
        if candidates[number].nbytes <= spare:
            chosen &= ~(1 << number)
            spare -= candidates[number].nbytes
    return chosen


def _fractional(candidates: Sequence[Candidate], order: Sequence[int], wanted: int) -> int | None:
    """The least work, rounded down, that frees bytes where parts of values may be dropped (Dantzig,
    1957); None if there are not as many bytes. The order is that of work for each byte."""
    total = 0
    for number in order:
        if wanted <= 0:
            return total
        candidate = candidates[number]
        if candidate.nbytes >= wanted:
            return total + candidate.work * wanted // candidate.nbytes
        total += candidate.work
        wanted -= candidate.nbytes
    return total if wanted <= 0 else None


def _ratio(candidate: Candidate) -> float:
    return candidate.work / max(candidate.nbytes, 1)
