"""From calls on storages whose memory is planned to the steps of a program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from graphc.ir.kernel import Kernel
from graphc.ir.program import AnyStep, Copy, Count, If, Slot, Step, While
from graphc.ir.types import largest
from graphc.passes.lower.arena import Arena
from graphc.passes.lower.storages import (
    AnyCall,
    Call,
    Choice,
    Move,
    Storages,
    Tell,
    bodies,
    reads,
)


def planned_steps(
    arena: Arena, storages: Storages, kernels: Mapping[str, Kernel]
) -> tuple[tuple[AnyStep, ...], list[int]]:
    """The steps of planned calls, and which constants they use, by the numbers of storages: they
    are numbered anew in this order."""
    named = _named(arena.calls)
    used = sorted({storages[n].index for n in named if storages[n].space == "const"})
    numbers = {old: new for new, old in enumerate(used)}

    def slot(name: str) -> Slot:
        return arena.slot(storages[name], numbers)

    def step(call: AnyCall) -> AnyStep:
        if isinstance(call, Call):
            slots = tuple(map(slot, call.arguments))
            nbytes, sizes = _moved(slots, call.touched), kernels[call.kernel].sizes
            return Step(call.kernel, slots, call.loc, call.flops, nbytes, call.macs, sizes)
        if isinstance(call, Move):
            return _copy(call, slot(call.source), slot(call.target))
        if isinstance(call, Tell):
            return Count(call.size, slot(call.place), call.loc, call.most)
        inner = [tuple(map(step, body)) for body in bodies(call)]
        if isinstance(call, Choice):
            then, orelse = inner
            return If(slot(call.condition), then, orelse, call.loc)
        trips = slot(call.trips) if isinstance(call.trips, str) else call.trips
        condition = None if call.condition is None else slot(call.condition)
        counter = None if call.counter is None else slot(call.counter)
        return While(inner[0], condition, trips, counter, call.loc)

    return tuple(map(step, arena.calls)), used


def _named(calls: Sequence[AnyCall]) -> Iterator[str]:
    for call in calls:
        yield from call.arguments if isinstance(call, Call) else ()
        yield from reads(call)
        for body in bodies(call):
            yield from _named(body)


def _copy(call: Move, source: Slot, target: Slot) -> Copy:
    """A copy of a whole, or of a row of what is stacked: the side that moves on is larger."""
    elements = target.elements if call.target_stride == 0 else source.elements
    source = replace(source, offset=source.offset + call.source_offset, elements=elements)
    target = replace(target, offset=target.offset + call.target_offset, elements=elements)
    return Copy(source, target, call.source_stride, call.target_stride, call.loc)


def _moved(slots: Sequence[Slot], touched: Sequence[int | None]) -> int:
    """The bytes that a call reads and writes at the least."""
    most = touched or [None] * len(slots)
    sizes = [largest(s.elements) for s in slots]
    elements = (s if n is None else min(n, s) for s, n in zip(sizes, most))
    return sum(n * s.dtype.size for n, s in zip(elements, slots))
