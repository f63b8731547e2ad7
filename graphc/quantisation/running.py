"""Models as quantisation runs them: compiled once, and run on sample after sample."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from graphc.api import compile
from graphc.ir.graph import Graph
from graphc.observing import with_outputs
from graphc.runtime.compiled import CompiledModel

Feeds = Mapping[str, np.ndarray]
Compiling = Mapping[str, Any]
"""Arguments of `graphc.compile`."""


class Runner:
    """A graph that is run on samples.

    Those that have the shapes of the first are run by a program for exactly these: most data has
    one shape, and a program for all sizes takes several times as long to compile. Other samples
    are run as any model of open shape.
    """

    def __init__(self, graph: Graph, compiling: Compiling):
        self.graph, self.compiling = graph, compiling
        self.shapes: dict[str, tuple[int, ...]] | None = None
        self.models: dict[str, CompiledModel] = {}

    def run(self, feeds: Feeds) -> list[np.ndarray]:
        """The outputs of the graph for a sample."""
        shapes = {name: np.shape(array) for name, array in feeds.items()}
        if self.shapes is None:
            self.shapes = shapes
        specialise = "exact" if shapes == self.shapes else "auto"
        if specialise not in self.models:
            self.models[specialise] = compile(self.graph, specialise=specialise, **self.compiling)
        return self.models[specialise].run(dict(feeds))


class Observed:
    """A graph whose values are observed by name. It is compiled once, with all values as outputs
    that are asked for or `announced`: to compile it for each question would take longer than to
    run it."""

    def __init__(self, graph: Graph, compiling: Compiling):
        self.graph, self.compiling = graph, compiling
        self.announced: dict[str, None] = {}
        self.runner: Runner | None = None

    def announce(self, names: Iterable[str]) -> None:
        """Tells which values will be asked for."""
        new = [name for name in names if name not in self.announced]
        if new:
            self.announced.update(dict.fromkeys(new))
            self.runner = None

    def values(self, names: Iterable[str], samples: Iterable[Feeds]) -> Iterator[Feeds]:
        """The values of these names for each of the samples, one after the other."""
        wanted = list(names)
        self.announce(wanted)
        outputs = list(self.announced)
        if self.runner is None:
            self.runner = Runner(with_outputs(self.graph, outputs), self.compiling)
        runner = self.runner
        for sample in samples:
            seen = dict(zip(outputs, runner.run(sample), strict=True))
            yield {name: seen[name] for name in wanted}


class Divided(Observed):
    """A graph that computes what another does, but for values that are divided by `divisors`, by
    their names: so the other one is observed, which is compiled already. Divisors are powers of
    two, by which floats are divided exactly."""

    def __init__(self, graph: Graph, other: Observed, divisors: Mapping[str, np.ndarray]):
        super().__init__(graph, other.compiling)
        self.other, self.divisors = other, divisors

    def announce(self, names: Iterable[str]) -> None:
        self.other.announce(names)

    def values(self, names: Iterable[str], samples: Iterable[Feeds]) -> Iterator[Feeds]:
        for seen in self.other.values(names, samples):
            yield {
                name: array / self.divisors[name] if name in self.divisors else array
                for name, array in seen.items()
            }
