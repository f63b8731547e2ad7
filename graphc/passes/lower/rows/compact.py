"""Schedules whose rows lie close together in one block: less memory, more copies.

Each stage has a part of the block, the rows of it that there are, from the first that some reader
still needs. Parts lie in the order of stages. A new band follows the rows of its part; where there
is no room for it, parts up to this one slide to the start of the block, those after it to its end
(a gap buffer). So the block is no larger than the most bytes of rows that there ever are at once,
whatever the bands, and a row takes memory only while it is needed.

Bands end where what is asked for does: a first one is lower, so that no row waits to be read.
`Replay` checks a schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

import numpy as np

from graphc.errors import InternalError
from graphc.passes.lower.rows.schedule import Event, Fill, Player, Run, Slide, Stage
from graphc.records import dataclass

ALIGN = 8  # bytes that parts begin at multiples of


@dataclass(frozen=True)
class Compact:
    """`events` in order, whose places are bytes in a block of `nbytes`."""

    events: tuple[Event, ...]
    nbytes: int


def compact_schedule(stages: list[Stage], rows: Sequence[int], band: int) -> Compact:
    """The schedule of stages in topological order, the last of which makes the result, given the
    bytes of a row of each stage but the last, and of a band of the last."""
    trial = _Slider(stages, None, rows=rows, band=band)
    trial.play()
    final = _Slider(stages, None, rows=rows, band=band, nbytes=trial.most)
    final.play()
    return Compact(tuple(final.events), final.nbytes)


@dataclass
class _Slider(Player):
    """Plays the schedule in a block of so many bytes; without one it tells the `most` that there
    are. `starts`: where the rows of a stage begin, if there are any."""

    rows: Sequence[int] = ()
    band: int = 0
    nbytes: int = 0
    most: int = 0
    starts: dict[int, int] = field(default_factory=dict)

    def size(self, number: int) -> int:
        """The bytes of the rows of a stage."""
        if number == len(self.rows):
            return self.band
        lines = self.lines[number]
        return (lines.end - lines.base) * self.rows[number]

    def height(self, number: int, wanted: int, often: int) -> int:
        band = self.stages[number].band
        if wanted > band:
            return wanted % band or band
        return wanted if often >= band else band

    def room(self, number: int, rows: int) -> int:
        lines, is_last = self.lines[number], number == len(self.rows)
        more = self.band if is_last else rows * self.rows[number]
        at = 0 if is_last else self.size(number)
        parts = sorted({*self.starts, number})
        sizes = {n: at + more if n == number else self.size(n) for n in parts}
        self.most = max(self.most, sum(map(_rounded, sizes.values())))
        if self.nbytes:
            self.slide(number, parts, sizes, at)
        self.starts.setdefault(number, 0)
        lines.end += rows
        return self.starts[number] + at

    def slide(self, number: int, parts: list[int], sizes: dict[int, int], there: int) -> None:
        """Makes room for a part of a new size, of which so many bytes are there."""
        above = [n for n in parts if n > number]
        limit = min((self.starts[n] for n in above), default=self.nbytes)
        before = [n for n in parts if n < number]
        free = max((self.starts[n] + sizes[n] for n in before), default=0)
        if number not in self.starts and _rounded(free) + sizes[number] <= limit:
            self.starts[number] = _rounded(free)
            return
        if number in self.starts and self.starts[number] + sizes[number] <= limit:
            return
        limit = self.nbytes
        for n in reversed(above):
            limit = (limit - sizes[n]) // ALIGN * ALIGN
            self.move(n, limit, sizes[n])
        free = 0
        for n in (*before, number):
            self.move(n, free, there if n == number else sizes[n])
            free = _rounded(free + sizes[n])

    def move(self, number: int, target: int, nbytes: int) -> None:
        start = self.starts.get(number, target)
        self.starts[number] = target
        if start != target and nbytes:
            self.events.append(Slide(number, start, target, nbytes))

    def place(self, number: int, row: int) -> int:
        return self.starts[number] + (row - self.lines[number].base) * self.rows[number]

    def ran(self, number: int) -> None:
        """Drops rows that are not needed any more."""
        if number == len(self.rows):
            del self.starts[number]
        for of in {read.of for read in self.stages[number].reads}:
            lines = self.lines[of]
            needed = min(self.needed(of), lines.end)
            if of in self.starts:
                self.starts[of] += (needed - lines.base) * self.rows[of]
                if needed == lines.end:
                    del self.starts[of]
            lines.base = needed


def _rounded(nbytes: int) -> int:
    return -(-nbytes // ALIGN) * ALIGN


class Replay:
    """Plays a compact schedule on the bytes of its block, each of which holds the number of a row
    of a stage, given the bytes of a row of each stage but the last."""

    def __init__(self, stages: Sequence[Stage], rows: Sequence[int], nbytes: int):
        self.stages, self.rows = stages, rows
        self.memory = np.full(nbytes, -1, np.int64)
        self.made: dict[int, int] = {}  # the row that follows those there are, by stage

    def check(self, events: Sequence[Event]) -> None:
        """InternalError if a stage does not find the rows that it reads."""
        for event in events:
            if isinstance(event, Slide):
                moved = self.bytes_at(event.source, event.nbytes).copy()
                self.bytes_at(event.target, event.nbytes)[:] = moved
            elif isinstance(event, Fill):
                row = self.made.get(event.stage, -event.rows)
                self.write(event.stage, row, event.rows, event.at)
            elif isinstance(event, Run):
                self.read(event)
                if event.stage < len(self.rows):
                    self.write(event.stage, event.row, event.rows, event.at)

    def bytes_at(self, start: int, count: int) -> np.ndarray:
        if start < 0 or start + count > len(self.memory):
            raise InternalError(f"rows: bytes {start} to {start + count - 1} are not in the block")
        return self.memory[start : start + count]

    def numbers(self, stage: int, row: int, count: int) -> np.ndarray:
        """What the bytes of rows hold."""
        numbers = np.arange(row, row + count) * len(self.stages) + stage
        return np.repeat(numbers, self.rows[stage])

    def write(self, stage: int, row: int, count: int, at: int) -> None:
        if row != self.made.get(stage, row):
            raise InternalError(f"rows: stage {stage} makes row {row} out of turn")
        self.bytes_at(at, count * self.rows[stage])[:] = self.numbers(stage, row, count)
        self.made[stage] = row + count

    def read(self, event: Run) -> None:
        reads = self.stages[event.stage].reads
        for read, at in zip(reads, event.windows, strict=True):
            row = read.stride * event.row + read.low
            count = read.stride * (event.rows - 1) + read.high - read.low + 1
            held = self.bytes_at(at, count * self.rows[read.of])
            if (held != self.numbers(read.of, row, count)).any():
                raise InternalError(
                    f"rows: stage {event.stage} does not find rows {row} to {row + count - 1} of "
                    f"stage {read.of} for its row {event.row}"
                )
