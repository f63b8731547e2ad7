"""The launches of a program, and what the host does around them: loops, branches, copies and sizes
that data decides, as a launch plan has them (runtime/steps.py runs them).

A program of kernel calls alone is its launches in order. In one with control flow they are numbered
in the order of the text, and steps say when each is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from graphc.backends.cuda.runtime.plan import OPERATIONS, value
from graphc.backends.cuda.tensor_maps import TensorMap
from graphc.errors import InternalError
from graphc.ir.dtypes import i64
from graphc.ir.expr import Call, Const, Expr, Sym
from graphc.ir.kernel import Buffer, Kernel, Store
from graphc.ir.program import (
    AnyStep,
    Copy,
    Count,
    If,
    Program,
    Slot,
    Step,
    While,
    overlap,
    walk,
    walk_slots,
)
from graphc.ir.types import Dim, at

TRIP = Sym("trip", 0, (1 << 63) - 1)
COUNTER = Kernel(
    "trip",
    (Buffer("counter", i64, (1,), "out"),),
    (Store("counter", (Const(0, i64),), TRIP),),
    "Writes the number of a loop's trip.",
    (TRIP,),
)
"""What gives the body of a loop the number of its trip, which a launch passes on."""
MAX_CAPTURED = 1 << 13  # launches and copies of a run that is replayed as a graph


@dataclass(frozen=True)
class LaunchStep:
    """One launch of the plan: a function, its grid, where its parameters lie and how each is
    accessed ("in", "out", "inout"); `nodes` names the ONNX nodes it computes. The grid and the
    `sizes` that follow the parameters are expressions over the program's sizes, or integers; then
    come maps of tensors."""

    function: str
    grid: Dim
    block: int
    slots: tuple[Slot, ...]
    access: tuple[str, ...]
    nodes: tuple[str, ...] = ()
    shared: int = 0  # bytes of shared memory to ask for
    sizes: tuple[Any, ...] = ()
    maps: tuple[TensorMap, ...] = ()

    def at(self, extent: Callable[[Dim], Dim]) -> LaunchStep:
        """The same launch where numbers over sizes have these values."""
        return replace(
            self, grid=extent(self.grid), sizes=tuple(map(extent, self.sizes)),
            slots=tuple(replace(s, elements=extent(s.elements)) for s in self.slots),
        )  # fmt: skip


def counter_of(loop: While) -> Slot | None:
    """Where the body of a loop reads the number of its trip; None if it does not."""
    counter = loop.counter
    if counter is None or not any(overlap(slot, counter) for slot in walk_slots(loop.body)):
        return None
    return counter


def counts_trips(program: Program) -> bool:
    """Whether the body of a loop reads the number of its trip."""
    return any(counter_of(s) is not None for s in walk(program.steps) if isinstance(s, While))


def has_flow(program: Program) -> bool:
    """Whether a program is more than kernel calls in order."""
    return not all(isinstance(step, Step) for step in program.steps)


def is_captured(steps: Sequence[dict[str, Any]], most: Mapping[str, int]) -> bool:
    """Whether what is done in a run is a graph that can be replayed: nothing is read back to decide
    it, and it is not too much where sizes are the `most` they can be."""
    work = _work(steps, most)
    return work is not None and work <= MAX_CAPTURED


def _work(steps: Sequence[dict[str, Any]], most: Mapping[str, int]) -> int | None:
    """How many launches and copies steps are; None if data decides it."""
    total = 0
    for step in steps:
        loop = step.get("while")
        if loop is None:
            if "if" in step or "count" in step:
                return None
            total += len(step["launch"]) if "launch" in step else 1
            continue
        body, trips = _work(loop["body"], most), loop["trips"]
        if body is None or loop["condition"] or trips is None or isinstance(trips, dict):
            return None
        total += value(trips, most) * (body + (loop["counter"] is not None))
    return total


class Planner:
    """Numbers the launches of steps, `launched` for each call and `counting` for the counter of a
    loop; `steps` then hold what the host does, in the form of the plan."""

    def __init__(
        self, launched: Callable[[Step], list[LaunchStep]],
        counting: Callable[[Slot, While], LaunchStep],
    ):  # fmt: skip
        self.launched, self.counting = launched, counting
        self.launches: list[LaunchStep] = []

    def steps(self, steps: Sequence[AnyStep]) -> list[dict[str, Any]]:
        """What is done for steps; launches that follow one another are one step."""
        made: list[dict[str, Any]] = []
        for step in steps:
            if not isinstance(step, Step):
                made.append(self._around(step))
                continue
            numbers = [self._numbered(launch) for launch in self.launched(step)]
            if made and "launch" in made[-1]:
                made[-1]["launch"] += numbers
            elif numbers:
                made.append({"launch": numbers})
        return made

    def _around(self, step: Copy | While | If | Count) -> dict[str, Any]:
        if isinstance(step, Copy):
            return {"copy": _copy(step)}
        if isinstance(step, While):
            return {"while": self._loop(step)}
        if isinstance(step, If):
            branches = {"then": self.steps(step.then), "else": self.steps(step.orelse)}
            return {"if": {"condition": place(step.condition), **branches}}
        return {"count": {"size": step.size.name, "place": place(step.slot)}}

    def _loop(self, step: While) -> dict[str, Any]:
        counter, trips = counter_of(step), step.trips
        return {
            "trips": place(trips) if isinstance(trips, Slot) else maybe(number, trips),
            "condition": maybe(place, step.condition),
            "counter": None if counter is None else self._numbered(self.counting(counter, step)),
            "body": self.steps(step.body),
        }

    def _numbered(self, launch: LaunchStep) -> int:
        self.launches.append(launch)
        return len(self.launches) - 1


def maybe(made: Callable[[Any], Any], given: Any) -> Any:
    """What is made of something, None of nothing."""
    return None if given is None else made(given)


def _copy(step: Copy) -> dict[str, Any]:
    return {
        "source": place(step.source),
        "target": place(step.target),
        "bytes": number(_nbytes(step.source)),
        "strides": [number(step.source_stride), number(step.target_stride)],
    }


def _nbytes(slot: Slot) -> Dim:
    if isinstance(slot.elements, int):
        return slot.elements * slot.dtype.size
    return at(slot.elements * slot.dtype.size, {})


def place(slot: Slot) -> dict[str, Any]:
    """Where a slot starts."""
    return {"space": slot.space, "index": slot.index, "offset": slot.offset}


def number(dim: Dim) -> Any:
    """A number as the plan has it (see runtime/plan.py)."""
    if not isinstance(dim, Expr):
        return int(dim)
    if isinstance(dim, Const):
        return int(dim.value)
    if isinstance(dim, Sym):
        return dim.name
    if not isinstance(dim, Call) or dim.op.name not in OPERATIONS:
        raise InternalError(f"a launch plan cannot hold {dim}")
    return [dim.op.name, *map(number, dim.args)]
