"""One quantisation: calibrate, equalise, choose levels, rewrite, measure.

Values and layers are known by name, as the graph is copied for every choice of levels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from graphc.errors import ModelError
from graphc.ir.build import Builder
from graphc.ir.graph import Graph
from graphc.ir.ops.in_range import own_results
from graphc.quantisation import embeddings, equalising, four_bits, half, recurrent, rewriting
from graphc.quantisation.budgets import Limits, Needs, most_that_fit, needs_of
from graphc.quantisation.calibrating import Calibration, layers_of, store
from graphc.quantisation.layers import Layer, all_layers
from graphc.quantisation.levels import FLOAT, INTEGER, LEVELS
from graphc.quantisation.measuring import Comparison, decibels
from graphc.quantisation.mixtures import Switchable, by_noise, cheapest, multiplications
from graphc.quantisation.open_types import take_back, types_between
from graphc.quantisation.options import Note, Options
from graphc.quantisation.output_layers import GAIN, small_output_layers
from graphc.quantisation.recurrent import RecurrentLayer, recurrent_layers
from graphc.quantisation.results import LayerReport, Quantised
from graphc.quantisation.rewriting import Assigned, Switches
from graphc.quantisation.running import Divided, Observed, Runner
from graphc.quantisation.samples import Samples


@dataclass
class _Row:
    """A quantised layer: its operator and level, the scale that the report tells, and the name of
    its result."""

    name: str
    operator: str
    bits: tuple[int, int]
    scale: float
    end: str


@dataclass
class _Built:
    """A rewritten graph, its quantised layers, and how near it is: ratios of layers' results in
    dB by name, and a comparison of the outputs."""

    levels: Mapping[str, str]
    graph: Graph
    rows: list[_Row]
    ratios: Mapping[str, float]
    comparison: Comparison


class Process:
    """One quantisation of a prepared graph."""

    def __init__(self, model: Observed, data: Samples, options: Options, note: Note):
        self.data, self.options, self.note = data, options, note
        self.types = types_between(model.graph, next(iter(data)))
        self.calibration = self._calibrated(model)
        self.scaled: set[str] = set()
        self._check()

    def _calibrated(self, model: Observed) -> Calibration:
        return Calibration(model, self.types, self.data, self.options, self.note)

    def _check(self) -> None:
        graph = self.calibration.chosen(()).graph
        names = [layer.name for layer in layers_of(graph)]
        if not names:
            raise ModelError(
                "there is no layer to quantise: no Conv, ConvTranspose, Gemm, MatMul or recurrent "
                "layer with constant weights in float32"
            )
        names += [table.name for table in embeddings.tables(graph)]
        unknown = set(self.options.left_out) - set(names)
        if unknown:
            raise ModelError(f"there is no layer {sorted(unknown)[0]!r} to leave out, but {names}")
        if self.options.base == "int4":
            four_bits.check(self.calibration.choice.layers)

    def result(self) -> Quantised:
        """The quantised model, with what was measured."""
        allowed = self.options.allowed
        if self.options.equalise and self.options.base in INTEGER:
            self.calibration = self._calibrated(self._equalised(self.calibration.model))
        self.calibration.prepare(allowed)
        built = self._with_float_outputs(self._measured(self._at_base()))
        levels = dict(built.levels)
        if self.options.keep_accuracy is not None:
            self.note("measuring the sensitivity of layers")
            levels = cheapest(self._switchable(allowed), self.options.keep_accuracy)
        needs = None
        if self.options.limits is not None:
            levels = self._fitting(levels, self.options.limits)
            needs = self._needs(levels, self.options.limits)
        if levels != built.levels:
            built = self._measured(levels)
        return self._quantised(built, needs)

    def _at_base(self) -> dict[str, str]:
        """Each layer at the level that was asked for, as far as it can have it."""
        base, levels = self.options.base, {}
        for layer in self.calibration.choice.layers:
            levels[layer.name] = base if base in self._levels_of(layer, (base,)) else FLOAT
        for state in self.calibration.recurrent:
            levels[state.name] = "int8" if base in INTEGER else FLOAT
        return levels

    def _with_float_outputs(self, built: _Built) -> _Built:
        """The model with small output layers float, if that brings the outputs nearer and nothing
        else decides about levels."""
        if not self.options.may_leave_outputs:
            return built
        names = small_output_layers(self.calibration.graph)
        names = [name for name in names if built.levels.get(name, FLOAT) != FLOAT]
        if not names:
            return built
        other = self._measured({**built.levels, **dict.fromkeys(names, FLOAT)})
        gain = other.comparison.decibels() - built.comparison.decibels()
        return other if gain >= GAIN else built

    def _levels_of(self, layer: Layer | RecurrentLayer, allowed: Sequence[str]) -> list[str]:
        """Those of some levels that a layer can have."""
        if isinstance(layer, RecurrentLayer):
            return [level for level in allowed if level in ("int8", FLOAT)] or [FLOAT]
        known = self.calibration.stored
        return [
            level for level in allowed
            if level in (*INTEGER, FLOAT) or layer.name in known.get(level, ())
        ] or [FLOAT]  # fmt: skip

    def _equalised(self, model: Observed) -> Observed:
        """The model with its channels equalised, if that brings the outputs nearer. That is tried
        on each half of the samples, and judged by the other: channels that fill their ranges on the
        samples at hand are the first to leave them on others."""
        copy, halves = self.calibration.chosen(()).graph, self.data.halves()
        streams = equalising.streams_of(copy)
        if not streams or halves is None:
            return model
        fed = frozenset(
            layer.name for stream in streams for layer in (*stream.makers, *stream.readers)
        )
        for number, (fitting, judging) in enumerate((halves, halves[::-1]), 1):
            self.note(f"equalising channels, half {number} of the samples")
            plain = self._ratio(model, fitting, judging, fed)
            if self._ratio(self._scaled(fitting), fitting, judging, fed) <= plain:
                return model
        made = self._scaled(self.data)
        self.scaled = set(made.divisors)
        return made

    def _scaled(self, data: Samples) -> Divided:
        """The model with its channels equalised by samples."""
        graph, model = self.calibration.chosen(()).graph, self.calibration.model
        streams = equalising.streams_of(graph)
        names = list(dict.fromkeys(r.data.name for stream in streams for r in stream.readers))
        seen = equalising.seen_by(streams, model.values(names, data))
        divisors = equalising.equalise(graph, streams, seen)
        take_back(graph)
        return Divided(graph, model, divisors)

    def _ratio(
        self, model: Observed, fitting: Samples, judging: Samples, fed: frozenset[str]
    ) -> float:
        """The ratio of the outputs in dB on some samples, after calibration on others. Layers that
        equalisation leaves as they are, all but `fed`, are rounded in less time."""
        one = replace(self.options, equalise=False, labels=None, fed=fed)
        process = Process(model, fitting, one, lambda text: None)
        process.calibration.prepare((self.options.base,))
        process.data = judging
        return process._measured(process._at_base(), by_layer=False).comparison.decibels()

    def _rewritten(self, levels: Mapping[str, str]) -> tuple[Graph, list[_Row]]:
        """The graph with layers at these levels, and its quantised layers."""
        calibration = self.calibration
        left = [layer.name for layer in calibration.choice.layers]
        left = [name for name in left if levels.get(name, FLOAT) not in INTEGER]
        choice = calibration.chosen([*self.options.left_out, *left])
        graph = choice.graph
        every, states = all_layers(graph), recurrent_layers(graph)
        tables = self._tables(graph)
        places = {layer.name: graph.place(layer.op) for layer in layers_of(graph)}
        places |= {table.name: graph.place(table.gathers[0]) for table in tables}
        kept = {
            layer.op.operand(1).name for layer in every if levels.get(layer.name, FLOAT) == FLOAT
        }
        ends = {layer.name: layer.end.name for layer in every}
        read = rewriting.insert(
            choice, calibration.precision(choice), Assigned(levels, self.options.base)
        )
        parameters = {layer.name: own for layer, own in read.items()}
        rows = []
        for layer in every:
            level = levels.get(layer.name, FLOAT)
            if level == FLOAT:
                continue
            bits = (LEVELS[level].weight_bits, LEVELS[level].activation_bits)
            if level in INTEGER:
                own = parameters[layer.name]
                bits, scale = (8, own.dtype.bits), own.scale
            else:
                stored = calibration.stored[level][layer.name]
                scale = stored.step
                if self.options.base != "float16":
                    store(graph, layer, stored)
            rows.append(_Row(layer.name, layer.op.name, bits, scale, ends[layer.name]))
        for state in states:
            if levels.get(state.name, FLOAT) != FLOAT:
                made = calibration.recurrent_weights[state.name]
                bits = (8, 8 if state.is_integer or made.data is not None else 32)
                scale = float(made.scales[recurrent.W].mean())
                rows.append(_Row(state.name, state.op.name, bits, scale, state.end.name))
                recurrent.replace(graph, state, made)
        for table in tables:
            rows.append(_Row(table.name, "Gather", (8, 32), table.store(), table.end.name))
        if self.options.base == "float16":
            half.put(graph, kept)
        rewriting.drop_unread(graph)
        return graph, sorted(rows, key=lambda row: places[row.name])

    def _tables(self, graph: Graph) -> list[embeddings.Table]:
        """The tables of embeddings that become integers."""
        if self.options.embeddings == "float":
            return []
        return embeddings.tables(graph, self.options.left_out)

    def _measured(self, levels: Mapping[str, str], by_layer: bool = True) -> _Built:
        """The model with these levels, compared with the float one; each layer too if
        `by_layer`."""
        graph, rows = self._rewritten(levels)
        self.note("measuring")
        names = [row.end for row in rows] if by_layer else []
        outputs = [name for name, _ in own_results(self.calibration.graph)]
        wanted = list(dict.fromkeys([*outputs, *names]))
        model = self.calibration.model
        expected = model.values(wanted, self.data)
        observed = Observed(graph, model.compiling).values(wanted, self.data)
        comparison, sums = Comparison(self.options.labels), {name: [0.0, 0.0] for name in names}
        for want, have in zip(expected, observed, strict=True):
            comparison.add({n: want[n] for n in outputs}, have)
            for name, pair in sums.items():
                wide = want[name].astype(np.float64)
                pair[0] += float((wide**2).sum())
                pair[1] += float(((have[name] - wide) ** 2).sum())
        ratios = {name: decibels(*pair) for name, pair in sums.items()}
        return _Built(levels, graph, rows, ratios, comparison)

    def _quantised(self, built: _Built, needs: Needs | None) -> Quantised:
        reports = [
            LayerReport(row.name, row.operator, *row.bits, row.scale, built.ratios[row.end])
            for row in built.rows
        ]
        if self.options.whole:
            rewriting.quantise_inputs_and_outputs(built.graph)
        for value in built.graph.values():
            if value.name in self.scaled:  # it is no longer what bears the name in the float model
                value.name = f"{value.name}_equalised"
        comparison = built.comparison
        outputs = {name: comparison.decibels(name) for name in comparison.squares}
        left_out = [name for name, level in built.levels.items() if level == FLOAT]
        return Quantised(
            built.graph, reports, outputs, comparison.accuracy, self.data.taken,
            [*self.options.left_out, *left_out], needs,
        )  # fmt: skip

    def _switchable(self, allowed: Sequence[str]) -> Switchable:
        """The model with all levels that are allowed, and switches."""
        calibration = self.calibration
        choice = calibration.chosen(self.options.left_out)
        outputs = [name for name, _ in own_results(choice.graph)]
        states = [r for r in recurrent_layers(choice.graph) if r.name not in self.options.left_out]
        costs = {
            layer.name: {n: _cost(layer, n) for n in self._levels_of(layer, allowed)}
            for layer in layers_of(choice.graph) if layer.name not in self.options.left_out
        }  # fmt: skip
        switches = Switches(choice.graph, list(costs), list(LEVELS))
        rewriting.insert(choice, calibration.precision(choice), switches)
        for state in states:
            _switch(choice.graph, state, calibration.recurrent_weights[state.name], switches)
        model = Runner(choice.graph, calibration.model.compiling)

        def run(
            feeds: Mapping[str, np.ndarray], levels: Mapping[str, str]
        ) -> dict[str, np.ndarray]:
            flags = switches.flags({**dict.fromkeys(costs, FLOAT), **levels})
            return dict(zip(outputs, model.run({**feeds, Switches.name: flags})))

        return Switchable(costs, run, self.data, self.options.labels)

    def _needs(self, levels: Mapping[str, str], limits: Limits) -> Needs:
        graph, _ = self._rewritten(levels)
        rewriting.quantise_inputs_and_outputs(graph)
        return needs_of(graph, limits.cpu)

    def _fitting(self, levels: dict[str, str], limits: Limits) -> dict[str, str]:
        """The levels with further layers float, those first that bring most noise, as long as the
        model fits; ModelError if it does not without any. A bound of accuracy has decided
        already."""
        self.note("fitting into memory")
        limits.check(self._needs(levels, limits))
        if self.options.keep_accuracy is not None:
            return levels
        order = by_noise(self._switchable((self.options.base, FLOAT)), self.options.base)

        def with_float(names: Sequence[str]) -> dict[str, str]:
            return {**levels, **dict.fromkeys(names, FLOAT)}

        return with_float(
            most_that_fit(order, lambda more: limits.admit(self._needs(with_float(more), limits)))
        )


def _cost(layer: Layer | RecurrentLayer, level: str) -> float:
    """What a layer costs at a level."""
    if isinstance(layer, RecurrentLayer):
        rates = LEVELS[level] if layer.is_integer or level == FLOAT else LEVELS["int16"]
        return rates.cost(layer.multiplications, layer.size)
    return LEVELS[level].cost(multiplications(layer), layer.weights.size)


def _switch(
    graph: Graph, layer: RecurrentLayer, made: recurrent.RecurrentWeights, switches: Switches
) -> None:
    """Both forms of a recurrent layer, the results of one of them chosen."""
    new, old = recurrent.put(graph, layer, made), layer.op
    for plain, integer in zip(list(old.outputs), new.outputs):
        readers = list(plain.uses)
        if not readers or plain.type is None:
            continue
        b = Builder(graph, graph.after(old), old.loc)
        chosen = switches.mixed(b, [layer.name], "int8", integer, plain)
        for op, number in readers:
            op.set_input(number, chosen)
