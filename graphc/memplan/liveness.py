"""Liveness: from a schedule to a `Problem`. Views are resolved to roots; roots get lifetimes.

1. *Roots.*  Every request that is not a view is a root; a view is (root, byte offset).
2. *Lifetimes.*  A root lives from the first write to the last touch of itself or of any view of
   it; from -1 if it is filled by the caller, to n (the number of steps) if the caller reads it
   after.
3. *In place.*  At step s an output may start where an input starts if the input's root dies in s,
   the output's root is born in s, and no other operand of s would be overwritten
   (`in_place_pairs`). Where both roots have the same rounded size they become one buffer: that
   never raises the bytes live at any step.  The other candidates stay as optional `Overlap`s,
   because sharing a place with a bigger or smaller buffer for long may cost more than it saves.
4. *Partial overlap.*  `Step.overlaps` of roots that meet in one step likewise, and are not merged
   with each other or anything else there, become `Overlap`s of a range.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from graphc.memplan.in_place import choose_matching
from graphc.memplan.packing import round_up, shared_at_best
from graphc.memplan.problem import (
    Buffer,
    Overlap,
    Problem,
    ProblemError,
    Request,
    Step,
    check_size,
)
from graphc.records import dataclass

Place = tuple[str, int]
"""(root or buffer name, byte offset inside it)."""


@dataclass(frozen=True)
class Storage:
    """The roots of a set of requests, and where each name lies.

    `roots[r]` carries the flags of r and of all its views; `places[name]` is (root, byte offset);
    `sizes[name]` is in bytes as requested; `granules[pool]` is the least alignment of the pool.
    """

    roots: dict[str, Request]
    places: dict[str, Place]
    sizes: dict[str, int]
    granules: dict[str, int]

    def rounded(self, root: str) -> int:
        """The bytes a root takes in its pool: a multiple of the granule."""
        request = self.roots[root]
        return round_up(request.size, self.granules.get(request.pool, 1))

    def root(self, name: str) -> str:
        """The root that `name` is (a view of)."""
        try:
            return self.places[name][0]
        except KeyError:
            raise ProblemError(f'no request is called "{name}"') from None


@dataclass(frozen=True, slots=True)
class InPlace:
    """Root `new` may start `delta` bytes after the start of the dying root `old`.

    `saved`: rounded bytes they then share.
    """

    new: str
    old: str
    delta: int
    saved: int


@dataclass(frozen=True, slots=True)
class Lag:
    """Root `new` may start `most` bytes after the start of the dying root `old`, or lower.

    `saved`: rounded bytes they then share at best.
    """

    new: str
    old: str
    most: int
    saved: int


@dataclass(frozen=True)
class Layout:
    """A problem, and for every requested name the buffer and byte offset it lies at."""

    problem: Problem
    places: dict[str, Place]


def storage_of(requests: Sequence[Request]) -> Storage:
    """Resolve views.  Raises on duplicates, unknown or cyclic roots, views beyond their root."""
    by_name: dict[str, Request] = {}
    for request in requests:
        check_size(request.name, request.size, request.align)
        if request.name in by_name:
            raise ProblemError(f'request "{request.name}" is declared twice')
        by_name[request.name] = request
    places = {name: _resolve(by_name, name) for name in by_name}
    roots = {name: r for name, r in by_name.items() if r.alias_of is None}
    for name, (root, offset) in places.items():
        if offset < 0 or offset + by_name[name].size > roots[root].size:
            raise ProblemError(
                f'view "{name}" covers bytes [{offset}, {offset + by_name[name].size}) '
                f'of "{root}", which has {roots[root].size}'
            )
        roots[root] = _with_flags(roots[root], by_name[name])
    sizes = {name: r.size for name, r in by_name.items()}
    return Storage(roots, places, sizes, _granules(roots))


def _resolve(by_name: dict[str, Request], name: str) -> Place:
    at, offset, seen = by_name[name], 0, {name}
    while at.alias_of is not None:
        root, step = at.alias_of
        if root not in by_name or root in seen:
            why = "is not requested" if root not in by_name else "makes a cycle"
            raise ProblemError(f'view "{name}": its root "{root}" {why}')
        seen.add(root)
        at, offset = by_name[root], offset + step
    return at.name, offset


def _with_flags(root: Request, view: Request) -> Request:
    return replace(
        root,
        persistent=root.persistent or view.persistent,
        live_in=root.live_in or view.live_in or root.persistent or view.persistent,
        live_out=root.live_out or view.live_out or root.persistent or view.persistent,
    )


def lifetimes(steps: Sequence[Step], storage: Storage) -> dict[str, tuple[int, int]]:
    """Inclusive [first, last] of every root.  Raises on a read before the first write."""
    first = {name: -1 for name, r in storage.roots.items() if r.live_in}
    last = dict(first)
    for time, step in enumerate(steps):
        reads = [storage.root(name) for name in step.reads]
        writes = [storage.root(name) for name in step.writes]
        for name, root in zip(step.reads, reads, strict=True):
            if root not in first:
                raise ProblemError(f'step "{step.name}" reads "{name}" before any step writes it')
        for root in (*reads, *writes):
            first.setdefault(root, time)
            last[root] = time
    for name, request in storage.roots.items():
        if name not in first:
            what = "is an output that no step writes" if request.live_out else "is never used"
            raise ProblemError(f'"{name}" {what}')
        if request.live_out:
            last[name] = len(steps)
    return {name: (first[name], last[name]) for name in storage.roots}


def in_place_pairs(step: Step, storage: Storage) -> list[InPlace]:
    """The pairs of `step.inplace` that harm no other operand of the step, whatever the schedule.

    Refused: a pair within one root; an output or input whose root the step also writes under
    another name; an input beside which the step reads other bytes of the same root that the
    output covers. Whether the input dies and the output is born here is for the schedule to say.
    """
    pairs: dict[tuple[str, str], InPlace] = {}
    for out, source in step.inplace:
        _check_pair(step, "in-place pair", out, source)
        new, new_at = storage.places[out]
        old, old_at = storage.places[source]
        if new == old or storage.roots[new].pool != storage.roots[old].pool:
            continue
        if _harmless(step, storage, out, source):
            delta = old_at - new_at
            whole = delta % storage.granules.get(storage.roots[new].pool, 1) == 0
            sizes = storage.rounded(old), storage.rounded(new)
            saved = shared_at_best(*sizes, delta, delta) if whole else 0
            pairs.setdefault((new, old), InPlace(new, old, delta, saved))
    return list(pairs.values())


def _check_pair(step: Step, what: str, out: str, source: str) -> None:
    if out not in step.writes or source not in step.reads:
        raise ProblemError(
            f'step "{step.name}": {what} ("{out}", "{source}") is not one of its writes and one of '
            "its reads"
        )


def _harmless(step: Step, storage: Storage, out: str, source: str) -> bool:
    new, old = storage.root(out), storage.root(source)
    if any(name != out and storage.root(name) in (new, old) for name in step.writes):
        return False
    start = storage.places[source][1]
    stop = start + storage.sizes[out]
    for name in step.reads:
        root, at = storage.places[name]
        if root == new:
            return False
        apart = at >= stop or at + storage.sizes[name] <= start
        with_it = at == start and (out, name) in step.inplace
        if root == old and not apart and not with_it:
            return False
    return True


def lags(step: Step, storage: Storage) -> list[Lag]:
    """The pairs of roots of `step.overlaps` that harm no other operand of the step.

    Refused: roots that the step writes under several names, or writes and reads; an input of whose
    root the step reads a part that is not listed with this output.
    """
    most: dict[tuple[str, str], dict[str, int]] = {}
    for out, source, distance in step.overlaps:
        _check_pair(step, "overlap", out, source)
        (new, new_at), (old, old_at) = storage.places[out], storage.places[source]
        limits = most.setdefault((new, old), {})
        limit = distance + old_at - new_at
        limits[source] = min(limit, limits.get(source, limit))
    written = [storage.root(name) for name in step.writes]
    read = {name: storage.root(name) for name in step.reads}
    pairs = []
    for (new, old), by_source in most.items():
        alone = written.count(new) == 1 and old not in written and new not in read.values()
        listed = all(name in by_source for name, root in read.items() if root == old)
        if alone and listed and storage.roots[new].pool == storage.roots[old].pool:
            high = min(by_source.values())
            granule = storage.granules.get(storage.roots[new].pool, 1)
            sizes = storage.rounded(old), storage.rounded(new)
            saved = shared_at_best(*sizes, -sizes[1], high // granule * granule)
            if saved:
                pairs.append(Lag(new, old, high, saved))
    return pairs


def layout_of(
    steps: Sequence[Step], requests: Sequence[Request], *, in_place: bool = True
) -> Layout:
    """The placement problem of executing `steps` in the given order."""
    storage = storage_of(requests)
    times = lifetimes(steps, storage)
    merged: dict[str, str] = {}
    overlaps: list[Overlap] = []
    for time, step in enumerate(steps if in_place else ()):
        pairs = [
            p for p in in_place_pairs(step, storage) if times[p.old][1] == time == times[p.new][0]
        ]
        merge, keep = _decide(pairs, storage)
        merged |= {p.new: p.old for p in merge}
        overlaps += [Overlap(p.old, p.new, p.delta, p.delta) for p in keep]
        taken = {name for p in (*merge, *keep) for name in (p.new, p.old)}
        overlaps += [
            Overlap(lag.old, lag.new, -storage.rounded(lag.new), lag.most)
            for lag in lags(step, storage)
            if times[lag.old][1] == time == times[lag.new][0] and not taken & {lag.new, lag.old}
        ]
    heads = _heads(merged, storage.roots)
    problem = Problem(
        tuple(_buffers(storage, times, heads)),
        tuple(replace(o, a=heads[o.a], b=heads[o.b]) for o in overlaps),
    )
    places = {name: (heads[root], offset) for name, (root, offset) in storage.places.items()}
    return Layout(problem, places)


def _granules(roots: dict[str, Request]) -> dict[str, int]:
    """The least alignment of each pool in bytes."""
    granules: dict[str, int] = {}
    for root in roots.values():
        if root.size:
            granules[root.pool] = min(root.align, granules.get(root.pool, root.align))
    return granules


def _decide(pairs: list[InPlace], storage: Storage) -> tuple[list[InPlace], list[InPlace]]:
    """(pairs to merge into one buffer, pairs to leave to the planner as optional overlaps)."""
    if not pairs:
        return [], []
    number = {name: i for i, name in enumerate(n for p in pairs for n in (p.new, p.old))}
    chosen = choose_matching([(number[p.new], number[p.old], p.saved) for p in pairs])
    merge = [
        pairs[i]
        for i in chosen
        if pairs[i].delta == 0 and storage.rounded(pairs[i].new) == storage.rounded(pairs[i].old)
    ]
    taken = {name for p in merge for name in (p.new, p.old)}
    return merge, [p for p in pairs if p.new not in taken and p.old not in taken and p.saved]


def _heads(merged: dict[str, str], names: Iterable[str]) -> dict[str, str]:
    """The first of the chain of merged roots that each name is in."""
    heads: dict[str, str] = {}
    for name in names:
        chain = [name]
        while chain[-1] in merged and chain[-1] not in heads:
            chain.append(merged[chain[-1]])
        head = heads.get(chain[-1], chain[-1])
        heads.update(dict.fromkeys(chain, head))
    return heads


def _buffers(
    storage: Storage, times: dict[str, tuple[int, int]], heads: dict[str, str]
) -> list[Buffer]:
    """One buffer for every chain of merged roots: the union of lifetimes, the largest size."""
    buffers: dict[str, Buffer] = {}
    for name, root in storage.roots.items():
        first, last = times[name]
        own = Buffer(heads[name], root.size, first, last, root.align, root.pool)
        so_far = buffers.get(own.name, own)
        buffers[own.name] = replace(
            so_far,
            size=max(so_far.size, own.size),
            first=min(so_far.first, first),
            last=max(so_far.last, last),
            align=max(so_far.align, own.align),
        )
    return list(buffers.values())
