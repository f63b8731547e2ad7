"""Which plans of execution by rows are worth trying: those whose memory, as liveness gives it, is
less than others', from the one that copies least to the one that takes least memory.

The memory of a plan is judged before anything is lowered. Outside the segment it is what is live
around each op, and inside its line buffers, its source and its result. Kernels may work in place,
or need temporaries, so the true numbers are those of the program that is made of a plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod

import numpy as np

from graphc.ir.graph import Graph, Op, Value
from graphc.passes.analysis.computation import Computation, physical_buffer
from graphc.passes.lower.rows.bands import ByRows, Gathered, by_rows, gathered
from graphc.passes.lower.rows.compact import compact_schedule
from graphc.passes.lower.rows.lowering import line_bytes, margins_of
from graphc.passes.lower.rows.schedule import (
    Event,
    Run,
    Shift,
    Slide,
    Stage,
    schedule,
)
from graphc.passes.lower.rows.segments import RowPlan, Segment, segments
from graphc.records import dataclass

HEIGHTS = (1, 2, 3, 4, 6, 8)  # of bands
PRICES = (0.0, *(2.0 ** (n / 2) for n in range(1, 25)), math.inf)  # instructions for a byte
MOST_SEGMENTS = 24  # whose schedules are made
MOST_PLANS = 8
CALL = 40  # instructions around the work of a kernel: arguments, registers saved, loops entered
BYTES = 2  # that are copied in an instruction

Work = Callable[[Computation], float]
"""About how many instructions the kernels of a computation take."""


@dataclass(frozen=True)
class _Judged:
    """A plan, its memory in bytes, and about what its segment costs in instructions."""

    plan: RowPlan
    memory: int
    cost: int


def all_segments(graph: Graph, computed: Mapping[Op, Computation]) -> list[Segment]:
    """The segments of a graph whose ops compute this."""
    ops = [op for op in graph.ops if op.name != "Constant"]
    return segments(ops, graph.results, lambda op: _rows_of(op, computed.get(op)))


def candidates(
    graph: Graph, computed: Mapping[Op, Computation], resident: bool, work: Work,
    pushed: bool = False,
) -> list[RowPlan]:  # fmt: skip
    """The plans to try for a graph whose ops compute this; the cheapest first. `resident`: inputs
    and outputs take memory; `pushed`: an input comes by rows, so plans must begin with it."""
    ops = [op for op in graph.ops if op.name != "Constant"]
    use = _Use(graph, ops, resident)
    known = all_segments(graph, computed)
    plain = math.inf if pushed else use.most(ops, frozenset())
    if pushed:
        known = [s for s in known if s.source in graph.params]
    floors = [(max(use.around(s), _least_lines(s) + use.live(s)), n) for n, s in enumerate(known)]
    chosen = [known[n] for floor, n in sorted(floors)[:MOST_SEGMENTS] if floor < plain]
    costs = _Costs(work)
    judged = [_judged(plan, use, costs) for s in chosen for plan in _plans(s, costs)]
    if judged:
        judged.append(_smaller(min(judged, key=lambda j: (j.memory, j.cost)), use, costs))
    return [one.plan for one in _thinned(_best([j for j in judged if j.memory < plain]))]


def _smaller(start: _Judged, use: _Use, costs: _Costs) -> _Judged:
    """A plan with taller bands of some stages that takes less memory, if there is one: rows of a
    stage that moves by two wait less if what it reads comes two at a time."""
    best = start
    for number in range(len(start.plan.bands)):
        bands = list(best.plan.bands)
        bands[number] = min(2 * bands[number], best.plan.segment.heights[number])
        one = _judged(replace(best.plan, bands=tuple(bands)), use, costs)
        if one.memory < best.memory:
            best = one
    return best


def _plans(segment: Segment, costs: _Costs) -> list[RowPlan]:
    """Plans of a segment: for each price of a byte, bands that cost least, and between two of them
    those whose first half is of one, and the rest of the other. A row more of a band is a row more
    of its line buffer, and of those that it reads."""
    stages = segment.stages(RowPlan.even(segment, 1).bands)
    values = [segment.source, *(op.output for op in segment.ops)]
    rows = [line_bytes(segment, value, 2) for value in values]
    options = []
    for number, stage in enumerate(stages):
        of_row = rows[number] + sum(read.stride * rows[read.of] for read in stage.reads)
        heights = [h for h in HEIGHTS if h <= stage.rows]
        options.append([(h, h * of_row, costs.of(segment, number, h)) for h in heights])
    made = [
        tuple(min(o, key=lambda x: (x[2] + price * x[1], x[0]))[0] for o in options)
        for price in PRICES
    ]
    half = len(stages) // 2
    mixed = [b[:half] + a[half:] for a, b in pairwise(made)]
    known = dict.fromkeys((*made, *mixed))
    return [RowPlan(segment, bands, compact) for bands in known for compact in (False, True)]


class _Costs:
    """What it costs to make all rows of a stage in bands, in instructions."""

    def __init__(self, work: Work):
        self.work = work
        self.known: dict[tuple[Op, int], float] = {}

    def of(self, segment: Segment, number: int, height: int) -> float:
        """Of a stage in bands of this height; a band that is lower counts in proportion."""
        count = segment.heights[number]
        value = (segment.source, *(op.output for op in segment.ops))[number]
        copied = line_bytes(segment, value, 2) / BYTES if number in (0, len(segment.ops)) else 0
        if number == 0:
            return count * (copied + CALL / height)
        op, by_rows = segment.ops[number - 1], segment.by_rows[number - 1]
        key = op, height
        if key not in self.known:
            self.known[key] = self.work(by_rows.band(height)) / height
        return count * (self.known[key] + copied + CALL / height)


def _rows_of(op: Op, part: Computation | None) -> ByRows | Gathered | str:
    """The computation of an op by rows, or why it has none."""
    if part is None:
        return "rows: it has no scalar body"
    rows = gathered(part) or by_rows(part)
    if isinstance(rows, ByRows) and not all(map(_is_finite, op.inputs)):
        if any(reach.fill is not None for reach in rows.reaches.values()):
            return "rows: a product of padding with a constant that is not finite is not 0"
    return rows


def _is_finite(value: Value | None) -> bool:
    """Whether no constant is there that is infinite or no number."""
    if value is None or value.constant is None or not value.tensor.dtype.is_float:
        return True
    return bool(np.isfinite(value.constant.astype(np.float64)).all())


def _least_lines(segment: Segment) -> int:
    """About the bytes of line buffers of single rows, without their schedule."""
    values = (segment.source, *(op.output for op in segment.ops[:-1]))
    return sum(
        max(reach.rows(1) for reach in segment.reaches(value)) * line_bytes(segment, value, 1)
        for value in values
    )


def _best(judged: list[_Judged]) -> list[_Judged]:
    """Those than which none is better in both ways, the cheapest first."""
    kept: list[_Judged] = []
    for one in sorted(judged, key=lambda j: (j.cost, j.memory)):
        if not kept or one.memory < kept[-1].memory:
            kept.append(one)
    return kept


def _thinned(kept: list[_Judged]) -> list[_Judged]:
    """So many of them, evenly, the last among them."""
    if len(kept) <= MOST_PLANS:
        return kept
    step = (len(kept) - 1) / (MOST_PLANS - 1)
    return [kept[round(n * step)] for n in range(MOST_PLANS)]


def _judged(plan: RowPlan, use: _Use, costs: _Costs) -> _Judged:
    lines, copies = (_compact_lines if plan.compact else _lines)(plan)
    cost = copies + sum(costs.of(plan.segment, n, band) for n, band in enumerate(plan.bands))
    memory = lines + use.live(plan.segment)
    return _Judged(plan, max(use.around(plan.segment), memory), round(cost))


def _lines(plan: RowPlan) -> tuple[int, float]:
    """The bytes of line buffers and bands, and the instructions of copies between them."""
    segment, bands = plan.segment, plan.bands
    stages = segment.stages(bands)
    made = schedule(stages)
    values = [segment.source, *(op.output for op in segment.ops)]
    rows = [line_bytes(segment, value, band) for value, band in zip(values, bands)]
    kept = [
        made.keeps[n] or made.capacity[n] > bands[n] or any(margins_of(segment, v, bands[n]))
        for n, v in enumerate(values)
    ]
    lines = sum(made.capacity[n] * rows[n] for n in range(len(segment.ops)) if kept[n])
    moved = (event for event in made.events if isinstance(event, Shift))
    copies = sum(CALL + event.rows * rows[event.stage] / BYTES for event in moved)
    return lines + _passing(stages, made.events, rows, kept), copies


def _compact_lines(plan: RowPlan) -> tuple[int, float]:
    """The same of a compact plan."""
    segment, bands = plan.segment, plan.bands
    *rows, last = (
        line_bytes(segment, value, 2)
        for value in (segment.source, *(op.output for op in segment.ops))
    )
    made = compact_schedule(segment.stages(bands), rows, bands[-1] * last)
    moved = [event.nbytes for event in made.events if isinstance(event, Slide)]
    return made.nbytes, len(moved) * CALL + sum(moved) / BYTES


def _passing(
    stages: Sequence[Stage], events: Sequence[Event], rows: Sequence[int], kept: Sequence[bool]
) -> int:
    """The most bytes of bands that live from when they are made to when they are read."""
    readers = [sum(r.of == n for s in stages for r in s.reads) for n in range(len(stages))]
    waiting: dict[int, int] = {}
    live: dict[int, int] = {}
    most = 0
    for event in events:
        if not isinstance(event, Run):
            continue
        number = event.stage
        if not kept[number]:
            live[number], waiting[number] = event.rows * rows[number], readers[number]
        most = max(most, sum(live.values()))
        for read in stages[number].reads:
            if read.of in live:
                waiting[read.of] -= 1
                if not waiting[read.of]:
                    del live[read.of]
    return most


class _Use:
    """What is live around the ops of a graph, in bytes."""

    def __init__(self, graph: Graph, ops: Sequence[Op], resident: bool):
        self.ops, self.number = ops, {op: n for n, op in enumerate(ops)}
        outside = set() if resident else {*graph.params, *graph.results}
        self.sizes: dict[Value, int] = {}
        self.first: dict[Value, int] = {}
        self.last: dict[Value, int] = {}
        for number, op in enumerate(ops):
            for value in (*op.outputs, *op.inputs):
                if value is None or value.constant is not None or value in outside:
                    continue
                if value.is_ranked:
                    self.sizes[value] = _nbytes(value)
                    self.first.setdefault(value, number if value.producer is op else -1)
                    self.last[value] = number
        for value in graph.results:
            self.last[value] = len(ops)

    def at(self, number: int, hidden: frozenset[Value] = frozenset()) -> int:
        """What is live while an op runs, apart from some values."""
        return sum(
            size for value, size in self.sizes.items()
            if self.first[value] <= number <= self.last[value] and value not in hidden
        )  # fmt: skip

    def most(self, ops: Sequence[Op], hidden: frozenset[Value]) -> int:
        return max((self.at(self.number[op], hidden) for op in ops), default=0)

    def hidden(self, segment: Segment) -> frozenset[Value]:
        return frozenset(op.output for op in segment.ops[:-1])

    def around(self, segment: Segment) -> int:
        """The most that is live at other ops, and at the last of the segment."""
        inside = set(segment.ops[:-1])
        return self.most([op for op in self.ops if op not in inside], self.hidden(segment))

    def live(self, segment: Segment) -> int:
        """What is live besides line buffers while the segment runs, all of it at once."""
        begin, end = self.number[segment.ops[0]], self.number[segment.ops[-1]]
        hidden = self.hidden(segment)
        return sum(
            size for value, size in self.sizes.items()
            if self.first[value] <= end and self.last[value] >= begin and value not in hidden
        )  # fmt: skip


def _nbytes(value: Value) -> int:
    buffer = physical_buffer("", value.tensor, "")
    if not all(isinstance(x, int) for x in buffer.shape):
        return 0
    return int(prod(buffer.shape)) * buffer.dtype.size
