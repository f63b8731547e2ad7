"""Program IR: what runs at inference: kernels called in order on slices of one arena.

A `Slot` is where a tensor lives: an input, an output, a constant, a part of the state, or a byte
range of the arena. A `Step` calls a kernel with one slot per parameter; a `Copy` moves bytes;
`While` and `If` run steps of their own, as often as slots say. Kernels are shared by steps that are
equal up to names, or up to numbers, which are then given with the call. Constants are numpy arrays
in the memory order their kernels expect (weights packed once).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from graphc.ir.checks import Check
from graphc.ir.dtypes import DType, i64
from graphc.ir.expr import Const, Expr, Sym
from graphc.ir.imperative.lowering import corner
from graphc.ir.kernel import Kernel, with_sizes
from graphc.ir.types import TensorType, at, largest
from graphc.records import dataclass


@dataclass(frozen=True)
class Slot:
    """Storage of a tensor. space: input, output, const, state or arena; `index` numbers inputs,
    outputs, constants and state; `offset` is in bytes (within the arena, or within that tensor).
    `elements` is an integer, or an expression over the program's sizes."""

    space: str
    index: int
    offset: int
    dtype: DType
    elements: Any


@dataclass(frozen=True)
class Step:
    """One kernel call. `loc` names the ONNX nodes computed; `flops`/`nbytes` feed the roofline;
    `macs` are the products that its sums of products add; `sizes` are the values of the kernel's
    sizes: integers, or expressions over the program's."""

    kernel: str
    slots: tuple[Slot, ...]
    loc: tuple[str, ...] = ()
    flops: int = 0
    nbytes: int = 0
    macs: int = 0
    sizes: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Copy:
    """Copies the bytes of a slot into another of equal size. Directly in the body of a loop, source
    and target start so many bytes further at each trip, a number or an expression over the
    program's sizes; slots are those of the first. Those that do not move on may overlap."""

    source: Slot
    target: Slot
    source_stride: Any = 0
    target_stride: Any = 0
    loc: tuple[str, ...] = ()

    @property
    def overlaps(self) -> bool:
        """Whether source and target, those of the first trip, have bytes in common."""
        source, target = self.source, self.target
        if (source.space, source.index) != (target.space, target.index):
            return False
        (a, b), (c, d) = (
            (s.offset, s.offset + largest(s.elements) * s.dtype.size) for s in (source, target)
        )
        return max(a, c) < min(b, d)


@dataclass(frozen=True)
class While:
    """Runs `body` as long as there are trips left and the condition, one bool, holds.

    `trips` is a number, an expression over the program's sizes, or the slot of one i64, which is
    read once; None if there is no limit. The condition is read before each trip; None: it always
    holds. The number of the trip, from 0 on, is written to `counter` before the trip.
    """

    body: tuple[AnyStep, ...]
    condition: Slot | None = None
    trips: Any = None
    counter: Slot | None = None
    loc: tuple[str, ...] = ()


@dataclass(frozen=True)
class If:
    """Runs `then` if the condition, one bool, holds, else `orelse`."""

    condition: Slot
    then: tuple[AnyStep, ...]
    orelse: tuple[AnyStep, ...]
    loc: tuple[str, ...] = ()


@dataclass(frozen=True)
class Count:
    """Makes what a slot holds, one i64, the value of a size of the program, for the steps after
    this one. `size` is a number in a program at given sizes (`at_sizes`). It is at most `most`, a
    number or an expression over sizes that are known before; None: its own bound."""

    size: Any
    slot: Slot
    loc: tuple[str, ...] = ()
    most: Any = None


AnyStep = Step | Copy | While | If | Count


def bodies(step: AnyStep) -> tuple[tuple[AnyStep, ...], ...]:
    """The lists of steps inside a step."""
    if isinstance(step, While):
        return (step.body,)
    return (step.then, step.orelse) if isinstance(step, If) else ()


def walk(steps: Sequence[AnyStep]) -> Iterator[AnyStep]:
    """All steps in the order of the text, those inside others after these."""
    for step in steps:
        yield step
        for body in bodies(step):
            yield from walk(body)


def ending(steps: Sequence[AnyStep]) -> Iterator[AnyStep]:
    """All steps in the order in which they end, those inside others before these."""
    for step in steps:
        for body in bodies(step):
            yield from ending(body)
        yield step


def nesting(steps: Sequence[AnyStep]) -> int:
    """How many loops are around one another at most."""
    inner = (nesting(body) + isinstance(s, While) for s in steps for body in bodies(s))
    return max(inner, default=0)


def repetitions(steps: Sequence[AnyStep], around: int | None = 1) -> list[int | None]:
    """For each call at most how often it is made, where steps are run so many times; None: that
    depends on data."""
    counts: list[int | None] = []
    for step in steps:
        trips: int | None = 1
        if isinstance(step, Step):
            counts.append(around)
        elif isinstance(step, While):
            known = step.trips is not None and not isinstance(step.trips, Slot)
            trips = largest(step.trips) if known else None
        times = None if around is None or trips is None else around * trips
        for body in bodies(step):
            counts += repetitions(body, times)
    return counts


def walk_slots(steps: Sequence[AnyStep]) -> Iterator[Slot]:
    """The slots of all steps, those inside others included."""
    for step in walk(steps):
        if isinstance(step, Step):
            yield from step.slots
        elif isinstance(step, Copy):
            yield from (step.source, step.target)
        elif isinstance(step, While):
            named = (step.condition, step.trips, step.counter)
            yield from (slot for slot in named if isinstance(slot, Slot))
        elif isinstance(step, Count):
            yield step.slot
        else:
            yield step.condition


def with_steps(steps: Sequence[AnyStep], change: Callable[[AnyStep], AnyStep]) -> list[AnyStep]:
    """Other steps in place of these, those in loops and branches included."""

    def changed(step: AnyStep) -> AnyStep:
        if isinstance(step, While):
            step = replace(step, body=tuple(map(changed, step.body)))
        if isinstance(step, If):
            then, orelse = (tuple(map(changed, body)) for body in bodies(step))
            step = replace(step, then=then, orelse=orelse)
        return change(step)

    return list(map(changed, steps))


def with_calls(steps: Sequence[AnyStep], change: Callable[[Step], Step]) -> list[AnyStep]:
    """The steps with other kernel calls, those in loops and branches included."""
    return with_steps(steps, lambda step: change(step) if isinstance(step, Step) else step)


def with_slots(step: AnyStep, placed: Callable[[Slot], Slot]) -> AnyStep:
    """A step with other slots; those of the steps inside it stay."""
    if isinstance(step, Step):
        return replace(step, slots=tuple(map(placed, step.slots)))
    slots = {
        name: placed(slot)
        for name in ("source", "target", "slot", "condition", "trips", "counter")
        if isinstance(slot := getattr(step, name, None), Slot)
    }
    return replace(step, **slots)  # type: ignore[arg-type]


def dims_of(step: AnyStep) -> tuple[Any, ...]:
    """What a step, apart from those inside it, gives as a number or an expression over sizes."""
    if isinstance(step, Step):
        return step.sizes
    if isinstance(step, Copy):
        return (step.source.elements, step.source_stride, step.target_stride)
    given = step.trips if isinstance(step, While) else None
    return () if given is None or isinstance(given, Slot) else (given,)


Quantisation = tuple[float, int]
"""(scale, zero point): real = (value - zero point) * scale."""


@dataclass
class Program:
    """A model, ready to be emitted.

    It is static, or one of open shape: its `sizes` are the symbols in the types of inputs and
    outputs, all of them bounded. A run reads each from the shape of an input (`sizes_of`). Data
    decides its `counts`, symbols too, which are known after the `Count` of each. The arena, and
    where things lie in it, are those of the largest sizes.

    By ("input" or "output", number), `quantisation` says how integer inputs and outputs are read,
    where that is known, and `resident` where in the arena they lie, if the caller does not keep
    them: inputs are there before the first step, outputs after the last. By number, `true_sizes`
    tells of an output whose type has bounds for a shape: the output that holds its true sizes, and
    its first cell there. The contents are the leading corner (imperative/lowering.py). If there are
    `checks`, the last output holds their keys (ir/checks.py). `state` is what a run finds filled
    and may change; it lasts from one run to the next, such as weights that are trained. `over`
    lists outputs, by number, that a kernel may write where one of these inputs lies, which nothing
    reads later. `trades` are other programs of the model that were tried, with what they take.
    """

    name: str
    inputs: list[tuple[str, TensorType]]
    outputs: list[tuple[str, TensorType]]
    kernels: dict[str, Kernel] = field(default_factory=dict)
    steps: list[AnyStep] = field(default_factory=list)
    constants: list[np.ndarray] = field(default_factory=list)
    arena_bytes: int = 0
    arena_lower_bound: int = 0
    quantisation: dict[tuple[str, int], Quantisation] = field(default_factory=dict)
    resident: dict[tuple[str, int], Slot] = field(default_factory=dict)
    true_sizes: dict[int, tuple[int, int]] = field(default_factory=dict)
    checks: tuple[Check, ...] = ()
    sizes: tuple[Sym, ...] = ()
    state: list[tuple[str, TensorType]] = field(default_factory=list)
    over: dict[int, tuple[int, ...]] = field(default_factory=dict)
    trades: tuple[Any, ...] = ()

    @property
    def calls(self) -> list[Step]:
        """The kernel calls in the order of the text, those in loops and branches included."""
        return [step for step in walk(self.steps) if isinstance(step, Step)]

    @property
    def counts(self) -> tuple[Sym, ...]:
        """The sizes that data decides, in the order in which they are known."""
        made = (step.size for step in self.steps if isinstance(step, Count))
        return tuple(size for size in made if isinstance(size, Sym))

    @property
    def all_sizes(self) -> tuple[Sym, ...]:
        """The sizes that inputs have, then those that data decides."""
        return (*self.sizes, *self.counts)

    @property
    def own_outputs(self) -> list[tuple[str, TensorType]]:
        """The outputs but the keys of checks."""
        return self.outputs[:-1] if self.checks else self.outputs

    def is_keys(self, slot: Slot) -> bool:
        """Whether keys of checks are at a place."""
        return bool(self.checks) and (slot.space, slot.index) == ("output", len(self.outputs) - 1)

    def __str__(self) -> str:
        from graphc.ir.text.printer import print_program  # which takes them apart

        return print_program(self)


def program_of(*kernels: Kernel) -> Program:
    """A program that calls each kernel once, on inputs and outputs of its own: what kernels read
    are inputs, what they write are outputs."""
    program = Program("kernels", [], [])
    for kernel in kernels:
        slots = []
        for buffer in kernel.params:
            type = TensorType(buffer.dtype, buffer.shape)
            space = "input" if buffer.access == "in" else "output"
            interface = program.inputs if space == "input" else program.outputs
            slots.append(Slot(space, len(interface), 0, buffer.dtype, type.size))
            interface.append((buffer.name, type))
        program.kernels[kernel.name] = kernel
        program.steps.append(Step(kernel.name, tuple(slots)))
    return program


def at_sizes(program: Program, values: Sequence[int]) -> Program:
    """The static program that a program of open shape is at these values of all its sizes."""
    known: dict[Expr, Expr] = {s: Const(v, i64) for s, v in zip(program.all_sizes, values)}

    def typed(tensors: Sequence[tuple[str, TensorType]]) -> list[tuple[str, TensorType]]:
        return [(n, t.with_shape(at(d, known) for d in t.dims)) for n, t in tensors]

    kernels: dict[str, Kernel] = {}

    def called(step: Step) -> Step:
        kernel = program.kernels[step.kernel]
        own = [at(size, known) for size in step.sizes]
        name = "_".join(map(str, (step.kernel, *own)))
        kernels[name] = replace(with_sizes(kernel, own), name=name)  # type: ignore[arg-type]
        return replace(step, kernel=name, sizes=())

    def placed(slot: Slot) -> Slot:
        return replace(slot, elements=at(slot.elements, known))

    def static(step: AnyStep) -> AnyStep:
        step = with_slots(step, placed)
        if isinstance(step, Step):
            return called(step)
        if isinstance(step, Count):
            return replace(step, size=at(step.size, known), most=None)
        if isinstance(step, Copy):
            strides = (at(stride, known) for stride in (step.source_stride, step.target_stride))
            source_stride, target_stride = strides
            return replace(step, source_stride=source_stride, target_stride=target_stride)
        if isinstance(step, While) and isinstance(step.trips, Expr):
            return replace(step, trips=at(step.trips, known))
        return step

    return replace(
        program, inputs=typed(program.inputs), outputs=typed(program.outputs), kernels=kernels,
        steps=with_steps(program.steps, static), sizes=(), over={},
        resident={key: placed(s) for key, s in program.resident.items()},
    )  # fmt: skip


def possible(program: Program, values: Sequence[int]) -> tuple[int, ...]:
    """Values of all sizes that are possible at once: those that data decides are made no larger
    than what the others leave."""
    known: dict[Expr, Expr] = {}
    limits = {s.size: s.most for s in program.steps if isinstance(s, Count) and s.most is not None}
    for size, value in zip(program.all_sizes, values):
        limit = at(limits.get(size, value), known)
        known[size] = Const(min(value, limit), i64)
    return tuple(int(value.value) for value in known.values())  # type: ignore[attr-defined]


def true_outputs(program: Program, outputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The outputs of the model, given those of the program but the keys of checks: what has bounds
    for a shape is cut."""
    cut = list(outputs)
    for number, (position, cell) in program.true_sizes.items():
        shape = outputs[position][cell : cell + outputs[number].ndim]
        cut[number] = corner(outputs[number], tuple(map(int, shape)))
    return cut[: min((p for p, _ in program.true_sizes.values()), default=len(cut))]


def shared_places(program: Program) -> Iterator[tuple[int, int]]:
    """The outputs that may lie in the memory of an input, by number: those that a kernel may write
    over it, and those into which the whole input is copied before anything else is done with them,
    and after which nothing reads it."""
    yield from ((out, into) for out, inputs in program.over.items() for into in inputs)
    steps, last = program.steps, dict[tuple[str, int], int]()
    first: dict[tuple[str, int], int] = {}
    for number, step in enumerate(steps):
        for slot in walk_slots([step]):
            first.setdefault((slot.space, slot.index), number)
            last[slot.space, slot.index] = number
    for number, step in enumerate(steps):
        if not isinstance(step, Copy) or (step.source.space, step.target.space) != (
            "input",
            "output",
        ):
            continue
        into, out = step.source.index, step.target.index
        wholes = [_is_whole(step.source, program.inputs), _is_whole(step.target, program.outputs)]
        if all(wholes) and last["input", into] == number == first["output", out]:
            yield out, into


def overlap(a: Slot, b: Slot) -> bool:
    """Whether two slots have bytes in common, at the largest sizes."""
    if (a.space, a.index) != (b.space, b.index):
        return False
    ends = [slot.offset + largest(slot.elements) * slot.dtype.size for slot in (a, b)]
    return max(a.offset, b.offset) < min(ends)


def overwriting(program: Program) -> dict[str, set[int]]:
    """By the names of kernels, the numbers of parameters that are written over another, or read
    where another is written, in one of the calls or as a caller may place them."""
    together: dict[str, set[int]] = {}
    for step in program.calls:
        params = program.kernels[step.kernel].params
        for out, (buffer, slot) in enumerate(zip(params, step.slots)):
            for number, other in enumerate(step.slots if buffer.access != "in" else ()):
                over = program.over.get(slot.index, ()) if slot.space == "output" else ()
                given = other.space == "input" and other.index in over
                if number != out and (given or overlap(slot, other)):
                    together.setdefault(step.kernel, set()).update((out, number))
    return together


def _is_whole(slot: Slot, interface: Sequence[tuple[str, TensorType]]) -> bool:
    type = interface[slot.index][1]
    return type.is_static and slot.offset == 0 and slot.elements * slot.dtype.size == type.nbytes
