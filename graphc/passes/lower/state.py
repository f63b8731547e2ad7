"""State: what lasts from one run of a program to the next, and its replacement in place.

A parameter of the graph that is state lies in memory of its own. What replaces it is computed there
directly if one kernel computes it, which may overwrite what it reads (at the same element, or, in
loops in order, at an earlier one: a window that moves on), and nothing reads the old contents
afterwards. Else it is computed in the arena, and copied at the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from graphc.ir.graph import Graph, Value
from graphc.passes.lower.storages import AnyCall, Call, Move, Storages, reads, writes
from graphc.records import dataclass


@dataclass
class State:
    """The state of a graph: its parameters in order, and by their position what replaces them."""

    params: list[Value] = field(default_factory=list)
    results: dict[int, Value] = field(default_factory=dict)
    positions: frozenset[int] = frozenset()

    @staticmethod
    def of(graph: Graph, given: Mapping[int, int | None] | Mapping[str, str]) -> State:
        """Given the parameters, by number or name, with the results that replace them."""
        inputs = {param.name: n for n, param in enumerate(graph.params)}
        outputs = {name: n for n, (name, _) in enumerate(graph.named_results())}
        wanted = {
            inputs[key] if isinstance(key, str) else key:
            outputs[result] if isinstance(result, str) else result
            for key, result in given.items()
        }  # fmt: skip
        numbers = [n for n in wanted.values() if n is not None]
        results = {
            position: graph.results[number]
            for position, number in enumerate(wanted.values()) if number is not None
        }  # fmt: skip
        return State([graph.params[n] for n in wanted], results, frozenset(numbers))

    def define(self, storages: Storages) -> None:
        """Gives the parameters their memory."""
        for position, value in enumerate(self.params):
            place = storages[storages.define(value, "state", position)]
            place.live_in = place.live_out = True


def replace_state(state: State, stored: Mapping[int, str], lowering_calls: list[AnyCall],
                  storages: Storages) -> None:  # fmt: skip
    """Has the memory of each parameter hold what replaces it, which lies in `stored`."""
    for position, name in stored.items():
        old = storages.of_value[state.params[position]]
        if storages[name].root == old and storages[name].offset == 0:
            continue
        if _can_replace(name, old, lowering_calls, storages):
            for storage in storages.named.values():
                if storage.root == name:
                    storage.space, storage.index, storage.root = "state", position, old
        else:
            lowering_calls.append(Move(name, old))


def _can_replace(new: str, old: str, calls: list[AnyCall], storages: Storages) -> bool:
    """Whether one storage may lie in the memory of another."""
    place = storages[new]
    own = (place.space, place.root, place.within, place.live_out) == ("arena", new, "", False)
    if not own or place.nbytes != storages[old].nbytes:
        return False

    def of(names: object, root: str) -> list[str]:
        return [n for n in names if storages[n].root == root]  # type: ignore[attr-defined]

    writers = [number for number, call in enumerate(calls) if of(writes(call), new)]
    if len(writers) != 1:
        return False
    number, writer = writers[0], calls[writers[0]]
    if any(of(reads(call), old) or of(writes(call), old) for call in calls[number + 1 :]):
        return False
    read = of(reads(writer), old)
    if not isinstance(writer, Call):
        return False
    over = {(out, into) for out, into, most in writer.overlaps if most >= 0}
    over.update(writer.inplace)
    return all((new, name) in over and storages[name].offset == 0 for name in read)
