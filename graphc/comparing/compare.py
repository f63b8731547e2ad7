"""Layer by layer: how far a model is from a reference, and which layer is to blame.

Two differences are taken of each value. The first is that of the whole: the model runs, with its
values as further outputs, and its values are compared. The second is the layer's own: the layer is
given the reference's values instead, so that no error comes from the layers before it. A layer
departs if its own difference is above a limit; one that cannot be run alone, if its difference in
the whole is, and those of all that it reads are not. Nothing is kept from one sample to the next.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from graphc.comparing.differences import Difference
from graphc.comparing.pairs import EXACT, Pair, apart
from graphc.comparing.references import Values
from graphc.driver import compile
from graphc.errors import GraphcError, ModelError
from graphc.ir.graph import Graph

LIMIT = 1e-4  # of the range of a value, where both sides compute the same
QUANTISED_LIMIT = 0.05  # of noise to signal, where one alone is quantised, at the least (26 dB)
OUTLIER = 4.0  # times the median of the layers, where that is more


@dataclass
class Layer:
    """A pair of values and their differences; `own` is None where a layer cannot be run alone."""

    pair: Pair
    whole: Difference = field(default_factory=Difference)
    own: Difference | None = None


@dataclass
class Output:
    """An output of both: its difference; where rows are scores of classes, of how many rows both
    have the same largest element, and (with labels) of how many it is the label."""

    name: str
    difference: Difference = field(default_factory=Difference)
    rows: int = 0
    agreeing: int = 0
    right: int | None = None
    reference_right: int | None = None


@dataclass
class Comparison:
    """What was found over `samples` runs. The `limit` is of the largest difference, relative to the
    range; or, with `by_noise`, of noise to signal: quantising cuts a few large elements off."""

    layers: list[Layer]
    outputs: list[Output]
    samples: int = 0
    limit: float = LIMIT
    by_noise: bool = False
    why_not_apart: str = ""

    def distance(self, difference: Difference) -> float:
        """What the limit is compared with."""
        return difference.noise_to_signal if self.by_noise else difference.relative

    def _within(self) -> dict[str, bool]:
        return {x.pair.name: self.distance(x.whole) <= self.limit for x in self.layers}

    @property
    def departing(self) -> list[Layer]:
        """The layers that depart, in order."""
        within = self._within()
        return [layer for layer in self.layers if self._departs(layer, within)]

    def _departs(self, layer: Layer, within: Mapping[str, bool]) -> bool:
        if layer.own is not None:
            return self.distance(layer.own) > self.limit
        is_fed_well = all(within.get(name, True) for name in layer.pair.reads)
        return not within[layer.pair.name] and is_fed_well

    @property
    def first(self) -> Layer | None:
        """The first layer that departs; else, where only the whole does, the first value that does
        so though all that it is computed from does not."""
        departing = self.departing
        if departing:
            return departing[0]
        within = self._within()
        fed_well = (x for x in self.layers if all(within.get(n, True) for n in x.pair.reads))
        return next((x for x in fed_well if not within[x.pair.name]), None)

    @property
    def contributions(self) -> list[Layer]:
        """The layers that differ by themselves, those that lose most first."""
        own = [x for x in self.layers if x.own is not None and x.own.relative > 0]
        return sorted(own, key=lambda x: -self.distance(x.own) if x.own else 0.0)

    @property
    def agrees(self) -> bool:
        """Whether no layer and no output departs."""
        far = [x for x in self.outputs if self.distance(x.difference) > self.limit]
        return self.first is None and not far


class Comparer:
    """Compares `graph` with a reference, sample by sample: the values of `pairs`, and `outputs`, by
    the names of the reference's. `observed` gives the values of the graph while it is observed, and
    `plain` its outputs when it is not. `options` are those of `graphc.compile`."""

    def __init__(
        self, graph: Graph, pairs: Sequence[Pair], outputs: Mapping[str, str],
        reference: Values, observed: Values, plain: Values, options: Mapping[str, Any],
    ):  # fmt: skip
        if not pairs:
            raise ModelError(
                "the two models have no values of the same name: is one made from the other?"
            )
        self.graph, self.pairs, self.options = graph, list(pairs), dict(options)
        self.outputs, self.reference = dict(outputs), reference
        self.observed, self.plain = observed, plain
        self._alone: tuple[Any, list[Pair]] | None = None
        self.result = Comparison([Layer(p) for p in pairs], [Output(n) for n in outputs])

    def compare(
        self, samples: Iterable[Mapping[str, Any]], labels: np.ndarray | None = None
    ) -> Comparison:
        """The comparison over samples, each of which holds the inputs by name; `labels` are of the
        rows of the first output, those of the samples one after the other."""
        at = 0
        for feeds in samples:
            expected, observed = self.reference(feeds), self.observed(feeds)
            for layer in self.result.layers:
                if layer.pair.name in expected:
                    layer.whole.add(observed[layer.pair.other], expected[layer.pair.name])
            self._compare_alone(feeds, expected)
            given = self.plain(feeds)
            rows = [
                self._compare_output(o, given, expected, labels, at) for o in self.result.outputs
            ]
            at += rows[0] if rows else 0
            self.result.samples += 1
        if labels is not None and at != len(labels):
            raise ModelError(f"there are {len(labels)} labels for {at} rows of results")
        return self.result

    def _compare_output(
        self, output: Output, given: Mapping[str, Any], expected: Mapping[str, Any],
        labels: np.ndarray | None, at: int,
    ) -> int:  # fmt: skip
        """Compares an output; how many rows it has, if they are scores of classes."""
        ours, theirs = given[self.outputs[output.name]], expected[output.name]
        output.difference.add(ours, theirs)
        if not _are_scores(ours) or not _are_scores(theirs) or ours.shape != theirs.shape:
            return 0
        best, best_expected = (_best(x) for x in (ours, theirs))
        output.rows += len(best)
        output.agreeing += int((best == best_expected).sum())
        if labels is not None and output is self.result.outputs[0]:
            mine = labels[at : at + len(best)]
            if len(mine) == len(best):
                output.right = (output.right or 0) + int((best == mine).sum())
                right = (output.reference_right or 0) + int((best_expected == mine).sum())
                output.reference_right = right
        return len(best)

    def _compare_alone(self, feeds: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
        """Runs each layer on exact inputs."""
        if self.result.why_not_apart:
            return
        try:
            if self._alone is None:
                known = [pair for pair in self.pairs if pair.name in expected]
                graph, cut = apart(self.graph, known, expected)
                self._alone = compile(graph, **self.options), cut
            model, cut = self._alone
            exact = {EXACT + pair.name: expected[pair.name] for pair in cut}
            results = model.run({**feeds, **exact})
        except GraphcError as error:
            self.result.why_not_apart = " ".join(str(error).split())
            return
        layers = {layer.pair.name: layer for layer in self.result.layers}
        for pair, array in zip(cut, results, strict=True):
            layer = layers[pair.name]
            layer.own = layer.own or Difference()
            layer.own.add(array, expected[pair.name])


def _are_scores(array: object) -> bool:
    is_float = isinstance(array, np.ndarray) and array.dtype.kind == "f"
    return is_float and array.ndim >= 1 and array.shape[-1] > 1  # type: ignore[attr-defined]


def _best(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1, array.shape[-1]).argmax(-1)


def set_limit(comparison: Comparison, limit: float | None, is_quantised: bool) -> None:
    """Sets the limit: the one given, or the usual one. Between a float and a quantised model
    (`is_quantised`) noise is judged, and what stands out from most layers departs."""
    comparison.by_noise = is_quantised
    if limit is None and is_quantised:
        own = [x.own.noise_to_signal for x in comparison.layers if x.own is not None]
        usual = [value for value in own if 0 < value < math.inf]
        limit = max(QUANTISED_LIMIT, OUTLIER * float(np.median(usual)) if usual else 0.0)
    comparison.limit = LIMIT if limit is None else limit
