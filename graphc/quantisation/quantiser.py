"""`graphc.quantise`: observe, choose ranges and integers, rewrite, measure."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from graphc.driver import Settings, load_graph, optimise, typed
from graphc.errors import ModelError
from graphc.frontend.onnx_export import export_onnx
from graphc.ir import dtypes
from graphc.ir.graph import Graph, Value, clone_graph
from graphc.ir.ops.in_range import own_results
from graphc.observing import observe
from graphc.passes.integers import KEEP_INTEGERS
from graphc.passes.manager.context import Context
from graphc.passes.specialise import has_static_inputs, pin, type_symbolically
from graphc.quantisation import four_bits, half, ranges, rewriting, rounding
from graphc.quantisation.budgets import Limits, Needs, most_that_fit, needs_of
from graphc.quantisation.layers import Choice, Layer
from graphc.quantisation.measuring import Accuracy, Comparison, decibels
from graphc.quantisation.mixtures import Switchable, by_noise, left_float
from graphc.quantisation.moments import Moments, columns_of, rows_read
from graphc.quantisation.open_types import lend, take_back, types_between
from graphc.quantisation.ranges import Parameters
from graphc.quantisation.rewriting import Weights
from graphc.quantisation.samples import Samples, samples_of
from graphc.quantisation.statistics import Statistics

if TYPE_CHECKING:
    from onnx import ModelProto

LARGEST = 127  # of int8 weights, which are symmetric
LARGEST_BIAS = 1 << 29  # in units of a sum, which is of 32 bits
ROOM = 1 << 30  # bytes of moments that are in memory at once
PREPARING = "canonicalise, cse, dce"
TYPES = {"int8": dtypes.i8, "uint8": dtypes.u8, "int16": dtypes.i16}
WEIGHTS = ("int8", "int4", "float16")
OLDEST = 13  # the opset with scales per channel; 16 bits need 21, which the exporter finds
Note = Callable[[str], None]


@dataclass(frozen=True)
class LayerReport:
    """A row of the report: a layer, its operator, the bits of weights and of what it reads, the
    scale of the latter, and the signal-to-noise ratio of its result in dB, all errors before it
    included (infinite without error)."""

    name: str
    operator: str
    weight_bits: int
    activation_bits: int
    scale: float
    sqnr: float


@dataclass
class Quantised:
    """A quantised model: its graph, and what was measured on the samples: the rows of its layers,
    the signal-to-noise ratio in dB of each output, and the accuracy: the share of rows (along the
    last axis of the first output) whose largest element is where it was, and with labels those that
    are right. `left_out` are the layers that stayed float; `needs` are the bytes of RAM and flash,
    if there were limits."""

    graph: Graph
    layers: list[LayerReport]
    outputs: dict[str, float]
    accuracy: Accuracy
    samples: int
    left_out: list[str]
    needs: Needs | None = None

    @property
    def agreement(self) -> float:
        """The share of rows whose largest element is where it was."""
        return self.accuracy.agreement

    def to_onnx(self) -> ModelProto:
        """The model as an ONNX message."""
        return export_onnx(self.graph, oldest=OLDEST)

    def save(self, path: str | os.PathLike) -> None:
        """Writes the model as ONNX."""
        export_onnx(self.graph, path, OLDEST)


@dataclass
class Options:
    """How a model is quantised; the fields are arguments of `quantise`."""

    calibration: str = "mse"
    activations: str = "int8"
    whole: bool = False
    samples: int | None = None
    left_out: Sequence[str] = ()
    keep_accuracy: float | None = None
    labels: np.ndarray | None = None
    limits: Limits | None = None
    weights: str = "int8"

    def __post_init__(self) -> None:
        if self.weights not in WEIGHTS:
            known = ", ".join(WEIGHTS)
            raise ModelError(f"weights must be one of {known}, found {self.weights!r}")
        if self.weights != "int8" and (self.whole or self.keep_accuracy is not None):
            raise ModelError(
                f"weights of {self.weights} go without integers, budgets and keep_accuracy"
            )
        if self.keep_accuracy is not None and not 0 <= self.keep_accuracy <= 1:
            raise ModelError(
                f"keep_accuracy is a share between 0 and 1, found {self.keep_accuracy!r}"
            )
        if self.calibration not in ranges.METHODS:
            known = ", ".join(ranges.METHODS)
            raise ModelError(f"calibration must be one of {known}, found {self.calibration!r}")
        if self.activations not in TYPES:
            known = ", ".join(TYPES)
            raise ModelError(f"activations must be one of {known}, found {self.activations!r}")
        if self.samples is not None and self.samples < 1:
            raise ModelError(f"samples must be a positive integer, found {self.samples!r}")


def quantise(
    source: Any,
    data: Any,
    *,
    calibration: str = "mse",
    activations: str = "int8",
    weights: str = "int8",
    whole: bool = False,
    samples: int | None = None,
    left_out: Sequence[str] = (),
    keep_accuracy: float | None = None,
    labels: Any = None,
    ram: int | None = None,
    flash: int | None = None,
    cpu: str = "cortex-m4",
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int | tuple[int, int]] | None = None,
    values: Mapping[str, Any] | None = None,
    threads: int | None = None,
    progress: Note | None = None,
) -> Quantised:
    """A model quantised to 8 bits after training, as standard QDQ ONNX.

    `source` is a float model as `graphc.compile` takes it, with `shapes`, `dims` and `values` to
    pin. `data` are samples of its inputs, of which at most `samples` are used: the path of a .npz
    file or of a folder of such files, arrays by the names of inputs whose first axes count samples,
    a list of inputs by name, or a function that gives an iterator over these.

    Weights become int8 with a scale per output channel, what layers read `activations`: "int8",
    "uint8" or "int16". With `weights` "int4", those of matrix products become int4 with a scale for
    32 of them, and all else stays float; with "float16" all constants of two dimensions or more are
    stored as that, and what is computed stays float32. `calibration` is how ranges are chosen:
    "minmax", "percentile", "mse" or "entropy". With `whole`, every operator with an integer form is
    quantised, and inputs and outputs are integers: what microcontrollers want. Layers named in
    `left_out` stay float.

    With `keep_accuracy`, a share, so many more layers stay float that the model agrees with the
    float one on the largest element of that share of rows; or, with `labels` (a class for each row
    of the first output), that it has that share of the float model's accuracy. With bytes of `ram`
    or `flash`, the model is made `whole`, and has to fit the processor `cpu` as C; where there is
    room, the layers that bring most noise stay float. `progress` is called
    with what is being done. ModelError if the model is quantised already or has no layer, or if the
    samples do not fit or are not finite.
    """
    classes = None if labels is None else np.asarray(labels)
    limits = None if ram is None and flash is None else Limits(ram, flash, cpu)
    whole = whole or limits is not None
    options = Options(
        calibration, activations, whole, samples, left_out, keep_accuracy, classes, limits, weights
    )
    graph = prepared(source, shapes=shapes, dims=dims, values=values)
    if limits is not None and graph.symbols:
        first = min(graph.symbols)
        raise ModelError(
            f"RAM and flash depend on sizes, and {', '.join(sorted(graph.symbols))} is open: give "
            f"each a size (--dim {first}=1, in Python dims={{{first!r}: 1}})"
        )
    stream = samples_of(data, graph, samples)
    return _Run(graph, stream, options, threads, progress or (lambda text: None)).result()


def prepared(source: Any, **pins: Any) -> Graph:
    """A model typed and folded, its values named apart; ModelError if it is quantised already."""
    graph = load_graph(source)
    if rewriting.is_quantised(graph):
        raise ModelError("the model is quantised already; give the float model it was made from")
    graph = pin(graph, pins.get("shapes"), pins.get("values"), pins.get("dims"))
    graph = typed(graph) if has_static_inputs(graph) else type_symbolically(graph, KEEP_INTEGERS)
    context = Context(options={"fold_policy": KEEP_INTEGERS})
    optimise(graph, Settings(passes=PREPARING, context=context))
    graph.phase = "typed"  # what is made of it has all passes of a target before it
    taken: set[str] = set()
    for value in graph.values():
        name, number = value.name or "value", 0
        while value.name in taken or not value.name:
            number += 1
            value.name = f"{name}.{number}"
        taken.add(value.name)
    return graph


class _Run:
    """One quantisation of a prepared graph. Values and layers are known by name, as the graph is
    copied for every choice of layers."""

    def __init__(
        self, graph: Graph, data: Samples, options: Options, threads: int | None, note: Note
    ):
        self.graph, self.data, self.options, self.note = graph, data, options, note
        self.compiling = {} if threads is None else {"threads": threads}
        self.types = types_between(graph, next(iter(data)))
        names = [layer.name for layer in self._chosen(()).layers]
        if not names:
            raise ModelError(
                "there is no layer to quantise: no Conv, ConvTranspose, Gemm or MatMul with "
                "constant weights in float32"
            )
        unknown = set(options.left_out) - set(names)
        if unknown:
            raise ModelError(f"there is no layer {sorted(unknown)[0]!r} to leave out, but {names}")
        self.choice = self._chosen(options.left_out)

    def _chosen(self, left_out: Iterable[str]) -> Choice:
        graph = clone_graph(self.graph)
        lend(graph, self.types)
        return Choice(graph, self.options.whole, frozenset(left_out))

    def result(self) -> Quantised:
        if self.options.weights != "int8":
            return self._of_weights_alone()
        self.note("observing values")
        statistics = self._statistics()
        self.note("rounding weights")
        weights = self._weights(self._parameters(self.choice, statistics))
        left_out = list(self.options.left_out)
        if self.options.keep_accuracy is not None:
            self.note("measuring the sensitivity of layers")
            left_out += left_float(
                self._switchable(statistics, weights), self.options.keep_accuracy
            )
        needs = None
        if self.options.limits is not None:
            left_out += self._fitting(statistics, weights, left_out, self.options.limits)
            needs = self._needs(statistics, weights, left_out, self.options.limits)
        choice, parameters = self._built(statistics, weights, left_out)
        self.note("measuring")
        ratios, comparison = self._measured(choice)
        reports = [
            LayerReport(layer.name, layer.op.name, 8, p.dtype.bits, p.scale, ratios[layer.end.name])
            for layer, p in parameters.items()
        ]
        if self.options.whole:
            rewriting.quantise_inputs_and_outputs(choice.graph)
        outputs = {name: comparison.decibels(name) for name in comparison.squares}
        return Quantised(
            choice.graph, reports, outputs, comparison.accuracy, self.data.taken, left_out, needs
        )

    def _of_weights_alone(self) -> Quantised:
        """Narrow weights, all else as it is."""
        choice = self._chosen(self.options.left_out)
        self.note("rounding weights")
        if self.options.weights == "int4":
            bits, steps = 4, self._four_bits(choice)
        else:
            bits, steps = 16, self._halved(choice)
        take_back(choice.graph)
        self.note("measuring")
        ratios, comparison = self._measured(choice)
        reports = [
            LayerReport(layer.name, layer.op.name, bits, 32, step, ratios[layer.end.name])
            for layer, step in steps.items()
        ]
        outputs = {name: comparison.decibels(name) for name in comparison.squares}
        left_out = [layer.name for layer in choice.layers if layer not in steps]
        return Quantised(
            choice.graph, reports, outputs, comparison.accuracy, self.data.taken,
            [*self.options.left_out, *left_out],
        )  # fmt: skip

    def _four_bits(self, choice: Choice) -> dict[Layer, float]:
        """Gives matrix products weights of 4 bits; the mean of their scales."""
        steps = {}
        for layer, moments in self._each_with_moments(four_bits.fitting(choice)):
            assert moments is not None
            steps[layer] = four_bits.put(choice, layer, moments)
        return steps

    def _halved(self, choice: Choice) -> dict[Layer, float]:
        """Stores constants in float16, but weights of layers that are left out."""
        names = {layer: layer.op.operand(1).name for layer in choice.layers}
        everything = Choice(choice.graph).layers
        kept = {layer.op.operand(1).name for layer in everything} - set(names.values())
        halved = half.put(choice.graph, kept)
        return {layer: 1.0 for layer, name in names.items() if name in halved}

    def _built(
        self, statistics: Mapping[str, Statistics], weights: Mapping[str, Weights],
        left_out: Sequence[str],
    ) -> tuple[Choice, dict[Layer, Parameters]]:  # fmt: skip
        """The rewritten graph, and the parameters of what each layer reads."""
        choice = self._chosen(left_out)
        parameters = self._parameters(choice, statistics)
        read = {layer: parameters[choice.groups[layer.data]] for layer in choice.layers}
        made = {layer: weights[layer.name] for layer in choice.layers}
        rewriting.insert(choice, parameters, made)
        return choice, read

    def _switchable(
        self, statistics: Mapping[str, Statistics], weights: Mapping[str, Weights]
    ) -> Switchable:
        choice = self._chosen(self.options.left_out)
        return Switchable.of(
            choice, self._parameters(choice, statistics),
            {layer: weights[layer.name] for layer in choice.layers}, self.data,
            self.options.labels, self.compiling,
        )  # fmt: skip

    def _needs(
        self, statistics: Mapping[str, Statistics], weights: Mapping[str, Weights],
        left_out: Sequence[str], limits: Limits,
    ) -> Needs:  # fmt: skip
        choice, _ = self._built(statistics, weights, left_out)
        rewriting.quantise_inputs_and_outputs(choice.graph)
        return needs_of(choice.graph, limits.cpu)

    def _fitting(
        self, statistics: Mapping[str, Statistics], weights: Mapping[str, Weights],
        left_out: Sequence[str], limits: Limits,
    ) -> list[str]:  # fmt: skip
        """The further layers that stay float, those first that bring most noise, as long as the
        model fits; ModelError if it does not without any. A bound of accuracy has decided
        already."""
        self.note("fitting into memory")
        limits.check(self._needs(statistics, weights, left_out, limits))
        if self.options.keep_accuracy is not None:
            return []
        order = by_noise(self._switchable(statistics, weights))
        return most_that_fit(
            order,
            lambda more: limits.admit(self._needs(statistics, weights, [*left_out, *more], limits)),
        )

    def _statistics(self) -> dict[str, Statistics]:
        found = {value.name: Statistics() for value in self.choice.groups}
        for seen in observe(self.graph, list(found), self.data, **self.compiling):
            for name, array in seen.items():
                if not np.isfinite(array).all():
                    raise ModelError(
                        f"value {name!r} holds numbers that are not finite for a sample; such "
                        "values have no range: mend the model or the samples"
                    )
                found[name].add(array)
        return found

    def _parameters(
        self, choice: Choice, statistics: Mapping[str, Statistics]
    ) -> dict[int, Parameters]:
        merged: dict[int, Statistics] = {}
        members: dict[int, list[Value]] = {}
        for value, group in choice.groups.items():
            own = statistics[value.name]
            merged[group] = merged[group].merged(own) if group in merged else own
            members.setdefault(group, []).append(value)
        dtype, method = TYPES[self.options.activations], self.options.calibration
        return {
            group: _of_softmax(members[group], dtype) or ranges.chosen(own, dtype, method)
            for group, own in merged.items()
        }

    def _weights(self, parameters: Mapping[int, Parameters]) -> dict[str, Weights]:
        """The integers of all layers."""
        made: dict[str, Weights] = {}
        for layer, moments in self._each_with_moments(self.choice.layers):
            step = parameters[self.choice.groups[layer.data]].scale
            made[layer.name] = rounded(layer, moments, step)
        return made

    def _each_with_moments(self, layers: Sequence[Layer]) -> Iterator[tuple[Layer, Moments | None]]:
        """The layers, each with the moments of what it reads, which is observed for as many layers
        at once as their moments leave room for."""
        waiting, done = list(layers), 0
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
        found = [Moments.of(layer) for layer in layers]
        names = list(dict.fromkeys(layer.data.name for layer in layers))
        for seed, seen in enumerate(observe(self.graph, names, self.data, **self.compiling)):
            for layer, moments in zip(layers, found):
                if moments is not None:
                    moments.add(rows_read(layer, seen[layer.data.name], seed))
        return found

    def _measured(self, choice: Choice) -> tuple[dict[str, float], Comparison]:
        """The ratios of layers' results in dB, and a comparison of the outputs."""
        names = [layer.end.name for layer in choice.layers]
        outputs = [name for name, _ in own_results(self.graph)]
        wanted = list(dict.fromkeys([*outputs, *names]))
        expected = observe(self.graph, wanted, self.data, **self.compiling)
        found = observe(choice.graph, wanted, self.data, **self.compiling)
        comparison, sums = Comparison(self.options.labels), {name: [0.0, 0.0] for name in names}
        for want, have in zip(expected, found, strict=True):
            comparison.add({n: want[n] for n in outputs}, have)
            for name, pair in sums.items():
                wide = want[name].astype(np.float64)
                pair[0] += float((wide**2).sum())
                pair[1] += float(((have[name] - wide) ** 2).sum())
        return {name: decibels(*pair) for name, pair in sums.items()}, comparison


def _of_softmax(values: Sequence[Value], dtype: dtypes.DType) -> Parameters | None:
    """The parameters of probabilities, as all quantised softmax kernels expect them."""
    producer = values[0].producer
    if producer is None or producer.name != "Softmax" or dtype.bits != 8:
        return None
    return Parameters(1 / 256, int(dtype.min), dtype)


def _size(layer: Layer) -> int:
    """How many numbers the moments of a layer are."""
    return layer.op.attrs.get("group", 1) * columns_of(layer) ** 2


def rounded(layer: Layer, moments: Moments | None, step: float) -> Weights:
    """The integers of a layer's weights, for data in units of `step`. The bias, if the layer can
    have one, makes up for what they change in the mean; so only what departs from the mean counts
    in rounding. A channel of small weights and a large bias has a scale in which the bias fits."""
    rows, bias = rows_of(layer), bias_of(layer)
    least = np.full(len(rows), 0.0) if bias is None else np.abs(bias) / (step * LARGEST_BIAS)
    if moments is None:
        scales = np.maximum(rounding.scales_of(rows, LARGEST), least)
        return _as_weights(layer, rounding.nearest(rows, scales, LARGEST), scales, bias)
    has_bias = bias is not None or layer.op.name != "MatMul"
    seconds, groups = moments.estimated(has_bias), len(moments.sums)
    integers, scales = np.empty(rows.shape), np.empty(len(rows))
    each = len(rows) // groups
    for group in range(groups):
        part = slice(group * each, (group + 1) * each)
        own = rounding.scales_of(rows[part], LARGEST, seconds[group])
        scales[part] = np.maximum(own, least[part])
        integers[part] = rounding.with_feedback(rows[part], scales[part], LARGEST, seconds[group])
    if has_bias:
        lost = rows - integers * scales[:, None]
        mean = moments.mean_of(lost)
        bias = mean if bias is None else bias + mean
    return _as_weights(layer, integers, scales, bias)


def _as_weights(
    layer: Layer, integers: np.ndarray, scales: np.ndarray, bias: np.ndarray | None
) -> Weights:
    return Weights(from_rows(layer, integers).astype(np.int8), scales, bias)


def rows_of(layer: Layer) -> np.ndarray:
    """The weights in float64, a row for each output channel."""
    moved = np.moveaxis(layer.weights.astype(np.float64), layer.axis, 0)
    return moved.reshape(len(moved), -1)


def from_rows(layer: Layer, rows: np.ndarray) -> np.ndarray:
    """Rows as weights have them."""
    shape = layer.weights.shape
    moved = (shape[layer.axis], *(n for axis, n in enumerate(shape) if axis != layer.axis))
    return np.ascontiguousarray(np.moveaxis(rows.reshape(moved), 0, layer.axis))


def bias_of(layer: Layer) -> np.ndarray | None:
    """The bias in float64, one number for each output channel; None if there is none."""
    op, channels = layer.op, layer.weights.shape[layer.axis]
    value = op.inputs[2] if len(op.inputs) > 2 else None
    if layer.bias is not None:
        value = layer.bias.operand(1 if layer.bias.operand(0) is op.output else 0)
    if value is None or value.constant is None:
        return None
    flat = value.constant.astype(np.float64).reshape(-1)
    return np.broadcast_to(flat, (channels,)).copy()
