"""Which plans of execution by rows are worth trying: those whose memory, as liveness gives it, is
less than others', from the one that copies least to the one that takes least memory.

The memory of a plan is judged before anything is lowered. Outside the segment it is what is live
around each op, and inside its line buffers, its source and its result. Kernels may work in place,
or need temporaries, so the true numbers are those of the program that is made of a plan.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod

import numpy as np

from graphc.ir.graph import Graph, Op, Value
from graphc.passes.analysis.computation import Computation, physical_buffer
from graphc.passes.lower.rows.bands import ByRows, Gathered, by_rows, gathered
from graphc.passes.lower.rows.compact import compact_schedule
from graphc.passes.lower.rows.lowering import line_bytes, margins_of, nbytes
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

HEIGHTS = (1, 2, 3, 4, 5, 6, 7, 8)  # of bands
PRICES = (0.0, *(2.0**n for n in range(13)), math.inf)  # instructions for a byte
MOST_SEGMENTS = 24  # whose schedules are made
MOST_PLANS = 12
LARGER = 4  # plans to try that seem to take more than there is room for
CALL = 40  # instructions around the work of a kernel: arguments, registers saved, loops entered
BYTES = 2  # that are copied in an instruction

Work = Callable[[Computation], float]
"""About how many instructions the kernels of a computation take."""


@dataclass(frozen=True)
class _Judged:
    """A plan, its memory in bytes, and about how many instructions it costs more than whole images
    do."""

    plan: RowPlan
    memory: int
    cost: int


def all_segments(graph: Graph, computed: Mapping[Op, Computation]) -> list[Segment]:
    """The segments of a graph whose ops compute this."""
    ops = [op for op in graph.ops if op.name != "Constant"]
    return segments(ops, graph.results, lambda op: _rows_of(op, computed.get(op)))


def candidates(
    graph: Graph, computed: Mapping[Op, Computation], resident: bool, work: Work,
    pushed: bool = False, room: int | None = None,
) -> list[RowPlan]:  # fmt: skip
    """The plans to try for a graph whose ops compute this; the cheapest first. `resident`: inputs
    and outputs take memory; `pushed`: an input comes by rows, so plans must begin with it. Of many
    plans some are left out: if there is `room` for so many bytes, those that take much more or
    less."""
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
    best = _best([j for j in judged if j.memory < plain])
    return [one.plan for one in (_thinned(best) if room is None else _near(best, room))]


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
    of its line buffer, and of those that it reads. And plans of two heights, of stages that read
    windows of rows and of those that read single ones: bands that divide one another wait least."""
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
    windows = [any(read.high > read.low for read in stage.reads) for stage in stages]
    pairs = [
        tuple(min(tall if w else low, stage.rows) for w, stage in zip(windows, stages))
        for tall in HEIGHTS for low in HEIGHTS if not tall % low
    ]  # fmt: skip
    known = dict.fromkeys((*made, *mixed, *pairs))
    return [RowPlan(segment, bands, compact) for bands in known for compact in (False, True)]


class _Costs:
    """What it costs to make all rows of a stage in bands, in instructions."""

    def __init__(self, work: Work):
        self.work = work
        self.known: dict[tuple[Op, int], float] = {}

    def of(self, segment: Segment, number: int, height: int) -> float:
        """Of a stage in bands of this height, and one of what is left."""
        bands, rest = divmod(segment.heights[number], height)
        cost = bands * self.band(segment, number, height)
        return cost + self.band(segment, number, rest) if rest else cost

    def band(self, segment: Segment, number: int, height: int) -> float:
        """Of one band of a stage."""
        copied = 0.0
        if number in (0, len(segment.ops)):
            value = segment.ops[-1].output if number else segment.source
            copied = height * line_bytes(segment, value, 2) / BYTES
        if number == 0:
            return CALL + copied
        op, by_rows = segment.ops[number - 1], segment.by_rows[number - 1]
        key = op, height
        if key not in self.known:
            self.known[key] = self.work(by_rows.band(height))
        return CALL + copied + self.known[key]

    def more(self, segment: Segment, events: Sequence[Event]) -> float:
        """What all bands of a schedule cost more than whole images. Guards are what the estimate
        counts too much of, so no stage costs less."""
        of_stages = [0.0] * len(segment.heights)
        often = Counter((e.stage, e.rows) for e in events if isinstance(e, Run))
        for (number, rows), times in often.items():
            of_stages[number] += times * self.band(segment, number, rows)
        whole = (0.0, *map(self.whole, segment.ops, segment.by_rows))
        return sum(max(bands - one, 0.0) for bands, one in zip(of_stages, whole))

    def whole(self, op: Op, by_rows: ByRows | Gathered) -> float:
        """Of an op that makes all rows at once."""
        if (op, 0) not in self.known:
            self.known[op, 0] = self.work(by_rows.computation)
        return CALL + self.known[op, 0]


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


def _near(kept: list[_Judged], room: int) -> list[_Judged]:
    """Those about the first that fits, as memory is an estimate, and the last of all."""
    if len(kept) <= MOST_PLANS:
        return kept
    start = max(sum(one.memory > room for one in kept) - LARGER, 0)
    return [*kept[:-1][start : start + MOST_PLANS - 1], kept[-1]]


def _judged(plan: RowPlan, use: _Use, costs: _Costs) -> _Judged:
    lines, copies, events = (_compact_lines if plan.compact else _lines)(plan)
    cost = copies + costs.more(plan.segment, events)
    memory = lines + use.live(plan.segment) + _gathered_bytes(plan.segment)
    return _Judged(plan, max(use.around(plan.segment), memory), round(cost))


def _gathered_bytes(segment: Segment) -> int:
    """Of what a segment gathers; 0 if it gathers nothing."""
    end = segment.by_rows[-1]
    return nbytes(end.sums) if isinstance(end, Gathered) else 0


def _lines(plan: RowPlan) -> tuple[int, float, Sequence[Event]]:
    """The bytes of line buffers and bands, the instructions of copies between them, and the
    schedule."""
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
    return lines + _passing(stages, made.events, rows, kept), copies, made.events


def _compact_lines(plan: RowPlan) -> tuple[int, float, Sequence[Event]]:
    """The same of a compact plan."""
    segment, bands = plan.segment, plan.bands
    *rows, last = (
        line_bytes(segment, value, 2)
        for value in (segment.source, *(op.output for op in segment.ops))
    )
    end = _gathered_bytes(segment) or bands[-1] * last
    made = compact_schedule(segment.stages(bands), rows, end)
    moved = [event.nbytes for event in made.events if isinstance(event, Slide)]
    return made.nbytes, len(moved) * CALL + sum(moved) / BYTES, made.events


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
