"""Which plans of execution by rows are worth trying: those whose memory, as liveness gives it, is
less than others', from the one that copies least to the one that takes least memory.

The memory of a plan is judged before anything is lowered. Outside the segment it is what is live
around each op, and inside its line buffers, its source and its result. Kernels may work in place,
or need temporaries, so the true numbers are those of the program that is made of a plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from graphc.ir.graph import Graph, Op, Value
from graphc.passes.analysis.computation import Computation, physical_buffer
from graphc.passes.lower.rows.bands import ByRows, Gathered, by_rows, gathered
from graphc.passes.lower.rows.lowering import line_bytes
from graphc.passes.lower.rows.schedule import Run, Shift, schedule
from graphc.passes.lower.rows.segments import RowPlan, Segment, segments
from graphc.records import dataclass

HEIGHTS = (1, 2, 3, 4, 8)  # of bands
MOST_SEGMENTS = 24  # whose schedules are made
MOST_PLANS = 8
CALL = 60  # bytes copied in the time of a call


@dataclass(frozen=True)
class _Judged:
    """A plan, its memory in bytes, and its copies and calls in bytes copied."""

    plan: RowPlan
    memory: int
    cost: int


def all_segments(graph: Graph, computed: Mapping[Op, Computation]) -> list[Segment]:
    """The segments of a graph whose ops compute this."""
    ops = [op for op in graph.ops if op.name != "Constant"]
    return segments(ops, graph.results, lambda op: _rows_of(op, computed.get(op)))


def candidates(graph: Graph, computed: Mapping[Op, Computation], resident: bool) -> list[RowPlan]:
    """The plans to try for a graph whose ops compute this; the cheapest first. `resident`: inputs
    and outputs take memory."""
    ops = [op for op in graph.ops if op.name != "Constant"]
    use = _Use(graph, ops, resident)
    known = all_segments(graph, computed)
    plain = use.most(ops, frozenset())
    floors = [(max(use.around(s), _least_lines(s) + use.live(s)), n) for n, s in enumerate(known)]
    chosen = [known[n] for floor, n in sorted(floors)[:MOST_SEGMENTS] if floor < plain]
    judged: dict[tuple[int, int], _Judged] = {}
    for segment in chosen:
        for height in HEIGHTS:
            one = _judged(RowPlan(segment, height), use)
            if one.memory < plain:
                judged.setdefault((one.memory, one.cost), one)
    return [one.plan for one in _thinned(_best(list(judged.values())))]


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


def _judged(plan: RowPlan, use: _Use) -> _Judged:
    segment, bands = plan.segment, plan.bands(plan.segment)
    made = schedule(segment.stages(bands))
    values = [segment.source, *(op.output for op in segment.ops)]
    rows = [line_bytes(segment, value, band) for value, band in zip(values, bands)]
    lines = sum(capacity * row for capacity, row in zip(made.capacity, rows))
    lines += bands[-1] * rows[-1]
    cost = 0
    for event in made.events:
        if isinstance(event, Shift):
            cost += CALL + event.rows * rows[event.stage]
        elif isinstance(event, Run):
            is_copied = event.stage in (0, len(segment.ops))
            cost += CALL + is_copied * bands[event.stage] * rows[event.stage]
    return _Judged(plan, max(use.around(segment), lines + use.live(segment)), cost)


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
