"""The arena: the order of a program's calls, and the offset of every storage in one block of
memory.

Roots are planned, views follow theirs. Outputs have a pool of their own. Every plan is validated:
that of a program of open shape, which is made for the largest sizes, at others too, the corners
among them. See graphc/memplan.

The body of a loop or a branch is planned first, by itself: what it alone uses lies in one block,
its memory, which is a storage of the plan around it. There, the loop is one step, which reads and
writes all that its body does. So what a body reads lives through all trips, whatever their number.
In the plan of a body, all that lies around it holds data before and after.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from graphc import memplan
from graphc.ir.dtypes import i64
from graphc.ir.expr import Const, Expr, as_expr, symbols
from graphc.ir.program import Slot
from graphc.ir.trials import trials
from graphc.ir.types import at
from graphc.passes.lower.storages import (
    AnyCall,
    Call,
    Choice,
    Repeat,
    Storage,
    Storages,
    bodies,
    reads,
    writes,
)
from graphc.records import dataclass

ORDER_BUDGET = 20_000  # work units spent on looking for an execution order of lower peak memory
PLANNED = ("arena", "output", "state")  # spaces of what the order of calls depends on
AROUND = "around"  # the pool of what lies around a body


@dataclass(frozen=True)
class Arena:
    """`offsets` of roots, `peak` size and its lower `bound` in bytes, and the `calls` in order."""

    offsets: Mapping[str, int]
    peak: int
    bound: int
    calls: list[AnyCall]

    def slot(self, storage: Storage, numbers: Mapping[int, int]) -> Slot:
        """The slot of a storage, given the numbers that constants go by."""
        index, offset = storage.index, storage.offset
        if storage.space == "arena":
            index, offset = 0, offset + self.offsets[storage.root]
        elif storage.space == "const":
            index = numbers[index]
        return Slot(storage.space, index, offset, storage.buffer.dtype, storage.buffer.size)


def plan_arena(calls: Sequence[AnyCall], storages: Storages) -> Arena:
    """The order of calls that needs little memory, and the memory."""
    arena = _Planner(calls, storages, "").arena()
    offsets = dict(arena.offsets)
    for root in offsets:
        within = storages[root].within
        while within:
            offsets[root] += arena.offsets[within]
            within = storages[within].within
    return replace(arena, offsets=offsets)


class _Planner:
    """Puts calls, those of the body whose memory is `within` or of the whole program, in the terms
    of the memory planner; `roots` are those of what they touch. Offsets are within the memory that
    a root lies in."""

    def __init__(self, calls: Sequence[AnyCall], storages: Storages, within: str):
        self.storages, self.within = storages, within
        self.inner: dict[str, int] = {}  # offsets in bodies
        self.calls = list(map(self._planned, calls))
        self.roots = {
            name: storages[name].root for call in calls for name in _touched(call)
            if (storages[name].space in PLANNED or self._is_overwritten(name))
            and not self._is_inner(name)
        }  # fmt: skip

    def _planned(self, call: AnyCall) -> AnyCall:
        """A call whose bodies are planned and in order; tells its memory how large it is."""
        if not isinstance(call, Repeat | Choice):
            return call
        plans = [_Planner(body, self.storages, call.memory).arena() for body in bodies(call)]
        memory, size = self.storages[call.memory], max(plan.peak for plan in plans)
        memory.buffer = replace(memory.buffer, shape=(size,))
        for plan in plans:
            self.inner.update(plan.offsets)
        if isinstance(call, Repeat):
            return replace(call, body=plans[0].calls)
        return replace(call, then=plans[0].calls, orelse=plans[1].calls)

    def _is_inner(self, name: str) -> bool:
        """Whether a storage lies in the memory of a body inside."""
        return self.storages[name].root in self.inner

    def _is_overwritten(self, name: str) -> bool:
        """Whether a storage is part of an input whose place an output may take."""
        return self.storages[self.storages[name].root].overwritten

    def arena(self) -> Arena:
        steps = [self._step(n, call) for n, call in enumerate(self.calls)]
        flagged = [n for n, s in self.storages.named.items() if s.live_in or s.live_out]
        roots = dict.fromkeys([*self.roots.values(), *([] if self.within else flagged)])
        requests = [self._request(root) for root in roots]
        planned = memplan.plan_steps(steps, requests, reorder=True, order_budget=ORDER_BUDGET)
        for sized in [requests, *self._at_other_sizes(requests)]:
            memplan.validate_steps(steps, sized, planned)
        peak, bound = planned.peaks.get("arena", 0), planned.lower_bounds.get("arena", 0)
        own = {root: at for root, at in planned.offsets.items() if self._is_own(root)}
        return Arena({**self.inner, **own}, peak, bound, [self.calls[n] for n in planned.order])

    def _at_other_sizes(self, requests: list[memplan.Request]) -> Iterator[list[memplan.Request]]:
        """The requests, each as large as its tensor is, at the sizes that a plan is tried at."""
        counts = {r.name: as_expr(self.storages[r.name].buffer.size, i64) for r in requests}
        sizes = dict.fromkeys(s for count in counts.values() for s in symbols(count))
        ordered = sorted(sizes, key=lambda size: size.name)
        for values in trials(ordered):
            known: dict[Expr, Expr] = {s: Const(v, i64) for s, v in zip(ordered, values)}
            of = {count: int(at(count, known)) for count in set(counts.values())}  # type: ignore[arg-type]
            yield [replace(r, size=self._nbytes(r.name, of[counts[r.name]])) for r in requests]

    def _nbytes(self, root: str, count: int) -> int:
        """The bytes of so many elements of a root, one at least."""
        return max(count * self.storages[root].buffer.dtype.size, 1)

    def _is_own(self, root: str) -> bool:
        """Whether a root lies in the memory that is planned."""
        storage = self.storages[root]
        return storage.space == "arena" and storage.within == self.within

    def _request(self, root: str) -> memplan.Request:
        storage, size = self.storages[root], max(self.storages[root].nbytes, 1)
        if storage.overwritten:
            return memplan.Request(root, size, pool=AROUND, live_in=True, live_out=True)
        if self.within and not self._is_own(root):
            return memplan.Request(root, size, pool=AROUND, live_in=True, live_out=True)
        given = storage.space != "arena"  # is there all the time, whatever the order
        live_in, live_out = storage.live_in or given, storage.live_out or given
        return memplan.Request(root, size, pool=storage.space, live_in=live_in, live_out=live_out)

    def _step(self, number: int, call: AnyCall) -> memplan.Step:
        roots = self.roots
        read, written = (
            tuple(dict.fromkeys(roots[a] for a in names if a in roots))
            for names in (reads(call), writes(call))
        )
        if not isinstance(call, Call):
            return memplan.Step(f"{number}:{type(call).__name__}", read, written)
        inplace = tuple(
            (roots[out], roots[into])
            for out, into in call.inplace
            if out in roots and into in roots
            and self._is_own(roots[out]) and self._is_own(roots[into])
            and self.storages[out].offset == 0 and self.storages[into].offset == 0
        )  # fmt: skip
        return memplan.Step(
            f"{number}:{call.kernel}", read, written, inplace, tuple(self._overlaps(call))
        )

    def _overlaps(self, call: Call) -> Iterator[tuple[str, str, int]]:
        """The overlaps of a call in terms of roots: all that it reads of one must allow them."""
        roots, listed = self.roots, {(out, into): most for out, into, most in call.overlaps}
        for out in dict.fromkeys(out for out, _ in listed):
            for root in dict.fromkeys(roots[into] for _, into in listed if into in roots):
                parts = [a for a in call.reads if roots.get(a) == root]
                if out in roots and all((out, part) in listed for part in parts):
                    start = self.storages[out].offset
                    apart = (listed[out, a] + self.storages[a].offset - start for a in parts)
                    yield roots[out], root, min(apart)


def _touched(call: AnyCall) -> Iterator[str]:
    """The storages that a call names, those in its bodies included."""
    if isinstance(call, Call):
        yield from call.arguments
    yield from reads(call)
    yield from writes(call)
