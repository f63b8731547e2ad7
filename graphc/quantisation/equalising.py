"""Cross-layer equalisation: channels are scaled where they are made, and back where they are read.

Activations have one scale for all channels, so those of small range lose digits. Between layers
stand operators f of single channels that are positively homogeneous: f(s x) = s f(x) for s > 0. So
what makes a channel may be divided by s, and the weights that read it multiplied: the model stays
what it is, but for rounding (Nagel et al., Data-Free Quantization, 2019; Xiao et al., SmoothQuant,
2023).

A *stream* is all values that have to be scaled together: of sums, both operands. Its factors are
r^a / w^b, of the ranges r that samples have in the channels and the largest weights w that read
them, with the a and b for which the noise is estimated least: of the activations (steps of their
common range), and of the weights (steps of each row's range).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from graphc.ir import dtypes
from graphc.ir.build import Builder
from graphc.ir.graph import Graph, Op, Value
from graphc.passes.analysis.facts import limits, negative_factor
from graphc.quantisation.layers import Layer, all_layers
from graphc.quantisation.rewriting import drop_unread

PER_CHANNEL = ("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool")
EXPONENTS = (0.0, 0.25, 0.5, 0.75, 1.0)
MOST = 10  # powers of two that a factor has at most
LARGEST = 127  # of 8 bits


@dataclass
class Channels:
    """The channels of a value, on an axis: each of `count`, `repeated` times in a row (behind a
    Flatten)."""

    axis: int
    count: int
    repeated: int = 1

    def spread(self, scales: np.ndarray, rank: int) -> np.ndarray:
        """A number for each channel, as an array that broadcasts to values of a rank."""
        flat = np.repeat(scales.astype(np.float32), self.repeated)
        return flat.reshape(-1, *(1,) * (rank - 1 - self.axis))


@dataclass
class Stream:
    """Values that are scaled together, with the layers (and normalisations) that make them, and
    those that read them."""

    values: dict[Value, Channels] = field(default_factory=dict)
    makers: list[Layer] = field(default_factory=list)
    norms: list[Op] = field(default_factory=list)
    readers: list[Layer] = field(default_factory=list)

    @property
    def count(self) -> int:
        return next(iter(self.values.values())).count


@dataclass
class Seen:
    """What samples say of the channels of a value: largest magnitudes, and mean squares."""

    reach: np.ndarray
    squares: np.ndarray


def streams_of(graph: Graph) -> list[Stream]:
    """The streams of a graph whose factors are free: those that are read by layers alone."""
    return _Search(graph).streams


class _Search:
    """Grows a stream from the result of each layer and normalisation, until all that touches it is
    known; a stream that something else makes or reads is none."""

    def __init__(self, graph: Graph):
        self.graph = graph
        layers = all_layers(graph)
        self.by_op = {layer.op: layer for layer in layers}
        self.biases = {layer.bias: layer for layer in layers if layer.bias is not None}
        self.streams: list[Stream] = []
        seen: set[Value] = set()
        starts = [layer.op.output if layer.bias is None else layer.bias.output for layer in layers]
        starts += [op.outputs[0] for op in graph.ops if _is_norm(op)]
        for value in starts:
            stream = None if value in seen else self._grown(value)
            if stream is not None:
                seen.update(stream.values)
                self.streams.append(stream)

    def _grown(self, start: Value) -> Stream | None:
        axis = _axis(self._maker(start), start)
        count = None if axis is None else start.tensor.dims[axis]
        if axis is None or not isinstance(count, int):
            return None
        stream, first = Stream(), Channels(axis, count)
        waiting = [(start, first)]
        while waiting:
            value, channels = waiting.pop()
            if value in stream.values:
                if stream.values[value] != channels:
                    return None
                continue
            stream.values[value] = channels
            before, after = self._made(stream, value, channels), self._read(stream, value, channels)
            if before is None or after is None:
                return None
            waiting += [*before, *after]
        return stream if stream.readers else None

    def _maker(self, value: Value) -> Op | None:
        """The layer's op, or the op, that makes a value."""
        op = value.producer
        return self.biases[op].op if op in self.biases else op

    def _made(
        self, stream: Stream, value: Value, channels: Channels
    ) -> list[tuple[Value, Channels]] | None:
        """What else a value's maker has in the stream; None if it cannot scale it."""
        op = self._maker(value)
        if op is None:
            return None
        if op in self.by_op:
            layer = self.by_op[op]
            if channels.repeated != 1 or channels.axis != _axis(op, value):
                return None
            stream.makers.append(layer)
            return []
        if _is_norm(op):
            stream.norms.append(op)
            return [] if channels.repeated == 1 and channels.axis == _axis(op, value) else None
        return self._through(op, channels, value)

    def _read(
        self, stream: Stream, value: Value, channels: Channels
    ) -> list[tuple[Value, Channels]] | None:
        """What the readers of a value have in the stream; None if one of them cannot take it."""
        reached: list[tuple[Value, Channels]] = []
        for op, number in value.uses:
            if op in self.by_op and number == 0:
                if channels.axis != _axis(op, value):
                    return None
                stream.readers.append(self.by_op[op])
                continue
            if op.region is not self.graph or len(op.outputs) != 1 or not op.is_typed:
                return None
            more = self._through(op, channels, value)
            if more is None:
                return None
            reached += more
        return reached

    def _through(
        self, op: Op, channels: Channels, value: Value
    ) -> list[tuple[Value, Channels]] | None:
        """The operands and the result of a homogeneous operator, with their channels, if one of
        them has these; None if it is none."""
        if len(op.outputs) != 1 or not op.is_typed or not _is_float(op.output):
            return None
        if op.name == "Add" or _is_homogeneous(op):
            varying = [v for v in op.inputs[: 2 if op.name == "Add" else 1] if v is not None]
            ranked = all(v.is_ranked and v.constant is None for v in varying)
            if not ranked or any(v.type != op.output.type for v in varying):
                return None
            return [(v, channels) for v in (*varying, op.output)]
        if op.name in PER_CHANNEL and channels == Channels(1, channels.count):
            return [(op.operand(0), channels), (op.output, channels)]
        return _flattened(op, channels, value)


def _flattened(op: Op, channels: Channels, value: Value) -> list[tuple[Value, Channels]] | None:
    """The operand and the result of an op that makes [N, C * ...] of [N, C, ...]."""
    if op.name not in ("Flatten", "Reshape", "Squeeze") or not op.operand(0).is_ranked:
        return None
    before, after = op.operand(0).tensor.dims, op.output.tensor.dims
    if len(after) != 2 or len(before) < 3 or before[0] != after[0] or before[1] != channels.count:
        return None
    if not isinstance(after[1], int) or after[1] % channels.count:
        return None
    apart = Channels(1, channels.count)
    flat = Channels(1, channels.count, after[1] // channels.count)
    if channels != (flat if value is op.output else apart):
        return None
    return [(op.operand(0), apart), (op.output, flat)]


def _axis(op: Op | None, value: Value) -> int | None:
    """The axis of channels of what a layer or a normalisation reads or makes, if it is known how
    many there are."""
    if op is None or not value.is_ranked:
        return None
    axis = 1 if op.name.startswith("Conv") else value.tensor.rank - 1
    return axis if isinstance(value.tensor.dims[axis], int) else None


def _is_norm(op: Op) -> bool:
    """Whether an op is a LayerNormalization along the last axis, of constant scale and bias."""
    if op.name != "LayerNormalization" or not op.is_typed:
        return False
    last = op.attrs.get("axis", -1) in (-1, op.output.tensor.rank - 1)
    constants = [v for v in op.inputs[1:] if v is not None]
    return last and all(v.constant is not None and v.constant.ndim == 1 for v in constants)


def _is_homogeneous(op: Op) -> bool:
    """Whether each element is one of the first operand, multiplied by a number that depends on its
    sign alone."""
    if op.name == "Identity":
        return True
    ends = limits(op)
    if ends is not None:
        return ends[0] in (0.0, -np.inf) and ends[1] in (0.0, np.inf)
    return isinstance(negative_factor(op), float)


def _is_float(value: Value) -> bool:
    return value.is_ranked and value.tensor.dtype is dtypes.f32


def seen_by(
    streams: Sequence[Stream], samples: Iterable[Mapping[str, np.ndarray]]
) -> dict[str, Seen]:
    """What observed samples say of the values that readers of the streams read."""
    seen: dict[str, Seen] = {}
    wanted = {layer.data: s.values[layer.data] for s in streams for layer in s.readers}
    for number, observed in enumerate(samples, 1):
        for value, channels in wanted.items():
            array = np.moveaxis(observed[value.name], channels.axis, 0)
            rows = array.reshape(channels.count, -1).astype(np.float64)
            reach, squares = np.abs(rows).max(1, initial=0), (rows**2).mean(1)
            known = seen.setdefault(value.name, Seen(np.zeros_like(reach), squares))
            known.reach = np.maximum(known.reach, reach)
            known.squares += (squares - known.squares) / number
    return seen


def equalise(
    graph: Graph, streams: Sequence[Stream], seen: Mapping[str, Seen]
) -> dict[str, np.ndarray]:
    """Scales the channels of streams of a graph, in place; what values are divided by, by their
    names, where that is not 1: arrays that broadcast."""
    divisors: dict[str, np.ndarray] = {}
    for stream in streams:
        scales = factors(stream, seen)
        if (scales == 1).all():
            continue
        for value, channels in stream.values.items():
            divisors[value.name] = channels.spread(scales, value.tensor.rank)
        for layer in stream.makers:  # before a bias
            value = layer.op.output
            own = Channels(_axis(layer.op, value) or 0, stream.count)
            divisors[value.name] = own.spread(scales, value.tensor.rank)
        for layer in stream.makers:
            _divide(graph, layer, scales)
        for op in stream.norms:
            for number in range(1, len(op.inputs)):
                _rescale(graph, op, number, scales)
        for layer in stream.readers:
            made = _Reading.of(layer, stream.count).multiplied(scales)
            _replace(graph, layer.op, 1, made)
    drop_unread(graph)
    return divisors


def factors(stream: Stream, seen: Mapping[str, Seen]) -> np.ndarray:
    """The factors of a stream's channels: powers of two, so that floats lose no digits."""
    read = [(_Reading.of(layer, stream.count), seen[layer.data.name]) for layer in stream.readers]
    reach = np.maximum.reduce([known.reach for _, known in read])
    heights = [reading.heights() for reading, _ in read]
    height = np.maximum.reduce([h / max(h.max(), 1e-30) for h in heights])
    alive = (reach > 0) & (height > 0)
    if not alive.any():
        return np.ones(stream.count)
    r, w = np.where(alive, reach, 1.0), np.where(alive, height, 1.0)
    best, least = np.ones(stream.count), np.inf
    for a, b in itertools.product(EXPONENTS, EXPONENTS):
        exact = np.log2(r) * a - np.log2(w) * b
        centred = np.rint(np.clip(exact - exact[alive].mean(), -MOST, MOST))
        tried = np.where(alive, np.exp2(centred), 1.0)
        noise = sum(reading.noise(known, tried) for reading, known in read)
        if noise < least:
            best, least = tried, noise
    return best


@dataclass
class _Reading:
    """The weights of a layer as [rows, places, taps], and the channel that each place of a row
    reads, [rows, places], or [1, places] where all rows read the same. `tops` are the largest
    magnitudes of the taps, [rows, places]; `energy` the sums of their squares, of all rows that
    read the same channels together, as `channel`."""

    layer: Layer
    weights: np.ndarray
    channel: np.ndarray
    back: Callable[[np.ndarray], np.ndarray]
    tops: np.ndarray
    energy: np.ndarray

    @staticmethod
    def of(layer: Layer, count: int) -> _Reading:
        moved = np.moveaxis(layer.weights, layer.axis, 0)
        rows, places = len(moved), count // layer.groups
        weights = moved.reshape(rows, places, -1).astype(np.float64)
        energy = np.einsum("rpt,rpt->rp", weights, weights)
        channel = np.arange(places)[None]
        if layer.groups == 1:
            energy = energy.sum(0, keepdims=True)
        else:
            channel = channel + (np.arange(rows) // (rows // layer.groups) * places)[:, None]
        return _Reading(
            layer, weights, channel,
            lambda a: np.ascontiguousarray(np.moveaxis(a.reshape(moved.shape), 0, layer.axis)),
            np.abs(weights).max(2), energy,
        )  # fmt: skip

    def heights(self) -> np.ndarray:
        """The largest weight that each channel is read with."""
        if len(self.channel) == 1:
            return self.tops.max(0)
        largest = np.zeros(int(self.channel.max()) + 1)
        np.maximum.at(largest, self.channel, self.tops)
        return largest

    def noise(self, seen: Seen, scales: np.ndarray) -> float:
        """The estimated noise of what the layer computes, over its signal: of the activations, in
        steps of their common range, and of the weights, in steps of the range of each row."""
        own, squares = scales[self.channel], seen.squares[self.channel]
        steps = (seen.reach / scales).max() / LARGEST, (self.tops * own).max(1) / LARGEST
        of_data = steps[0] ** 2 * (self.energy * own**2).sum()
        of_weights = (steps[1] ** 2 * (squares / own**2).sum(1)).sum() * self.weights.shape[2]
        return float((of_data + of_weights) / max((self.energy * squares).sum(), 1e-300))

    def multiplied(self, scales: np.ndarray) -> np.ndarray:
        """The layer's weights for channels that were divided by these."""
        made = self.weights * scales[self.channel][:, :, None]
        return self.back(made).astype(self.layer.weights.dtype)


def _divide(graph: Graph, layer: Layer, scales: np.ndarray) -> None:
    """Divides what a layer makes."""
    weights = np.moveaxis(layer.weights, layer.axis, -1) / scales
    made = np.moveaxis(weights, -1, layer.axis)
    _replace(graph, layer.op, 1, made)
    if layer.bias is not None:
        _rescale(graph, layer.bias, 1 if layer.bias.operand(0) is layer.op.output else 0, scales)
    elif len(layer.op.inputs) > 2 and layer.op.inputs[2] is not None:
        _rescale(graph, layer.op, 2, scales)


def _rescale(graph: Graph, op: Op, number: int, scales: np.ndarray) -> None:
    """Divides a constant operand, channels on its last axis."""
    old = op.operand(number).constant
    assert old is not None
    _replace(graph, op, number, old / scales)


def _replace(graph: Graph, op: Op, number: int, contents: np.ndarray) -> None:
    old = op.operand(number)
    made = Builder(graph, op, op.loc).constant(
        np.ascontiguousarray(contents, dtype=old.tensor.dtype.np)
    )
    op.set_input(number, made)
    made.name = "" if old.uses else old.name
