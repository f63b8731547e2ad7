"""What a program's arena holds at each step, read off the slots of its steps alone.

The arena is cut where any slot begins or ends. A segment is live from a step that writes it to the
last step that reads it before it is written again; a slot that no step reads is live where it is
written. Inputs in the arena are written before the first step, outputs read after the last.
Nothing the memory planner knew is used.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from graphc.ir.program import Program, Slot

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


def arena_use(program: Program) -> ArenaUse:
    """The use of a program's arena over its steps."""
    slots = [slot for _, slot, _ in _accesses(program)]
    slots += [*_resident(program, "input"), *_resident(program, "output")]
    edges = sorted({edge for slot in slots for edge in _range(slot)})
    lives = _segment_lives(program, edges)
    live = [0] * len(program.calls)
    for start, stop, spans in zip(edges, edges[1:], lives):
        steps = {step for first, last in spans for step in range(first, last + 1)}
        for step in steps:  # one that writes in place ends one span and begins another
            live[step] += stop - start
    tensors = _tensors(program, edges, lives)
    return ArenaUse(tuple(live), tuple(sorted(tensors, key=lambda t: (-t.nbytes, t.first))))


def _accesses(program: Program) -> list[tuple[int, Slot, str]]:
    """(step, slot, access) for every slot in the arena."""
    return [
        (number, slot, buffer.access)
        for number, step in enumerate(program.calls)
        for slot, buffer in zip(step.slots, program.kernels[step.kernel].params)
        if slot.space == "arena" and slot.elements
    ]


def _range(slot: Slot) -> tuple[int, int]:
    return slot.offset, slot.offset + slot.elements * slot.dtype.size


def _segments(slot: Slot, edges: list[int]) -> range:
    start, stop = _range(slot)
    return range(bisect_left(edges, start), bisect_left(edges, stop))


def _segment_lives(program: Program, edges: list[int]) -> list[list[tuple[int, int]]]:
    """For each segment, the spans of steps in which it is live."""
    lives: list[list[tuple[int, int]]] = [[] for _ in edges]
    for slot in _resident(program, "input"):
        for segment in _segments(slot, edges):
            lives[segment] = [(0, 0)]
    for number, slot, access in _accesses(program):
        for segment in _segments(slot, edges):
            spans = lives[segment]
            if access == "out" and not (spans and spans[-1][0] == number):
                spans.append((number, number))
            elif spans:
                spans[-1] = (spans[-1][0], number)
    for slot in _resident(program, "output"):
        for segment in _segments(slot, edges):
            first = lives[segment][-1][0] if lives[segment] else 0
            lives[segment] = [*lives[segment][:-1], (first, len(program.calls) - 1)]
    return lives


def _resident(program: Program, side: str) -> list[Slot]:
    """Where inputs or outputs lie in the arena."""
    return [s for (of, _), s in program.resident.items() if of == side and s.elements]


def _tensors(program: Program, edges: list[int], lives: list) -> list[ArenaTensor]:
    tensors = []
    for (side, number), slot in program.resident.items():
        if side == "input" and slot.elements:
            last = max(lives[s][0][1] for s in _segments(slot, edges))
            name = program.inputs[number][0]
            size = slot.elements * slot.dtype.size
            tensors.append(ArenaTensor(slot.offset, size, 0, last, (name,)))
    for number, slot, access in _accesses(program):
        if access != "out":
            continue
        last = max(
            (b for s in _segments(slot, edges) for a, b in lives[s] if a <= number <= b),
            default=number,
        )
        size = slot.elements * slot.dtype.size
        tensors.append(ArenaTensor(slot.offset, size, number, last, program.calls[number].loc))
    return tensors


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
