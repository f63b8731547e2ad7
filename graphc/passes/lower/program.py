"""From a graph to a program: kernels by strategies, views, constants, and the arena.

Every op becomes kernel calls on named storages. A value's storage is the place of the value itself,
or, for a view, its operand's at an offset. Temporaries that strategies ask for are storages too;
those that depend on constants alone are computed now (weights packed once). Kernels that are equal
up to names are shared. Memory planning then gives every arena storage its offset.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from graphc import memplan
from graphc.errors import InternalError, UnsupportedError
from graphc.ir.collectives import Collectives
from graphc.ir.expr import Index, Load
from graphc.ir.graph import Graph, Op, Value
from graphc.ir.kernel import Buffer, For, Kernel, buffers_read, walk_stmts
from graphc.ir.program import Program, Slot, Step
from graphc.ir.types import TensorType
from graphc.ir.verify_kernel import verify_program
from graphc.passes import structure
from graphc.passes.lower.computation import (
    Computation,
    Lowered,
    Output,
    computation,
    input_names,
    multiply_adds,
    physical_buffer,
)
from graphc.passes.lower.materialise import materialise
from graphc.passes.lower.nest import work
from graphc.passes.lower.overlap import distances
from graphc.passes.lower.pieces import restricted, split_outputs
from graphc.passes.lower.scratch import with_scratch
from graphc.passes.lower.views import view_of

PREPARED = 1 << 24  # operations spent at compile time on what depends on constants alone
WORTH = 256  # or so many per byte of these constants
ORDER_BUDGET = 20_000  # work units spent on looking for an execution order of lower peak memory

Strategy = Callable[[Computation], "Lowered | str"]


@dataclass
class Storage:
    """Where a tensor lives before planning: a root, and the offset of this view of it in bytes.

    Of a root, `live_in` and `live_out` say that it is filled before the first step, and read after
    the last.
    """

    name: str
    space: str  # input, output, const, arena
    buffer: Buffer
    index: int = 0
    root: str = ""
    offset: int = 0
    live_in: bool = False
    live_out: bool = False

    @property
    def nbytes(self) -> int:
        return math.prod(self.buffer.shape) * self.buffer.dtype.size  # type: ignore[arg-type]


@dataclass
class Call:
    """A kernel call on storages by name; `inplace` lists (output, input) that may coincide, and
    `overlaps` (output, input, bytes) that may overlap if they start at most that far apart."""

    kernel: str
    arguments: tuple[str, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    loc: tuple[str, ...] = ()
    flops: int = 0
    macs: int = 0
    inplace: tuple[tuple[str, str], ...] = ()
    overlaps: tuple[tuple[str, str, int], ...] = ()


@dataclass
class Lowering:
    """The state of lowering one graph. `strategies` are tried in order; the last always matches.

    `resident`: inputs and outputs live in the arena; `results` are then the outputs' storages.
    A view that would not start at a multiple of `alignment` bytes is a copy instead. `in_order`:
    loops run in order, so that outputs may overlap inputs that are still being read. `joined`:
    loops over outputs of different shapes are one kernel. `builder` makes imperative kernels.
    """

    graph: Graph
    strategies: Sequence[Strategy]
    name: str = "model"
    resident: bool = False
    alignment: int = 1
    in_order: bool = False
    joined: bool = False
    builder: type[Collectives] = Collectives
    notes: list[str] = field(default_factory=list)
    kernels: dict[tuple, Kernel] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    storages: dict[str, Storage] = field(default_factory=dict)
    of_value: dict[Value, str] = field(default_factory=dict)
    constants: list[np.ndarray] = field(default_factory=list)
    packed: dict[tuple, str] = field(default_factory=dict)
    sizes: list[TensorType] = field(default_factory=list)
    bounded: dict[Value, tuple[int, int]] = field(default_factory=dict)
    known: dict[int, tuple[Kernel, Kernel]] = field(default_factory=dict)
    chosen: dict[Computation, Lowered] = field(default_factory=dict)
    results: list[str] = field(default_factory=list)
    distances: dict[str, dict[tuple[str, str], int]] = field(default_factory=dict)

    def run(self) -> Program:
        for position, value in enumerate(self.graph.params):
            name = self.define(value, "arena" if self.resident else "input", position)
            self.storages[name].live_in = self.resident
        if not self.resident:
            self.reserve_outputs()
        for op in self.graph.ops:
            if op.name != "Constant":
                self.lower_op(op)
        self.finish_outputs()
        return self.program()

    # ---------------------------------------------------------------- storages

    def define(self, value: Value, space: str, index: int = 0) -> str:
        """Gives a value a storage of its own."""
        name = f"s{len(self.storages)}"
        self.storages[name] = Storage(
            name, space, physical_buffer(name, value.tensor, ""), index, name
        )
        self.of_value[value] = name
        return name

    def reserve_outputs(self) -> None:
        """Results made by a kernel are written straight into the caller's output, and so is what a
        result is another view of."""
        taken: set[Value] = set()
        for position, value in enumerate(self.graph.results):
            if value.tensor.layout is not None:
                continue
            source = whole_source(value)
            made = source.producer is not None and source.constant is None
            if made and source not in taken:
                taken.add(source)
                self.define(source, "output", position)

    def storage(self, value: Value) -> str:
        if value not in self.of_value:
            contents = value.constant
            if contents is None:
                self.define(value, "arena")
            else:
                self.define_constant(value, contents)
        return self.of_value[value]

    def define_constant(self, value: Value, contents: np.ndarray) -> None:
        layout = value.tensor.layout
        array = contents.transpose(layout.order) if layout else contents
        self.define(value, "const", self.add_constant(array))

    def add_constant(self, array: np.ndarray) -> int:
        self.constants.append(np.ascontiguousarray(array).reshape(np.shape(array)))
        return len(self.constants) - 1

    def temporary(self, buffer: Buffer, space: str = "arena", index: int = 0) -> str:
        name = f"s{len(self.storages)}"
        self.storages[name] = Storage(name, space, buffer, index, name)
        return name

    def alias(self, value: Value, source: str, offset: int) -> None:
        """Makes a value a view of a storage."""
        base = self.storages[source]
        name = f"s{len(self.storages)}"
        buffer = physical_buffer(name, value.tensor, "")
        self.storages[name] = Storage(
            name, base.space, buffer, base.index, base.root, base.offset + offset
        )
        self.of_value[value] = name

    # ---------------------------------------------------------------- ops

    def lower_op(self, op: Op) -> None:
        if op.defn.form == "imperative":
            self.lower_imperative(op)
            return
        if op.defn.form not in ("elementwise", "indexed") and op.name != "fused":
            raise UnsupportedError(f"{op.where()}: {op.defn.form} operators have no kernel")
        whole, names = computation(op), input_names(op)
        made = [
            output for output, value in zip(whole.outputs, op.outputs)
            if not self.is_view(restricted(whole, [output]), value, names)
        ]  # fmt: skip
        if not made:
            return
        places = {o.buffer.name: self.storage(v) for o, v in zip(whole.outputs, op.outputs)}
        parts = split_outputs(restricted(whole, made))
        used = {b.name: self.storage(names[b.name]) for part in parts for b in part.inputs}
        loops = self.loops(parts) if self.joined else None
        if loops is not None:
            self.call(loops, {**used, **places}, op)
            return
        for part in parts:
            known = {n: names[n].constant for n in part.constants if n in used}
            self.lower_computation(part, {**used, **places}, known, op)

    def loops(self, parts: list[Computation]) -> Lowered | None:
        """One kernel of several computations, if all are nothing but parallel loops."""
        lowered = [self.choose(part) for part in parts]
        body = tuple(stmt for each in lowered for stmt in each.kernel.body)
        if len(parts) < 2 or any(each.temporaries for each in lowered):
            return None
        if not all(isinstance(stmt, For) and stmt.kind == "parallel" for stmt in body):
            return None
        params = {b.name: b for access in ("in", "out") for each in lowered
                  for b in each.kernel.params if b.access == access}  # fmt: skip
        kernel = replace(lowered[0].kernel, params=tuple(params.values()), body=body)
        return Lowered(kernel, flops=sum(each.flops for each in lowered))

    def is_view(self, part: Computation, output: Value, names: dict[str, Value]) -> bool:
        """Whether the computation of an output is a piece of an operand, and so needs no kernel."""
        view = view_of(part)
        if view is None or output in self.of_value:
            return False
        source, offset = view
        value = names[source]
        start = offset * value.tensor.dtype.size
        if start % self.alignment:
            return False
        self.alias(output, self.storage(value), start)
        return True

    def lower_computation(self, part: Computation, places: dict[str, str], known, op: Op) -> None:
        """Lowers one computation whose buffers are at `places`."""
        lowered = self.choose(part)
        places = dict(places)
        temporaries = iter(lowered.temporaries)
        for preparation in lowered.prepare:
            filled = [next(temporaries) for _ in preparation.outputs]
            places.update(self.prepare(filled, preparation, places, known, op))
        places.update((buffer.name, self.temporary(buffer)) for buffer in temporaries)
        for kernel in lowered.before:
            self.call(Lowered(kernel), places, op)
        self.call(lowered, places, op, multiply_adds(part))

    def choose(self, part: Computation) -> Lowered:
        """The first strategy's answer; equal computations (layer after layer) are lowered once."""
        if part not in self.chosen:
            lowered = self._choose(part)
            self.chosen[part] = replace(lowered, kernel=without_unread(lowered.kernel))
        return self.chosen[part]

    def _choose(self, part: Computation) -> Lowered:
        for strategy in self.strategies:
            lowered = strategy(part)
            if isinstance(lowered, Lowered):
                return lowered
            self.notes.append(f"{part.label}: {lowered}")
        raise InternalError(f"no strategy took {part.label}")

    def prepare(
        self, buffers: Sequence[Buffer], preparation: Computation, places, known, op: Op
    ) -> dict[str, str]:
        """Fills a temporary for each output of a preparation, now if it depends on constants alone,
        else by kernels of its own; where they are."""
        reads = {b.name for b in preparation.inputs}
        given = sum(self.physical(n, places).nbytes for n in reads) if reads <= set(known) else -1
        if given >= 0 and work(preparation) <= max(PREPARED, WORTH * given):
            ids = tuple(id(known[n]) for n in sorted(reads))
            arrays = {n: self.physical(n, places) for n in reads}
            return {b.name: self.packed_constant(b, output, arrays, ids)
                    for b, output in zip(buffers, preparation.outputs)}  # fmt: skip
        filled = {buffer.name: self.temporary(buffer) for buffer in buffers}
        inner = {n: places[n] for n in reads}
        inner.update(zip((o.buffer.name for o in preparation.outputs), filled.values()))
        self.lower_computation(preparation, inner, known, op)
        return filled

    def packed_constant(
        self, buffer: Buffer, output: Output, arrays: dict[str, np.ndarray], ids: tuple
    ) -> str:
        """A constant with what an output is over constants of these ids; made once."""
        key = output.expr, buffer.shape, ids
        if key not in self.packed:
            contents = materialise(output, arrays)
            self.packed[key] = self.temporary(buffer, "const", self.add_constant(contents))
        return self.packed[key]

    def physical(self, name: str, places: dict[str, str]) -> np.ndarray:
        storage = self.storages[places[name]]
        return self.constants[storage.index]

    def call(self, lowered: Lowered, places: dict[str, str], op: Op, macs: int = 0) -> None:
        kernel = self.shared(lowered.kernel)
        arguments = tuple(places[b.name] for b in lowered.kernel.params)
        reads = tuple(places[b.name] for b in lowered.kernel.params if b.access != "out")
        writes = tuple(places[b.name] for b in lowered.kernel.params if b.access != "in")
        views = Counter(self.storages[place].root for place in arguments)  # of the same memory
        pairs = tuple(
            (places[a], places[b]) for a, b in lowered.inplace
            if views[self.storages[places[b]].root] == 1
        )  # fmt: skip
        overlaps = self.overlaps(kernel, places)
        self.calls.append(Call(
            kernel.name, arguments, reads, writes, op.loc, lowered.flops, macs, pairs, overlaps
        ))  # fmt: skip

    def overlaps(self, kernel: Kernel, places: dict[str, str]) -> tuple[tuple[str, str, int], ...]:
        """How a kernel's outputs may overlap its inputs, both in the arena."""
        inside = [self.storages[places[b.name]].space == "arena" for b in kernel.params]
        if not self.in_order or sum(inside) < 2:
            return ()
        if kernel.name not in self.distances:
            self.distances[kernel.name] = distances(kernel)
        found = self.distances[kernel.name]
        reads = [b.name for b in kernel.params if b.access == "in"]
        pairs: dict[tuple[str, str], int] = {}
        for out, into in found:
            same = [name for name in reads if places[name] == places[into]]
            if all((out, name) in found for name in same):
                pairs[places[out], places[into]] = min(found[out, name] for name in same)
        return tuple((*pair, most) for pair, most in pairs.items())

    def shared(self, kernel: Kernel) -> Kernel:
        """An equal kernel, or this one, now registered under a unique name."""
        if id(kernel) not in self.known:  # comparing kernels takes time
            key = key_of(kernel)
            if key not in self.kernels:
                self.kernels[key] = replace(kernel, name=f"{kernel.name}_{len(self.kernels)}")
            self.known[id(kernel)] = kernel, self.kernels[key]
        return self.known[id(kernel)][1]

    def lower_imperative(self, op: Op) -> None:
        from graphc.ir.imperative import SIZES, imperative_kernel

        kernel = flat_kernel(imperative_kernel(op, self.builder))
        values = {f"in{n}": v for n, v in enumerate(op.inputs) if v is not None}
        values.update((f"out{n}", v) for n, v in enumerate(op.outputs))
        places = {b.name: self.storage(values[b.name]) for b in kernel.params if b.name != SIZES}
        if kernel.params[-1].name == SIZES:
            places[SIZES] = self.sizes_output(kernel.params[-1], op)
        kernel, scratch = with_scratch(without_unread(kernel))
        places.update((buffer.name, self.temporary(buffer)) for buffer in scratch)
        self.call(Lowered(kernel), places, op)

    def sizes_output(self, buffer: Buffer, op: Op) -> str:
        """An output after those of the graph, for the true sizes of an op's results."""
        if self.resident:
            raise UnsupportedError(
                f"{op.where()}: what has a size that depends on data cannot live in the arena; "
                "leave it to the caller"
            )
        position, cell = len(self.graph.results) + len(self.sizes), 0
        for value in op.outputs:
            self.bounded[value] = position, cell
            cell += value.tensor.rank
        self.sizes.append(TensorType(buffer.dtype, buffer.shape))
        return self.temporary(buffer, "output", position)

    def finish_outputs(self) -> None:
        """Copies results that are views, inputs, constants or repeated into their outputs."""
        for position, value in enumerate(self.graph.results):
            name = self.storage(value)
            place = self.storages[name]
            if self.resident:
                stays = place.space == "arena" and value.tensor.layout is None
                self.results.append(name if stays else self.copy(value, position))
                self.storages[self.storages[self.results[-1]].root].live_out = True
            elif (place.space, place.index, place.offset) != ("output", position, 0):
                self.copy(value, position)

    def copy(self, value: Value, position: int) -> str:
        """Copies a value into an output in row-major order; the output's storage."""
        type = value.tensor.with_layout(None)
        source = physical_buffer("in0", value.tensor, "in")
        target = physical_buffer("out0", type, "out")
        index = tuple(Index(f"i{d}", extent) for d, extent in enumerate(target.shape))
        layout = value.tensor.layout
        load = Load("in0", layout.physical(index) if layout else index, type.dtype)
        part = Computation((source,), (Output(target, index, load),), frozenset(), "copy")
        name = self.temporary(target, "arena" if self.resident else "output", position)
        lowered = self.choose(part)
        loc = value.producer.loc if value.producer is not None else ()
        kernel = self.shared(lowered.kernel)
        places = {"in0": self.storage(value), "out0": name}
        arguments = tuple(places[b.name] for b in kernel.params)  # what is empty is not read
        self.calls.append(Call(kernel.name, arguments, arguments[:-1], (name,), loc))
        return name

    # ---------------------------------------------------------------- the program

    def program(self) -> Program:
        offsets, peak, bound, order = self.plan()
        used = sorted({self.storages[a].index for c in self.calls for a in c.arguments
                       if self.storages[a].space == "const"})  # fmt: skip
        renumber = {old: new for new, old in enumerate(used)}
        steps = []
        for call in (self.calls[n] for n in order):
            slots = tuple(self.slot(self.storages[a], offsets, renumber) for a in call.arguments)
            nbytes = sum(s.elements * s.dtype.size for s in slots)
            steps.append(Step(call.kernel, slots, call.loc, call.flops, nbytes, call.macs))
        kernels = {k.name: k for k in self.kernels.values()}
        return Program(
            self.name,
            [(v.name, v.tensor) for v in self.graph.params],
            [(n, v.tensor.with_layout(None)) for n, v in self.graph.named_results()]
            + [(f"sizes{n}", type) for n, type in enumerate(self.sizes)],
            kernels, steps, [self.constants[n] for n in used], peak, bound,
            resident=self.places(offsets),
            true_sizes={n: self.bounded[v] for n, v in enumerate(self.graph.results)
                        if v in self.bounded},
        )  # fmt: skip

    def places(self, offsets: dict[str, int]) -> dict[tuple[str, int], Slot]:
        """Where inputs and outputs that live in the arena lie, by ("input" or "output", number)."""
        if not self.resident:
            return {}
        named = [("input", n, self.of_value[v]) for n, v in enumerate(self.graph.params)]
        named += [("output", n, name) for n, name in enumerate(self.results)]
        return {(side, n): self.slot(self.storages[s], offsets, {}) for side, n, s in named}

    def slot(self, storage: Storage, offsets: dict[str, int], renumber: dict[int, int]) -> Slot:
        elements = math.prod(storage.buffer.shape)  # type: ignore[arg-type]
        index, offset = storage.index, storage.offset
        if storage.space == "arena":
            index, offset = 0, offset + offsets[storage.root]
        elif storage.space == "const":
            index = renumber[index]
        return Slot(storage.space, index, offset, storage.buffer.dtype, elements)

    def plan(self) -> tuple[dict[str, int], int, int, tuple[int, ...]]:
        """Arena offsets by root storage, the arena's size and its lower bound in bytes, and the
        order of the calls. Outputs take part, in a pool of their own, for what depends on them."""
        roots = {a: self.storages[a].root for c in self.calls for a in c.arguments
                 if self.storages[a].space in ("arena", "output")}  # fmt: skip
        steps = [self._plan_step(n, call, roots) for n, call in enumerate(self.calls)]
        flagged = [n for n, s in self.storages.items() if s.live_in or s.live_out]
        requests = [self._request(root) for root in dict.fromkeys([*roots.values(), *flagged])]
        planned = memplan.plan_steps(steps, requests, reorder=True, order_budget=ORDER_BUDGET)
        memplan.validate_steps(steps, requests, planned)
        peak, bound = planned.peaks.get("arena", 0), planned.lower_bounds.get("arena", 0)
        return dict(planned.offsets), peak, bound, planned.order

    def _request(self, root: str) -> memplan.Request:
        storage = self.storages[root]
        return memplan.Request(
            root, max(storage.nbytes, 1), pool=storage.space,
            live_in=storage.live_in, live_out=storage.live_out,
        )  # fmt: skip

    def _plan_step(self, number: int, call: Call, roots: dict[str, str]) -> memplan.Step:
        inplace = tuple(
            (roots[out], roots[into])
            for out, into in call.inplace
            if out in roots and into in roots
            and self.storages[out].space == self.storages[into].space == "arena"
            and self.storages[out].offset == 0 and self.storages[into].offset == 0
        )  # fmt: skip
        return memplan.Step(
            f"{number}:{call.kernel}",
            reads=tuple(dict.fromkeys(roots[a] for a in call.reads if a in roots)),
            writes=tuple(dict.fromkeys(roots[a] for a in call.writes if a in roots)),
            inplace=inplace,
            overlaps=tuple(self._overlaps(call, roots)),
        )

    def _overlaps(self, call: Call, roots: dict[str, str]) -> Iterator[tuple[str, str, int]]:
        """The overlaps of a call in terms of roots: all that it reads of one must allow them."""
        listed = {(out, into): most for out, into, most in call.overlaps}
        for out in dict.fromkeys(out for out, _ in listed):
            for root in dict.fromkeys(roots[into] for _, into in listed if into in roots):
                parts = [a for a in call.reads if roots.get(a) == root]
                if out in roots and all((out, part) in listed for part in parts):
                    start = self.storages[out].offset
                    apart = (listed[out, a] + self.storages[a].offset - start for a in parts)
                    yield roots[out], root, min(apart)


def whole_source(value: Value) -> Value:
    """The value, the first of a chain, whose memory holds the elements of this one in their order:
    itself, unless a view makes it."""
    op = value.producer
    if op is None or len(op.outputs) != 1:
        return value
    if op.name != "fused" and not structure.has_body(op):
        return value
    view = view_of(computation(op))
    source = None if view is None else input_names(op)[view[0]]
    if source is None or source.producer is None or source.tensor.size != value.tensor.size:
        return value
    return whole_source(source)


def key_of(kernel: Kernel) -> tuple:
    """What kernels that are equal up to names have in common."""
    return kernel.params, kernel.body


def without_unread(kernel: Kernel) -> Kernel:
    """A kernel less the inputs it does not read, such as weights it reads in packed form only."""
    read = buffers_read(kernel.body)
    params = tuple(b for b in kernel.params if b.access != "in" or b.name in read)
    return kernel if len(params) == len(kernel.params) else replace(kernel, params=params)


def flat_kernel(kernel: Kernel) -> Kernel:
    """The same kernel with buffers of one dimension (scalars: none)."""
    from graphc.ir.kernel import Alloc, map_body
    from graphc.ir.kernel import Store as StoreStmt
    from graphc.ir.simplify import flatten_index
    from graphc.passes.lower.spaces import flatten_loads

    shapes = {b.name: b.shape for b in kernel.params}
    for stmt in walk_stmts(kernel.body):
        if isinstance(stmt, Alloc):
            shapes[stmt.buffer.name] = stmt.buffer.shape
    ranked = {n: s for n, s in shapes.items() if len(s) != 1}

    def flat(stmt):
        if isinstance(stmt, StoreStmt) and stmt.buffer in ranked and ranked[stmt.buffer]:
            return replace(stmt, index=(flatten_index(stmt.index, ranked[stmt.buffer]),))
        if isinstance(stmt, Alloc) and len(stmt.buffer.shape) > 1:
            return replace(stmt, buffer=replace(stmt.buffer, shape=(math.prod(stmt.buffer.shape),)))
        if hasattr(stmt, "body"):
            return replace(stmt, body=tuple(map(flat, stmt.body)))
        if hasattr(stmt, "then"):
            then, orelse = tuple(map(flat, stmt.then)), tuple(map(flat, stmt.orelse))
            return replace(stmt, then=then, orelse=orelse)
        return stmt

    loads = {n: s for n, s in ranked.items() if s}
    body = map_body(kernel.body, lambda e: flatten_loads(e, loads))
    params = tuple(
        replace(b, shape=(math.prod(b.shape),) if b.shape else ()) for b in kernel.params
    )
    return replace(kernel, params=params, body=tuple(map(flat, body)))


def lower(
    graph: Graph,
    strategies: Sequence[Strategy],
    name: str = "model",
    resident: bool = False,
    alignment: int = 1,
    in_order: bool = False,
    joined: bool = False,
    builder: type[Collectives] = Collectives,
) -> Program:
    """Lowers a static, decomposed graph; with `resident`, inputs and outputs live in the arena.

    `alignment` in bytes holds for every operand of a kernel, given aligned inputs and outputs.
    `in_order`: loops run in order, whatever their kind allows; outputs may then overlap inputs,
    which the verifier judges by playing the accesses through. `joined`: loops over outputs of
    different shapes that one op has are one kernel. `builder` makes imperative kernels.
    """
    program = Lowering(
        graph, strategies, name, resident, alignment, in_order, joined, builder
    ).run()
    if in_order:
        verify_program(program)
    return program
