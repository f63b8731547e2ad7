"""The cheapest mixture of precisions with which a model is as accurate as asked.

All layers have all levels in one graph, with switches, which is compiled once. Each layer is put at
each level alone, all others float: the noise that it brings to the outputs is its sensitivity.
Noises of layers nearly add up. So every layer begins at its cheapest level, and steps to better
ones are taken in the order of the noise they remove for what they cost; within a layer only steps
along the lower convex hull of noise over cost are any good. The least number of steps that keeps
the bound is found by bisection, measured each time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from graphc.errors import ModelError
from graphc.quantisation.layers import Layer
from graphc.quantisation.levels import FLOAT
from graphc.quantisation.measuring import Accuracy, Comparison
from graphc.quantisation.samples import Samples

Levels = Mapping[str, str]
"""The level of each layer by name."""


@dataclass
class Switchable:
    """A model whose layers have levels at run time: what each layer costs at each of those it can
    have, how the model is run, and the data that it is judged on."""

    costs: Mapping[str, Mapping[str, float]]
    run: Callable[[Mapping[str, np.ndarray], Levels], dict[str, np.ndarray]]
    data: Samples
    labels: np.ndarray | None

    def measured(self, levels: Levels, expected: Sequence[dict[str, np.ndarray]]) -> Accuracy:
        """The accuracy with these levels; layers that are not named are float."""
        comparison = Comparison(self.labels)
        for feeds, want in zip(self.data, expected):
            comparison.add(want, self.run(feeds, levels))
        return comparison.accuracy

    def noises(self, expected: Sequence[dict[str, np.ndarray]]) -> dict[str, dict[str, float]]:
        """The noise of the outputs with each layer at each level alone."""
        return {
            name: {
                level: 0.0 if level == FLOAT else self.measured({name: level}, expected).noise
                for level in own
            }
            for name, own in self.costs.items()
        }

    def expected(self) -> list[dict[str, np.ndarray]]:
        """The outputs of the float model."""
        return [self.run(feeds, {}) for feeds in self.data]


@dataclass(frozen=True)
class Step:
    """A layer goes from one level to a better one: noise removed per cost added."""

    layer: str
    level: str
    gain: float


def steps_between(
    layer: str, costs: Mapping[str, float], noises: Mapping[str, float]
) -> tuple[str, list[Step]]:
    """The cheapest level of a layer, and the steps along the lower hull of noise over cost."""
    level = start = min(costs, key=lambda n: (costs[n], noises[n]))
    steps: list[Step] = []
    while True:
        better = {
            n: (noises[level] - noises[n]) / (costs[n] - costs[level])
            for n in costs if noises[n] < noises[level] and costs[n] > costs[level]
        }  # fmt: skip
        if not better:
            return start, steps
        level = max(better, key=lambda n: better[n])
        steps.append(Step(layer, level, better[level]))


def by_noise(model: Switchable, level: str) -> list[str]:
    """The layers, those first that bring most noise at a level."""
    noises = model.noises(model.expected())
    at_level = {name: own.get(level, 0.0) for name, own in noises.items()}
    return sorted(at_level, key=lambda name: -at_level[name])


def cheapest(model: Switchable, bound: float) -> dict[str, str]:
    """The levels that keep a share `bound` at the least cost. ModelError if none do."""
    expected = model.expected()
    cheap = {name: min(own, key=lambda n: own[n]) for name, own in model.costs.items()}
    if model.measured(cheap, expected).kept >= bound:
        return cheap
    noises = model.noises(expected)
    start: dict[str, str] = {}
    steps: list[Step] = []
    for name, own in model.costs.items():
        start[name], more = steps_between(name, own, noises[name])
        steps += more
    steps.sort(key=lambda step: -step.gain)

    def after(number: int) -> dict[str, str]:
        return {**start, **{step.layer: step.level for step in steps[:number]}}

    low, high = 0, len(steps)
    while low < high:
        middle = (low + high) // 2
        if model.measured(after(middle), expected).kept >= bound:
            high = middle
        else:
            low = middle + 1
    kept = model.measured(after(high), expected).kept
    if kept < bound:
        raise ModelError(
            f"{100 * bound:g} % of the accuracy was asked, and the best mixture keeps "
            f"{100 * kept:.2f} %: allow more levels ({FLOAT} among them keeps all)"
        )
    return after(high)


def multiplications(layer: Layer) -> float:
    """How many multiplications a layer takes, by its weights and the places they are used at."""
    dims = layer.op.output.tensor.dims
    places = 1
    spatial = dims[2:] if layer.op.name.startswith("Conv") else dims[:-1]
    for extent in spatial:
        places *= extent if isinstance(extent, int) else 1
    return float(layer.weights.size * places)
