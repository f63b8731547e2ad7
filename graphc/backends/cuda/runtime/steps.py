"""The steps of a plan with control flow, done in order.

The host runs loops and branches. It waits for the device where data decides how they go on: what a
condition, a number of trips or a size is, is read back. A loop whose number of trips is known, and
which has no condition, reads nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from .plan import value

Place = tuple[str, int, int]  # space, number, offset in bytes
Step = Mapping[str, Any]
BOOL, I64 = 1, 8  # bytes


class Machine(Protocol):
    """What does the steps, one after another."""

    def launch(self, numbers: Sequence[int], known: Mapping[str, int], *further: int) -> None:
        """Launches kernels of the plan, one after another, where sizes are known, with further
        numbers after their own."""

    def copy(self, target: Place, source: Place, nbytes: int) -> None:
        """Copies within the memory of the machine."""

    def read(self, place: Place, nbytes: int) -> int:
        """An integer, or a bool, once all that was asked for is done."""


def perform(steps: Sequence[Step], known: dict[str, int], machine: Machine, trip: int = 0) -> None:
    """Does steps, directly in the body of a loop those of a trip. Sizes that data decides join the
    `known` ones."""
    for step in steps:
        ((kind, what),) = step.items()
        if kind == "launch":
            machine.launch(what, known)
        elif kind == "copy":
            back, on = (value(stride, known) * trip for stride in what["strides"])
            source, target = place(what["source"], back), place(what["target"], on)
            machine.copy(target, source, value(what["bytes"], known))
        elif kind == "while":
            _repeat(what, known, machine)
        elif kind == "if":
            holds = machine.read(place(what["condition"]), BOOL)
            perform(what["then" if holds else "else"], known, machine)
        else:
            known[what["size"]] = machine.read(place(what["place"]), I64)


def _repeat(loop: Step, known: dict[str, int], machine: Machine) -> None:
    trips, condition, counter = loop["trips"], loop["condition"], loop["counter"]
    if isinstance(trips, Mapping):
        trips = machine.read(place(trips), I64)
    elif trips is not None:
        trips = value(trips, known)
    trip = 0
    while trips is None or trip < trips:
        if condition is not None and not machine.read(place(condition), BOOL):
            break
        if counter is not None:
            machine.launch([counter], known, trip)
        perform(loop["body"], known, machine, trip)
        trip += 1


def place(entry: Mapping[str, Any], further: int = 0) -> Place:
    """A place of the plan, so many bytes further."""
    return entry["space"], entry["index"], entry["offset"] + further
