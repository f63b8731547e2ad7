"""Which ops of a graph can be executed by rows together: a segment has one source, and one result
that is read outside."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from graphc.ir.expr import Const
from graphc.ir.graph import Op, Value
from graphc.passes.analysis.compose import input_names
from graphc.passes.lower.rows.bands import ByRows, Gathered, Reach
from graphc.passes.lower.rows.schedule import Read, Stage
from graphc.records import dataclass

Analysis = Callable[[Op], "ByRows | Gathered | str"]
FEWEST = 2  # ops of a segment


@dataclass(frozen=True, eq=False)
class Segment:
    """`ops` in order, by rows: all read `source` or one another, and only the last one's output is
    read by others."""

    source: Value
    ops: tuple[Op, ...]
    by_rows: tuple[ByRows | Gathered, ...]

    @property
    def heights(self) -> list[int]:
        """The rows of the source, then those that ops make."""
        first = self.by_rows[0]
        name = next(n for n, v in input_names(self.ops[0]).items() if v is self.source)
        shape = first.computation.input(name).shape
        return [next(x for x in shape if x != 1), *(b.height for b in self.by_rows)]

    def margins(self, value: Value) -> tuple[int, int]:
        """The columns of padding that readers of a value, by rows, need on either side."""
        reaches = self.reaches(value)
        sides = [(r.left, r.right) for r in reaches]
        return max((x for x, _ in sides), default=0), max((x for _, x in sides), default=0)

    def reaches(self, value: Value) -> list[Reach]:
        """How a value is read inside."""
        return [
            rows.reaches[name]
            for op, rows in zip(self.ops, self.by_rows)
            for name, read in input_names(op).items()
            if read is value and name in rows.reaches
        ]

    def stages(self, bands: Sequence[int]) -> list[Stage]:
        """The stages of a schedule: the source, and each op."""
        numbers = {self.source: 0, **{op.output: n for n, op in enumerate(self.ops, 1)}}
        stages = [Stage(self.heights[0], bands[0])]
        for op, rows, band in zip(self.ops, self.by_rows, bands[1:]):
            names = input_names(op)
            reads = tuple(
                Read(numbers[names[name]], r.stride, r.low, r.high)
                for name, r in rows.reaches.items()
            )
            stages.append(Stage(rows.height, band, reads))
        return stages


@dataclass(frozen=True)
class RowPlan:
    """What is executed by rows: a segment, and the rows of a band, by stage; the last band of a
    stage is what is left of its rows. `compact`: by a compact schedule."""

    segment: Segment
    bands: tuple[int, ...]
    compact: bool = False

    @classmethod
    def even(cls, segment: Segment, height: int) -> RowPlan:
        """Bands of up to so many rows."""
        return cls(segment, tuple(min(height, rows) for rows in segment.heights))


def segments(ops: Sequence[Op], results: Sequence[Value], analysis: Analysis) -> list[Segment]:
    """All segments of a graph that begin as early as they can, by their sources; for each source
    those of all lengths, the shortest first."""
    sources = dict.fromkeys(v for op in ops for v in op.inputs if v is not None and _is_read(v))
    known: dict[Op, ByRows | Gathered | str] = {}

    def of(op: Op) -> ByRows | Gathered | str:
        if op not in known:
            known[op] = analysis(op)
        return known[op]

    return [s for source in sources for s in _from(source, ops, results, of)]


def _is_read(value: Value | None) -> bool:
    return value is not None and value.constant is None and value.is_ranked


def _from(
    source: Value, ops: Sequence[Op], results: Sequence[Value], analysis: Analysis
) -> Iterator[Segment]:
    """The segments that have a source."""
    inside: dict[Op, ByRows | Gathered] = {}
    values = {source}
    for op in ops:
        read = [v for v in op.inputs if _is_read(v)]
        if not read or not values.issuperset(read):
            continue
        rows = analysis(op)
        if isinstance(rows, str):
            continue
        inside[op] = rows
        if isinstance(rows, ByRows):
            values.add(op.output)
        needed = _makers(op, inside)
        hidden = needed - {op}
        is_whole = all(
            set(x.output.users) <= needed and x.output not in results for x in hidden
        )  # fmt: skip
        if is_whole and len(needed) >= FEWEST:
            ordered = [x for x in inside if x in needed]
            segment = Segment(source, tuple(ordered), tuple(inside[x] for x in ordered))
            if all(len(paddings(segment, x)) < 2 for x in (source, *(y.output for y in hidden))):
                yield segment


def _makers(op: Op, inside: dict[Op, ByRows | Gathered]) -> set[Op]:
    """An op and those inside that what it reads is made of."""
    needed, stack = set(), [op]
    while stack:
        one = stack.pop()
        if one in needed:
            continue
        needed.add(one)
        stack += [v.producer for v in one.inputs if v is not None and v.producer in inside]
    return needed


def paddings(segment: Segment, value: Value) -> list[Const]:
    """The distinct numbers that readers of a value take for what is beyond its edges."""
    fills = [reach.fill for reach in segment.reaches(value)]
    return [fill for fill in dict.fromkeys(fills) if fill is not None]
