"""Running a graph on actual values: specialised to their shapes, in parts where it has to be.

A `SpecialisedGraph` looks up an executable for the shapes of its inputs, and makes one the first
time. When a type depends on the contents of inputs (a Reshape's shape), those inputs join the key
and the graph is specialised to their values. When it depends on data computed inside, or an op has
to run on the host (strings, sequences, control flow on data), the graph is cut: a `Plan` (plans.py)
runs compiled parts and host ops in turn, and what could not be typed yet last, as a
SpecialisedGraph of its own.

Inputs whose values keep changing are no longer bound: then what depends on their contents is a
later part. So it is from the start if it takes more to compute than arithmetic on shapes does.
Inner graphs (the rest of a plan, the bodies of loops) that meet ever new shapes are interpreted
instead of compiled, unless that would take longer. So no model compiles without end. A warning says
when one keeps meeting new shapes.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from threading import RLock
from typing import Any

import numpy as np

from graphc.errors import NeedsValue, warn
from graphc.ir.graph import Graph, Op, Value
from graphc.ir.interp import interpret
from graphc.ir.types import Map, TensorType, type_of
from graphc.passes.fold import is_static, work_of
from graphc.passes.partition import part_graph
from graphc.passes.specialise import needed_inputs, ops_before, pin, specialise
from graphc.runtime.listing import ExecutableInfo
from graphc.runtime.plans import Executable, Target, counted_whole, on_host, plan

MAX_BOUND_ELEMENTS = 1024  # integers in an input that may be specialised on by value
MAX_BOUND_FLOATS = 16  # other numbers: the scales of a Resize, not data
MAX_BOUND_WORK = 1 << 20  # scalar operations between inputs bound by value and what needs them
MAX_CONTENTS = 8  # for so many contents per shapes
MAX_SPECIALISATIONS = 64  # the least recently used executable is dropped beyond this
MAX_INNER_CONTENTS = 4  # as MAX_CONTENTS, for inner graphs
MANY = 8  # shapes that a model is compiled for until a warning says so
MAX_INNER = 16  # shapes or contents for which an inner graph is compiled
MAX_INTERPRETED = 1 << 26  # scalar operations of a graph that is faster interpreted than compiled
Made = Callable[[ExecutableInfo], None]
ALL_FIXED = "all shapes are fixed"
ASKED = "these sizes were asked for"


class SpecialisedGraph:
    """A graph that is compiled for the shapes it meets. Safe to use from several threads. `made` is
    told of each executable."""

    why = ""  # the general program did not serve a shape; tiers.py sets it

    def __init__(self, graph: Graph, target: Target, inner: bool = True, made: Made | None = None):
        self.graph, self.target, self.inner = graph, target, inner
        self._made = made or (lambda info: None)
        self._names = [p.name for p in graph.params]
        self._ranked = [isinstance(p.type, TensorType) for p in graph.params]
        self._bound: list[int] = []  # inputs specialised on by value, in order found
        self._binds = True
        self._contents: dict[tuple, int] = {}  # how many contents were met, by shapes
        self._work = 0  # scalar operations of the largest specialisation
        self._cache: OrderedDict[tuple, ExecutableInfo] = OrderedDict()
        self._met: list[tuple] = []  # the first MANY shapes
        self._lock = RLock()

    def run(self, values: Sequence[Any]) -> list[Any]:
        """The results for values of the parameters: arrays, lists for sequences, None."""
        run = self._made_for(self._key(values)) or self._specialised(values)
        return run(values)

    def _made_for(self, key: tuple) -> Executable | None:
        """What was compiled for a key, which is now the last that was used."""
        info = self._cache.get(key)
        if info is None:
            return None
        if len(self._cache) > 1:
            with suppress(KeyError):  # dropped meanwhile
                self._cache.move_to_end(key)
        return info.run

    def prepare(self, dims: Mapping[str, int] | None = None) -> bool:
        """Compiles for extents of the open dimensions, if these make the types of all inputs
        static; whether it is ready to run for them.

        False: something depends on what the inputs hold, and is compiled at the first run.
        """
        graph = pin(self.graph, dims=dims)
        types = [p.type for p in graph.params]
        if not all(isinstance(t, TensorType) and t.is_static for t in types):
            return False
        with self._lock:
            key = tuple([t.static_shape for t in types if isinstance(t, TensorType)])
            if key not in self._cache:
                begin = time.perf_counter()
                try:
                    typed = specialise(graph, policy=self.target.policy, ctx=self.target.ctx)
                except NeedsValue as error:
                    assert isinstance(error.graph, Graph)
                    over_counts = counted_whole(error.graph, self.target)
                    if over_counts is None:
                        return False
                    typed = over_counts
                self._keep(key, self._plan(typed), begin, ASKED if dims else ALL_FIXED)
        return True

    def compile_for(self, shapes: tuple, why: str = ASKED) -> None:
        """Compiles for the shapes of inputs; `why` is kept. UnsupportedError if types depend on
        what inputs hold."""
        begin = time.perf_counter()
        named = dict(zip(self._names, shapes))
        made = self._plan(specialise(self.graph, named, policy=self.target.policy))
        with self._lock:
            self._keep(shapes, made, begin, why)

    def executables(self) -> list[ExecutableInfo]:
        """What has been compiled."""
        with self._lock:
            return list(self._cache.values())

    # ---------------------------------------------------------------- keys

    def _key(self, values: Sequence[Any]) -> tuple:
        shapes = self._shapes(values)
        if self._bound:
            return (shapes, *[contents_key(values[n]) for n in self._bound])
        return shapes

    def _shapes(self, values: Sequence[Any]) -> tuple:
        return tuple([v.shape if known else _type_key(v) for v, known in zip(values, self._ranked)])

    # ---------------------------------------------------------------- specialising

    def _specialised(self, values: Sequence[Any]) -> Executable:
        with self._lock:
            known = self._made_for(self._key(values))
            if known is not None:
                return known
            if self._is_interpreted():
                return lambda given: interpret(self.graph, on_host(given))
            self._count_contents(values)
            begin = time.perf_counter()
            executable = self._build(values)
            self._keep(self._key(values), executable, begin, self._why_now())
            self._count_shapes(values)
            return executable

    def _why_now(self) -> str:
        """Why shapes that are met are compiled for."""
        return "the first request of these shapes"

    def _keep(self, key: tuple, executable: Executable, begin: float, why: str) -> None:
        """Keeps what has been compiled since a time, in place of what was used least of late."""
        names = tuple([self._names[n] for n in self._bound])
        shapes, seconds = key[0] if names else key, time.perf_counter() - begin
        info = self._cache[key] = ExecutableInfo(shapes, executable, why, seconds, contents=names)
        if len(self._cache) > MAX_SPECIALISATIONS:
            self._cache.popitem(last=False)
        self._made(info)

    def _is_interpreted(self) -> bool:
        """Whether this is an inner graph that has been compiled often enough."""
        often = self.inner and len(self._cache) >= MAX_INNER
        return often and self._work <= MAX_INTERPRETED

    def _count_shapes(self, values: Sequence[Any]) -> None:
        """Warns once if many were met; says which inputs they are of."""
        shapes = self._shapes(values)
        if self.inner or len(self._met) >= MANY or shapes in self._met:
            return
        self._met.append(shapes)
        if len(self._met) < MANY:
            return
        first = next(n for n, shapes_met in enumerate(zip(*self._met)) if len(set(shapes_met)) > 1)
        shown = ", ".join(str(met[first]) for met in self._met[:3])
        warn(
            f"the model has been compiled for {MANY} shapes; input {self._names[first]!r} had "
            f"{shown}, ...: better pad inputs to a few shapes (decoders with a cache: "
            "docs/generation.md)",
            RuntimeWarning,
        )

    def _count_contents(self, values: Sequence[Any]) -> None:
        """Gives up binding inputs once they have had too many contents."""
        if not self._bound:
            return
        shapes = self._shapes(values)  # the first contents, when nothing was bound, are not counted
        self._contents[shapes] = self._contents.get(shapes, 0) + 1
        if self._contents[shapes] >= (MAX_INNER_CONTENTS if self.inner else MAX_CONTENTS):
            self._binds, self._bound = False, []
            self._cache.clear()

    def _build(self, values: Sequence[Any]) -> Executable:
        shapes = {n: _shape_of(v) for n, v in zip(self._names, values)}
        source = self._typed(values)
        while True:
            contents = {self._names[n]: values[n] for n in self._bound}
            try:
                graph = specialise(
                    source, shapes, contents, policy=self.target.policy, ctx=self.target.ctx
                )
            except NeedsValue as error:
                if any([self._bind(need, error.graph, values) for need in error.needs]):
                    continue
                assert isinstance(error.graph, Graph)
                graph = error.graph
            self._work = max(self._work, sum(map(_work_of, graph.ops)))
            return self._plan(graph)

    def _plan(self, graph: Graph) -> Executable:
        return plan(graph, self.target, self._inner)

    def _inner(self, graph: Graph) -> Executable:
        """What runs a graph whose types are known once it runs."""
        return SpecialisedGraph(graph, self.target).run

    def _typed(self, values: Sequence[Any]) -> Graph:
        """The graph; parameters that have no type get those of their values."""
        if all(p.type is not None for p in self.graph.params):
            return self.graph
        graph = part_graph(self.graph, self.graph.ops, self.graph.params, self.graph.results)
        for param, value in zip(graph.params, values):
            if param.type is None and value is not None:
                param.type = type_of(value)
        return graph

    def _bind(self, need: NeedsValue, graph: Any, values: Sequence[Any]) -> bool:
        """Specialises on the inputs that a needed value comes from too, if possible."""
        if not self._binds or not isinstance(need.value, Value) or not need.contents:
            return False
        if sum(map(_work_of, ops_before(need.value))) > MAX_BOUND_WORK:
            return False
        wanted = [p.index for p in needed_inputs(graph, need.value)]
        new = [n for n in wanted if n not in self._bound]
        if not all(_bindable(values[n]) for n in new):
            return False
        self._bound += new
        return bool(new)


def _shape_of(value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, Map):
        return None
    return [_shape_of(v) for v in value] if isinstance(value, list) else np.shape(value)


def _type_key(value: Any) -> Any:
    """Equal for values of equal type."""
    if isinstance(value, list):
        return ("seq", *map(_type_key, value))
    if isinstance(value, Map):
        return value.type
    return None if value is None else (value.dtype, value.shape)


def contents_key(value: Any) -> Any:
    """Equal for values of equal type and contents."""
    if isinstance(value, list):
        return tuple(contents_key(v) for v in value)
    if value is None:
        return None
    return tuple(value.reshape(-1)) if value.dtype.kind == "O" else value.tobytes()


def _bindable(value: object) -> bool:
    if not isinstance(value, np.ndarray):
        return False
    if value.dtype.kind in "iub":
        return value.size <= MAX_BOUND_ELEMENTS
    return value.size <= MAX_BOUND_FLOATS and value.ndim <= 1


def _work_of(op: Op) -> int:
    """Scalar operations of an op, as far as its types are known."""
    return work_of(op) if op.name != "Constant" and is_static(op) else 0
