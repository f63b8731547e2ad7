"""A schedule as a DAG of steps with its live memory, for the ordering search.

A state is the set of executed steps, a bit mask.  Live memory is a function of the state alone:
a root exists once a step that touches it has run and until all of them have (or for ever, if the
caller reads it).  `advance` gives the bytes needed while a step runs and those live after it.

Dependencies: two accesses to overlapping bytes of a root, one of them a write, keep their order.
Bytes are rounded up as the planners round them and summed over all pools.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphc.memplan.in_place import matched_weight
from graphc.memplan.liveness import Storage, in_place_pairs, lags, storage_of
from graphc.memplan.problem import Request, Step
from graphc.records import dataclass


@dataclass(frozen=True)
class StepGraph:
    """n steps; `before[i]`/`after[i]`: masks of direct predecessors and successors.

    `touched[i]`: roots step i reads or writes; `users[r]`: mask of the steps that touch root r;
    `early[r]`/`late[r]`: filled before the first step / read after the last; `pairs[i]`: (new
    root, old root, bytes saved) if new takes old's place or overlaps it; `base`: bytes live before
    the first step and needed by some step or after the last.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    touched: tuple[tuple[int, ...], ...]
    users: tuple[int, ...]
    sizes: tuple[int, ...]
    early: tuple[bool, ...]
    late: tuple[bool, ...]
    pairs: tuple[tuple[tuple[int, int, int], ...], ...]
    base: int

    def __len__(self) -> int:
        return len(self.before)

    def advance(self, done: int, live: int, step: int) -> tuple[int, int]:
        """(bytes needed while `step` runs, bytes live after), from `live` bytes in state `done`."""
        born = dying = 0
        now = done | (1 << step)
        new, old = [], []
        for root in self.touched[step]:
            users = self.users[root]
            if not users & done and not self.early[root]:
                born += self.sizes[root]
                new.append(root)
            if not users & ~now and not self.late[root]:
                dying += self.sizes[root]
                old.append(root)
        during = live + born
        if self.pairs[step]:
            usable = [p for p in self.pairs[step] if p[0] in new and p[1] in old]
            saved = matched_weight(usable) if usable else 0
            return during - saved, during - dying
        return during, during - dying

    def peak_of(self, order: Sequence[int], done: int = 0, live: int | None = None) -> int:
        """The most bytes needed at any step when `order` runs from state `done`."""
        live = self.base if live is None else live
        peak = 0
        for step in order:
            during, live = self.advance(done, live, step)
            peak = max(peak, during)
            done |= 1 << step
        return peak

    def floor(self) -> int:
        """Bytes no order can go below: what the neediest step and all it cannot outlive need."""
        fixed = [e and o for e, o in zip(self.early, self.late, strict=True)]
        always = sum(size for size, f in zip(self.sizes, fixed, strict=True) if f)
        own = 0
        for step in range(len(self)):
            need = sum(self.sizes[r] for r in self.touched[step] if not fixed[r])
            own = max(own, need - matched_weight(self.pairs[step]))
        return always + own


def step_graph(steps: Sequence[Step], requests: Sequence[Request]) -> StepGraph:
    """Build the graph.  The given order must be a valid one: it defines what depends on what."""
    storage = storage_of(requests)
    number = {name: i for i, name in enumerate(storage.roots)}
    touched = [
        tuple(dict.fromkeys(number[storage.root(n)] for n in (*s.reads, *s.writes))) for s in steps
    ]
    users = [0] * len(number)
    for step, roots in enumerate(touched):
        for root in roots:
            users[root] |= 1 << step
    roots_list = list(storage.roots.values())
    sizes = tuple(storage.rounded(name) for name in storage.roots)
    pairs = tuple(
        (
            *((number[p.new], number[p.old], p.saved) for p in in_place_pairs(s, storage)),
            *((number[lag.new], number[lag.old], lag.saved) for lag in lags(s, storage)),
        )
        for s in steps
    )
    before = _dependencies(steps, storage)
    after = [0] * len(steps)
    for step, mask in enumerate(before):
        for earlier in bits(mask):
            after[earlier] |= 1 << step
    return StepGraph(
        before=tuple(before),
        after=tuple(after),
        touched=tuple(touched),
        users=tuple(users),
        sizes=sizes,
        early=tuple(r.live_in for r in roots_list),
        late=tuple(r.live_out for r in roots_list),
        pairs=pairs,
        base=sum(
            size
            for size, mask, r in zip(sizes, users, roots_list, strict=True)
            if r.live_in and (mask or r.live_out)
        ),
    )


def bits(mask: int) -> list[int]:
    """The positions of the ones, ascending."""
    places = []
    while mask:
        low = mask & -mask
        places.append(low.bit_length() - 1)
        mask ^= low
    return places


Access = tuple[int, int, int]
"""(first byte inside the root, end, step)."""


def _dependencies(steps: Sequence[Step], storage: Storage) -> list[int]:
    """For each step the mask of the earlier steps it must follow.

    Overlapping or empty ranges of one root depend on each other if either access writes.
    """
    reads: dict[str, list[Access]] = {name: [] for name in storage.roots}
    writes: dict[str, list[Access]] = {name: [] for name in storage.roots}
    before = [0] * len(steps)
    for time, step in enumerate(steps):
        for names, mine, rivals in (
            (step.reads, reads, (writes,)),
            (step.writes, writes, (reads, writes)),
        ):
            for name in names:
                root = storage.root(name)
                start = storage.places[name][1]
                access = (start, start + storage.sizes[name], time)
                for table in rivals:
                    for earlier in table[root]:
                        if _meet(access, earlier):
                            before[time] |= 1 << earlier[2]
                mine[root].append(access)
        before[time] &= ~(1 << time)
    return before


def _meet(one: Access, two: Access) -> bool:
    """Whether two byte ranges overlap; empty ones (tokens) count as overlapping everything."""
    empty = one[0] == one[1] or two[0] == two[1]
    return empty or (one[0] < two[1] and two[0] < one[1])
