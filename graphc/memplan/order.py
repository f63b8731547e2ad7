"""An execution order of a DAG of steps that keeps the peak of live bytes low.

The given order stays unless a strictly better one is found; what the search improves is only the
segments that need it.  Everything is deterministic: budgets count `advance` evaluations.

1. *Segments.*  A step comparable with every other one (all the rest come before or after it)
   splits the DAG; the state there does not depend on the order, so segments are solved one by
   one.
2. *Exact.*  Minimax best-first search over states (sets of executed steps), as in Ahn et al.,
   "Ordering Chaos: Memory-Aware Scheduling of Irregularly Wired Neural Networks for Edge Devices"
   (MLSys 2020), which does dynamic programming over the same states.
3. *Safe moves.*  A ready step that fits under the peak reached so far and does not raise the
   bytes live after it can run at once: moved to the front of any completion it never raises
   anything, since running more steps first only makes its own balance (bytes born less bytes
   freed) smaller.
4. *Beam and windows.*  Where the exact search runs out of budget, a beam search over the same
   states (width 1 is greedy list scheduling), then exact search over sliding windows of its
   result.
5. *Early and late.*  Where nothing is proven, an order that frees memory early is tried as well,
   and of the best one, steps whose results are live at the peak but not needed there are put off.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

from graphc.memplan.problem import Request, Step
from graphc.memplan.steps import StepGraph, bits, step_graph
from graphc.records import dataclass

DEFAULT_BUDGET = 200_000
"""Evaluations of one step in one state, over the whole search; about a second of Python."""

MOST_STEPS = 3000
"""Steps of a schedule that is worth the search: sets of steps are integers of so many bits."""

GREEDY_WORK = 100_000
"""Evaluations of the beam beyond the budget, which the narrowest one may need."""

AHEAD = 24
"""Steps that run at once to free memory."""

LATE_WORK = 100_000
"""Evaluations spent on putting off steps whose results are not needed where the peak is."""

LARGEST = 8
"""Results at the peak whose steps are tried."""

WINDOW = 14
"""Steps in a window of the local improvement."""


@dataclass(frozen=True)
class Ordering:
    """`order`: indices of the given steps; peaks in bytes, summed over pools, before and after.

    `optimal`: no valid order has a lower peak of live bytes.
    """

    order: tuple[int, ...]
    peak: int
    given_peak: int
    optimal: bool


@dataclass(frozen=True)
class _Path:
    """A way through a segment, its peak, and whether it is proven best (or good enough)."""

    order: tuple[int, ...]
    peak: int
    proven: bool


class _Budget:
    """What is left of the evaluations."""

    def __init__(self, left: int) -> None:
        self.left = left


def best_order(
    steps: Sequence[Step], requests: Sequence[Request], budget: int = DEFAULT_BUDGET
) -> Ordering:
    """Order the steps; the given order must be valid and is the one to beat."""
    graph = step_graph(steps, requests)
    given = tuple(range(len(graph)))
    given_peak = graph.peak_of(given)
    floor = graph.floor()
    if given_peak <= floor:
        return Ordering(given, given_peak, given_peak, True)
    allowance = _Budget(budget)
    paths, originals = [], []
    done, live = 0, graph.base
    segments = _segments(graph)
    for count, segment in enumerate(segments):
        original = _Path(segment, graph.peak_of(segment, done, live), False)
        share = _Budget(allowance.left // (len(segments) - count))
        before = share.left
        paths.append(_solve_segment(graph, original, done, live, floor, share))
        originals.append(original)
        allowance.left -= before - max(0, share.left)
        done, live = _run(graph, segment, done, live)
    peak = max(path.peak for path in paths)
    kept = [o if o.peak <= peak else p for o, p in zip(originals, paths, strict=True)]
    order = tuple(step for path in kept for step in path.order)
    if not all(path.proven for path in paths):
        early = min(given, order, _freeing_first(graph), key=graph.peak_of)
        late = _late(graph, early)
        lowest = graph.peak_of(late)
        return Ordering(late, lowest, given_peak, lowest <= floor)
    if peak >= given_peak:
        optimal = any(p.proven and p.peak >= given_peak for p in paths)
        return Ordering(given, given_peak, given_peak, optimal)
    optimal = peak <= floor or any(p.proven and p.peak == peak for p in paths)
    return Ordering(order, peak, given_peak, optimal)


def _freeing_first(graph: StepGraph) -> tuple[int, ...]:
    """The given order, but memory is freed early: once a step has run, those that still touch its
    roots, or those of steps that wait for it, run at once, with what they wait for, if they are
    `AHEAD` at most and less memory is live after them."""
    earlier = [0] * len(graph)
    for step in range(len(graph)):
        for other in bits(graph.before[step]):
            earlier[step] |= earlier[other] | (1 << other)
    order: list[int] = []
    done, live = 0, graph.base
    for given in range(len(graph)):
        chain = [] if done >> given & 1 else [given]
        while chain:
            order += chain
            done, live = _run(graph, chain, done, live)
            near = [*chain, *(later for step in chain for later in bits(graph.after[step] & ~done))]
            roots = dict.fromkeys(root for step in near for root in graph.touched[step])
            chains = (_ending(graph, root, earlier, done, live) for root in roots)
            chain = next(filter(None, chains), [])
    return tuple(order)


def _late(graph: StepGraph, order: Sequence[int]) -> tuple[int, ...]:
    """The order, but what lives at the peak and is not needed there is computed after it, just
    before it is first read, as long as that lowers the peak."""
    best, peak = list(order), graph.peak_of(order)
    for _ in range(LATE_WORK // (LARGEST * len(graph))):
        moved = next(_later(graph, best, peak), None)
        if moved is None:
            break
        best, peak = moved, graph.peak_of(moved)
    return tuple(best)


def _later(graph: StepGraph, order: list[int], peak: int) -> Iterator[list[int]]:
    """Orders of a lower peak in which one of the steps before the peak, of those with the largest
    results, runs right before the first that needs it, or at the end."""
    place = {step: n for n, step in enumerate(order)}
    done, live = 0, graph.base
    for step in order:
        during, live = graph.advance(done, live, step)
        if during == peak:
            break
        done |= 1 << step
    top, at_peak = done.bit_count(), set(graph.touched[step])
    alive = [
        root for root, users in enumerate(graph.users)
        if users & done and (users & ~done or graph.late[root]) and root not in at_peak
        and not graph.early[root]
    ]  # fmt: skip
    alive.sort(key=lambda root: -graph.sizes[root])
    for root in alive[:LARGEST]:
        made = min(bits(graph.users[root]), key=place.__getitem__)
        behind = [place[step] for step in bits(graph.after[made])]
        until = min(behind, default=len(order))
        if until <= top:
            continue
        first = place[made]
        other = [*order[:first], *order[first + 1 : until], made, *order[until:]]
        if graph.peak_of(other) < peak:
            yield other


def _ending(graph: StepGraph, root: int, earlier: Sequence[int], done: int, live: int) -> list[int]:
    """The few steps after which a root is free, if less memory is live then; else none."""
    users = graph.users[root] & ~done
    if graph.late[root] or users == graph.users[root] or users.bit_count() > AHEAD:
        return []
    mask = users
    for step in bits(users):
        mask |= earlier[step] & ~done
    chain = bits(mask)
    if len(chain) > AHEAD or _run(graph, chain, done, live)[1] >= live:
        return []
    return chain


def _run(graph: StepGraph, order: Sequence[int], done: int, live: int) -> tuple[int, int]:
    for step in order:
        live = graph.advance(done, live, step)[1]
        done |= 1 << step
    return done, live


def _segments(graph: StepGraph) -> list[tuple[int, ...]]:
    """The given order cut before and after every step comparable with all others."""
    count = len(graph)
    above, below = [0] * count, [0] * count
    for step in range(count):
        for earlier in bits(graph.before[step]):
            above[step] |= above[earlier] | (1 << earlier)
    for step in reversed(range(count)):
        for later in bits(graph.after[step]):
            below[step] |= below[later] | (1 << later)
    segments: list[list[int]] = [[]]
    for step in range(count):
        if (above[step] | below[step]).bit_count() == count - 1:
            segments += [[step], []]
        else:
            segments[-1].append(step)
    return [tuple(segment) for segment in segments if segment]


def _solve_segment(
    graph: StepGraph, given: _Path, done: int, live: int, floor: int, budget: _Budget
) -> _Path:
    """The best order found for the steps of `given`, starting in state (done, live)."""
    if given.peak <= floor or len(given.order) == 1:
        return _Path(given.order, given.peak, True)
    exact = _Budget(budget.left // 2)
    budget.left -= exact.left
    optimum = _search(graph, given.order, done, live, floor, exact)
    budget.left += max(0, exact.left)
    if optimum is not None:
        return optimum if optimum.peak < given.peak else _Path(given.order, given.peak, True)
    best = min(given, _beam(graph, given.order, done, live, floor, budget), key=lambda p: p.peak)
    return _improve(graph, best, done, live, floor, budget)


State = tuple[int, int, int, int]
"""(peak so far, executed steps, live bytes, ready steps)."""


def _ready(graph: StepGraph, todo: int, done: int) -> int:
    """Mask of the steps of `todo` whose predecessors have all run."""
    return sum(1 << step for step in bits(todo & ~done) if not graph.before[step] & ~done)


def _after(graph: StepGraph, todo: int, state: State, step: int, peak: int, live: int) -> State:
    done = state[1] | (1 << step)
    ready = state[3] & ~(1 << step)
    for later in bits(graph.after[step] & todo):
        if not graph.before[later] & ~done:
            ready |= 1 << later
    return peak, done, live, ready


def _close(
    graph: StepGraph, todo: int, state: State, budget: _Budget
) -> tuple[State, tuple[int, ...]]:
    """Run safe moves until there is none; returns the state reached and the steps run."""
    taken: list[int] = []
    moved = True
    while moved:
        moved = False
        for step in bits(state[3]):
            budget.left -= 1
            during, live = graph.advance(state[1], state[2], step)
            if during <= state[0] and live <= state[2]:
                state = _after(graph, todo, state, step, state[0], live)
                taken.append(step)
                moved = True
                break
    return state, tuple(taken)


def _search(
    graph: StepGraph,
    given: Sequence[int],
    done: int,
    live: int,
    floor: int,
    budget: _Budget,
) -> _Path | None:
    """The order of `given` with the least peak (counting anything <= floor as floor), or None.

    States leave the queue by peak, then deepest first; the first complete one is the best.
    """
    todo = sum(1 << step for step in given)
    start, taken = _close(graph, todo, (floor, done, live, _ready(graph, todo, done)), budget)
    came: dict[int, tuple[int, tuple[int, ...]]] = {start[1]: (-1, taken)}
    known = {start[1]: start[0]}
    queue = [(start[0], -start[1].bit_count(), 0, start)]
    pushed = 1
    while queue and budget.left > 0:
        peak, _, _, state = heapq.heappop(queue)
        if peak > known[state[1]]:
            continue
        if not state[3]:
            return _Path(_trace(came, state[1]), peak, True)
        for step in bits(state[3]):
            budget.left -= 1
            during, after = graph.advance(state[1], state[2], step)
            follower = _after(graph, todo, state, step, max(peak, during), after)
            follower, taken = _close(graph, todo, follower, budget)
            if follower[0] < known.get(follower[1], follower[0] + 1):
                known[follower[1]] = follower[0]
                came[follower[1]] = (state[1], (step, *taken))
                heapq.heappush(queue, (follower[0], -follower[1].bit_count(), pushed, follower))
                pushed += 1
    return None


def _trace(came: dict[int, tuple[int, tuple[int, ...]]], done: int) -> tuple[int, ...]:
    parts: list[tuple[int, ...]] = []
    while done != -1:
        done, part = came[done]
        parts.append(part)
    return tuple(step for part in reversed(parts) for step in part)


def _beam(
    graph: StepGraph, given: Sequence[int], done: int, live: int, floor: int, budget: _Budget
) -> _Path:
    """Beam search; the width follows from the budget and is at least 1 (greedy list scheduling).

    `given` if even that takes too long.
    """
    todo = sum(1 << step for step in given)
    width = max(1, min(64, budget.left // (16 * len(given))))
    start, taken = _close(graph, todo, (floor, done, live, _ready(graph, todo, done)), budget)
    beam: list[tuple[State, tuple[int, ...]]] = [(start, taken)]
    least = min(0, budget.left) - GREEDY_WORK
    while any(state[3] for state, _ in beam):
        if budget.left < least:
            return _Path(tuple(given), graph.peak_of(given, done, live), False)
        best: dict[int, tuple[State, tuple[int, ...]]] = {}
        for state, path in beam:
            for step in bits(state[3]):
                budget.left -= 1
                during, after = graph.advance(state[1], state[2], step)
                follower = _after(graph, todo, state, step, max(state[0], during), after)
                follower, taken = _close(graph, todo, follower, budget)
                if follower[1] not in best or follower[0] < best[follower[1]][0][0]:
                    best[follower[1]] = (follower, (*path, step, *taken))
            if not state[3]:
                best.setdefault(state[1], (state, path))
        beam = sorted(best.values(), key=lambda entry: (entry[0][0], entry[0][2], entry[1]))[:width]
    state, path = beam[0]
    return _Path(path, state[0], False)


def _improve(
    graph: StepGraph, path: _Path, done: int, live: int, floor: int, budget: _Budget
) -> _Path:
    """Re-order windows of the path exactly, at most two sweeps, while the budget lasts."""
    order = list(path.order)
    for shift in (0, WINDOW // 4):
        at_done, at_live, at = done, live, 0
        for begin in range(shift, len(order), WINDOW // 2):
            at_done, at_live = _run(graph, order[at:begin], at_done, at_live)
            at = begin
            window = order[begin : begin + WINDOW]
            now = graph.peak_of(window, at_done, at_live)
            if now > floor and budget.left > 0:
                better = _search(graph, window, at_done, at_live, floor, budget)
                if better is not None and better.peak < now:
                    order[begin : begin + WINDOW] = better.order
    return _Path(tuple(order), max(floor, graph.peak_of(order, done, live)), False)
