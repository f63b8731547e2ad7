"""What a program's arena holds at each step, read off the slots of its steps alone.

The arena is cut where any slot begins or ends. A segment is live from a step that writes it to the
last step that reads it before it is written again; a slot that no step reads is live where it is
written. Steps in loops and branches are counted in the order of the text; of a loop, any trip may
be the last, and the next one may follow. Inputs in the arena are written before the first step,
outputs read after the last. A program of open shape is shown at its largest sizes.
Nothing the memory planner knew is used.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from graphc.ir.program import AnyStep, Copy, Count, If, Program, Slot, Step, bodies
from graphc.ir.types import largest

BARS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class ArenaTensor:
    """A tensor in the arena: bytes from `offset` on, live from step `first` to step `last`."""

    offset: int
    nbytes: int
    first: int
    last: int
    loc: tuple[str, ...]


@dataclass(frozen=True)
class ArenaUse:
    """Live bytes of each step, and the tensors written to the arena, largest first."""

    live: tuple[int, ...]
    tensors: tuple[ArenaTensor, ...]


@dataclass(eq=False)
class _Event:
    """A step: the number of the call that it is, or that comes next; the slots of the arena that it
    reads, then writes; the events inside it, which are repeated or of which one list happens; and
    the segments that are live before it, a bit for each."""

    call: int
    loc: tuple[str, ...]
    reads: list[Slot]
    writes: list[Slot]
    inside: list[list[_Event]] = field(default_factory=list)
    repeats: bool = False
    before: int = 0

    def walk(self) -> Iterator[_Event]:
        """This event and those inside, in the order of the text."""
        yield self
        for events in self.inside:
            for event in events:
                yield from event.walk()


def arena_use(program: Program) -> ArenaUse:
    """The use of a program's arena over its calls. In a loop, what the next trip reads is live."""
    reader = _Reader(program)
    events = reader.events(program.steps)
    inputs, outputs = _resident(program, "input"), _resident(program, "output")
    walked = [event for outer in events for event in outer.walk()]
    slots = [slot for event in walked for slot in (*event.reads, *event.writes)]
    segments = _Segments([*slots, *inputs, *outputs])
    _find_live(events, segments, segments.of(outputs))
    live = [0] * reader.calls
    for event in walked:
        if not event.inside and event.call < len(live):
            alive = event.before | segments.of(event.writes)
            alive |= segments.of(inputs) if event.call == 0 else 0
            live[event.call] = max(live[event.call], segments.nbytes(alive))
    tensors = _tensors(program, walked, segments)
    return ArenaUse(tuple(live), tuple(sorted(tensors, key=lambda t: (-t.nbytes, t.first))))


class _Reader:
    """Makes events of steps; `calls` are those so far."""

    def __init__(self, program: Program):
        self.kernels, self.calls = program.kernels, 0

    def events(self, steps: Sequence[AnyStep]) -> list[_Event]:
        return list(map(self.event, steps))

    def event(self, step: AnyStep) -> _Event:
        number = self.calls
        if isinstance(step, Step):
            self.calls += 1
            pairs = list(zip(step.slots, self.kernels[step.kernel].params))
            reads = [slot for slot, buffer in pairs if buffer.access != "out"]
            writes = [slot for slot, buffer in pairs if buffer.access == "out"]
            return _Event(number, step.loc, _in_arena(reads), _in_arena(writes))
        if isinstance(step, Copy):
            return _Event(number, step.loc, _in_arena([step.source]), _in_arena([step.target]))
        if isinstance(step, Count):
            return _Event(number, step.loc, _in_arena([step.slot]), [])
        inside = list(map(self.events, bodies(step)))
        if isinstance(step, If):
            return _Event(number, step.loc, _in_arena([step.condition]), [], inside)
        reads = [slot for slot in (step.condition, step.trips) if isinstance(slot, Slot)]
        writes = [] if step.counter is None else [step.counter]
        return _Event(number, step.loc, _in_arena(reads), _in_arena(writes), inside, True)


class _Segments:
    """The arena, cut where slots begin or end; sets of segments are integers, a bit for each."""

    def __init__(self, slots: Sequence[Slot]):
        self.edges = sorted({edge for slot in slots for edge in _range(slot)})

    def of(self, slots: Iterable[Slot]) -> int:
        """The segments of slots."""
        bits = 0
        for slot in slots:
            start, stop = (bisect_left(self.edges, edge) for edge in _range(slot))
            bits |= (1 << stop) - (1 << start)
        return bits

    def nbytes(self, bits: int) -> int:
        sizes = (b - a for a, b in zip(self.edges, self.edges[1:]))
        return sum(size for n, size in enumerate(sizes) if bits >> n & 1)


def _find_live(events: Sequence[_Event], segments: _Segments, after: int) -> int:
    """Notes what is live before each event, given what is after the last; what is before all."""
    for event in reversed(events):
        kept = after & ~segments.of(event.writes)
        live = segments.of(event.reads) | (kept if event.repeats or not event.inside else 0)
        if event.repeats:
            (body,) = event.inside
            for _ in range(2):  # what a trip needs of the one before shows in the second round
                live |= _find_live(body, segments, live) & ~segments.of(event.writes)
        else:
            for branch in event.inside:
                live |= _find_live(branch, segments, after)
        event.before = after = live
    return after


def _in_arena(slots: Iterable[Slot]) -> list[Slot]:
    return [slot for slot in slots if slot.space == "arena" and _most(slot)]


def _range(slot: Slot) -> tuple[int, int]:
    return slot.offset, slot.offset + _most(slot)


def _most(slot: Slot) -> int:
    """Bytes of a slot, at the largest sizes."""
    return largest(slot.elements) * slot.dtype.size


def _resident(program: Program, side: str) -> list[Slot]:
    """Where inputs or outputs lie in the arena."""
    return [s for (of, _), s in program.resident.items() if of == side and _most(s)]


def _tensors(
    program: Program, events: Sequence[_Event], segments: _Segments
) -> Iterator[ArenaTensor]:
    """What is written to the arena, inputs first."""

    def tensor(slot: Slot, first: int, start: int, loc: tuple[str, ...]) -> ArenaTensor:
        last, alive = first, segments.of([slot])
        for event in events[start:]:
            alive &= event.before
            if not alive:
                break
            last, alive = event.call, alive & ~segments.of(event.writes)
        last = min(last, max(len(program.calls) - 1, 0))
        return ArenaTensor(slot.offset, _most(slot), min(first, last), last, loc)

    for (side, number), slot in program.resident.items():
        if side == "input" and _most(slot):
            yield tensor(slot, 0, 0, (program.inputs[number][0],))
    for position, event in enumerate(events):
        for slot in event.writes:
            yield tensor(slot, event.call, position + 1, event.loc)


def picture(live: tuple[int, ...], total: int, width: int = 72, height: int = 6) -> list[str]:
    """Live bytes over the steps as a bar chart, `total` bytes high; one string a line."""
    if not live or not total:
        return []
    count = min(width, len(live))
    cuts = [n * len(live) // count for n in range(count + 1)]
    columns = [max(live[start:stop]) for start, stop in zip(cuts, cuts[1:])]
    eighths = [round(8 * height * value / total) for value in columns]
    rows = []
    for row in reversed(range(height)):
        rows.append("".join(BARS[min(max(e - 8 * row, 0), 8)] for e in eighths).rstrip())
    return rows
