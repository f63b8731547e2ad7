"""Judge of memory plans.  Shares no code with the planners: only the data classes of
`problem.py`.

`validate(problem, plan)` judges a plan for buffers with given lifetimes.  `validate_steps(steps,
requests, plan)` starts from the schedule itself and derives order, lifetimes, views and in-place
permissions again on its own.

A plan is valid if

1. every buffer is placed, at a non-negative multiple of its alignment, and ends below its pool's
   peak;
2. any two non-empty buffers of a pool that are live in a common step share no byte, unless an
   allowance covers exactly this pair at exactly this distance (and, for in-place and for overlaps
   of a step, at this step);
3. for schedules: the order is a permutation that keeps every read after the write it needs, and
   views lie at their byte offset inside their root;
4. no peak is below its claimed lower bound.

The sweep visits buffers by birth and keeps the live ones: time O(n * live at once).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from graphc.memplan.problem import Overlap, Plan, Problem, Request, Step
from graphc.records import dataclass


class PlanError(ValueError):
    """The plan breaks a rule.  The message names the buffers, their byte ranges and their steps."""


@dataclass(frozen=True, slots=True)
class _Placed:
    name: str
    pool: str
    start: int
    stop: int
    first: int
    last: int

    def __str__(self) -> str:
        return f'"{self.name}" bytes [{self.start}, {self.stop}) live in {self.first}..{self.last}'


def validate(problem: Problem, plan: Plan) -> None:
    """Raise `PlanError` unless `plan` is valid for `problem`."""
    _check_names((b.name for b in problem.buffers), plan)
    placed = []
    for b in problem.buffers:
        start = plan.offsets[b.name]
        _check_bounds(plan, b.name, b.pool, start, b.size, b.align)
        placed.append(_Placed(b.name, b.pool, start, start + b.size, b.first, b.last))
    allowances: dict[tuple[str, str], list[Overlap]] = {}
    for overlap in problem.overlaps:
        allowances.setdefault((overlap.a, overlap.b), []).append(overlap)

    def covered(one: _Placed, two: _Placed) -> bool:
        for a, b in ((one, two), (two, one)):
            for overlap in allowances.get((a.name, b.name), ()):
                if overlap.low <= b.start - a.start <= overlap.high:
                    return True
        return False

    _sweep(placed, covered)
    _check_peaks(plan)


def _check_names(names: Iterable[str], plan: Plan) -> None:
    wanted = list(names)
    for name in wanted:
        if name not in plan.offsets:
            raise PlanError(f'"{name}" is not placed')
    strange = set(plan.offsets) - set(wanted)
    if strange:
        raise PlanError(f'the plan places "{min(strange)}", which nobody asked for')


def _check_bounds(plan: Plan, name: str, pool: str, start: int, size: int, align: int) -> None:
    peak = plan.peaks.get(pool)
    if peak is None:
        raise PlanError(f'"{name}": the plan has no pool "{pool}"')
    if start < 0 or start + size > peak:
        raise PlanError(
            f'"{name}" bytes [{start}, {start + size}) leave pool "{pool}", which has {peak}'
        )
    if start % align:
        raise PlanError(f'"{name}" at byte {start} is not aligned to {align}')


def _check_peaks(plan: Plan) -> None:
    for pool, peak in plan.peaks.items():
        bound = plan.lower_bounds.get(pool, 0)
        if bound > peak:
            raise PlanError(f'pool "{pool}": peak {peak} is below the claimed lower bound {bound}')


def _sweep(placed: Sequence[_Placed], covered: Callable[[_Placed, _Placed], bool]) -> None:
    """Compare every buffer with those live at its birth."""
    live: dict[str, list[_Placed]] = {}
    for new in sorted(placed, key=lambda p: (p.first, p.start, p.name)):
        if new.start == new.stop:
            continue
        alive = [old for old in live.get(new.pool, ()) if old.last >= new.first]
        for old in alive:
            if old.start < new.stop and new.start < old.stop and not covered(old, new):
                steps = f"{new.first}..{min(old.last, new.last)}"
                raise PlanError(
                    f'{old} and {new} overlap in pool "{new.pool}" during steps {steps} '
                    "and no allowance covers it"
                )
        alive.append(new)
        live[new.pool] = alive


def validate_steps(steps: Sequence[Step], requests: Sequence[Request], plan: Plan) -> None:
    """Raise `PlanError` unless `plan` is valid for executing `steps` in the order `plan.order`."""
    wanted = {request.name: request for request in requests}
    _check_names(wanted, plan)
    if sorted(plan.order) != list(range(len(steps))):
        raise PlanError(f"order {plan.order} is no permutation of {len(steps)} steps")
    roots = {name: _root_of(wanted, name) for name in wanted}
    for name, (root, offset) in roots.items():
        if plan.offsets[name] != plan.offsets[root] + offset:
            raise PlanError(
                f'view "{name}" lies at {plan.offsets[name]}, not {offset} bytes into "{root}" '
                f"at {plan.offsets[root]}"
            )
    _check_order(steps, wanted, roots, plan.order)
    placed = _place_roots(steps, wanted, roots, plan)
    executed = [steps[i] for i in plan.order]

    def covered(one: _Placed, two: _Placed) -> bool:
        old, new = (one, two) if one.last == two.first else (two, one)
        if old.last != new.first or not 0 <= new.first < len(executed):
            return False
        step = executed[new.first]
        return _in_place(step, wanted, roots, plan, old, new) or _lags(step, roots, plan, old, new)

    _sweep(placed, covered)
    _check_peaks(plan)


def _root_of(wanted: dict[str, Request], name: str) -> tuple[str, int]:
    offset, hops = 0, 0
    alias = wanted[name].alias_of
    while alias is not None and hops <= len(wanted):
        name, offset, hops = alias[0], offset + alias[1], hops + 1
        alias = wanted[name].alias_of
    return name, offset


def _check_order(
    steps: Sequence[Step],
    wanted: dict[str, Request],
    roots: dict[str, tuple[str, int]],
    order: Sequence[int],
) -> None:
    """Accesses to common bytes, one of them a write, must keep the order of `steps`."""
    position = {step: time for time, step in enumerate(order)}
    accesses: dict[str, list[tuple[int, str, bool]]] = {}
    for index, step in enumerate(steps):
        for names, writes in ((step.reads, False), (step.writes, True)):
            for name in names:
                accesses.setdefault(roots[name][0], []).append((index, name, writes))
    for entries in accesses.values():
        writers = [at for at, (_, _, writes) in enumerate(entries) if writes]
        pairs = {(min(w, at), max(w, at)) for w in writers for at in range(len(entries)) if w != at}
        for first, second in sorted(pairs):
            (i, a, _), (j, b, _) = entries[first], entries[second]
            disjoint = (
                roots[a][1] >= roots[b][1] + wanted[b].size
                or roots[b][1] >= roots[a][1] + wanted[a].size
            ) and wanted[a].size > 0 < wanted[b].size
            if not disjoint and position[i] > position[j]:
                raise PlanError(
                    f'order: step "{steps[j].name}" runs before "{steps[i].name}", '
                    f'but they use "{b}" and "{a}" in the opposite order'
                )


def _place_roots(
    steps: Sequence[Step],
    wanted: dict[str, Request],
    roots: dict[str, tuple[str, int]],
    plan: Plan,
) -> list[_Placed]:
    """Roots with their byte ranges and lifetimes under the plan's order."""
    times: dict[str, list[int]] = {name: [] for name in wanted}
    for time, index in enumerate(plan.order):
        for name in (*steps[index].reads, *steps[index].writes):
            times[roots[name][0]].append(time)
    for name, request in wanted.items():
        if request.live_in or request.persistent:
            times[roots[name][0]].append(-1)
        if request.live_out or request.persistent:
            times[roots[name][0]].append(len(steps))
    placed = []
    for name, request in wanted.items():
        if request.alias_of is None:
            start = plan.offsets[name]
            _check_bounds(plan, name, request.pool, start, request.size, request.align)
            life = times[name] or [0]
            placed.append(
                _Placed(name, request.pool, start, start + request.size, min(life), max(life))
            )
    return placed


def _in_place(
    step: Step,
    wanted: dict[str, Request],
    roots: dict[str, tuple[str, int]],
    plan: Plan,
    old: _Placed,
    new: _Placed,
) -> bool:
    """Whether `step`, last to use `old` and first to use `new`, may overlap them as placed."""
    outs = [name for name in step.writes if roots[name][0] == new.name]
    ins = [name for name in step.reads if roots[name][0] == old.name]
    if len(set(outs)) != 1 or any(roots[name][0] == old.name for name in step.writes):
        return False
    if any(roots[name][0] == new.name for name in step.reads):
        return False
    out = outs[0]
    start, stop = plan.offsets[out], plan.offsets[out] + wanted[out].size
    matched = False
    for name in ins:
        at = plan.offsets[name]
        if (out, name) in step.inplace and at == start:
            matched = True
        elif at < stop and start < at + wanted[name].size:
            return False
    return matched


def _lags(
    step: Step,
    roots: dict[str, tuple[str, int]],
    plan: Plan,
    old: _Placed,
    new: _Placed,
) -> bool:
    """Whether `step` writes `new` once, and far enough below all that it reads of `old`."""
    outs = [name for name in step.writes if roots[name][0] == new.name]
    others = [name for name in step.writes if roots[name][0] == old.name]
    others += [name for name in step.reads if roots[name][0] == new.name]
    if len(outs) != 1 or others:
        return False
    reads = [name for name in step.reads if roots[name][0] == old.name]
    for name in reads:
        apart = plan.offsets[outs[0]] - plan.offsets[name]
        limits = [most for out, source, most in step.overlaps if (out, source) == (outs[0], name)]
        if not limits or apart > min(limits):
            return False
    return bool(reads)
