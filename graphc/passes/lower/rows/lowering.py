"""A segment of a graph as calls for bands of rows, in loops where these repeat.

Line buffers are storages of the program around, so memory is planned as ever. What a stage makes,
if nothing of it is kept for later bands, has a storage of its own each time, which lives from one
call to the next. Rows of a compact plan lie in one storage. Bands of the source are copied from
where it lies, and those of the result to where it goes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from types import MappingProxyType
from typing import Protocol

import numpy as np

from graphc.ir.dtypes import u8
from graphc.ir.expr import Const, identity_of
from graphc.ir.graph import Op, Value
from graphc.ir.kernel import Buffer
from graphc.passes.analysis.compose import input_names
from graphc.passes.analysis.computation import Computation, Output, index_of, physical_buffer
from graphc.passes.lower.rows.bands import SUMS, Gathered, banded, row_axis
from graphc.passes.lower.rows.compact import Replay, compact_schedule
from graphc.passes.lower.rows.schedule import (
    Event,
    Fill,
    Loop,
    Run,
    Shift,
    Slide,
    loops,
    schedule,
)
from graphc.passes.lower.rows.segments import RowPlan, Segment, paddings
from graphc.passes.lower.storages import AnyCall, Move, Repeat, Storages


class Lowering(Protocol):
    """What lowers the graph around (program.py)."""

    calls: list[AnyCall]
    storages: Storages

    def lower_computation(
        self, part: Computation, places: dict[str, str], known: dict[str, np.ndarray | None], op: Op
    ) -> None:
        """Adds the calls of a computation whose buffers lie in storages."""

    def constant(self, buffer: Buffer, array: np.ndarray) -> str:
        """The storage of a new constant."""


NO_CONSTANTS: Mapping[str, np.ndarray] = MappingProxyType({})


def lower_segment(around: Lowering, plan: RowPlan) -> None:
    """Adds the calls of a segment."""
    (_Compact if plan.compact else _Rows)(around, plan.segment, plan.bands).lower()


def margins_of(segment: Segment, value: Value, band: int) -> tuple[int, int]:
    """The columns of padding beside the rows of a line buffer: there are some only where it is
    filled a row at a time, as a band is contiguous."""
    return segment.margins(value) if band == 1 else (0, 0)


def rows_of(value: Value, rows: int, margins: tuple[int, int] = (0, 0)) -> Buffer:
    """So many rows of a value."""
    whole = physical_buffer("", value.tensor, "")
    return replace(whole, shape=banded(whole.shape, rows, margins))


def nbytes(buffer: Buffer) -> int:
    return int(prod(buffer.shape)) * buffer.dtype.size


def line_bytes(segment: Segment, value: Value, band: int) -> int:
    """The bytes of a row of a value's line buffer."""
    return nbytes(rows_of(value, 1, margins_of(segment, value, band)))


class _Rows:
    """Lowers one segment."""

    def __init__(self, around: Lowering, segment: Segment, bands: Sequence[int]):
        self.around, self.segment, self.storages = around, segment, around.storages
        self.stages = segment.stages(bands)
        self.values = [segment.source, *(op.output for op in segment.ops)]
        self.last = len(self.stages) - 1
        self.margins = self.margins_of(bands)
        self.parts: dict[tuple[int, int], Computation] = {}
        end = segment.by_rows[-1]
        self.gathered = end if isinstance(end, Gathered) else None
        self.begin_lines()
        self.sums = "" if self.gathered is None else self.storages.temporary(self.gathered.sums)

    def margins_of(self, bands: Sequence[int]) -> list[tuple[int, int]]:
        """The columns of padding beside rows, by stage."""
        return [margins_of(self.segment, v, band) for v, band in zip(self.values, bands)]

    def begin_lines(self) -> None:
        """Makes the schedule, and the storages of line buffers."""
        self.plan = schedule(self.stages)
        kept = filter(self.is_kept, range(self.last))
        self.lines = {number: self.buffer(number) for number in kept}
        self.events: tuple[Event, ...] = self.plan.events

    def part(self, event: Run) -> Computation:
        """What a stage computes for a band."""
        key = event.stage, event.rows
        if key not in self.parts:
            by_rows, reads = self.segment.by_rows[event.stage - 1], self.stages[event.stage].reads
            margins = {n: self.margins[read.of] for n, read in zip(by_rows.reaches, reads)}
            self.parts[key] = by_rows.band(event.rows, margins)
        return self.parts[key]

    def is_kept(self, number: int) -> bool:
        """Whether the line buffer of a stage has to last."""
        is_larger = self.plan.capacity[number] > self.stages[number].band
        return self.plan.keeps[number] or is_larger or any(self.margins[number])

    def rows_of(self, number: int, rows: int, margins: tuple[int, int] = (0, 0)) -> Buffer:
        """So many rows of what a stage makes."""
        return rows_of(self.values[number], rows, margins)

    def row_bytes(self, number: int) -> int:
        """Of the source or the result."""
        return nbytes(self.rows_of(number, 1))

    def line_bytes(self, number: int) -> int:
        """Of a row of a line buffer."""
        return nbytes(self.rows_of(number, 1, self.margins[number]))

    def buffer(self, number: int) -> str:
        """A new storage for what a stage makes: all lines, or a band."""
        kept = number != self.last and self.is_kept(number)
        rows = self.plan.capacity[number] if kept else self.stages[number].band
        return self.storages.temporary(self.rows_of(number, rows, self.margins[number]))

    def view(self, number: int, at: int, rows: int) -> str:
        """Rows of a line buffer, margins included."""
        buffer = self.rows_of(number, rows, self.margins[number])
        return self.storages.part(self.lines[number], buffer, at * self.line_bytes(number))

    def target(self, event: Run) -> str:
        """Where a band goes in a line buffer, margins left out; or a storage for it alone."""
        number = event.stage
        if number == self.last or not self.is_kept(number):
            self.lines[number] = self.buffer(number)
        left, _ = self.margins[number]
        start = event.at * self.line_bytes(number)
        if left:
            start += self.row_bytes(number) // self.width(number) * left
        buffer = self.rows_of(number, event.rows)
        return self.storages.part(self.lines[number], buffer, start)

    def width(self, number: int) -> int:
        """The columns of a row."""
        shape = self.rows_of(number, 2).shape
        return int(shape[row_axis(shape) + 1])

    # ---------------------------------------------------------------- calls

    def lower(self) -> None:
        """Adds the calls of all events."""
        if self.gathered is not None:
            self.begin(self.gathered)
        for number, margins in enumerate(self.margins):
            if any(margins):
                self.pad(number, self.lines[number])
        for piece in self.pieces():
            if piece.trips == 1:
                self.around.calls += self.calls(piece)
                continue
            memory = self.storages.temporary(Buffer("memory", u8, (0,), ""))
            with self.storages.inside(memory):
                body = self.calls(piece)
            loc = tuple(dict.fromkeys(x for op in self.segment.ops for x in op.loc))
            self.around.calls.append(Repeat(body, memory, None, piece.trips, None, loc))
        if self.gathered is not None:
            self.finish(self.gathered)

    def pieces(self) -> list[Loop]:
        """The events, in loops unless bands of the last stage take constants of their own."""
        if self.gathered is not None and self.gathered.sliced:
            return [Loop(self.events, 1)]
        return loops(self.events, self.last)

    def calls(self, piece: Loop) -> list[AnyCall]:
        """The calls of events, in one trip of their loop."""
        before, self.around.calls = self.around.calls, []
        try:
            for event in piece.events:
                self.event(event, piece)
            return self.around.calls
        finally:
            self.around.calls = before

    def event(self, event: Event, piece: Loop) -> None:
        if isinstance(event, Shift):
            self.shift(event)
        elif isinstance(event, Slide):
            self.slide(event)
        elif isinstance(event, Fill):
            self.fill(event)
        else:
            self.run(event, piece.steps.get(event.stage, 0) * self.row_bytes(event.stage))

    def shift(self, event: Shift) -> None:
        """Moves rows to the start of a line buffer."""
        source = self.view(event.stage, event.start, event.rows)
        self.around.calls.append(Move(source, self.view(event.stage, 0, event.rows)))

    def slide(self, event: Slide) -> None:
        raise NotImplementedError

    def fill(self, event: Fill) -> None:
        """Writes rows of padding."""
        self.pad(event.stage, self.view(event.stage, event.at, event.rows))

    def pad(self, number: int, place: str) -> None:
        """Fills a place with what padding consists of."""
        value = self.values[number]
        fills = paddings(self.segment, value)
        buffer = replace(self.storages[place].buffer, name="padding", access="out")
        index = index_of(buffer.shape)
        fill = fills[0] if fills else Const(0, buffer.dtype)
        part = Computation((), (Output(buffer, index, fill),), frozenset(), "padding")
        self.around.lower_computation(part, {"padding": place}, {}, self.segment.ops[0])

    def run(self, event: Run, step: int) -> None:
        number = event.stage
        if number == self.last and self.gathered is not None:
            self.gather(event, self.gathered)
            return
        target = self.target(event)
        if number == 0:
            source, start = self.whole(event, step)
            self.around.calls.append(Move(source, target, step, 0, start))
            return
        op = self.segment.ops[number - 1]
        self.compute(self.part(event), number, self.windows(event), target)
        if number == self.last:
            whole, start = self.whole(event, step)
            self.around.calls.append(Move(target, whole, 0, step, 0, start, op.loc))

    def windows(self, event: Run) -> dict[str, str]:
        """Where the rows that a stage reads lie, by the names of operands."""
        stage, reaches = self.stages[event.stage], self.segment.by_rows[event.stage - 1].reaches
        return {
            name: self.view(read.of, at, reach.rows(event.rows))
            for (name, reach), read, at in zip(reaches.items(), stage.reads, event.windows)
        }

    def compute(
        self, part: Computation, number: int, places: dict[str, str], target: str,
        own: Mapping[str, np.ndarray] = NO_CONSTANTS,
    ) -> None:  # fmt: skip
        """Adds the calls of a computation, given where what is no constant lies, and constants of
        its `own` in place of those of the op."""
        op = self.segment.ops[number - 1]
        names = input_names(op)
        constants = [b for b in part.inputs if b.name in part.constants]
        places = dict(places)
        known: dict[str, np.ndarray | None] = {}
        for buffer in constants:
            name = buffer.name
            known[name] = own.get(name, names[name].constant)
            is_own = name in own
            places[name] = (
                self.around.constant(buffer, own[name]) if is_own else self.storages.of(names[name])
            )
        places[part.outputs[0].buffer.name] = target
        self.around.lower_computation(part, places, known, op)

    # ---------------------------------------------------------------- reductions over rows

    def begin(self, end: Gathered) -> None:
        """Nothing is gathered yet."""
        sums = end.sums
        array = np.full(sums.shape, identity_of(end.hole.op, sums.dtype).value, sums.dtype.np)
        self.around.calls.append(Move(self.around.constant(sums, array), self.sums))

    def gather(self, event: Run, end: Gathered) -> None:
        """Adds a band to what is gathered."""
        after, places = self.after(event, end), {**self.windows(event), SUMS: self.sums}
        names = input_names(self.segment.ops[-1])
        own: dict[str, np.ndarray] = {}
        for name, dim in end.sliced:
            whole = self.storages.contents(self.storages.of(names[name]))
            own[name] = whole.take(range(event.row, event.row + event.rows), dim)
        self.compute(self.part(event), self.last, places, after, own)
        self.around.calls.append(Move(after, self.sums))

    def after(self, event: Run, end: Gathered) -> str:
        """A storage for what is gathered with one more band."""
        return self.storages.temporary(end.sums)

    def finish(self, end: Gathered) -> None:
        """Computes the result."""
        target = self.storages.of(self.segment.ops[-1].output)
        self.compute(end.finish(), self.last, {SUMS: self.sums}, target)

    # ---------------------------------------------------------------- source and result

    def whole(self, event: Run, step: int) -> tuple[str, int]:
        """Where a band lies in the source or the result, and how far from its start: the whole, if
        that moves on with each trip, else the band alone."""
        number = event.stage
        whole, start = self.storages.of(self.values[number]), event.row * self.row_bytes(number)
        if step:
            return whole, start
        band = self.rows_of(number, event.rows)
        return self.storages.part(whole, band, start), 0


class _Compact(_Rows):
    """Lowers one segment by a compact schedule."""

    def margins_of(self, bands: Sequence[int]) -> list[tuple[int, int]]:
        return [(0, 0)] * len(bands)

    def begin_lines(self) -> None:
        rows = [self.line_bytes(number) for number in range(self.last)]
        band = self.stages[self.last].band * self.row_bytes(self.last)
        end = band if self.gathered is None else nbytes(self.gathered.sums)
        plan = compact_schedule(self.stages, rows, end)
        Replay(self.stages, rows, plan.nbytes).check(plan.events)
        self.block = self.storages.temporary(Buffer("lines", u8, (plan.nbytes,), ""))
        self.events = plan.events

    def view(self, number: int, at: int, rows: int) -> str:
        return self.storages.part(self.block, self.rows_of(number, rows), at)

    def target(self, event: Run) -> str:
        return self.view(event.stage, event.at, event.rows)

    def after(self, event: Run, end: Gathered) -> str:
        return self.storages.part(self.block, end.sums, event.at)

    def slide(self, event: Slide) -> None:
        buffer = Buffer("", u8, (event.nbytes,), "")
        source, target = (
            self.storages.part(self.block, buffer, at) for at in (event.source, event.target)
        )
        self.around.calls.append(Move(source, target))
