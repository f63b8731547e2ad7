"""Outputs over inputs: what takes the place of an input that nothing reads afterwards.

A caller may have an output in the memory of an input: parameters that a training step updates, say.
A kernel that reads an input at the very element that it stores may write over it, if it comes after
all others that read the input. Calls are put into such an order, which is kept by having the kernel
write the input as well, in what the planner of memory is told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from graphc.passes.lower.storages import AnyCall, Call, Storages, reads, writes


def behind_readers(calls: Sequence[AnyCall], storages: Storages, space: str) -> list[AnyCall]:
    """The calls in an order in which those that could replace something of a space ("input" or
    "state") come after all others that read it. Calls move if nothing else reads or writes what
    they write, and only over calls that leave what they read as it is."""
    last: dict[str, int] = {}
    changed: dict[str, int] = {}
    written: Counter[str] = Counter()
    for number, call in enumerate(calls):
        last.update((storages[name].root, number) for name in reads(call))
        changed.update((storages[name].root, number) for name in writes(call))
        written.update({storages[name].root for name in writes(call)})

    def place(number: int, call: AnyCall) -> tuple[int, bool]:
        stays = number, False
        roots = {storages[name].root for name in writes(call)}
        if not isinstance(call, Call) or any(r in last or written[r] > 1 for r in roots):
            return stays
        if any(changed.get(storages[name].root, -1) > number for name in call.reads):
            return stays
        replaced = [into for _, into in call.inplace if _is_whole(into, space, storages)]
        behind = max((last[into] for into in replaced), default=number)
        return (behind, True) if behind > number else stays

    return [call for _, call in sorted(enumerate(calls), key=lambda pair: place(*pair))]


def over_inputs(calls: Sequence[AnyCall], storages: Storages) -> dict[int, tuple[int, ...]]:
    """The outputs that may lie over inputs, by number, with these inputs. Marks the inputs, and
    adds them to what calls write."""
    last: dict[str, int] = {}
    written: Counter[str] = Counter()
    for number, call in enumerate(calls):
        last.update((storages[name].root, number) for name in reads(call))
        written.update(storages[name].root for name in writes(call))
    over: dict[int, tuple[int, ...]] = {}
    for number, call in enumerate(calls):
        if not isinstance(call, Call):
            continue
        pairs = [
            (out, into)
            for out, into in call.inplace
            if _is_whole(out, "output", storages) and _is_whole(into, "input", storages)
            and written[out] == 1 and last[into] == number
            and storages[out].nbytes == storages[into].nbytes
        ]  # fmt: skip
        for out, into in pairs:
            position = storages[out].index
            over[position] = (*over.get(position, ()), storages[into].index)
            storages[into].overwritten = True
        call.writes += tuple(dict.fromkeys(into for _, into in pairs))
    return over


def _is_whole(name: str, space: str, storages: Storages) -> bool:
    """Whether a storage is a whole input or output."""
    storage = storages[name]
    return storage.space == space and storage.root == name and storage.offset == 0
