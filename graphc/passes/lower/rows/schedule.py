"""The order in which bands of rows are computed, and where in line buffers they lie.

The last stage asks for the rows that its next band reads, and so on up to the source, so no stage
is ahead of what is asked for. A line buffer keeps the rows from the first that some reader still
needs to the last that there is. Where a new band does not fit, the rows kept are moved to its start
first. Its capacity is the most rows that are ever kept; less would not do for this order. No row is
computed twice.

This is a static schedule of synchronous data flow (E. A. Lee, D. G. Messerschmitt, Synchronous Data
Flow, 1987), with rows as tokens. Lines kept between convolutions, so that nothing is computed
again, are those of K. Goetschalckx, M. Verhelst, Breaking High-Resolution CNN Bandwidth Barriers
With Enhanced Depth-First Execution, 2019, and of H.-S. Zheng et al., StreamNet, 2023.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from graphc.errors import InternalError
from graphc.records import dataclass


@dataclass(frozen=True)
class Read:
    """Row h of a stage reads rows stride * h + low .. stride * h + high of what `of` makes."""

    of: int
    stride: int
    low: int
    high: int


@dataclass(frozen=True)
class Stage:
    """Makes `rows` rows, `band` at a time, the last time what is left of them. The first stage is
    the source, which reads nothing."""

    rows: int
    band: int
    reads: tuple[Read, ...] = ()


@dataclass(frozen=True)
class Run:
    """A stage makes a band of `rows` rows that begins with `row`, at row `at` of its line buffer.
    The rows that it reads begin at these rows of the line buffers of what it reads. All are bytes
    of a block in a compact schedule (compact.py)."""

    stage: int
    row: int
    rows: int
    at: int
    windows: tuple[int, ...]


@dataclass(frozen=True)
class Shift:
    """Moves `rows` rows of the line buffer of a stage from row `start` to its beginning."""

    stage: int
    start: int
    rows: int


@dataclass(frozen=True)
class Fill:
    """Rows of padding, at a place as in Run."""

    stage: int
    at: int
    rows: int


@dataclass(frozen=True)
class Slide:
    """Moves the rows of a stage, so many bytes, in the block of a compact schedule."""

    stage: int
    source: int
    target: int
    nbytes: int


Event = Run | Shift | Fill | Slide


@dataclass(frozen=True)
class Schedule:
    """`events` in order; by stage, the `capacity` of its line buffer in rows, and whether it
    `keeps` any rows when the next are made, or when a band of the result is."""

    events: tuple[Event, ...]
    capacity: tuple[int, ...]
    keeps: tuple[bool, ...]


def schedule(stages: list[Stage]) -> Schedule:
    """The schedule of stages in topological order, the last of which makes the result."""
    trial = Player(stages, None)
    trial.play()
    final = Player(stages, trial.capacity)
    final.play()
    return Schedule(tuple(final.events), tuple(final.capacity), tuple(trial.keeps))


@dataclass
class _Lines:
    """A line buffer: rows `base` .. `end` - 1 are in it. Rows above 0 and from the height on are
    padding, `top` and `bottom` of it."""

    top: int
    bottom: int
    base: int = 0
    end: int = 0
    begun: bool = False


@dataclass
class Player:
    """Plays the schedule, with line buffers that are as large as it takes, or of a capacity."""

    stages: list[Stage]
    limits: list[int] | None
    events: list[Event] = field(default_factory=list)
    capacity: list[int] = field(default_factory=list)
    keeps: list[bool] = field(default_factory=list)

    def play(self) -> None:
        self.next = [0] * len(self.stages)
        self.capacity = [0] * len(self.stages)
        self.keeps = [False] * len(self.stages)
        self.readers: list[list[tuple[int, Read]]] = [[] for _ in self.stages]
        for number, stage in enumerate(self.stages):
            for read in stage.reads:
                self.readers[read.of].append((number, read))
        self.lines = [self._lines(n) for n in range(len(self.stages))]
        last = self.stages[-1]
        for _ in range(0, last.rows, last.band):  # of which the last may be lower
            self.run(len(self.stages) - 1, last.band)

    def _lines(self, number: int) -> _Lines:
        height, top, bottom = self.stages[number].rows, 0, 0
        for reader, read in self.readers[number]:
            end = read.stride * (self.stages[reader].rows - 1) + read.high + 1
            top, bottom = max(top, -read.low), max(bottom, end - height)
        return _Lines(top, bottom, -top, -top)

    def needed(self, number: int) -> int:
        """The first row that a reader of a stage still needs."""
        firsts = [
            read.stride * self.next[n] + read.low for n, read in self.readers[number]
            if self.next[n] < self.stages[n].rows
        ]  # fmt: skip
        return max(min(firsts, default=self.lines[number].end), self.lines[number].base)

    def room(self, number: int, rows: int) -> int:
        """Makes room for so many more rows; where they go."""
        if number == len(self.stages) - 1:
            return 0
        lines = self.lines[number]
        needed = min(self.needed(number), lines.end)
        kept = lines.end - needed
        self.keeps[number] |= kept > 0
        if self.limits is None:
            self.capacity[number] = max(self.capacity[number], kept + rows)
            lines.base = needed
        elif lines.end - lines.base + rows > self.limits[number]:
            if kept:
                self.events.append(Shift(number, needed - lines.base, kept))
            lines.base = needed
            self.capacity[number] = self.limits[number]
        else:
            self.capacity[number] = self.limits[number]
        at = lines.end - lines.base
        lines.end += rows
        return at

    def fill(self, number: int, rows: int) -> None:
        if rows:
            at = self.room(number, rows)
            self.events.append(Fill(number, at, rows))

    def ask(self, number: int, end: int, often: int) -> None:
        """Has a stage make rows until there are all before `end`; the reader takes so many more
        each time."""
        lines, stage = self.lines[number], self.stages[number]
        while lines.end < end:
            if not lines.begun and end <= 0:
                self.begin(number)
            elif self.next[number] < stage.rows:
                self.run(number, self.height(number, end - max(lines.end, 0), often))
            elif lines.end < stage.rows + lines.bottom:
                self.fill(number, lines.bottom)
            else:
                raise InternalError(f"rows: stage {number} has no row {end - 1}")

    def begin(self, number: int) -> None:
        """Puts padding in front of the first row of a stage."""
        lines = self.lines[number]
        if not lines.begun:
            lines.begun = True
            self.fill(number, lines.top)

    def height(self, number: int, wanted: int, often: int) -> int:
        """The rows of a band of which so many are asked for, and so many most times."""
        return self.stages[number].band

    def run(self, number: int, most: int) -> None:
        """Has a stage make its next band, of so many rows or what is left."""
        stage, row = self.stages[number], self.next[number]
        rows = min(most, stage.rows - row)
        for read in sorted(stage.reads, key=lambda read: read.high):  # what is near first
            end = read.stride * (row + rows - 1) + read.high + 1
            self.ask(read.of, end, read.stride * stage.band)
        if number < len(self.stages) - 1:
            self.begin(number)
        at = self.room(number, rows)
        windows = tuple(self.place(read.of, read.stride * row + read.low) for read in stage.reads)
        self.next[number] += rows
        self.events.append(Run(number, row, rows, at, windows))
        self.ran(number)

    def place(self, number: int, row: int) -> int:
        """Where a row of a stage lies in its line buffer."""
        return row - self.lines[number].base

    def ran(self, number: int) -> None:
        """What follows a band."""
        if number == len(self.stages) - 1:  # where a loop may end
            for n, other in enumerate(self.lines[:-1]):
                self.keeps[n] |= other.end > self.needed(n)


# ---------------------------------------------------------------- loops


@dataclass(frozen=True)
class Loop:
    """Events that are run so many times; those of the source and of the last stage are of rows
    that move on by so many with each trip, by stage."""

    events: tuple[Event, ...]
    trips: int
    steps: dict[int, int] = field(default_factory=dict)


LONGEST = 4  # bands of the last stage in one trip


def loops(events: Sequence[Event], last: int) -> list[Loop]:
    """The events as straight pieces and loops: where bands of the last stage, a few at a time, are
    made by equal events again and again."""
    chunks: list[tuple[Event, ...]] = []
    chunk: list[Event] = []
    for event in events:
        chunk.append(event)
        if isinstance(event, Run) and event.stage == last:
            chunks.append(tuple(chunk))
            chunk = []
    shapes = [tuple(_placed(e) for e in c) for c in chunks]
    result: list[Loop] = []
    straight: list[Event] = []
    number = 0
    while number < len(chunks):
        period, trips = _best(shapes, number)
        events = tuple(e for c in chunks[number : number + period] for e in c)
        if trips > 1:
            if straight:
                result.append(Loop(tuple(straight), 1))
                straight = []
            steps: dict[int, int] = {}
            following = (e for c in chunks[number + period : number + 2 * period] for e in c)
            for now, later in zip(events, following):
                if isinstance(now, Run) and isinstance(later, Run):
                    steps[now.stage] = later.row - now.row
            result.append(Loop(events, trips, steps))
        else:
            straight += events
        number += period * trips
    if straight:
        result.append(Loop(tuple(straight), 1))
    return result


def _placed(event: Event) -> tuple:
    """What is equal for events that touch the same places of line buffers."""
    if isinstance(event, Run):
        return (event.stage, event.rows, event.at, event.windows)
    return (type(event).__name__, event)


def _best(shapes: list[tuple], start: int) -> tuple[int, int]:
    """The period and the trips of the loop from a place on that covers the most; (1, 1): none."""
    best = (1, 1)
    for period in range(1, LONGEST + 1):
        trips = 1
        while (
            shapes[start : start + period]
            == shapes[start + trips * period : start + (trips + 1) * period]
        ):
            trips += 1
        if trips > 1 and period * trips > best[0] * best[1]:
            best = (period, trips)
    return best
