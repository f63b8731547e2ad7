"""Plans: a typed graph cut into compiled parts and ops on the host, which run in turn.

What could not be typed yet is run last, as a graph that is compiled once its inputs are there; so
are the bodies of control flow. `inner` makes an executable of such a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from functools import partial
from typing import Any

import numpy as np

from graphc.errors import InternalError, UnsupportedError
from graphc.ir import dtypes
from graphc.ir.graph import Graph, Op, Region, Value
from graphc.ir.imperative.lowering import corner, is_bounded, true_shapes
from graphc.ir.interp import run_op
from graphc.ir.ops import control
from graphc.ir.types import TensorType, Type
from graphc.passes.counts import counted
from graphc.passes.fold import FoldPolicy
from graphc.passes.general import first_untyped
from graphc.passes.manager.context import Context
from graphc.passes.native import is_hosted, is_native
from graphc.passes.partition import (
    Partition,
    by_level,
    crossing,
    opened,
    operands_of,
    part_graph,
    partition,
    region_graph,
)
from graphc.passes.reasons import Reason
from graphc.records import dataclass

HOST, LATER = "host", "later"  # decisions about ops that the host runs, or that wait for these
WAITS = "it is compiled once the host has run what its type depends on"

MAX_ITERATIONS = control.MAX_ITERATIONS
Executable = Callable[[Sequence[Any]], list[Any]]
CompileStatic = Callable[[Graph], Executable]
Inner = Callable[[Graph], Executable]  # of a graph whose types are known once it runs


@dataclass(frozen=True)
class Target:
    """What graphs are compiled with: a compiler of static graphs, which typed ops it takes, how
    constants are folded before, how long loops on the host may run, and the context that graphs are
    specialised in, if that is watched; and whether programs may have sizes that data decides."""

    compile: CompileStatic
    native: Callable[[Op], bool]
    policy: FoldPolicy | None = None
    max_iterations: int = MAX_ITERATIONS
    ctx: Context | None = None
    counts: bool = False


@dataclass
class Step:
    """Something that runs on numbered values and gives others."""

    run: Executable
    reads: tuple[int, ...]
    writes: tuple[int, ...]


@dataclass
class Plan:
    """Steps over numbered values, the first of which are the inputs. `constants` are values by
    number; `results` that are inputs or constants (`given`) are copied."""

    count: int
    constants: dict[int, np.ndarray]
    steps: list[Step]
    results: tuple[int, ...]
    given: frozenset[int]

    def __call__(self, values: Sequence[Any]) -> list[Any]:
        slots = [*values, *[None] * (self.count - len(values))]
        for number, array in self.constants.items():
            slots[number] = array
        for step in self.steps:
            for number, value in zip(step.writes, step.run([slots[n] for n in step.reads])):
                slots[number] = value
        return [_copied(slots[n]) if n in self.given else slots[n] for n in self.results]


def _copied(value: object) -> Any:
    return value.copy() if isinstance(value, np.ndarray) else value


def plan(graph: Graph, target: Target, inner: Inner) -> Executable:
    """How to run a graph that is typed as far as possible."""
    decline = partial(note, target, LATER)
    further = counted(graph, target.policy, decline, target.native) if target.counts else None
    if further is not None:
        try:
            return _Planner(further, target, inner).executable()
        except UnsupportedError as error:  # as of an op that a pass made
            for op in filter(is_bounded, graph.ops):
                note(target, HOST, op, f"no program has its true size: {error}")
    return _Planner(graph, target, inner).executable()


def counted_whole(graph: Graph, target: Target) -> Graph | None:
    """A graph that is typed as far as it can be, wholly typed over sizes that data decides; None if
    something has no type even so."""

    def ignore(op: Op, why: str) -> None:
        """The graph is then typed otherwise."""

    further = counted(graph, target.policy, ignore, target.native) if target.counts else None
    return None if further is None or first_untyped(further) is not None else further


def plan_of_open_sizes(graph: Graph, target: Target, inner: Inner) -> Executable:
    """How to run a graph whose sizes are open, and which has ops that the host runs whatever they
    are: what lies between these is given to `target.compile`, with whatever types it has."""
    return _Planner(graph, target, inner, by_level(graph, is_hosted)).executable()


def note(target: Target, about: str, op: Op, text: str | Reason) -> None:
    """Takes down why an op is not compiled with the ops before it."""
    if target.ctx is not None:
        target.ctx.decline(about, op, text)


@dataclass
class _Planner:
    graph: Graph
    target: Target
    inner: Inner
    parts: Partition | None = None
    numbers: dict[Value, int] = field(default_factory=dict)
    constants: dict[int, np.ndarray] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)

    def executable(self) -> Executable:
        graph = self.graph
        for value in graph.params:
            self.number(value)
        parts = self.parts or partition(graph, self.target.native)
        for level in parts.levels:
            self.native(level.native)
            for op in level.host:
                self.host(op)
        for op in parts.rest:
            note(self.target, LATER, op, WAITS)
        if parts.rest:
            operands, results = operands_of(parts.rest), crossing(graph, parts.rest)
            rest = opened(part_graph(graph, parts.rest, operands, results))
            self.step(self.inner(rest), operands, results)
        return self.whole() or self.plan()

    def plan(self) -> Plan:
        results = tuple(self.number(v) for v in self.graph.results)
        made = {n for step in self.steps for n in step.writes}
        given = frozenset(n for n in results if n not in made)
        return Plan(len(self.numbers) + 1, self.constants, self.steps, results, given)

    def whole(self) -> Executable | None:
        """The only step, if it takes the inputs of the graph and gives its results."""
        if len(self.steps) != 1:
            return None
        (step,) = self.steps
        inputs = tuple(range(len(self.graph.params)))
        results = tuple(self.numbers.get(v) for v in self.graph.results)
        return step.run if step.reads == inputs and step.writes == results else None

    def number(self, value: Value | None) -> int:
        """The number of a value; one that is never written stands for None."""
        if value is None:
            return -1
        if value not in self.numbers:
            self.numbers[value] = len(self.numbers)
            if value.constant is not None:
                self.constants[self.numbers[value]] = value.constant
        return self.numbers[value]

    def step(self, run: Executable, reads: Sequence[Value | None], writes: Sequence[Value]) -> None:
        reads_, writes_ = (tuple(map(self.number, values)) for values in (reads, writes))
        self.steps.append(Step(run, reads_, writes_))

    def native(self, ops: list[Op]) -> None:
        """Compiles ops, and calls them with those parameters that they use."""
        if not ops:
            return
        operands, results = operands_of(ops), crossing(self.graph, ops)
        if set(operands) <= set(self.graph.params):
            operands = [p for p in self.graph.params if p in operands]
        if set(self.graph.results) == set(results):
            results = list(dict.fromkeys(self.graph.results))
        run = self.target.compile(part_graph(self.graph, ops, operands, results))
        self.step(run, operands, results)

    def host(self, op: Op) -> None:
        """Runs one op by itself."""
        foreign = next((v for v in (*op.inputs, *op.outputs) if v and not is_native(v.type)), None)
        if not is_bounded(op) or foreign is not None:
            note(self.target, HOST, op, why_on_host(op, foreign))
            made = HostOp(op, self.inner, self.target.max_iterations)
            self.step(made, op.inputs, op.outputs)
            return
        text = "the shape of its result depends on data: it has the largest, until the host cuts it"
        note(self.target, HOST, op, text)
        operands = operands_of([op])
        run = self.target.compile(part_graph(self.graph, [op], operands, op.outputs))
        self.step(BoundedOp(op, run), operands, op.outputs)


class BoundedOp:
    """A compiled op whose results have bounds for shapes, cut to what they really are.

    Its program gives the results, then the true sizes.
    """

    def __init__(self, op: Op, run: Executable):
        self.op, self.run = op, run

    def __call__(self, values: Sequence[Any]) -> list[Any]:
        *results, sizes = on_host(self.run(values))
        return [corner(r, shape) for r, shape in zip(results, true_shapes(self.op, sizes))]


class HostOp:
    """An op that runs on the host; its regions are graphs that are compiled in turn."""

    def __init__(self, op: Op, inner: Inner, max_iterations: int = MAX_ITERATIONS):
        self.op, self.max_iterations = op, max_iterations
        self.types = [v.type for v in op.outputs]
        self.bodies = {region: inner(region_graph(region)) for region in op.regions}

    def __call__(self, values: Sequence[Any]) -> list[Any]:
        values = on_host(values)
        if self.op.defn.form == "region":
            with control.at_most(self.max_iterations):
                results = control.run(self.op, values, self._run_region)
        else:
            results = run_op(self.op, values)
        for type, value in zip(self.types, results):
            self._check(type, value)
        return results

    def _run_region(self, region: Region, values: Sequence[Any]) -> list[Any]:
        return self.bodies[region]([_as_value(v) for v in values])

    def _check(self, type: Type | None, value: Any) -> None:
        """What follows was compiled for the types inferred."""
        if not isinstance(type, TensorType) or not type.is_static or is_bounded(self.op):
            return
        kind = dtypes.of(value.dtype)
        if value.shape != type.static_shape or kind is not type.dtype:
            raise InternalError(
                f"{self.op.where()} was inferred to give {type}, but gave "
                f"{TensorType(kind, value.shape)}"
            )


def why_on_host(op: Op, foreign: Value | None) -> str | Reason:
    """Why an op runs on the host; `foreign` is a value of it that compiled code cannot hold."""
    if op.defn.form == "region":
        return "which of its bodies runs, or how often, depends on data; each is compiled apart"
    if foreign is not None:
        return Reason("compiled code holds tensors of numbers of known shape, not {}", foreign)
    return "it has no definition that can be compiled"


def on_host(values: Sequence[Any]) -> list[Any]:
    """Values as the host reads them: arrays in the memory of a device are copied."""
    known = (np.ndarray, np.generic, list, dict, type(None))
    return [v if isinstance(v, known) else np.asarray(v) for v in values]


def _as_value(value: object) -> Any:
    return np.asarray(value) if isinstance(value, np.generic) else value
