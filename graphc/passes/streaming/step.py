"""The graph of a step, which is given the frames of one hop and keeps what later ones need.

From the results back, some frames of each value are needed. Of these a step computes those that are
new. The others are in the state, with the new ones: an input of the graph, which an output replaces
by the same frames one hop later. So the state of a value is what its readers read of it, and no
more, and moves on in place. A conversion to a wider type is repeated instead, and the narrower
value kept.
"""

from __future__ import annotations

from dataclasses import field

import numpy as np

from graphc.errors import GraphcError, UnsupportedError
from graphc.ir.build import Builder
from graphc.ir.graph import Graph, Op, Region, Value, copy_op
from graphc.ir.infer import infer_op
from graphc.ir.types import TensorType
from graphc.passes.analysis.facts import only_moves
from graphc.passes.analysis.structure import is_widening
from graphc.passes.streaming.frames import Part
from graphc.passes.streaming.reach import least_frame
from graphc.passes.streaming.tracks import START, WINDOW, Track, Tracks
from graphc.records import dataclass


@dataclass
class Work:
    """What a step computes of an op or an input: `frames` of `all` that a window has; and what it
    keeps, in bytes."""

    name: str
    frames: int
    all: int
    state: int = 0


Span = tuple[int, int]
"""Frames from one to before another."""


@dataclass
class Spans:
    """The frames of a value that a step computes, and those that the state has, with the new ones
    among them."""

    parts: list[Span]
    kept: Span | None = None


@dataclass
class Step:
    """A step of `hop` frames over a window: its graph, outputs that replace inputs (the state), by
    name, and what it computes of each op."""

    tracks: Tracks
    hop: int
    recompute: bool = False
    state: dict[str, str] = field(default_factory=dict)
    work: list[Work] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.needs: dict[Value, list[Span]] = {}
        self.spans: dict[Op, Spans] = {}
        self.trimmed: dict[Op, dict[int, int]] = {}
        self.source = self.tracks.graph
        self.graph = Graph(self.source.name)
        self.next: list[tuple[str, Value]] = []
        self.copies: dict[Value, Value] = {}
        self.pieces: dict[Value, dict[Span, Value]] = {}  # the frames that there are of a value

    @property
    def bytes(self) -> int:
        """Those of the state."""
        names = set(self.state)
        return sum(_bytes(p.tensor) for p in self.graph.params if p.name in names)

    def made(self) -> Graph:
        """The graph; ModelError or UnsupportedError if there is none."""
        self._need_all()
        self._check_borders()
        self._inputs()
        for op in self.source.ops:
            if any(value in self.tracks.of for value in op.outputs):
                self._make(op)
            else:
                copy_op(op, self.graph, self.copies)
        self._results()
        return self.graph

    # ------------------------------------------------------------ what is needed

    def _track(self, value: Value | None) -> Track | None:
        """The track of a value that has frames."""
        track = None if value is None else self.tracks.of.get(value)
        return track if track is not None and track.axis is not None else None

    def _need(self, value: Value, low: int, high: int) -> None:
        """Has frames of a value be there."""
        if self.tracks.since == WINDOW:
            low = max(low, 0)
        span = low, min(high, self.tracks.frames(value))
        self.needs.setdefault(value, []).append(span)

    def _need_newest(self, value: Value) -> None:
        self._need(value, self._newest(value), self.tracks.frames(value))

    def _need_all(self) -> None:
        for value in self.source.results:
            if self._track(value) is not None:
                self._need_newest(value)
        for op in reversed(self.source.ops):
            if op in self.tracks.reaches:
                self._need_of_tracked(op)
            elif any(self._track(v) is not None for v in op.inputs):
                self._need_of_whole(op)

    def _newest(self, value: Value) -> int:
        return self.tracks.frames(value) - self.tracks.shift(value, self.hop)

    def _need_of_tracked(self, op: Op) -> None:
        used = [n for n, v in enumerate(op.outputs) if v in self.needs]
        if not used:
            self.spans[op] = Spans([])
            return
        tracks = {self.tracks.of[op.outputs[n]] for n in used}
        if len(tracks) > 1:
            raise UnsupportedError(f"{op.where()}: its results do not share their frames")
        value = op.outputs[used[0]]
        needed = [span for n in used for span in self.needs[op.outputs[n]]]
        spans = self._span(value, needed, self._is_repeated(op))
        self.spans[op] = spans
        for number in used:
            for operand, reach in zip(op.inputs, self.tracks.reaches[op][number]):
                if operand is not None and reach is not None:
                    for low, high in spans.parts:
                        self._need(operand, *reach.of(low, high))

    def _span(self, value: Value, needed: list[Span], repeated: bool) -> Spans:
        """What is computed of a value of which some frames are needed."""
        track, end = self.tracks.of[value], self.tracks.frames(value)
        new = track.high - self.tracks.shift(value, self.hop)
        if repeated or new <= track.low:
            return Spans(_united(needed))
        old = [max(low, track.low) for low, high in needed if low < new and high > track.low]
        low = min(low for low, _ in needed)
        parts = [(low, track.low)] if low < track.low else []
        start = new if old or parts else low
        return Spans([*parts, (start, end)], (min(old), track.high) if old else None)

    def _is_repeated(self, op: Op) -> bool:
        """Whether an op makes a value wider, so that its operand is kept."""
        moving = [v for v in op.inputs if v is not None and v in self.tracks.of]
        if len(moving) != 1 or len(op.outputs) != 1:
            return False
        (value,) = moving
        if is_widening(op) and value.tensor.dtype.size < op.output.tensor.dtype.size:
            return True
        maker = value.producer
        return only_moves(op) and maker in self.tracks.reaches and self._is_repeated(maker)  # type: ignore[arg-type]

    def _need_of_whole(self, op: Op) -> None:
        """Of an op without frames: all frames that it reads."""
        if self.tracks.is_recurrent(op):
            self._need_newest(op.operand(0))
            return
        self.trimmed[op] = self._trim(op)
        for number, value in enumerate(op.inputs):
            if value is not None and self._track(value) is not None:
                low = self.trimmed[op].get(number, 0)
                self._need(value, low, self.tracks.frames(value))

    def _trim(self, op: Op) -> dict[int, int]:
        """The first frames that operands may have, and the op be made for those alone."""
        firsts = {}
        for number, value in enumerate(op.inputs):
            track = self._track(value)
            if track is not None and track.axis is not None:
                firsts[number] = least_frame(op, number, track.axis)
        if not any(firsts.values()):
            return {}
        region, operands = Region(), list(op.inputs)
        for number, first in firsts.items():
            value = op.operand(number)
            dims = list(value.tensor.dims)
            axis = self.tracks.of[value].axis
            assert axis is not None
            dims[axis] = value.tensor.extent(axis) - first
            operands[number] = region.add_param(value.tensor.with_shape(tuple(dims)))
        try:
            made = self._whole(op, firsts).made(region, operands)
        except GraphcError:
            if self.tracks.since == START:
                raise
            return {}
        for value in made:
            if value.producer is not None:
                value.producer.drop_inputs()
        return firsts

    def _whole(self, op: Op, firsts: dict[int, int]) -> Part:
        dims = {n: self.tracks.of[op.operand(n)].axis for n in firsts}
        return Part(op, None, 0, 0, dims, firsts, (0, 0))  # type: ignore[arg-type]

    # ------------------------------------------------------------ borders

    def _check_borders(self) -> None:
        """UnsupportedError if frames that padding reaches, or a recurrent layer, would be computed
        anew at each hop."""
        if self.recompute or self.tracks.since == START:
            return
        for op in self.tracks.borders:
            if op not in self.tracks.reaches:
                raise UnsupportedError(
                    f"{op.where()}: starts anew in every window, so that all of it would be "
                    "computed at each hop; stream from the start of the signal (--stream-since "
                    "start), where it goes on, or compute it anew (--stream-borders recompute)"
                )
        for op, spans in self.spans.items():
            track = self.tracks.of[op.outputs[0]] if op in self.tracks.reaches else None
            if not spans.parts or track is None or not self.tracks.borders:
                continue
            value = op.outputs[0]
            end = self.tracks.frames(value)
            if spans.parts[0][0] >= track.low and track.high == end:
                continue
            cause = self.tracks.borders[0]
            before, after = track.low, end - track.high
            raise UnsupportedError(
                f"{cause.where()}: pads time inside of the window, so that frames near its borders "
                f"are others in the next window: {before} before and {after} after, of {end}, in "
                f"{op.where()}; take a model without such padding (valid windows), or compute them "
                "anew at each hop (--stream-borders recompute)"
            )

    # ------------------------------------------------------------ making it

    def _inputs(self) -> None:
        for value in self.source.params:
            track, type = self._track(value), value.type
            if track is not None and track.axis is not None:
                type = _with(value.tensor, track.axis, self.hop)
            self.copies[value] = self.graph.add_param(type, value.name)
        for value in self.source.params:
            if value in self.needs:
                new = self.copies[value]
                self._need_newest(value)
                spans = self._span(value, self.needs[value], False)
                self.work.append(Work(f"input {value.name}", self.hop, self.tracks.frames(value)))
                self._keep(value, [new], spans, value.name)

    def _make(self, op: Op) -> None:
        if op in self.tracks.reaches:
            self._make_tracked(op)
        elif self.tracks.is_recurrent(op) and self._track(op.outputs[0]) is not None:
            self._make_recurrent(op)
        else:
            firsts = self.trimmed.get(op, {})
            moving = {n: firsts.get(n, 0) for n, v in enumerate(op.inputs) if self._track(v)}
            operands = [
                None if v is None else self._from(v, moving[n]) if n in moving else self.copies[v]
                for n, v in enumerate(op.inputs)
            ]  # fmt: skip
            for old, new in zip(op.outputs, self._whole(op, moving).made(self.graph, operands)):
                self.copies[old] = new
            self.work.append(Work(op.where(), 1, 1))

    def _make_tracked(self, op: Op) -> None:
        spans = self.spans[op]
        if not spans.parts:
            return
        used = next(n for n, v in enumerate(op.outputs) if v in self.needs)
        value, by_operand = op.outputs[used], self.tracks.reaches[op][used]
        results: list[list[Value]] = []
        for low, high in spans.parts:
            operands: list[Value | None] = []
            shifts, before, after = {}, 0, 0
            for number, (operand, reach) in enumerate(zip(op.inputs, by_operand)):
                if operand is None or reach is None:
                    operands.append(None if operand is None else self.copies[operand])
                    continue
                start, end = reach.of(low, high)
                least = 0 if self.tracks.since == WINDOW else start
                most = self.tracks.frames(operand)
                before, after = max(least - start, 0), max(end - most, 0)
                shifts[number] = max(start, least)
                operands.append(self._from(operand, shifts[number], min(end, most)))
            dims = {n: reach.dim for n, reach in enumerate(by_operand) if reach is not None}
            axis = self.tracks.of[value].axis
            part = Part(op, axis, low, high, dims, shifts, (before, after))
            results.append(part.made(self.graph, operands))
        computed = sum(high - low for low, high in spans.parts)
        self.work.append(Work(op.where(), computed, self.tracks.frames(value)))
        for number, output in enumerate(op.outputs):
            if output in self.needs:
                self._keep(output, [made[number] for made in results], spans, output.name)

    def _make_recurrent(self, op: Op) -> None:
        """A recurrent layer for the frames of a hop, from the state that it left."""
        names = [param.name for param in op.defn.params]
        operands: list[Value | None] = [None if v is None else self.copies[v] for v in op.inputs]
        source = op.operand(0)
        operands[0] = self._from(source, self._newest(source))
        states = [n for n in ("initial_h", "initial_c") if n in names]
        operands += [None] * (names.index(states[-1]) + 1 - len(operands))
        layout = op.attrs.get("layout", 0)
        batch, hidden = source.tensor.dims[1 - layout], op.operand(2).tensor.dims[-1]
        shape = (batch, 1, hidden) if layout else (1, batch, hidden)
        kept = []
        for number, name in enumerate(states, 1):
            place = names.index(name)
            given = op.inputs[place] if place < len(op.inputs) else None
            if given is not None and given.constant is None:
                raise UnsupportedError(
                    f"{op.where()}: its {name} is computed or an input; streaming keeps the state "
                    "itself, from zeros: leave it out of the model"
                )
            if given is not None and np.any(given.constant):
                raise UnsupportedError(f"{op.where()}: its {name} is not zero, as state starts")
            operands[place] = self._state(TensorType(source.tensor.dtype, shape))
            kept.append(number)
        count = max(len(op.outputs), len(states) + 1)
        new = Op(op.defn, operands, op.attrs, count, (), op.loc)
        infer_op(new)
        self.graph.append(new)
        for number in kept:
            self._replaced(new.outputs[number])
        for old, made in zip(op.outputs, new.outputs):
            made.name = old.name
            self.copies[old] = made
        self.work.append(
            Work(op.where(), self.tracks.shift(source, self.hop), self.tracks.frames(source))
        )
        output = op.outputs[0]
        if output in self.needs:
            self._need_newest(output)
            spans = self._span(output, self.needs[output], False)
            self._keep(output, [new.outputs[0]], spans, output.name)

    def _state(self, type: TensorType) -> Value:
        """An input that is state."""
        name = f"state{len(self.state) + 1}"
        taken = {p.name for p in self.source.params} | {n for n, _ in self.source.named_results()}
        while f"{name}_in" in taken or f"{name}_out" in taken:
            name += "_"
        self.state[f"{name}_in"] = f"{name}_out"
        return self.graph.add_param(type.with_layout(None), f"{name}_in")

    def _replaced(self, value: Value) -> None:
        """What replaces the state that was added last, of those that nothing replaces so far."""
        self.next.append((list(self.state.values())[len(self.next)], value))

    def _keep(self, value: Value, results: list[Value], spans: Spans, name: str) -> None:
        """Takes down the frames that were computed of a value, and has the state keep some."""
        axis = self._axis(value)
        self.pieces[value] = dict(zip(spans.parts, results))
        if spans.kept is None:
            return
        low, high = spans.kept
        builder = Builder(self.graph, loc=() if value.producer is None else value.producer.loc)
        shift = self.tracks.shift(value, self.hop)
        state = self._state(_with(value.tensor, axis, high - low))
        old = _cut(builder, state, axis, shift, high - low)
        kept = builder.Concat(old, _cut(builder, results[-1], axis, 0, shift), axis=axis)
        kept.name = name
        self._replaced(kept)
        self.pieces[value][low, high] = kept
        self.work[-1].state += _bytes(state.tensor)

    def _axis(self, value: Value) -> int:
        axis = self.tracks.of[value].axis
        assert axis is not None
        return axis

    def _from(self, value: Value, low: int, high: int | None = None) -> Value:
        """Frames of the copy of a tracked value, of one piece or joined from several."""
        axis, pieces = self._axis(value), self.pieces[value]
        high = self.tracks.frames(value) if high is None else high
        builder, parts, start = Builder(self.graph), [], low
        while start < high:
            there = [span for span in pieces if span[0] <= start < span[1]]
            if not there:
                raise UnsupportedError(f"streaming does not have frame {start} of %{value.name}")
            span = max(there, key=lambda span: span[1])
            end = min(span[1], high)
            parts.append(_cut(builder, pieces[span], axis, start - span[0], end - span[0]))
            start = end
        if len(parts) > 1:
            pieces[low, high] = builder.Concat(*parts, axis=axis)
            return pieces[low, high]
        return parts[0]

    def _results(self) -> None:
        results = []
        for value in self.source.results:
            if self._track(value) is None:
                results.append(self.copies[value])
            else:
                results.append(self._from(value, self._newest(value)))
        self.graph.set_results([*results, *(value for _, value in self.next)])
        names = [name for name, _ in self.source.named_results()]
        self.graph.output_names = [*names, *(name for name, _ in self.next)]
        self.graph.phase = "typed"


def _with(type: TensorType, axis: int, extent: int) -> TensorType:
    dims = list(type.dims)
    dims[axis] = extent
    return type.with_shape(tuple(dims))


def _bytes(type: TensorType) -> int:
    return type.nbytes


def _cut(builder: Builder, value: Value, axis: int, low: int, high: int) -> Value:
    """Places `low` to before `high` of a value."""
    if low == 0 and high == value.tensor.extent(axis):
        return value
    limits = (np.array([n], np.int64) for n in (low, high, axis))
    return builder.Slice(value, *limits)


def _united(spans: list[Span]) -> list[Span]:
    """The same frames as spans that do not meet."""
    united: list[Span] = []
    for low, high in sorted(spans):
        if united and low <= united[-1][1]:
            united[-1] = united[-1][0], max(high, united[-1][1])
        else:
            united.append((low, high))
    return united
