"""From a graph to a program: kernels by strategies, views and constants.

Every op becomes calls of kernels on storages (storages.py); an output that is a view of an operand
needs none. Temporaries that strategies ask for are storages too; those that depend on constants
alone are computed now (weights packed once). Kernels that are equal up to names are shared. Once
memory is planned (arena.py), calls become steps.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from functools import partial

import numpy as np

from graphc import config
from graphc.errors import InternalError, ModelError, UnsupportedError
from graphc.ir.checks import KEYS, Check
from graphc.ir.dtypes import i64, u8, u64
from graphc.ir.expr import Load, Sym, as_expr, symbols
from graphc.ir.graph import Graph, Op, Region, Value
from graphc.ir.imperative.collectives import Collectives
from graphc.ir.imperative.lowering import SIZES, imperative_kernel, is_bounded
from graphc.ir.kernel import Buffer, For, Kernel, sized
from graphc.ir.operations import elements_read
from graphc.ir.ops.counts import is_count, is_counted
from graphc.ir.ops.in_range import check_of, is_check, maker_of
from graphc.ir.program import Program, Slot
from graphc.ir.types import Dim, TensorType
from graphc.ir.verify.programs import verify_program
from graphc.passes.analysis.compose import computations, input_names
from graphc.passes.analysis.computation import (
    Computation,
    Output,
    index_of,
    multiply_adds,
    physical_buffer,
    work,
)
from graphc.passes.analysis.views import view_of, whole_source
from graphc.passes.kernel.flat import flat_kernel, in_order, without_unread_inputs
from graphc.passes.kernel.overlap import distances
from graphc.passes.kernel.scratch import with_scratch
from graphc.passes.kernel.vectorise import in_lanes
from graphc.passes.lower.arena import Arena, plan_arena
from graphc.passes.lower.flow import lower_flow
from graphc.passes.lower.lowered import Lowered, in_place_of_copies
from graphc.passes.lower.materialise import materialise
from graphc.passes.lower.overwriting import behind_readers, over_inputs
from graphc.passes.lower.planned import planned_steps
from graphc.passes.lower.rows.lowering import lower_segment
from graphc.passes.lower.rows.segments import RowPlan
from graphc.passes.lower.scheduled import Scheduled
from graphc.passes.lower.state import State, replace_state
from graphc.passes.lower.storages import AnyCall, Call, Move, Storages, Tell
from graphc.passes.lower.strategies.row_updates import NAME as UPDATES
from graphc.passes.lower.strategies.row_updates import lower_row_updates
from graphc.passes.lower.transforms.numbers import Numbered, with_numbers_read
from graphc.passes.lower.transforms.splitting import split_outputs
from graphc.passes.manager.journal import Journal
from graphc.passes.schedule.choosing import Choose, take_first
from graphc.passes.schedule.steps import Schedule, parse
from graphc.progress import counted
from graphc.records import dataclass

PREPARED = 1 << 24  # operations spent at compile time on what depends on constants alone
WORTH = 256  # or so many per byte of these constants

IMPERATIVE = "imperative"  # in place of a strategy: loops that the operator's definition gives
COPY = "copy"  # likewise: a result that lies elsewhere is copied into its output
ABOUT = {
    IMPERATIVE: "Loops as the operator's definition gives them.",
    COPY: "A result that lies elsewhere in memory is copied into its output.",
    UPDATES: "Rows that replace others are written into a copy of the operand, or its memory.",
}

Strategy = Callable[[Computation], "Lowered | str"]
Bodies = Mapping[Region, Graph]
"""By the region of an If, Loop or Scan: its optimised graph, of equal parameters and results."""


def strategy_name(strategy: Strategy) -> str:
    """What a strategy is called: its own name, or lower_NAME, perhaps with options bound."""
    if isinstance(strategy, Scheduled):
        return strategy.name
    return _function(strategy).__name__.removeprefix("lower_")


def _function(strategy: Strategy) -> Callable:
    return strategy.func if isinstance(strategy, partial) else strategy


def about(strategy: Strategy) -> str:
    """What a strategy is for: the first sentence of its module."""
    made_by = type(strategy) if isinstance(strategy, Scheduled) else _function(strategy)
    text = inspect.getdoc(inspect.getmodule(made_by)) or ""
    return text.split("\n\n")[0].replace("\n", " ").replace(": a strategy.", ".")


@dataclass(frozen=True)
class Conventions:
    """What a target asks of its programs.

    `resident`: inputs and outputs live in the arena. `alignment`, in bytes, holds for every operand
    of a kernel, given aligned inputs and outputs: a view that would start elsewhere is a copy
    instead. `in_order`: loops run in order, whatever their kind allows; outputs may then overlap
    inputs that are still being read, which the verifier judges by playing the accesses through.
    `joined`: loops over outputs of different shapes that one op has are one kernel. `builder` makes
    imperative kernels, whose parallel loops become vectors of `vector_bytes`, unless that is 0.
    `numbers`: kernels read numbers in which alone they would differ, instead of holding them.
    `updates`: an output that is an input with some rows replaced is a copy, into which these are
    written; no copy if a caller has both in the same memory. Kernels may write other outputs over
    inputs that nothing reads later. `choose` takes one of several schedules. `state` numbers or
    names the parameters that are state, and the results that replace them, if any does. `rows` is
    what is executed by rows.
    """

    resident: bool = False
    alignment: int = 1
    in_order: bool = False
    joined: bool = False
    vector_bytes: int = 0
    numbers: bool = False
    updates: bool = False
    builder: Callable[..., Collectives] = Collectives
    choose: Choose = take_first
    state: Mapping[int, int | None] | Mapping[str, str] = field(default_factory=dict)
    rows: RowPlan | None = None


@dataclass
class Lowering:
    """The state of lowering one graph. `strategies` are tried in order; the last always matches.
    `results` are the storages of outputs that live in the arena; `given` are the parameters and
    `own` the results of the model that are no state, `checks` what the other results check; `cells`
    say where the true sizes of a value are, and `tokens` are read by what uses a size that data
    decides."""

    graph: Graph
    strategies: Sequence[Strategy]
    name: str
    wanted: Conventions
    kernels: dict[tuple, Kernel] = field(default_factory=dict)
    calls: list[AnyCall] = field(default_factory=list)
    storages: Storages = field(default_factory=Storages)
    packed: dict[tuple, str] = field(default_factory=dict)
    sizes: list[TensorType] = field(default_factory=list)
    bounded: dict[Value, tuple[int, int]] = field(default_factory=dict)
    cells: dict[Value, tuple[str, int]] = field(default_factory=dict)
    tokens: dict[Sym, str] = field(default_factory=dict)
    known: dict[int, tuple[Kernel, Kernel]] = field(default_factory=dict)
    chosen: dict[Computation, Lowered] = field(default_factory=dict)
    results: list[str] = field(default_factory=list)
    distances: dict[str, dict[tuple[str, str], int]] = field(default_factory=dict)
    computed: dict[Op, Numbered] = field(default_factory=dict)
    given: list[Value] = field(default_factory=list)
    own: list[Value] = field(default_factory=list)
    state: State = field(default_factory=State)
    checks: list[tuple[Value, Check]] = field(default_factory=list)
    journal: Journal | None = None
    bodies: Bodies = field(default_factory=dict)

    def run(self) -> Program:
        """The program of the whole graph."""
        self.compose()
        own, self.checks = split_checks(self.graph.results)
        self.state = State.of(self.graph, self.wanted.state)
        self.own = [v for n, v in enumerate(own) if n not in self.state.positions]
        self.given = [v for v in self.graph.params if v not in self.state.params]
        self.state.define(self.storages)
        self.reserve_keys()
        for position, value in enumerate(self.given):
            space = "arena" if self.wanted.resident else "input"
            name = self.storages.define(value, space, position)
            self.storages[name].live_in = self.wanted.resident
        if not self.wanted.resident:
            self.reserve_outputs()
        plan = self.wanted.rows
        by_rows = plan.segment.ops if plan is not None else ()
        for op in counted("making kernels", self.graph.ops):
            if plan is not None and op is by_rows[-1]:
                lower_segment(self, plan)
            elif op.name != "Constant" and op not in by_rows:
                self.lower_op(op)
        self.finish_outputs()
        self.finish_state()
        return self.program()

    def compose(self) -> None:
        """Finds what each op that is given by scalar bodies computes."""
        ops = [op for op in self.graph.ops if op.name != "Constant" and _is_composed(op)]
        composed = computations(ops)
        read = with_numbers_read(composed) if self.wanted.numbers else list(map(Numbered, composed))
        self.computed = dict(zip(ops, read))

    def reserve_outputs(self) -> None:
        """Results made by a kernel are written straight into the caller's output, and so is what a
        result is another view of."""
        taken: set[Value] = set()
        for position, value in enumerate(self.own):
            if value.tensor.layout is not None:
                continue
            source = whole_source(value)
            made = source.producer is not None and source.constant is None
            if made and source not in taken:
                taken.add(source)
                self.storages.define(source, "output", position)

    def reserve_keys(self) -> None:
        """The keys of checks are written one after another into an output after all others."""
        told = (is_bounded(op) and not is_counted(op) for op in self.graph.ops)
        position = len(self.own) + sum(told)
        count = len(self.checks)
        keys = self.storages.temporary(Buffer(KEYS, u64, (count,), ""), "output", position)
        for number, (value, _) in enumerate(self.checks):
            self.storages.alias(value, keys, number * u64.size)

    def inside(self, region: Region, given: Sequence[str]) -> tuple[list[AnyCall], list[str]]:
        """The calls of a region whose parameters lie in storages, and where its results lie, all
        row-major."""
        graph = self.bodies[region]
        inner = replace(self, graph=graph, calls=[], computed={}, own=graph.results)
        inner.compose()
        self.storages.of_value.update(zip(graph.params, given))
        for op in graph.ops:
            if op.name != "Constant":
                inner.lower_op(op)
        results = [
            self.storages.of(value) if value.tensor.layout is None else inner.copy(value, "arena")
            for value in inner.own
        ]
        return inner.calls, results

    # ---------------------------------------------------------------- ops

    def lower_op(self, op: Op) -> None:
        """Adds the calls of an op; none if all it gives are views."""
        if op.regions and op.name != "fused":
            lower_flow(self, op)
            return
        if is_count(op):
            self.lower_count(op)
            return
        if op.defn.form == "imperative":
            self.lower_imperative(op)
            return
        whole, names = self.computed[op].computation, input_names(op)
        made = [
            output for output, value in zip(whole.outputs, op.outputs)
            if not self.is_view(op, whole.restricted([output]), value, names)
        ]  # fmt: skip
        if not made:
            if op.schedule:
                raise ModelError(f"{op.where()}: it needs no kernel, and so no schedule")
            return
        places = {o.buffer.name: self.storages.of(v) for o, v in zip(whole.outputs, op.outputs)}
        parts = split_outputs(whole.restricted(made))
        forced = self.forced(op, parts)
        read = {b.name: b for part in parts for b in part.inputs}
        numbers = {n: array for n, array in self.computed[op].numbers.items() if n in read}
        used = {n: self.storages.of(names[n]) for n in read if n not in numbers}
        used.update((n, self.constant(read[n], array)) for n, array in numbers.items())
        loops = self.loops(parts) if self.wanted.joined else None
        if loops is not None:
            self.call(loops, {**used, **places}, op)
            return
        for part in parts:
            known = {n: numbers[n] if n in numbers else names[n].constant
                     for n in part.constants if n in used}  # fmt: skip
            self.lower_computation(part, {**used, **places}, known, op, forced)

    def loops(self, parts: list[Computation]) -> Lowered | None:
        """One kernel of several computations, if all are nothing but parallel loops."""
        lowered = [self.choose(part) for part in parts]
        body = tuple(stmt for choice in lowered for stmt in choice.kernel.body)
        if len(parts) < 2 or any(choice.temporaries for choice in lowered):
            return None
        if not all(isinstance(stmt, For) and stmt.kind == "parallel" for stmt in body):
            return None
        params = {b.name: b for access in ("in", "out") for choice in lowered
                  for b in choice.kernel.params if b.access == access}  # fmt: skip
        kernel = replace(lowered[0].kernel, params=tuple(params.values()), body=body)
        read = sum((Counter(choice.read) for choice in lowered), Counter())
        flops = sum(choice.flops for choice in lowered)
        return Lowered(kernel, flops=flops, read=read, strategy=lowered[0].strategy)

    def is_view(self, op: Op, part: Computation, output: Value, names: dict[str, Value]) -> bool:
        """Whether the computation of an output is a piece of an operand, and so needs no kernel."""
        view = view_of(part)
        if view is None or output in self.storages.of_value:
            return False
        source, offset = view
        value = names[source]
        start = offset * value.tensor.dtype.size
        if start % self.wanted.alignment:
            return False
        self.storages.alias(output, self.storages.of(value), start)
        self.spare(op, f"{output.name} is part of the memory of {value.name}: it needs no kernel")
        return True

    def lower_computation(
        self,
        part: Computation,
        places: dict[str, str],
        known: Mapping[str, np.ndarray | None],
        op: Op,
        forced: Schedule | None = None,
    ) -> None:
        """Lowers one computation whose buffers are at `places`, by a schedule if it is `forced`."""
        if forced is None and self.wanted.updates and self.update(part, places, op):
            return
        lowered = self.choose(part) if forced is None else self.by_schedule(part, forced, op)
        places = dict(places)
        temporaries = iter(lowered.temporaries)
        for preparation in lowered.prepare:
            filled = [next(temporaries) for _ in preparation.outputs]
            places.update(self.prepare(filled, preparation, places, known, op))
        places.update((buffer.name, self.storages.temporary(buffer)) for buffer in temporaries)
        for kernel in lowered.before:
            self.call(Lowered(kernel, strategy=lowered.strategy), places, op)
        self.call(lowered, places, op, multiply_adds(part))

    def update(self, part: Computation, places: dict[str, str], op: Op) -> bool:
        """Adds a copy of an input into an output and the kernel that replaces rows there; whether
        the computation is such an update."""
        update = lower_row_updates(part, self.wanted.vector_bytes)
        if isinstance(update, str):
            return False
        lowered, source = update
        into, start = (self.storages[places[b]] for b in (part.outputs[0].buffer.name, source))
        whole = into.nbytes == self.storages[into.root].nbytes
        if (
            (into.space, start.space) != ("output", "input")
            or start.root != start.name
            or not whole
        ):
            return False
        self.calls.append(Move(start.name, into.name, loc=op.loc))
        self.call(lowered, places, op)
        return True

    def choose(self, part: Computation) -> Lowered:
        """The first strategy's answer; equal computations (layer after layer) are lowered once."""
        if part not in self.chosen:
            lowered, read = self.first(part), elements_read(o.expr for o in part.outputs)
            kernel = without_unread_inputs(lowered.kernel)
            self.chosen[part] = replace(lowered, kernel=kernel, read=read)
        return self.chosen[part]

    def first(self, part: Computation) -> Lowered:
        """What the first strategy that takes a computation makes of it, and why others did not."""
        declined: list[tuple[str, str]] = []
        for strategy in self.strategies:
            if isinstance(strategy, Scheduled):
                lowered = self.chosen_of(strategy, part)
            else:
                lowered = strategy(part)
            if config.debug() >= 4:
                config.say(str(getattr(lowered, "kernel", f"{part.label}: {lowered}")))
            name = strategy_name(strategy)
            if isinstance(lowered, Lowered):
                return replace(lowered, strategy=name, declined=tuple(declined))
            declined.append((name, lowered))
        raise InternalError(f"no strategy took {part.label}")

    def chosen_of(self, strategy: Scheduled, part: Computation) -> Lowered | str:
        """What a strategy makes of a computation by the schedule that is chosen."""
        proposals = strategy.propose(part)
        if isinstance(proposals, str):
            return proposals

        def kernels_of(schedule: Schedule) -> list[Kernel]:
            """The kernel, and those of preparations that need what is known at run time only."""
            lowered = strategy.apply(part, schedule)
            run = [p for p in lowered.prepare if not {b.name for b in p.inputs} <= part.constants]
            return [*(self.choose(p).kernel for p in run), lowered.kernel]

        return strategy.apply(part, self.wanted.choose(part.text, proposals, kernels_of))

    def forced(self, op: Op, parts: list[Computation]) -> Schedule | None:
        """The schedule that an op is given, if it is given any; ModelError if it is none."""
        if not op.schedule:
            return None
        if len(parts) != 1:
            raise ModelError(
                f"{op.where()}: a schedule is for an op of one kernel, found {len(parts)}"
            )
        try:
            return parse(op.schedule)
        except ModelError as error:
            raise ModelError(f"{op.where()}: {error}") from error

    def by_schedule(self, part: Computation, schedule: Schedule, op: Op) -> Lowered:
        """A computation lowered by a schedule; ModelError if that does not suit it."""
        own = [s for s in self.strategies if isinstance(s, Scheduled)]
        strategy = next((s for s in own if s.name == schedule.strategy), None)
        if strategy is None:
            names = ", ".join(s.name for s in own) or "none"
            raise ModelError(
                f"{op.where()}: schedules are for these strategies of the target: {names}; found "
                f"{schedule.strategy!r}"
            )
        try:
            lowered = strategy.apply(part, schedule)
        except ModelError as error:
            raise ModelError(f"{op.where()}: {error}") from error
        read = elements_read(o.expr for o in part.outputs)
        return replace(lowered, kernel=without_unread_inputs(lowered.kernel), read=read)

    def prepare(
        self, buffers: Sequence[Buffer], preparation: Computation, places: dict[str, str],
        known: Mapping[str, np.ndarray | None], op: Op,
    ) -> dict[str, str]:  # fmt: skip
        """Fills a temporary for each output of a preparation, now if it depends on constants alone,
        else by kernels of its own; where they are."""
        reads = {b.name for b in preparation.inputs}
        extents = [x for output in preparation.outputs for x in output.buffer.shape]
        if reads <= set(known) and all(isinstance(x, int) for x in extents):
            given = {n: self.storages.contents(places[n]) for n in reads}
            size = sum(array.nbytes for array in given.values())
            if work(preparation) <= max(PREPARED, WORTH * size):
                self.spare(op, f"computed while compiling: {preparation.label or 'a constant'}")
                return {b.name: self.pack(b, output, given, known)
                        for b, output in zip(buffers, preparation.outputs)}  # fmt: skip
        filled = {buffer.name: self.storages.temporary(buffer) for buffer in buffers}
        inner = {n: places[n] for n in reads}
        inner.update(zip((o.buffer.name for o in preparation.outputs), filled.values()))
        self.lower_computation(preparation, inner, known, op)
        return filled

    def pack(
        self, buffer: Buffer, output: Output, given: dict[str, np.ndarray],
        known: Mapping[str, np.ndarray | None],
    ) -> str:  # fmt: skip
        """A constant that is computed now, unless it has been before."""
        key = output.expr, buffer.shape, tuple(id(known[n]) for n in sorted(given))
        if key not in self.packed:
            self.packed[key] = self.constant(buffer, materialise(output, given))
        return self.packed[key]

    def constant(self, buffer: Buffer, array: np.ndarray) -> str:
        """The storage of a new constant."""
        return self.storages.temporary(buffer, "const", self.storages.add_constant(array))

    def call(self, lowered: Lowered, places: dict[str, str], op: Op, macs: int = 0) -> None:
        """Adds a call of a kernel, its parameters in the storages that `places` names."""
        kernel = self.shared(self.sized(self.ordered(lowered.kernel, places)))
        if self.journal is not None:
            schedule = "" if lowered.schedule is None else lowered.schedule.text
            declined = lowered.declined
            self.journal.chose(op, kernel.name, lowered.strategy, declined, schedule)
        arguments = tuple(places[b.name] for b in lowered.kernel.params)
        reads = tuple(places[b.name] for b in lowered.kernel.params if b.access != "out")
        reads += self.tokens_of(kernel)
        writes = tuple(places[b.name] for b in lowered.kernel.params if b.access != "in")
        views = Counter(self.storages[place].root for place in arguments)  # of the same memory
        pairs = tuple(
            (places[a], places[b]) for a, b in lowered.inplace
            if views[self.storages[places[b]].root] == 1
        )  # fmt: skip
        overlaps = self.overlaps(kernel, places)
        self.calls.append(Call(
            kernel.name, arguments, reads, writes, op.loc, lowered.flops, macs, pairs, overlaps,
            tuple(lowered.read.get(b.name) for b in lowered.kernel.params),
        ))  # fmt: skip

    def ordered(self, kernel: Kernel, places: dict[str, str]) -> Kernel:
        """A kernel; of one that reads state, which its result may replace, loops are in order."""
        spaces = {self.storages[places[b.name]].space for b in kernel.params}
        return in_order(kernel, True) if self.wanted.in_order and "state" in spaces else kernel

    def tokens_of(self, kernel: Kernel) -> tuple[str, ...]:
        """What stands for the sizes of a kernel that data decides being known."""
        return tuple(self.tokens[size] for size in kernel.sizes if size in self.tokens)

    def tokens_in(self, *dims: Dim) -> tuple[str, ...]:
        """As `tokens_of`, of the sizes that expressions use."""
        used = dict.fromkeys(s for dim in dims for s in symbols(as_expr(dim)))
        return tuple(self.tokens[size] for size in used if size in self.tokens)

    def overlaps(self, kernel: Kernel, places: dict[str, str]) -> tuple[tuple[str, str, int], ...]:
        """How a kernel's outputs may overlap its inputs, both in the arena or in state."""
        kept = ("arena", "state")
        inside = [self.storages[places[b.name]].space in kept for b in kernel.params]
        if not self.wanted.in_order or kernel.sizes or sum(inside) < 2:
            return ()
        if kernel.name not in self.distances:
            self.distances[kernel.name] = distances(kernel)
        apart = self.distances[kernel.name]
        reads = [b.name for b in kernel.params if b.access == "in"]
        pairs: dict[tuple[str, str], int] = {}
        for out, into in apart:
            same = [name for name in reads if places[name] == places[into]]
            if all((out, name) in apart for name in same):
                pairs[places[out], places[into]] = min(apart[out, name] for name in same)
        return tuple((*pair, most) for pair, most in pairs.items())

    def sized(self, kernel: Kernel) -> Kernel:
        """A kernel with the sizes that it depends on."""
        return sized(kernel) if self.graph.symbols else kernel

    def shared(self, kernel: Kernel) -> Kernel:
        """An equal kernel, or this one, now registered under a unique name."""
        if id(kernel) not in self.known:  # comparing kernels takes time
            key = kernel.params, kernel.body
            if key not in self.kernels:
                self.kernels[key] = replace(kernel, name=f"{kernel.name}_{len(self.kernels)}")
            self.known[id(kernel)] = kernel, self.kernels[key]
        return self.known[id(kernel)][1]

    def lower_imperative(self, op: Op) -> None:
        """Adds the call of an op that is given as kernel IR."""
        kernel = flat_kernel(imperative_kernel(op, self.wanted.builder))
        inplace = in_place_of_copies(kernel)
        if self.wanted.vector_bytes:
            kernel = in_lanes(kernel, self.wanted.vector_bytes)
        if self.wanted.in_order:
            kernel = in_order(kernel)
        values = {f"in{n}": v for n, v in enumerate(op.inputs) if v is not None}
        values.update((f"out{n}", v) for n, v in enumerate(op.outputs))
        places = {
            b.name: self.storages.of(values[b.name]) for b in kernel.params if b.name != SIZES
        }
        if kernel.params[-1].name == SIZES:
            places[SIZES] = self.true_sizes(kernel.params[-1], op)
        kernel, scratch = with_scratch(without_unread_inputs(kernel))
        places.update((buffer.name, self.storages.temporary(buffer)) for buffer in scratch)
        self.call(Lowered(kernel, inplace=inplace, strategy=IMPERATIVE), places, op)

    def true_sizes(self, buffer: Buffer, op: Op) -> str:
        """Where the true sizes of an op's results go: sizes of the program are read from there, or
        they are an output."""
        if not is_counted(op):
            return self.sizes_output(buffer, op)
        place, cell = self.storages.temporary(buffer), 0
        for value in op.outputs:
            self.cells[value] = place, cell
            cell += value.tensor.rank
        return place

    def lower_count(self, op: Op) -> None:
        """Has the extent of a dim of an op's result be the value of a size from here on."""
        value, dim = op.operand(0), op.attrs["dim"]
        place, cell = (self.storages.of(value), 0) if dim < 0 else self.cells[value]
        self.storages.alias(op.output, place, (cell + max(dim, 0)) * i64.size)
        size = op.attrs["size"]
        self.tokens[size] = self.storages.temporary(Buffer("token", u8, (1,), ""))
        place = self.storages.of(op.output)
        most = op.attrs["most"] if dim < 0 else value.tensor.dims[dim]
        most = None if isinstance(most, int) else most
        self.calls.append(Tell(size, place, self.tokens[size], op.loc, most))

    def spare(self, op: Op, note: str) -> None:
        """Notes why something needs no kernel."""
        if self.journal is not None:
            self.journal.spare(op, note)

    def sizes_output(self, buffer: Buffer, op: Op) -> str:
        """An output after those of the graph, for the true sizes of an op's results."""
        if self.wanted.resident:
            raise UnsupportedError(
                f"{op.where()}: a value whose size depends on data cannot live in the arena; "
                "leave it to the caller"
            )
        position, cell = len(self.own) + len(self.sizes), 0
        for value in op.outputs:
            self.bounded[value] = position, cell
            cell += value.tensor.rank
        self.sizes.append(TensorType(buffer.dtype, buffer.shape))
        return self.storages.temporary(buffer, "output", position)

    def finish_outputs(self) -> None:
        """Copies results that are views, inputs, constants or repeated into their outputs."""
        for position, value in enumerate(self.own):
            name = self.storages.of(value)
            place = self.storages[name]
            if self.wanted.resident:
                stays = place.space == "arena" and value.tensor.layout is None
                self.results.append(name if stays else self.copy(value, "arena"))
                self.storages[self.storages[self.results[-1]].root].live_out = True
            elif (place.space, place.index, place.offset) != ("output", position, 0):
                self.copy(value, "output", position)

    def finish_state(self) -> None:
        """Has the memory of state hold what replaces it."""
        stored = {
            position: self.storages.of(value) if value.tensor.layout is None
            else self.copy(value, "arena")
            for position, value in self.state.results.items()
        }  # fmt: skip
        if stored:
            self.calls = behind_readers(self.calls, self.storages, "state")
        replace_state(self.state, stored, self.calls, self.storages)

    def copy(self, value: Value, space: str, position: int = 0) -> str:
        """Copies a value into a new storage in row-major order: an output, or one in the arena."""
        type = value.tensor.with_layout(None)
        source = physical_buffer("in0", value.tensor, "in")
        target = physical_buffer("out0", type, "out")
        index = index_of(target.shape)
        layout = value.tensor.layout
        load = Load("in0", layout.physical(index) if layout else index, type.dtype)
        part = Computation((source,), (Output(target, index, load),), frozenset(), "copy")
        name = self.storages.temporary(target, space, position)
        lowered = self.choose(part)
        loc = value.producer.loc if value.producer is not None else ()
        kernel = self.shared(self.sized(lowered.kernel))
        places = {"in0": self.storages.of(value), "out0": name}
        arguments = tuple(places[b.name] for b in kernel.params)  # what is empty is not read
        reads = (*arguments[:-1], *self.tokens_of(kernel))
        self.calls.append(Call(kernel.name, arguments, reads, (name,), loc))
        if self.journal is not None and value.producer is not None:
            self.journal.chose(value.producer, kernel.name, COPY, ())
        return name

    # ---------------------------------------------------------------- the program

    def program(self) -> Program:
        """Plans memory; calls become steps."""
        over: dict[int, tuple[int, ...]] = {}
        if self.wanted.updates:
            self.calls = behind_readers(self.calls, self.storages, "input")
            over = over_inputs(self.calls, self.storages)
        arena = plan_arena(self.calls, self.storages)
        kernels = {k.name: k for k in self.kernels.values()}
        steps, used = planned_steps(arena, self.storages, kernels)
        return Program(
            self.name,
            [(v.name, v.tensor) for v in self.given],
            self.outputs(),
            kernels,
            list(steps),
            [self.storages.constants[n] for n in used],
            arena.peak,
            arena.bound,
            resident=self.places(arena),
            true_sizes={n: self.bounded[v] for n, v in enumerate(self.own) if v in self.bounded},
            checks=tuple(check for _, check in self.checks),
            sizes=tuple(s for s in self.graph.symbols.values() if s not in self.tokens),
            state=[(v.name, v.tensor) for v in self.state.params],
            over=over,
        )

    def outputs(self) -> list[tuple[str, TensorType]]:
        """The outputs of the model, the true sizes of some, the keys of checks."""
        named = [pair for n, pair in enumerate(self.graph.named_results())
                 if n not in self.state.positions]  # fmt: skip
        outputs = [(n, value.tensor.with_layout(None)) for n, value in named[: len(self.own)]]
        outputs += [(f"sizes{n}", type) for n, type in enumerate(self.sizes)]
        keys = TensorType(u64, (len(self.checks),))
        return [*outputs, (KEYS, keys)] if self.checks else outputs

    def places(self, arena: Arena) -> dict[tuple[str, int], Slot]:
        """Where inputs and outputs that live in the arena lie, by ("input" or "output", number)."""
        if not self.wanted.resident:
            return {}
        named = [("input", n, self.storages.of_value[v]) for n, v in enumerate(self.given)]
        named += [("output", n, name) for n, name in enumerate(self.results)]
        return {(side, n): arena.slot(self.storages[s], {}) for side, n, s in named}


def composed(graph: Graph) -> dict[Op, Computation]:
    """What the ops of a graph that is lowered compute."""
    lowering = Lowering(graph, (), graph.name, Conventions())
    lowering.compose()
    return {op: numbered.computation for op, numbered in lowering.computed.items()}


def split_checks(results: Sequence[Value]) -> tuple[list[Value], list[tuple[Value, Check]]]:
    """The results of a graph that are its own, and those that are checks, with what they check."""
    made = [(value, maker_of(value)) for value in results]
    own = [value for value, op in made if op is None or not is_check(op)]
    checks = {value: check_of(op) for value, op in made if op is not None and is_check(op)}
    return own, list(checks.items())


def _is_composed(op: Op) -> bool:
    """Whether scalar bodies say what an op computes."""
    return op.name == "fused" or op.defn.form in ("elementwise", "indexed")


def lower(
    graph: Graph,
    strategies: Sequence[Strategy],
    name: str = "model",
    wanted: Conventions | None = None,
    journal: Journal | None = None,
    bodies: Bodies | None = None,
) -> Program:
    """Lowers a static, decomposed graph; the first strategy that matches makes a kernel. `bodies`
    are the graphs of the regions of control flow."""
    wanted = wanted or Conventions()
    if journal is not None:
        journal.about.update(ABOUT | {strategy_name(s): about(s) for s in strategies})
    program = Lowering(graph, strategies, name, wanted, journal=journal, bodies=bodies or {}).run()
    if wanted.in_order:
        verify_program(program)
    return program
