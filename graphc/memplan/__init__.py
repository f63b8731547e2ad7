"""Memory planning: where every buffer lies, in which order steps run, and how good that provably
is.

Knows nothing of graphs.  `plan(problem)` places buffers whose lifetimes are known;
`plan_steps(steps, requests)` goes from a schedule through order, lifetimes, views and in-place
merges to offsets. `validate` and `validate_steps` judge any plan and share no code with the
planners: run them on every plan.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphc.memplan import exact, order
from graphc.memplan.greedy import Packed, pack_greedily
from graphc.memplan.liveness import Layout, layout_of
from graphc.memplan.order import Ordering, best_order
from graphc.memplan.packing import live_bound, packing_of
from graphc.memplan.problem import (
    Buffer,
    Overlap,
    Plan,
    Problem,
    ProblemError,
    Request,
    Step,
)
from graphc.memplan.validate import PlanError, validate, validate_steps

__all__ = [
    "Buffer",
    "Layout",
    "Ordering",
    "Overlap",
    "Packed",
    "Plan",
    "PlanError",
    "Problem",
    "ProblemError",
    "Request",
    "Step",
    "best_order",
    "layout_of",
    "plan",
    "plan_steps",
    "validate",
    "validate_steps",
]


def plan(problem: Problem, *, budget: int = exact.DEFAULT_BUDGET) -> Plan:
    """Offsets for every buffer: greedy, then exact search (`budget` work units per pool, 0: none).

    Deterministic.  The caller validates.
    """
    offsets: dict[str, int] = {b.name: 0 for b in problem.buffers}
    peaks: dict[str, int] = {}
    bounds: dict[str, int] = {}
    notes: list[str] = []
    for pool in problem.pools():
        packing = packing_of(problem, pool)
        bound = live_bound(packing)
        solved = exact.solve(packing, pack_greedily(packing, bound), bound, budget)
        for name, offset in zip(packing.names, solved.packed.offsets, strict=True):
            offsets[name] = offset * packing.granule
        peaks[pool] = solved.packed.peak * packing.granule
        bounds[pool] = solved.bound * packing.granule
        notes.append(
            f"{pool}: {peaks[pool]} bytes, at least {bounds[pool]}; {solved.packed.method}: "
            f"{solved.note}"
        )
    return Plan(offsets, peaks, bounds, notes=tuple(notes))


def plan_steps(
    steps: Sequence[Step],
    requests: Sequence[Request],
    *,
    reorder: bool = False,
    in_place: bool = True,
    budget: int = exact.DEFAULT_BUDGET,
    order_budget: int = order.DEFAULT_BUDGET,
) -> Plan:
    """Offsets for every request (views too) and the execution order in `Plan.order`.

    `reorder`: search for an order with a lower peak of live bytes; the given order, which must be
    valid, stays unless a better one is found.  Schedules of many steps keep theirs.
    `in_place`: use `Step.inplace`.  The lower bounds hold for the order chosen.  Raises
    `ProblemError` for reads before writes and the like.
    """
    chosen, notes = tuple(range(len(steps))), []
    if reorder and len(steps) > order.MOST_STEPS:
        notes.append(f"order: kept, as {len(steps)} steps are more than {order.MOST_STEPS}")
    elif reorder:
        ordering = best_order(steps, requests, order_budget)
        chosen = ordering.order
        proof = "proven optimal" if ordering.optimal else "not proven optimal"
        notes.append(f"order: {ordering.given_peak} -> {ordering.peak} live bytes, {proof}")
    layout = layout_of([steps[i] for i in chosen], requests, in_place=in_place)
    placed = plan(layout.problem, budget=budget)
    offsets = {name: placed.offsets[buffer] + at for name, (buffer, at) in layout.places.items()}
    return Plan(offsets, placed.peaks, placed.lower_bounds, chosen, (*notes, *placed.notes))
