"""Which launches of a plan depend on which, and the streams they may run on.

Two launches depend on one another if both touch a byte and at least one of them writes it. Only
the nearest dependencies are kept: those that follow from others are left out. Launches too small to
fill a GPU get streams of their own where branches part; the rest keep to the first stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from graphc.backends.cuda.machines import FULL
from graphc.backends.cuda.steps import LaunchStep
from graphc.ir.types import largest

MAX_STREAMS = 4

Range = tuple[tuple[str, int], int, int, bool]  # space and number, first byte, end, written


@dataclass(frozen=True)
class Schedule:
    """`after` lists, per launch, earlier launches it must follow; `streams` the stream of each."""

    after: tuple[tuple[int, ...], ...]
    streams: tuple[int, ...]

    @property
    def count(self) -> int:
        """The number of streams."""
        return max(self.streams, default=0) + 1

    @property
    def waits(self) -> list[list[int]]:
        """Per launch, those on other streams that it must follow."""
        return [
            [other for other in after if self.streams[other] != stream]
            for after, stream in zip(self.after, self.streams)
        ]

    @property
    def awaited(self) -> set[int]:
        """Launches that another stream waits for: the first one, at the end, for all the others."""
        last = {stream: number for number, stream in enumerate(self.streams) if stream}
        return {*last.values(), *(other for waits in self.waits for other in waits)}


def schedule(steps: Sequence[LaunchStep]) -> Schedule:
    """The dependencies and streams of launches in order."""
    after = dependencies([_ranges(step) for step in steps])
    small = [largest(step.grid) * step.block < FULL for step in steps]
    return Schedule(after, _streams(after, small))


def shuffled(after: Sequence[Sequence[int]], seed: int) -> list[int]:
    """An order of launches that their dependencies allow, at random."""
    dice, order, done = Random(seed), list[int](), set[int]()
    left = list(range(len(after)))
    while left:
        ready = [n for n in left if done.issuperset(after[n])]
        chosen = dice.choice(ready)
        order.append(chosen)
        done.add(chosen)
        left.remove(chosen)
    return order


def one_stream(steps: Sequence[LaunchStep]) -> Schedule:
    """Launches that are made one after another."""
    return Schedule(((),) * len(steps), (0,) * len(steps))


def _ranges(step: LaunchStep) -> list[Range]:
    """The bytes a launch touches, but for those that nobody writes."""
    return [
        ((slot.space, slot.index), slot.offset,
         slot.offset + largest(slot.elements) * slot.dtype.size, access != "in")
        for slot, access in zip(step.slots, step.access)
        if slot.space not in ("const", "input")
    ]  # fmt: skip


def dependencies(touched: Sequence[Sequence[Range]]) -> tuple[tuple[int, ...], ...]:
    """Per launch, the nearest earlier ones it depends on, for the bytes that each touches."""
    nearest: list[tuple[int, ...]] = []
    ancestors: list[int] = []  # of each launch, as bits
    for number, ranges in enumerate(touched):
        known, direct = 0, []
        for other in range(number - 1, -1, -1):
            if not known >> other & 1 and _conflict(ranges, touched[other]):
                direct.append(other)
                known |= ancestors[other] | 1 << other
        nearest.append(tuple(reversed(direct)))
        ancestors.append(known)
    return tuple(nearest)


def _conflict(a: Sequence[Range], b: Sequence[Range]) -> bool:
    return any(
        place == other and start < other_end and other_start < end and (writes or other_writes)
        for place, start, end, writes in a
        for other, other_start, other_end, other_writes in b
    )


def _streams(after: Sequence[Sequence[int]], small: Sequence[bool]) -> tuple[int, ...]:
    """A stream for each launch: that of a launch it follows, if none follows on that stream yet;
    else, if it is small, one on which all is done by then, or a new one."""
    streams: list[int] = []
    ancestors: list[int] = []  # of each launch, as bits
    last: list[int] = []  # the latest launch of each stream
    for number, before in enumerate(after):
        ancestors.append(0)
        for n in before:
            ancestors[number] |= ancestors[n] | 1 << n
        free = [streams[n] for n in before if last[streams[n]] == n]
        free = free or [s for s, n in enumerate(last) if ancestors[number] >> n & 1]
        if free:
            chosen = min(free)
        else:
            chosen = len(last) if small[number] and len(last) < MAX_STREAMS else 0
        if chosen == len(last):
            last.append(number)
        last[chosen] = number
        streams.append(chosen)
    return tuple(streams)
