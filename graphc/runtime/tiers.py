"""Two tiers: a general program that serves every shape within bounds, and exact ones beside it.

With "any" the general program answers all requests. With "auto" it answers those of shapes for
which nothing else has been made; a shape that keeps coming is compiled for in a background thread
once the time its runs have taken would have paid for it, and runs from then on: dictionaries are
read and written whole, so a run takes one or the other. With "exact" there is no general program.

A dimension without an upper bound gets one that grows: a power of two some way above what was met;
a larger request has the general program made again. Memory is that of the bounds, but pages that
no run touches cost nothing.

What the general program does not serve (operators that are made for one shape at a time, values
that types depend on, sizes of 0) is compiled for its exact shape; `why` says what it was.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from graphc.errors import GraphcError, ModelError
from graphc.ir.expr import Sym
from graphc.ir.graph import Graph, clone_graph
from graphc.ir.sizes import sizes_of
from graphc.ir.types import TensorType, largest
from graphc.passes.general import general
from graphc.passes.specialise import pin
from graphc.runtime.execution import Made, SpecialisedGraph
from graphc.runtime.plans import Executable, Target
from graphc.runtime.recurring import MOST_REMEMBERED, Recurring

SLACK = 8  # times what was met: the first bound of a dimension that has none
MOST_BYTES = 1 << 32  # of one tensor at bounds that grow


class TieredGraph(SpecialisedGraph):
    """A graph that runs in two tiers. Safe to use from several threads."""

    def __init__(
        self, graph: Graph, target: Target, mode: str, reason: str = "", made: Made | None = None
    ):
        super().__init__(graph, target, inner=False, made=made)
        self.mode = mode
        self.general: Executable | None = None
        self.why = reason  # why there is no general program, or it did not take some shapes
        self._open: Graph | None = None  # the graph that the general program is of
        self._taken: dict[tuple, bool] = {}
        self._failed = bool(reason)
        self.recurring = Recurring(self.compile_for)

    def run(self, values: Sequence[Any]) -> list[Any]:
        shapes = self._shapes(values)
        exact = None if self._bound else self._cache.get(shapes)
        if exact is not None:
            return exact(values)
        made = self._general_for(shapes)
        if made is None:
            return super().run(values)
        begin = time.perf_counter()
        results = made(values)
        if self.mode == "auto":
            self.recurring.note(shapes, time.perf_counter() - begin)
        return results

    def executables(self) -> list[tuple[tuple, Executable]]:
        """What has been compiled: the general program, by the dims of its inputs, then exact ones
        by shapes (and contents)."""
        made = super().executables()
        if self.general is None or self._open is None:
            return made
        return [(_dims(self._open), self.general), *made]

    def prepare(self, dims: Mapping[str, int] | None = None) -> bool:
        """Makes the general program if all dimensions have bounds; whether it is ready to run."""
        bounded = all(s.hi is not None for s in self.graph.symbols.values())
        if dims or not self.graph.symbols or not bounded:
            return super().prepare(dims)
        with self._lock:
            if not self._failed and self.general is None:
                self._make(())
        return self.general is not None

    # ---------------------------------------------------------------- the general program

    def _general_for(self, shapes: tuple) -> Executable | None:
        """The general program, if it takes inputs of these shapes."""
        taken = self._taken.get(shapes)
        if taken is None:
            with self._lock:
                if not self._takes(shapes) and not self._failed:
                    self._make(shapes)
                if len(self._taken) >= MOST_REMEMBERED:
                    self._taken.clear()
                taken = self._taken[shapes] = self._takes(shapes)
        return self.general if taken else None

    def _takes(self, shapes: tuple) -> bool:
        if self._open is None or self.general is None:
            return False
        interface = [(p.name, p.tensor) for p in self._open.params]
        try:
            sizes_of(tuple(self._open.symbols.values()), interface, shapes)
        except ModelError as error:
            self.why = str(error)
            return False
        return True

    def _make(self, shapes: tuple) -> None:
        """Makes the general program, or says why there is none. What is declared can be wrong for
        these shapes: then they get a program of their own, and the general one stays."""
        try:
            bounds = self._bounds(shapes)
            if self._open is not None and bounds == self._limits(self._open):
                return
            opened = general(pin(self.graph, dims=bounds), self.target.policy)
            biggest = max((v.tensor.most * v.tensor.dtype.size for v in opened.values()), default=0)
            if biggest > MOST_BYTES:
                raise ModelError(f"a tensor would have {biggest} bytes at the largest sizes")
            begin = time.perf_counter()
            made = self.target.compile(clone_graph(opened))
            seconds = time.perf_counter() - begin
        except GraphcError as error:
            self.why, self._failed = str(error), self.general is None
            return
        self._open, self.general = opened, made
        self._taken = {}
        self.recurring.background.expect(seconds)
        self._made(_dims(opened), made, seconds)

    def _limits(self, graph: Graph) -> dict[str, tuple[int, int]]:
        return {name: (s.lo, largest(s)) for name, s in graph.symbols.items()}

    def _bounds(self, shapes: tuple) -> dict[str, tuple[int, int]]:
        """Bounds for every dimension: its own, or some that leave room above what has been met."""
        bounds = {}
        known = self._limits(self._open) if self._open is not None else {}
        for name, symbol in self.graph.symbols.items():
            met = max((e for d, e in self._dims(shapes) if d is symbol), default=1)
            high = symbol.hi
            if high is None:
                high = known.get(name, (1, 0))[1]
                high = high if met <= high else 1 << (met * SLACK - 1).bit_length()
            bounds[name] = (max(symbol.lo, 1), max(high, 1))
        return bounds

    def _dims(self, shapes: tuple) -> list[tuple[Any, int]]:
        """The symbols of inputs, with their extents in these shapes."""
        pairs = []
        for param, shape in zip(self.graph.params, shapes):
            if isinstance(param.type, TensorType) and param.type.shape is not None:
                pairs += [(d, e) for d, e in zip(param.type.shape, shape) if isinstance(d, Sym)]
        return pairs


def _dims(graph: Graph) -> tuple:
    """The dims of the inputs of a graph."""
    return tuple([p.tensor.dims for p in graph.params])
