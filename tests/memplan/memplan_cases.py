"""Random problems and schedules for the memory planner's tests, and brute-force answers to them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

from graphc.memplan import Buffer, Overlap, Problem, Request, Step, layout_of
from graphc.memplan.packing import live_bound, packing_of

Pairs = set[tuple[str, str]]  # of buffers that may have the same place


def random_problem(
    seed: int, count: int, steps: int, life: int, sizes: int = 1000, *, overlaps: bool = False
) -> Problem:
    """`count` buffers of up to `sizes` bytes, some empty; mixed alignments for odd seeds."""
    dice = random.Random(seed)
    buffers: list[Buffer] = []
    allowed: list[Overlap] = []
    in_place: list[Overlap] = []
    for i in range(count):
        first = dice.randrange(steps)
        last = min(steps - 1, first + dice.randrange(life))
        dying = [b for b in buffers if b.last == first]
        if overlaps and dying and dice.random() < 0.5:
            in_place.append(Overlap(dice.choice(dying).name, f"b{i}"))
        align = dice.choice((16, 64, 128)) if seed % 2 else 64
        size = dice.randrange(sizes + 1)
        buffers.append(Buffer(f"b{i}", size, first, last, align))
        if overlaps and i and dice.random() < 0.1:
            low = dice.randrange(-200, 200)
            other = dice.choice(buffers[:-1]).name
            allowed.append(Overlap(other, f"b{i}", low, low + dice.randrange(300)))
    return Problem(tuple(buffers), (*allowed, *in_place))


def unit_problem(seed: int, count: int = 6, *, in_place: bool = False) -> Problem:
    """A small problem in units (alignment 1), dense enough to leave gaps above the bound."""
    dice = random.Random(seed)
    buffers: list[Buffer] = []
    allowed: list[Overlap] = []
    for i in range(count):
        first = dice.randrange(6)
        last = min(5, first + dice.randrange(4))
        dying = tuple(b.name for b in buffers if b.last == first)
        if in_place and dice.random() < 0.7:
            allowed += [Overlap(name, f"b{i}") for name in dying]
        buffers.append(Buffer(f"b{i}", dice.randrange(1, 5), first, last, 1))
    return Problem(tuple(buffers), tuple(allowed))


def brute_force_peak(problem: Problem) -> int:
    """The least peak of a problem with alignment 1, by trying all offsets from the bound - 1 on."""
    peak = live_bound(packing_of(problem, "arena")) - 1
    buffers = sorted(problem.buffers, key=lambda b: -b.size)
    pairs = {(x.a, x.b) for x in problem.overlaps}
    while max(b.size for b in buffers) > peak or not _fits(buffers, [], peak, pairs):
        peak += 1
    return peak


def _fits(buffers: Sequence[Buffer], offsets: list[int], peak: int, pairs: Pairs) -> bool:
    if len(offsets) == len(buffers):
        return True
    new = buffers[len(offsets)]
    for at in range(peak - new.size + 1):
        if all(
            _compatible(old, start, new, at, pairs)
            for old, start in zip(buffers, offsets, strict=False)
        ):
            if _fits(buffers, [*offsets, at], peak, pairs):
                return True
    return False


def _compatible(old: Buffer, start: int, new: Buffer, at: int, pairs: Pairs) -> bool:
    if old.last < new.first or new.last < old.first:
        return True
    if start + old.size <= at or at + new.size <= start:
        return True
    return start == at and not pairs.isdisjoint({(old.name, new.name), (new.name, old.name)})


def random_schedule(seed: int, count: int) -> tuple[list[Step], list[Request]]:
    """A random DAG of steps with inputs, outputs, weights, views, in-place pairs and tokens."""
    dice = random.Random(seed)
    requests = [
        Request("x", dice.randrange(1, 600), live_in=True),
        Request("w", 64 * dice.randrange(1, 5), persistent=True),
    ]
    sizes = {r.name: r.size for r in requests}
    names, steps = ["x", "w"], []
    for i in range(count):
        reads = tuple(dict.fromkeys(dice.choice(names[-6:]) for _ in range(dice.randrange(1, 4))))
        size = dice.choice((sizes[reads[0]], sizes[reads[-1]], dice.randrange(600)))
        out = f"t{i}"
        requests.append(Request(out, size, live_out=dice.random() < 0.1))
        sizes[out] = size
        inplace = tuple((out, name) for name in reads if dice.random() < 0.7)
        steps.append(Step(f"s{i}", reads, (out,), inplace))
        names.append(out)
        if size > 8 and dice.random() < 0.3:
            at = dice.randrange(size // 2)
            view = Request(f"v{i}", dice.choice((size - at, size // 2)), alias_of=(out, at))
            requests.append(view)
            sizes[view.name] = view.size
            names.append(view.name)
    return steps, requests


def live_peak(steps: Sequence[Step], requests: Sequence[Request]) -> int:
    """The live-bytes bound of executing `steps` as given, over all pools."""
    problem = layout_of(steps, requests).problem
    packings = [packing_of(problem, pool) for pool in problem.pools()]
    return sum(live_bound(p) * p.granule for p in packings)


def all_orders(steps: Sequence[Step]) -> Iterator[list[Step]]:
    """Every order that reads only what is written; names are written once and views not used."""
    inputs = {n for s in steps for n in s.reads} - {n for s in steps for n in s.writes}
    for order in itertools.permutations(steps):
        known = set(inputs)
        for step in order:
            if not known.issuperset(step.reads):
                break
            known.update(step.writes)
        else:
            yield list(order)
