"""What samples say of a float graph: ranges of its values, and integers of its layers' weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from graphc.errors import ModelError
from graphc.ir import dtypes
from graphc.ir.build import Builder
from graphc.ir.graph import Graph, Value, clone_graph
from graphc.ir.ops.in_range import own_results
from graphc.passes.rules.quantised.rescale import LEAST_FACTOR
from graphc.quantisation import embeddings, four_bits, half, ranges, recurrent
from graphc.quantisation.layers import Choice, Layer, all_layers
from graphc.quantisation.levels import INTEGER
from graphc.quantisation.moments import Moments, columns_of, rows_read
from graphc.quantisation.open_types import Types, lend
from graphc.quantisation.options import TYPES, Note, Options
from graphc.quantisation.ranges import Parameters
from graphc.quantisation.recurrent import (
    RecurrentLayer,
    RecurrentMoments,
    RecurrentWeights,
    recurrent_layers,
)
from graphc.quantisation.rewriting import Precision, Stored, Weights
from graphc.quantisation.running import Observed
from graphc.quantisation.samples import Samples
from graphc.quantisation.statistics import Statistics
from graphc.quantisation.weights import rounded

ROOM = 1 << 30  # bytes of moments that are in memory at once


class Calibration:
    """A float graph, observed on samples as far as some levels need it.

    `choice` has the layers of the graph, `recurrent` the recurrent ones, but for those that are
    left out.
    """

    def __init__(self, model: Observed, types: Types, data: Samples, options: Options, note: Note):
        self.model, self.types, self.data, self.options = model, types, data, options
        self.note = note
        self.choice = self.chosen(options.left_out)
        self.recurrent = [
            layer for layer in recurrent_layers(self.choice.graph)
            if layer.name not in options.left_out
        ]  # fmt: skip
        self.statistics: dict[str, Statistics] = {}
        self.weights: dict[str, dict[str, Weights]] = {}
        self.stored: dict[str, dict[str, Stored]] = {}
        self.recurrent_weights: dict[str, RecurrentWeights] = {}
        self.ranges: dict[tuple[dtypes.DType, frozenset[str]], Parameters] = {}  # by their values
        model.announce(self._read())

    @property
    def graph(self) -> Graph:
        """The float graph."""
        return self.model.graph

    def chosen(self, left_out: Iterable[str]) -> Choice:
        """A copy of the graph, with the layers that become integer: all but some."""
        graph = clone_graph(self.graph)
        lend(graph, self.types)
        return Choice(graph, self.options.whole, frozenset(left_out))

    def _read(self) -> Iterator[str]:
        """The names of the values that are observed, here or to measure a model."""
        graph = self.choice.graph
        yield from (name for name, _ in own_results(graph))
        for layer in layers_of(graph):
            yield from (layer.data.name, layer.end.name)
        if self.options.embeddings != "float":
            yield from (table.end.name for table in embeddings.tables(graph))
        if any(level in INTEGER for level in self.options.allowed):
            yield from (value.name for value in self.choice.groups)

    def prepare(self, levels: Sequence[str]) -> None:
        """Observes what these levels need."""
        integer = [level for level in levels if level in INTEGER]
        if integer:
            self.note("observing values")
            self.statistics, self.ranges = self._statistics(), {}
        if integer and self.recurrent:
            self.note("rounding weights of recurrent layers")
            self.recurrent_weights = self._recurrent_weights()
        self.note("rounding weights")
        self._round(levels, integer)
        if "float16" in levels:
            values = {layer.name: layer.op.operand(1) for layer in self.choice.layers}
            self.stored["float16"] = {n: half.Half.of(v) for n, v in values.items() if half.fits(v)}

    def precision(self, choice: Choice) -> Precision:
        """All that levels are made of, with the parameters of the groups of a choice."""
        parameters = {level: self.parameters(choice, level) for level in self.weights}
        return Precision(parameters, self.weights, self.stored)

    def parameters(self, choice: Choice, level: str) -> dict[int, Parameters]:
        """The parameters of the groups of a choice at a level."""
        merged: dict[int, Statistics] = {}
        members: dict[int, list[Value]] = {}
        for value, group in choice.groups.items():
            own = self.statistics[value.name]
            merged[group] = merged[group].merged(own) if group in merged else own
            members.setdefault(group, []).append(value)
        method = self.options.calibration
        dtype = TYPES[level if level == "int16" else self.options.bytes]
        parameters = {}
        for group, own in merged.items():
            key = (dtype, frozenset(value.name for value in members[group]))
            if key not in self.ranges:
                made = _of_softmax(members[group], dtype)
                self.ranges[key] = made or ranges.chosen(own, dtype, method)
            parameters[group] = self.ranges[key]
        return parameters

    def _statistics(self) -> dict[str, Statistics]:
        statistics = {value.name: Statistics() for value in self.choice.groups}
        for seen in self.model.values(statistics, self.data):
            for name, array in seen.items():
                if not np.isfinite(array).all():
                    raise ModelError(
                        f"value {name!r} holds numbers that are not finite for a sample; such "
                        "values have no range: mend the model or the samples"
                    )
                statistics[name].add(array)
        return statistics

    def _round(self, levels: Sequence[str], integer: Sequence[str]) -> None:
        """The weights of all layers, as integers at these levels."""
        parameters = {level: self.parameters(self.choice, level) for level in integer}
        self.weights = {level: {} for level in integer}
        layers: Sequence[Layer] = self.choice.layers
        if "int4" in levels:
            self.stored["int4"] = {}
        if not integer:
            layers = [layer for layer in layers if "int4" in levels and four_bits.fits(layer)]
        for layer, moments in self._each_with_moments(layers):
            for level in integer:
                step = parameters[level][self.choice.groups[layer.data]].scale
                self.weights[level][layer.name] = rounded(
                    layer, moments, step, self._least_scale(layer, step, parameters[level]),
                    self.options.scales == "tensor",
                )  # fmt: skip
            if "int4" in levels and four_bits.fits(layer) and moments is not None:
                self.stored["int4"][layer.name] = four_bits.rounded(layer, moments)

    def _least_scale(
        self, layer: Layer, step: float, parameters: Mapping[int, Parameters]
    ) -> float:
        """The least scale of a layer's weights whose requantisation is a high word: layers that
        have that share code. It is for microcontrollers; the steps of so faint channels are far
        below those of the results."""
        group = self.choice.groups.get(layer.end)
        if not self.options.whole or group is None or parameters[group].dtype.bits != 8:
            return 0.0
        return LEAST_FACTOR * parameters[group].scale / step

    def _each_with_moments(self, layers: Sequence[Layer]) -> Iterator[tuple[Layer, Moments | None]]:
        """The layers, each with the moments of what it reads, which is observed for as many layers
        at once as their moments leave room for."""
        fed = self.options.fed
        waiting, done = [layer for layer in layers if fed is None or layer.name in fed], 0
        if fed is not None:
            yield from ((layer, None) for layer in layers if layer.name not in fed)
        while waiting:
            part: list[Layer] = []
            room = ROOM
            while waiting and (not part or room >= 8 * _size(waiting[0])):
                room -= 8 * _size(waiting[0])
                part.append(waiting.pop(0))
            yield from zip(part, self._moments(part))
            done += len(part)
            if waiting:
                self.note(f"rounding weights, {done} of {len(layers)} layers")

    def _moments(self, layers: Sequence[Layer]) -> list[Moments | None]:
        per_layer = [Moments.of(layer) for layer in layers]
        names = list(dict.fromkeys(layer.data.name for layer in layers))
        for seed, seen in enumerate(self.model.values(names, self.data)):
            for layer, moments in zip(layers, per_layer):
                if moments is not None:
                    moments.add(rows_read(layer, seen[layer.data.name], seed))
        return per_layer

    def _recurrent_weights(self) -> dict[str, RecurrentWeights]:
        moments = [RecurrentMoments(layer) for layer in self.recurrent]
        pairs = [(layer.data.name, layer.end.name) for layer in self.recurrent]
        names = list(dict.fromkeys(name for pair in pairs for name in pair))
        for seed, seen in enumerate(self.model.values(names, self.data)):
            for own, (data, end) in zip(moments, pairs):
                own.add(seen[data], seen[end], seed)
        made = {}
        for layer, own in zip(self.recurrent, moments):
            made[layer.name] = recurrent.rounded(layer, own)
            if self.options.whole:
                dtype, method = TYPES[self.options.bytes], self.options.calibration
                made[layer.name].data = ranges.chosen(own.statistics, dtype, method)
        return made


def layers_of(graph: Graph) -> list[Layer | RecurrentLayer]:
    """All layers of a graph, those that are recurrent last."""
    return [*all_layers(graph), *recurrent_layers(graph)]


def _of_softmax(values: Sequence[Value], dtype: dtypes.DType) -> Parameters | None:
    """The parameters of probabilities, as all quantised softmax kernels expect them."""
    producer = values[0].producer
    if producer is None or producer.name != "Softmax" or dtype.bits != 8:
        return None
    return Parameters(1 / 256, int(dtype.min), dtype)


def _size(layer: Layer) -> int:
    """How many numbers the moments of a layer are."""
    return layer.groups * columns_of(layer) ** 2


def store(graph: Graph, layer: Layer, stored: Stored) -> None:
    """Gives a layer weights that are stored narrowly, what it reads staying float."""
    layer.op.set_input(1, stored(Builder(graph, layer.op, layer.op.loc)))
