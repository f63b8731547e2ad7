"""Control flow in programs: If, Loop and Scan become loops and branches of steps.

The body of an op is a graph that has been optimised by itself. It is lowered like any other, into
the calls of a loop or a branch: with the kernels, constants and storages of the graph around it.
Captured values are read where they lie.

A value that a loop carries has one place, that of the loop's result. What it starts with is copied
there before the loop, and what a trip gives at the end of the trip. A trip may give a carried value
in another one's place, as a loop that swaps two does: then all such values are copied aside first.
Slices of a Scan's inputs, and rows of stacked results, are copied from and to where they lie, which
moves on with each trip. Trips and rows may be over sizes of the program.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from graphc.errors import ModelError
from graphc.ir import dtypes
from graphc.ir.dtypes import u8
from graphc.ir.graph import Op, Region, Value
from graphc.ir.kernel import Buffer
from graphc.ir.ops.control import ScanShape, goes_on, known_trips, split_captures
from graphc.ir.types import Dim, TensorType
from graphc.passes.lower.storages import AnyCall, Choice, Move, Repeat, Storages


class Lowering(Protocol):
    """What lowers the graph around (program.py)."""

    calls: list[AnyCall]
    storages: Storages

    def inside(self, region: Region, given: Sequence[str]) -> tuple[list[AnyCall], list[str]]:
        """The calls of a region whose parameters lie in storages, and where its results lie."""

    def spare(self, op: Op, note: str) -> None:
        """Notes why something needs no kernel."""

    def tokens_in(self, *dims: Dim) -> tuple[str, ...]:
        """What stands for the sizes in dims that data decides being known."""


def lower_flow(around: Lowering, op: Op) -> None:
    """Adds the calls of an If, a Loop or a Scan."""
    around.spare(op, "it is a branch or a loop of the program, around the kernels of its bodies")
    {"If": _lower_if, "Loop": _lower_loop, "Scan": _lower_scan}[op.name](_Flow(around, op))


class _Flow:
    """Lowers one op of control flow."""

    def __init__(self, around: Lowering, op: Op):
        self.around, self.op, self.storages = around, op, around.storages
        self.memory = self.storages.temporary(Buffer("memory", u8, (0,), ""))
        own, captures = split_captures(op)
        self.own: list[Value | None] = own
        self.captures = [self.storages.of(value) for value in captures]
        self.outputs = [self.storages.of(value) for value in op.outputs]

    def temporary(self, type: TensorType) -> str:
        return self.storages.temporary(Buffer("", type.dtype, type.dims, ""))

    def constant(self, array: np.ndarray) -> str:
        number = self.storages.add_constant(array)
        buffer = Buffer("", dtypes.of(array.dtype), array.shape, "")
        return self.storages.temporary(buffer, "const", number)

    def move(
        self, source: str, target: str, offset: int = 0, from_row: Dim = 0, to_row: Dim = 0
    ) -> Move:
        """A copy of a whole, or, if rows are so many bytes apart, of one from or to a stack of
        them, where the first lies at `offset`."""
        dims = (self.storages[source].extent, self.storages[target].extent, from_row, to_row)
        starts = (offset, 0) if to_row == 0 else (0, offset)
        tokens = self.around.tokens_in(*dims)
        return Move(source, target, from_row, to_row, *starts, self.op.loc, tokens)

    def row(self, place: str, trips: Dim, back: int) -> tuple[int, Dim]:
        """Where the row of the first trip lies in a stack of such rows, and how far on the next
        one does, in bytes; `back`: they are walked from the end (static ones, see scans.py)."""
        row = self.storages[place].extent
        if not back:
            return 0, row
        assert isinstance(row, int) and isinstance(trips, int)
        return max(trips - 1, 0) * row, -row

    def repeat(
        self, calls: list[AnyCall], condition: str | None, trips: str | Dim | None,
        counter: str | None = None,
    ) -> None:  # fmt: skip
        """Adds the loop."""
        known = () if trips is None or isinstance(trips, str) else (trips,)
        tokens = self.around.tokens_in(*known)
        loop = Repeat(calls, self.memory, condition, trips, counter, self.op.loc, tokens)
        self.around.calls.append(loop)

    def start(self, source: str, target: str) -> None:
        """Gives a carried value what it starts with."""
        self.around.calls.append(self.move(source, target))

    def body(self, region: Region, given: Sequence[str]) -> tuple[list[AnyCall], list[str]]:
        """The calls of a region whose parameters lie in storages, and where its results lie."""
        with self.storages.inside(self.memory):
            return self.around.inside(region, given)

    def aside(self, moves: Sequence[Move]) -> list[AnyCall]:
        """The same as moves that are made at once: what another one overwrites is put aside."""
        written = {self.storages[m.target].root for m in moves}
        first: list[AnyCall] = []
        then: list[AnyCall] = []
        for move in moves:
            source, target = self.storages[move.source], self.storages[move.target]
            if (source.root, source.offset) == (target.root, target.offset):
                continue
            if source.root in written:
                with self.storages.inside(self.memory):
                    place = self.storages.temporary(source.buffer)
                first.append(self.move(move.source, place))
                move = self.move(place, move.target)
            then.append(move)
        return [*first, *then]


def _lower_if(flow: _Flow) -> None:
    (condition,) = flow.own
    branches: list[list[AnyCall]] = []
    for region in flow.op.regions:
        calls, results = flow.body(region, flow.captures)
        branches.append([*calls, *map(flow.move, results, flow.outputs)])
    then, orelse = branches
    assert condition is not None
    place = flow.storages.of(condition)
    flow.around.calls.append(Choice(place, then, orelse, flow.memory, flow.op.loc))


def _lower_loop(flow: _Flow) -> None:
    limit, going, *state = flow.own
    region = flow.op.regions[0]
    counter = flow.temporary(region.params[0].tensor)
    always = flow.constant(np.array(True))
    first = always if going is None else flow.storages.of(going)
    endless = goes_on(flow.op) and (going is None or going.constant is not None)
    condition = always
    if not endless:
        condition = flow.temporary(region.params[1].tensor)
        flow.start(first, condition)
    carried = flow.outputs[: len(state)]
    for value, place in zip(state, carried):
        assert value is not None
        flow.start(flow.storages.of(value), place)
    calls, (asked, *results) = flow.body(region, [counter, condition, *carried, *flow.captures])
    for value, place in zip(flow.op.outputs[len(state) :], results[len(state) :]):
        row = flow.storages[place].extent
        calls.append(flow.move(place, flow.storages.of(value), to_row=row))
    moves = list(map(flow.move, results, carried))
    if not endless:
        moves.append(flow.move(asked, condition))
    calls += flow.aside(moves)
    trips: str | Dim | None = None
    if limit is not None:
        known = known_trips(limit)
        trips = flow.storages.of(limit) if known is None else known
    for value in flow.op.outputs[len(state) :]:
        if trips != value.tensor.dims[0]:
            raise ModelError(f"{flow.op.where()}: {trips} rows do not fit {value.tensor}")
    flow.repeat(calls, None if endless else condition, trips, counter)


def _lower_scan(flow: _Flow) -> None:
    op, region = flow.op, flow.op.regions[0]
    shape = ScanShape.of(op)
    inputs = [value for value in flow.own[shape.state :] if value is not None]
    trips = inputs[0].tensor.dims[0]
    carried = flow.outputs[: shape.state]
    for value, place in zip(flow.own, carried):
        assert value is not None
        flow.start(flow.storages.of(value), place)
    calls: list[AnyCall] = []
    sliced = region.params[shape.state :][: shape.scanned]
    with flow.storages.inside(flow.memory):
        slices = [flow.temporary(param.tensor) for param in sliced]
    for value, back, place in zip(inputs, shape.in_back, slices):
        start, stride = flow.row(place, trips, back)
        whole = flow.storages.of(value)
        calls.append(flow.move(whole, place, start, from_row=stride))
    inner, results = flow.body(region, [*carried, *slices, *flow.captures])
    calls += inner
    for value, back, place in zip(
        op.outputs[shape.state :], shape.out_back, results[shape.state :]
    ):
        start, stride = flow.row(place, trips, back)
        whole = flow.storages.of(value)
        calls.append(flow.move(place, whole, start, to_row=stride))
    calls += flow.aside(list(map(flow.move, results, carried)))
    flow.repeat(calls, None, trips)
