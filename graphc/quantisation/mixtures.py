"""Which layers stay float so that a model is as accurate as asked, at the least cost.

All layers are quantised in one graph with a switch for each, which is compiled once. Each layer is
switched on alone: the noise that it brings to the outputs is its sensitivity. Noises of layers
nearly add up. So layers are left float in the order of noise per multiplication saved, and the
least number of them that keeps the bound is found by bisection, measured each time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphc.api import compile
from graphc.ir.ops.in_range import own_results
from graphc.quantisation.layers import Choice, Layer
from graphc.quantisation.measuring import Accuracy, Comparison
from graphc.quantisation.ranges import Parameters
from graphc.quantisation.rewriting import Switches, Weights, insert
from graphc.quantisation.samples import Samples


@dataclass
class Switchable:
    """A model with a switch for each layer, by their names; what each costs in multiplications; and
    the data that it is judged on."""

    names: list[str]
    costs: list[float]
    run: Callable[[Mapping[str, np.ndarray], np.ndarray], dict[str, np.ndarray]]
    data: Samples
    labels: np.ndarray | None

    @staticmethod
    def of(
        choice: Choice, parameters: Mapping[int, Parameters], weights: Mapping[Layer, Weights],
        data: Samples, labels: np.ndarray | None, compiling: Mapping[str, Any],
    ) -> Switchable:  # fmt: skip
        """The model of a choice, whose graph is rewritten."""
        outputs = [name for name, _ in own_results(choice.graph)]
        names = [layer.name for layer in choice.layers]
        costs = [multiplications(layer) for layer in choice.layers]
        switches = Switches(choice)
        insert(choice, parameters, weights, switches)
        model = compile(choice.graph, **compiling)

        def run(feeds: Mapping[str, np.ndarray], flags: np.ndarray) -> dict[str, np.ndarray]:
            return dict(zip(outputs, model.run({**feeds, Switches.name: flags})))

        return Switchable(names, costs, run, data, labels)

    def measured(self, on: np.ndarray, expected: Sequence[dict[str, np.ndarray]]) -> Accuracy:
        """The accuracy with some layers quantised, of which there is a flag each."""
        comparison = Comparison(self.labels)
        for feeds, want in zip(self.data, expected):
            comparison.add(want, self.run(feeds, on))
        return comparison.accuracy

    def noises(self, expected: Sequence[dict[str, np.ndarray]]) -> list[float]:
        """The noise of the outputs with each layer quantised alone."""
        alone = np.eye(len(self.names), dtype=bool)
        return [self.measured(flags, expected).noise for flags in alone]

    def expected(self) -> list[dict[str, np.ndarray]]:
        """The outputs of the float model."""
        off = np.zeros(len(self.names), bool)
        return [self.run(feeds, off) for feeds in self.data]


def by_noise(model: Switchable) -> list[str]:
    """The layers, those first that bring most noise."""
    noise = model.noises(model.expected())
    return [model.names[n] for n in sorted(range(len(noise)), key=lambda n: (-noise[n], n))]


def left_float(model: Switchable, bound: float) -> list[str]:
    """The layers that stay float so that at least a share `bound` is kept; all if nothing else
    does."""
    expected = model.expected()
    count = len(model.names)
    if model.measured(np.ones(count, bool), expected).kept >= bound:
        return []
    noise = model.noises(expected)
    order = sorted(range(count), key=lambda n: (-noise[n] / max(model.costs[n], 1), n))

    def keeps(number: int) -> bool:
        flags = np.ones(count, bool)
        flags[order[:number]] = False
        return model.measured(flags, expected).kept >= bound

    low, high = 1, count
    while low < high:
        middle = (low + high) // 2
        if keeps(middle):
            high = middle
        else:
            low = middle + 1
    return [model.names[n] for n in order[:high]]


def multiplications(layer: Layer) -> float:
    """How many multiplications a layer takes, by its weights and the places they are used at."""
    dims = layer.op.output.tensor.dims
    places = 1
    spatial = dims[2:] if layer.op.name.startswith("Conv") else dims[:-1]
    for extent in spatial:
        places *= extent if isinstance(extent, int) else 1
    return float(layer.weights.size * places)
