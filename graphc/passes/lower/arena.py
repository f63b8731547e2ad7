"""The arena: the order of a program's calls, and the offset of every storage in one block of
memory.

Roots are planned, views follow theirs. Outputs have a pool of their own. Every plan is validated.
See graphc/memplan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from graphc import memplan
from graphc.ir.program import Slot
from graphc.passes.lower.storages import Call, Storage, Storages

ORDER_BUDGET = 20_000  # work units spent on looking for an execution order of lower peak memory


@dataclass(frozen=True)
class Arena:
    """`offsets` of roots, `peak` size and its lower `bound` in bytes, and the `order` of calls."""

    offsets: Mapping[str, int]
    peak: int
    bound: int
    order: tuple[int, ...]

    def slot(self, storage: Storage, numbers: Mapping[int, int]) -> Slot:
        """The slot of a storage, given the numbers that constants go by."""
        index, offset = storage.index, storage.offset
        if storage.space == "arena":
            index, offset = 0, offset + self.offsets[storage.root]
        elif storage.space == "const":
            index = numbers[index]
        return Slot(storage.space, index, offset, storage.buffer.dtype, storage.buffer.size)


def plan_arena(calls: Sequence[Call], storages: Storages) -> Arena:
    """The order of calls that needs little memory, and the memory."""
    return _Planner(calls, storages).arena()


class _Planner:
    """Puts calls in the terms of the memory planner; `roots` are those of what they touch."""

    def __init__(self, calls: Sequence[Call], storages: Storages):
        self.calls, self.storages = calls, storages
        self.roots = {
            a: storages[a].root for c in calls for a in c.arguments
            if storages[a].space in ("arena", "output")
        }  # fmt: skip

    def arena(self) -> Arena:
        steps = [self._step(n, call) for n, call in enumerate(self.calls)]
        flagged = [n for n, s in self.storages.named.items() if s.live_in or s.live_out]
        roots = dict.fromkeys([*self.roots.values(), *flagged])
        requests = [self._request(root) for root in roots]
        planned = memplan.plan_steps(steps, requests, reorder=True, order_budget=ORDER_BUDGET)
        memplan.validate_steps(steps, requests, planned)
        peak, bound = planned.peaks.get("arena", 0), planned.lower_bounds.get("arena", 0)
        return Arena(dict(planned.offsets), peak, bound, planned.order)

    def _request(self, root: str) -> memplan.Request:
        storage = self.storages[root]
        return memplan.Request(
            root, max(storage.nbytes, 1), pool=storage.space,
            live_in=storage.live_in, live_out=storage.live_out,
        )  # fmt: skip

    def _step(self, number: int, call: Call) -> memplan.Step:
        roots = self.roots
        inplace = tuple(
            (roots[out], roots[into])
            for out, into in call.inplace
            if out in roots and into in roots
            and self.storages[out].space == self.storages[into].space == "arena"
            and self.storages[out].offset == 0 and self.storages[into].offset == 0
        )  # fmt: skip
        return memplan.Step(
            f"{number}:{call.kernel}",
            reads=tuple(dict.fromkeys(roots[a] for a in call.reads if a in roots)),
            writes=tuple(dict.fromkeys(roots[a] for a in call.writes if a in roots)),
            inplace=inplace,
            overlaps=tuple(self._overlaps(call)),
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
