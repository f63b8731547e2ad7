"""Two tiers: a general program that serves every shape within bounds, and exact ones beside it.

With "any" the general program answers all requests. With "auto" it answers those of shapes for
which nothing else has been made; a shape that keeps coming is compiled for in a background thread
once that pays (recurring.py), and runs from then on: dictionaries are read and written whole, so a
run takes one or the other. With "exact" there is no general program.

A dimension without an upper bound gets one that grows: a power of two some way above what was met,
less far if tensors would be large, or the model has no meaning there; a larger request has the
general program made again. Memory is that of the bounds, but pages no run touches cost nothing.

A general program is for the contents of inputs that types depend on. Where an op has no program
for all sizes, bounds are narrowed about what was met (passes/narrowing.py), and what is beyond them
gets a general program of its own, up to a limit. With "auto" the time for one is limited as well.

A dimension may be empty once a request had it so, as a cache is that takes its first prompt.

A graph with ops that the host runs whatever the sizes are (strings, sequences) is cut at these;
what lies between them has two tiers of its own.

What no general program serves is compiled for its exact shape; `why` says what it was, or what has
narrowed bounds. What has failed is not tried again, in later processes neither: whoever keeps what
a model was compiled to is told of it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from graphc.deadline import check_time, within_seconds
from graphc.errors import GraphcError, ModelError, NeedsValue, UnsupportedError, beyond_limits
from graphc.ir import dtypes
from graphc.ir.expr import Expr, Sym, symbols
from graphc.ir.graph import Graph, clone_graph
from graphc.ir.sizes import sizes_of
from graphc.ir.types import TensorType, largest
from graphc.passes.counts import count_within
from graphc.passes.general import Bounds
from graphc.passes.narrowing import Opened, open_within
from graphc.passes.native import is_hosted
from graphc.passes.partition import opened, part_graph
from graphc.passes.specialise import type_symbolically
from graphc.records import dataclass
from graphc.runtime.execution import ASKED, Made, SpecialisedGraph, contents_key
from graphc.runtime.listing import ExecutableInfo
from graphc.runtime.plans import Executable, Target, plan_of_open_sizes
from graphc.runtime.recurring import MOST_REMEMBERED, Recurring

SLACKS = (8, 2, 1)  # times what was met: bounds of a dimension that has none, the first that fits
MOST_BYTES = 1 << 30  # of one tensor at bounds that grow
MOST_EXACT = 1 << 30  # bytes of code and constants that exact programs made in the background add
MOST_GENERAL = 16  # general programs of a model
MOST_WRONG = 3  # requests that fail after which no general program is tried again
UNBOUNDED = 1 << 62  # the largest value of a size that has no bound
MOST_SECONDS = 60.0  # of the processor, for a general program that "auto" makes


@dataclass(frozen=True, eq=False)
class General:
    """A program for all sizes within bounds, for the contents of some inputs: the graph that it is
    of, and what is told of it."""

    graph: Graph
    bounds: Bounds
    contents: tuple
    run: Executable
    info: ExecutableInfo

    def covers(self, other: General) -> bool:
        """Whether it takes all that another takes."""
        mine, others = self.bounds, other.bounds
        within = (mine[n][0] <= low and high <= mine[n][1] for n, (low, high) in others.items())
        return self.contents == other.contents and all(within)

    def why_not(self, shapes: tuple, contents: tuple) -> str:
        """Why it does not take inputs of these shapes and contents; empty if it does."""
        if contents != self.contents:
            return "inputs that types depend on have other contents"
        known = [(p, shape) for p, shape in zip(self.graph.params, shapes) if p.is_ranked]
        interface = [(p.name, p.tensor) for p, _ in known]
        try:
            sizes_of(_sizes(self.graph), interface, [shape for _, shape in known])
        except ModelError as error:
            return str(error)
        return ""


class TieredGraph(SpecialisedGraph):
    """A graph that runs in two tiers. Safe to use from several threads."""

    def __init__(
        self, graph: Graph, target: Target, mode: str, reason: str = "", made: Made | None = None
    ):
        super().__init__(graph, target, inner=False, made=made)
        self.mode = mode
        self.general: list[General] = []  # the last one made first
        self.why = reason  # why there is no general program, or it did not take some shapes
        self._is_cut = False  # parts, which have tiers of their own, lie between ops on the host
        self._taken: dict[tuple, General | None] = {}
        self._failed = self._is_told = bool(reason)
        self._wrong = 0  # requests for which exact programs failed too
        self.recurring = Recurring(self.compile_for)

    def run(self, values: Sequence[Any]) -> list[Any]:
        key = self._key(values)
        exact = self._made_for(key)
        if exact is not None and key not in self.recurring.trials:
            return exact(values)
        run = exact or self._general_for(key, values)
        if run is None:
            return self._exactly(key, values)
        begin = time.perf_counter()
        try:
            results = run(values)
        except MemoryError as error:
            if exact is not None:
                raise
            self.why, self._taken[key] = str(beyond_limits(error)), None
            return super().run(values)
        if self.mode == "auto" and not self._bound and not self._is_cut:
            note = self.recurring.note if exact is None else self.recurring.tried
            note(key, time.perf_counter() - begin)
        return results

    def _exactly(self, key: tuple, values: Sequence[Any]) -> list[Any]:
        """The results by an exact program. If there is one, but no general program, that is told to
        whoever keeps what is made. If there is none either, the request may be what is wrong: a
        later one has a general program tried again, up to a limit."""
        try:
            results = super().run(values)
        except GraphcError:
            if self._failed and not self._is_told and self._wrong < MOST_WRONG:
                self._wrong += 1
                self._failed = False
                self._taken.pop(key, None)
            raise
        if self._failed and not self._is_told:
            self._is_told = True
            self._made(self._none())
        return results

    def _why_now(self) -> str:
        return f"{super()._why_now()}; not the general program: {self.why}"

    def executables(self) -> list[ExecutableInfo]:
        """What has been compiled: general programs, or why there is none; exact ones; and what
        could not be compiled for in the background."""
        general = [made.info for made in self.general]
        if not general and self._failed:
            general = [self._none()]
        return [*general, *super().executables(), *self.recurring.failures()]

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
            if not self._failed and not self.general:
                self._make(None, "all sizes have bounds")
        return bool(self.general)

    # ---------------------------------------------------------------- general programs

    def _general_for(self, key: tuple, values: Sequence[Any]) -> Executable | None:
        """The general program that takes these values, if there is one or can be."""
        taken = self._taken.get(key)
        if taken is None and key not in self._taken:
            with self._lock:
                taken = self._taking(values)
                if taken is None and not self._failed and len(self.general) < MOST_GENERAL:
                    grown = "a request beyond its bounds" if self.general else "the first request"
                    self._make(values, grown)
                    taken = self._taking(values)
                if len(self._taken) >= MOST_REMEMBERED:
                    self._taken.clear()
                self._taken[self._key(values)] = taken
        return None if taken is None else taken.run

    def _taking(self, values: Sequence[Any]) -> General | None:
        shapes, contents = self._shapes(values), self._contents_of(values)
        why = self.why
        for made in self.general:
            why = made.why_not(shapes, contents)
            if not why:
                return made
        self.why = why
        return None

    def _contents_of(self, values: Sequence[Any] | None) -> tuple:
        return () if values is None else tuple([contents_key(values[n]) for n in self._bound])

    def _make(self, values: Sequence[Any] | None, why: str) -> None:
        """Makes a general program, which takes `values` if there are any, or says why there is
        none. What is declared can be wrong for their shapes: then they get a program of their own.
        What depends on contents, or on shapes that are met, is made at the first run."""
        met = self._extents(() if values is None else self._shapes(values))
        try:
            limit = MOST_SECONDS if self.mode == "auto" else math.inf
            with within_seconds(limit):
                self._make_within(values, met, why)
        except NeedsValue as error:
            self.why = str(error)
            if values is not None and self._binds_one(error, values):
                self._make(values, why)
        except Exception as error:
            if self.mode == "any" and not isinstance(error, GraphcError):
                raise  # exact programs would hide a mistake
            self.why = str(error) or repr(error)
        self._failed = values is not None and not self.general

    def _none(self) -> ExecutableInfo:
        """Tells that there is no general program, and why."""
        return ExecutableInfo(_dims(self.graph), None, self.why)

    def _binds_one(self, error: NeedsValue, values: Sequence[Any]) -> bool:
        """Specialises on the contents of inputs, if that may help."""
        return any([self._bind(need, error.graph, values) for need in error.needs])

    def _make_within(self, values: Sequence[Any] | None, met: Mapping[str, int], why: str) -> None:
        """Makes a general program for the extents that were met, and for the contents of the inputs
        that are bound, unless there is one of these bounds."""
        begin = time.perf_counter()
        if any(map(is_hosted, self.graph.ops)) and self._cut(why, begin):
            return
        given = {} if values is None else {self._names[n]: values[n] for n in self._bound}
        contents = self._contents_of(values)
        opened = self._opened(met, given, contents)
        if opened is None:
            return
        graph = opened.graph
        if not _sizes(graph):
            raise UnsupportedError(opened.why or "types depend on the contents of all open inputs")
        check_time()
        run = self.target.compile(clone_graph(graph))
        seconds = time.perf_counter() - begin
        why += f", with narrower bounds: {opened.why}" if opened.why else ""
        limits = {s.name: (s.lo, largest(s)) for s in _sizes(graph)}
        info = ExecutableInfo(_dims(graph), run, why, seconds, limits, tuple(given))
        made = General(graph, opened.bounds, contents, run, info)
        self.general = [made, *[g for g in self.general if not made.covers(g)]]
        self.why, self._taken = opened.why, {}
        self.recurring.background.expect(seconds)
        self._made(info)

    def _cut(self, why: str, begin: float) -> bool:
        """Makes what runs a graph at all sizes that has ops which the host runs at each: it is cut
        at these, and what lies between them is run in two tiers of its own. False if there is none
        once the graph is typed."""
        typed = type_symbolically(self.graph, self.target.policy)
        hosted = next(filter(is_hosted, typed.ops), None)
        if hosted is None:
            return False
        parts = replace(self.target, compile=lambda part: OpenPart(part, self.target, self.mode))
        run = plan_of_open_sizes(typed, parts, self._inner)
        sizes = self.graph.symbols.values()
        limits = {s.name: (s.lo, UNBOUNDED if s.hi is None else s.hi) for s in sizes}
        told = {s.name: limits[s.name] for s in sizes if s.hi is not None}
        seconds, why = time.perf_counter() - begin, f"{why}; the host runs {hosted.where()}"
        info = ExecutableInfo(_dims(self.graph), run, why, seconds, told)
        self.general, self.why, self._taken = [General(self.graph, limits, (), run, info)], "", {}
        self._is_cut = True
        self._made(info)
        return True

    def _opened(
        self, met: Mapping[str, int], given: Mapping[str, Any], contents: tuple
    ) -> Opened | None:
        """The graph for all sizes about those that were met, with as much room above as it takes
        and tensors of moderate size leave; None if there is a program of these bounds."""
        grows = any(s.hi is None for s in self.graph.symbols.values())
        most_bytes = MOST_BYTES if grows else None
        narrow: Opened | None = None
        least: dict[str, int] = {}  # lower bounds that were found with more room above, and why
        why = ""
        for slack in SLACKS if grows else SLACKS[-1:]:
            wide = self._bounds(met, slack, least)
            if any(g.bounds == wide and g.contents == contents for g in self.general):
                return None
            try:
                further = count_within if self.target.counts else None
                opened = open_within(
                    self.graph, wide, met, self.target.policy, given, further, most_bytes
                )
                least = {name: low for name, (low, _) in opened.bounds.items()}
                why = why or opened.why
            except NeedsValue:
                raise
            except GraphcError as error:  # as of positions that a table ends
                failed = error
                continue
            opened = replace(opened, why=why)
            asked = {**{name: high for name, (_, high) in wide.items()}, **opened.most}
            if all(opened.bounds[name][1] == high for name, high in asked.items()):
                return opened
            narrow = narrow or opened
        if narrow is None:
            raise failed
        return narrow

    def _bounds(self, met: Mapping[str, int], slack: int, least: Mapping[str, int]) -> Bounds:
        """Bounds for every dimension: its own, or some that leave room above what has been met;
        no less than the `least`."""
        bounds = {}
        known = self.general[0].bounds if self.general else {}
        longest = max(1, *met.values()) if met else 1  # what is empty may grow as others have
        for name, symbol in self.graph.symbols.items():
            extent, high = met.get(name, 1), symbol.hi
            lowest, highest = known.get(name, (1, 0))
            if high is None:
                need, high = extent or longest, highest
                if extent > high or high == 0:
                    high = need if slack == 1 else 1 << (need * slack - 1).bit_length()
            low = max(symbol.lo, min(lowest, extent), least.get(name, 0))
            bounds[name] = (low, max(high, 1))
        return bounds

    def _extents(self, shapes: tuple) -> dict[str, int]:
        """The largest extents that the dimensions of inputs have in these shapes."""
        met: dict[str, int] = {}
        for param, shape in zip(self.graph.params, shapes):
            if not param.is_ranked:
                continue
            for dim, extent in zip(param.tensor.dims, shape):
                if isinstance(dim, Sym):
                    met[dim.name] = max(extent, met.get(dim.name, 0))
        return met


class OpenPart:
    """A part of a graph that is cut at ops on the host. Ranks that were not known are those of the
    values it is run with; each kind of values has two tiers of its own."""

    def __init__(self, graph: Graph, target: Target, mode: str):
        self.graph, self.target, self.mode = graph, target, mode
        self.made: dict[tuple, SpecialisedGraph] = {}

    def __call__(self, values: Sequence[Any]) -> list[Any]:
        kind = tuple([(v.dtype, v.ndim) if isinstance(v, np.ndarray) else None for v in values])
        made = self.made.get(kind)
        if made is None:
            graph = with_open_dims(self.graph, values)
            made = self.made[kind] = (
                TieredGraph(graph, self.target, self.mode)
                if graph.symbols
                else SpecialisedGraph(graph, self.target)
            )
        return made.run(values)


def with_open_dims(graph: Graph, values: Sequence[Any]) -> Graph:
    """A copy of a graph that is not typed, whose parameters have the element types and the ranks of
    some values. Dims that are the same expression are one symbol; what is known stays."""
    result = opened(part_graph(graph, graph.ops, graph.params, graph.results))
    sizes: dict[Any, Sym] = {}
    for own, param, value in zip(graph.params, result.params, values):
        if not isinstance(value, np.ndarray):
            param.type = own.type
            continue
        known = own.tensor.dims if own.is_ranked else [(param.name, d) for d in range(value.ndim)]
        for dim in known:
            if not isinstance(dim, int) and dim not in sizes:
                sizes[dim] = dim if isinstance(dim, Sym) else Sym(f"size{len(sizes)}", 0)
        dims = [dim if isinstance(dim, int) else sizes[dim] for dim in known]
        param.type = TensorType(dtypes.of(value.dtype), tuple(dims))
    result.symbols = {s.name: s for s in sizes.values()}
    return result


def _sizes(graph: Graph) -> tuple[Sym, ...]:
    """The sizes of a general graph that its inputs tell."""
    types = [p.tensor for p in graph.params if p.is_ranked]
    told = {s for t in types for d in t.dims if isinstance(d, Expr) for s in symbols(d)}
    return tuple(size for size in graph.symbols.values() if size in told)


def _dims(graph: Graph) -> tuple:
    """The dims of the inputs of a graph; their types, where these tell none."""
    return tuple([p.tensor.dims if p.is_ranked else str(p.type) for p in graph.params])


def _held(info: ExecutableInfo) -> int:
    """The bytes that an executable holds by itself, as far as it tells."""
    return getattr(info.run, "nbytes", 0)
