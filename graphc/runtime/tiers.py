"""Two tiers: a general program that serves every shape within bounds, and exact ones beside it.

With "any" the general program answers all requests. With "auto" it answers those of shapes for
which nothing else has been made; a shape that keeps coming is compiled for in a background thread
once that pays (recurring.py), and runs from then on: dictionaries are read and written whole, so a
run takes one or the other. With "exact" there is no general program.

A dimension without an upper bound gets one that grows: a power of two some way above what was met,
less far if tensors would be large; a larger request has the general program made again. Memory is
that of the bounds, but pages that no run touches cost nothing.

What the general program does not serve (operators that are made for one shape at a time, values
that types depend on, sizes of 0) is compiled for its exact shape; `why` says what it was.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from graphc.errors import GraphcError, ModelError, beyond_limits
from graphc.ir.expr import Sym
from graphc.ir.graph import Graph, Value, clone_graph
from graphc.ir.sizes import sizes_of
from graphc.ir.types import TensorType, largest
from graphc.passes.general import general
from graphc.passes.specialise import pin
from graphc.runtime.execution import ASKED, Made, SpecialisedGraph
from graphc.runtime.listing import ExecutableInfo
from graphc.runtime.plans import Executable, Target
from graphc.runtime.recurring import MOST_REMEMBERED, Recurring

SLACKS = (8, 2, 1)  # times what was met: bounds of a dimension that has none, the first that fits
MOST_BYTES = 1 << 30  # of one tensor at bounds that grow
MOST_EXACT = 1 << 30  # bytes of code and constants that exact programs made in the background add


class TieredGraph(SpecialisedGraph):
    """A graph that runs in two tiers. Safe to use from several threads."""

    def __init__(
        self, graph: Graph, target: Target, mode: str, reason: str = "", made: Made | None = None
    ):
        super().__init__(graph, target, inner=False, made=made)
        self.mode = mode
        self.general: Executable | None = None
        self._info: ExecutableInfo | None = None  # of the general program
        self.why = reason  # why there is no general program, or it did not take some shapes
        self._open: Graph | None = None  # the graph that the general program is of
        self._taken: dict[tuple, bool] = {}
        self._failed = bool(reason)
        self.recurring = Recurring(self.compile_for)

    def run(self, values: Sequence[Any]) -> list[Any]:
        shapes = self._shapes(values)
        exact = None if self._bound else self._made_for(shapes)
        if exact is not None and shapes not in self.recurring.trials:
            return exact(values)
        run = exact or self._general_for(shapes)
        if run is None:
            return super().run(values)
        begin = time.perf_counter()
        try:
            results = run(values)
        except MemoryError as error:
            if exact is not None:
                raise
            self.why, self._taken[shapes] = str(beyond_limits(error)), False
            return super().run(values)
        if self.mode == "auto":
            note = self.recurring.note if exact is None else self.recurring.tried
            note(shapes, time.perf_counter() - begin)
        return results

    def _why_now(self) -> str:
        return f"{super()._why_now()}; not the general program: {self.why}"

    def executables(self) -> list[ExecutableInfo]:
        """What has been compiled: the general program, or why there is none; exact ones; and what
        could not be compiled for in the background."""
        general = self._info
        if general is None and self._failed:
            general = ExecutableInfo(_dims(self.graph), None, self.why)
        made = super().executables() if general is None else [general, *super().executables()]
        return [*made, *self.recurring.failures()]

    def compile_for(self, shapes: tuple, why: str = ASKED) -> None:
        super().compile_for(shapes, why)
        with self._lock:
            while len(self._cache) > 1 and sum(map(_held, self._cache.values())) > MOST_EXACT:
                self._cache.popitem(last=False)

    def prepare(self, dims: Mapping[str, int] | None = None) -> bool:
        """Makes the general program if all dimensions have bounds; whether it is ready to run."""
        bounded = all(s.hi is not None for s in self.graph.symbols.values())
        if dims or not self.graph.symbols or not bounded:
            return super().prepare(dims)
        with self._lock:
            if not self._failed and self.general is None:
                self._make((), "all sizes have bounds")
        return self.general is not None

    # ---------------------------------------------------------------- the general program

    def _general_for(self, shapes: tuple) -> Executable | None:
        """The general program, if it takes inputs of these shapes."""
        taken = self._taken.get(shapes)
        if taken is None:
            with self._lock:
                if not self._takes(shapes) and not self._failed:
                    grown = "a request beyond its bounds" if self.general else "the first request"
                    self._make(shapes, grown)
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

    def _make(self, shapes: tuple, why: str) -> None:
        """Makes the general program, or says why there is none. What is declared can be wrong for
        these shapes: then they get a program of their own, and the general one stays."""
        begin = time.perf_counter()
        try:
            opened = self._opened(shapes)
            if opened is None:
                return
            made = self.target.compile(clone_graph(opened))
        except Exception as error:
            if self.mode == "any" and not isinstance(error, GraphcError):
                raise  # exact programs would hide a mistake
            self.why, self._failed = str(error) or repr(error), self.general is None
            return
        seconds = time.perf_counter() - begin
        self._open, self.general = opened, made
        self._info = ExecutableInfo(_dims(opened), made, why, seconds, self._limits(opened))
        self._taken = {}
        self.recurring.background.expect(seconds)
        self._made(self._info)

    def _opened(self, shapes: tuple) -> Graph | None:
        """The graph for all sizes up to bounds that take these shapes; None if it is there."""
        for slack in SLACKS:
            bounds = self._bounds(shapes, slack)
            if self._open is not None and bounds == self._limits(self._open):
                return None
            opened = general(pin(self.graph, dims=bounds), self.target.policy)
            most = max((v.tensor.most * v.tensor.dtype.size for v in opened.values()), default=0)
            if most <= MOST_BYTES or all(s.hi is not None for s in self.graph.symbols.values()):
                return opened
        raise ModelError(f"a tensor would have {most} bytes at the largest sizes")

    def _limits(self, graph: Graph) -> dict[str, tuple[int, int]]:
        return {name: (s.lo, largest(s)) for name, s in graph.symbols.items()}

    def _bounds(self, shapes: tuple, slack: int) -> dict[str, tuple[int, int]]:
        """Bounds for every dimension: its own, or some that leave room above what has been met."""
        bounds = {}
        known = self._limits(self._open) if self._open is not None else {}
        for name, symbol in self.graph.symbols.items():
            met = max((e for d, e in self._dims(shapes) if d is symbol), default=1)
            high = symbol.hi
            if high is None:
                high = known.get(name, (1, 0))[1]
                high = high if met <= high else 1 << (met * slack - 1).bit_length()
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
    """The dims of the inputs of a graph; their types, where these tell none."""
    return tuple([p.tensor.dims if _is_ranked(p) else str(p.type) for p in graph.params])


def _is_ranked(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.shape is not None


def _held(info: ExecutableInfo) -> int:
    """The bytes that an executable holds by itself, as far as it tells."""
    return getattr(info.run, "nbytes", 0)
