"""Which frames of each value one window has in common with the next.

A window holds `length` frames of the moving inputs, and moves on by a hop. A value that has frames
of its own, along an axis, is *tracked*: frame t of one window is frame t + shift of the one before,
as long as both were made of frames inside of the window alone. These are `low` to before `high`.
The others, which padding reaches, are made anew for each window, as is a value without frames.

Since the start of a signal, instead of in a window of it, there is no border but the start: frames
before it count as zeros, as padding does, and recurrent layers go on.
"""

from __future__ import annotations

import math
from fractions import Fraction

from graphc.errors import UnsupportedError
from graphc.ir.graph import Graph, Op, Value
from graphc.passes.analysis.facts import choice
from graphc.passes.streaming.reach import (
    Reach,
    Reaches,
    counts_as_zero,
    least_frame,
    reaches,
)
from graphc.records import dataclass

WINDOW, START = "window", "start"
EARLIEST = -(1 << 40)


@dataclass(frozen=True)
class Track:
    """Frames of a value along `axis` (None: a value without frames), `rate` for each of the input;
    those from `low` to before `high` are as in the window before. `extra` frames there are, more
    than time has passed."""

    axis: int | None
    rate: Fraction = Fraction(1)
    low: int = 0
    high: int = 0
    extra: int = 0


@dataclass
class Tracks:
    """The tracks of the moving values of a graph, and what the frames of each op are made of."""

    graph: Graph
    length: int
    since: str

    def __post_init__(self) -> None:
        self.of: dict[Value, Track] = {}
        self.reaches: dict[Op, list[Reaches]] = {}
        self.borders: list[Op] = []

    def add_input(self, value: Value, axis: int) -> None:
        """An input whose frames move on."""
        low = 0 if self.since == WINDOW else EARLIEST
        self.of[value] = Track(axis, Fraction(1), low, self.length)

    def follow(self) -> None:
        """Tracks all values."""
        for op in self.graph.ops:
            if any(value in self.of for value in op.inputs):
                self._follow(op)

    def shift(self, value: Value, hop: int) -> int:
        """By how many frames of a tracked value a hop moves on."""
        return int(self.of[value].rate * hop)

    def least_hop(self) -> int:
        """The least number of frames of the input by which all values move on by whole frames."""
        return math.lcm(*(track.rate.denominator for track in self.of.values()))

    def frames(self, value: Value) -> int:
        """How many frames a tracked value has in a window."""
        axis = self.of[value].axis
        assert axis is not None
        return value.tensor.extent(axis)

    def is_recurrent(self, op: Op) -> bool:
        """Whether an op goes on from the state that it left."""
        return self.since == START and "recurrent" in op.defn.traits

    # ------------------------------------------------------------ one op

    def _follow(self, op: Op) -> None:
        if op.regions:
            raise UnsupportedError(f"{op.where()}: streaming does not look into control flow")
        if "recurrent" in op.defn.traits and self._runs_along(op):
            self._recur(op)
            return
        used = [n for n, v in enumerate(op.outputs) if v.uses]
        tracked = {n: self._tracked(op, n) for n in used}
        if any(track is None for track in tracked.values()):
            self._check_whole(op)
            self.of.update((op.outputs[n], Track(None)) for n in range(len(op.outputs)))
            return
        self.reaches[op] = []
        for n, value in enumerate(op.outputs):
            track, by_operand = tracked.get(n) or (Track(None), [])
            self.of[value] = track
            self.reaches[op].append(by_operand)

    def _tracked(self, op: Op, output: int) -> tuple[Track, Reaches] | None:
        """The track of an output, if all moving operands have frames, and it has as well."""
        value = op.outputs[output]
        moving = [n for n, v in enumerate(op.inputs) if v in self.of]
        if any(self.of[op.operand(n)].axis is None for n in moving) or not value.is_static:
            return None
        for axis in range(value.tensor.rank):
            by_operand = reaches(op, output, axis)
            if by_operand is None or not self._fits(op, moving, by_operand):
                continue
            rates = {self.of[op.operand(n)].rate / by_operand[n].stride for n in moving}  # type: ignore[union-attr]
            if len(rates) == 1:
                return self._track(op, output, axis, by_operand, rates.pop()), by_operand
        return None

    def _fits(self, op: Op, moving: list[int], by_operand: Reaches) -> bool:
        """Whether frames of the result are made of frames of the moving operands, and those alone
        differ from frame to frame."""
        for number, reach in enumerate(by_operand):
            axis = self.of[op.operand(number)].axis if number in moving else None
            if (None if reach is None else reach.dim) != axis:
                return False
            if reach is not None and reach.period > 1:
                return False
        return True

    def _track(self, op: Op, output: int, axis: int, by_operand: Reaches, rate: Fraction) -> Track:
        value = op.outputs[output]
        ends = []
        for operand, reach in zip(op.inputs, by_operand):
            if reach is not None and operand is not None:
                track = self.of[operand]
                ends.append(reach.inside(track.low, track.high))
                if self._passes_border(operand, reach, value.tensor.extent(axis)):
                    self.borders.append(op)
        low, high = max(a for a, _ in ends), min(b for _, b in ends)
        if self.since == WINDOW:
            return Track(axis, rate, max(low, 0), min(high, value.tensor.extent(axis)))
        extra = int(value.tensor.extent(axis) - rate * self.length)
        self._check_start(op, output, axis, by_operand, extra, high)
        return Track(axis, rate, EARLIEST, value.tensor.extent(axis), extra)

    def _passes_border(self, operand: Value, reach: Reach, frames: int) -> bool:
        last = reach.stride * (frames - 1) + reach.last
        return reach.first < 0 or last >= operand.tensor.extent(reach.dim)

    # ------------------------------------------------------------ since the start of a signal

    def _check_start(
        self, op: Op, output: int, axis: int, by_operand: Reaches, extra: int, high: int
    ) -> None:
        """UnsupportedError if frames need later ones, or if the start does not count as zeros."""
        frames = op.outputs[output].tensor.extent(axis)
        if high < frames:
            raise UnsupportedError(
                f"{op.where()}: its newest frames need {frames - high} that are yet to come "
                "(padding after the newest frame); pad before the first frame alone"
            )
        known = choice(op)
        pads = known is not None and not known.extreme and known.fills <= {0}
        if extra > 0 and not pads:
            raise UnsupportedError(
                f"{op.where()}: has {extra} frames more than have passed since the start, which "
                "are made of padding; only a window right after the padding can be streamed"
            )
        for operand, reach in zip(op.inputs, by_operand):
            if reach is None or operand is None or reach.first >= 0:
                continue
            if not counts_as_zero(op, output, axis):
                raise UnsupportedError(
                    f"{op.where()}: frames before the start count as something else than zeros, so "
                    "that the state cannot start as zeros"
                )
            if self.of[operand].extra < 0:
                raise UnsupportedError(
                    f"{op.where()}: pads frames of which there are fewer than have passed since "
                    f"the start, as a layer before needs {-self.of[operand].extra} more: stream a "
                    "window"
                )

    def _check_whole(self, op: Op) -> None:
        """UnsupportedError if an op reads all frames since the start of the signal."""
        if self.since == WINDOW:
            return
        for number, value in enumerate(op.inputs):
            track = self.of.get(value) if value is not None else None  # type: ignore[arg-type]
            if value is None or track is None or track.axis is None:
                continue
            newest = value.tensor.extent(track.axis) - 1
            if least_frame(op, number, track.axis) < newest:
                raise UnsupportedError(
                    f"{op.where()}: reads more than the newest frame and has no frames of its own, "
                    "so that a signal without end has no result; stream a window (--stream-since "
                    "window)"
                )

    def _runs_along(self, op: Op) -> bool:
        """Whether a recurrent op runs along frames."""
        track = self.of.get(op.operand(0))
        return track is not None and track.axis == op.attrs.get("layout", 0)

    def _recur(self, op: Op) -> None:
        if self.since == WINDOW:
            self.borders.append(op)
            self.of.update((value, Track(None)) for value in op.outputs)
            return
        names = [param.name for param in op.defn.params]
        moving = [names[min(n, len(names) - 1)] for n, v in enumerate(op.inputs) if v in self.of]
        if op.attrs.get("direction", "forward") != "forward" or moving != names[:1]:
            what = "runs in more than one direction, or with lengths or a state that move"
            raise UnsupportedError(f"{op.where()}: {what}; it cannot go on from frame to frame")
        if op.operand(1).tensor.dtype.is_integer:
            raise UnsupportedError(
                f"{op.where()}: quantises all steps as one, so that a step cannot give the same; "
                "stream the float model, and quantise its step"
            )
        source, axis = self.of[op.operand(0)], op.attrs.get("layout", 0)
        if source.extra:
            raise UnsupportedError(
                f"{op.where()}: has {source.extra:+d} frames against the time since the start"
            )
        self.of[op.outputs[0]] = Track(axis, source.rate, EARLIEST, source.high)
        self.of.update((value, Track(None)) for value in op.outputs[1:])
