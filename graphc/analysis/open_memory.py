"""The memory of a program of open shape, as a function of its sizes, and at most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphc.analysis.memory import arena_use
from graphc.analysis.text import nbytes, table
from graphc.ir.dtypes import i64
from graphc.ir.expr import Expr, as_expr
from graphc.ir.program import Program, Slot, at_sizes, walk_slots
from graphc.ir.simplify import simplify
from graphc.ir.types import TensorType, largest

ROWS = 6  # of the table


@dataclass(frozen=True)
class MemoryAt:
    """Bytes at some values of the sizes: of the inputs, of the outputs, of the arena that a run
    reads or writes, and of what is live in it at once at most."""

    sizes: tuple[int, ...]
    inputs: int
    outputs: int
    touched: int
    live: int


def memory_at(program: Program, sizes: Sequence[int]) -> MemoryAt:
    """The memory of a run at these values of a program's sizes."""
    static = at_sizes(program, sizes)
    inputs, outputs = (
        sum(t.nbytes for _, t in tensors) for tensors in (static.inputs, static.outputs)
    )
    live = max(arena_use(static).live, default=0)
    return MemoryAt(tuple(sizes), inputs, outputs, _touched(static), live)


def _touched(program: Program) -> int:
    """The bytes of the arena that any slot covers."""
    slots = [slot for slot in walk_slots(program.steps) if slot.space == "arena"]
    covered = end = 0
    for start, stop in sorted(_range(slot) for slot in slots):
        covered += max(stop - max(start, end), 0)
        end = max(end, stop)
    return covered


def _range(slot: Slot) -> tuple[int, int]:
    return slot.offset, slot.offset + slot.elements * slot.dtype.size


def interface_bytes(tensors: Sequence[tuple[str, TensorType]]) -> Expr:
    """The bytes of inputs or outputs, an expression over the sizes."""
    parts = [as_expr(t.count, i64) * t.dtype.size for _, t in tensors]
    return simplify(sum(parts, as_expr(0, i64)))


def live_bytes(program: Program) -> Expr:
    """The bytes of the tensors that are live where most are at the largest sizes, an expression
    over the sizes: of tensors at one place the one that is made last."""
    use = arena_use(at_sizes(program, [largest(size) for size in program.all_sizes]))
    if not use.live:
        return as_expr(0, i64)
    peak = use.live.index(max(use.live))
    counts = {
        (number, slot.offset): as_expr(slot.elements, i64) * slot.dtype.size
        for number, step in enumerate(program.calls)
        for slot in step.slots
        if slot.space == "arena"
    }
    live = {t.offset: t for t in reversed(use.tensors) if t.first <= peak <= t.last}
    parts = [counts[t.first, t.offset] for t in live.values() if (t.first, t.offset) in counts]
    return simplify(sum(parts, as_expr(0, i64)))


def rows_of(program: Program) -> list[tuple[int, ...]]:
    """Values of the sizes from the least to the largest, each a few times the one before."""
    ranges = [(size.lo, largest(size)) for size in program.all_sizes]
    rows = [
        tuple(round(max(low, 1) * (high / max(low, 1)) ** (n / (ROWS - 1))) for low, high in ranges)
        for n in range(ROWS)
    ]
    return list(dict.fromkeys(rows))


def open_memory(program: Program) -> str:
    """A table of the memory at some sizes up to the largest, and what it is as a function of the
    sizes."""
    lines: list[tuple[str, ...]] = [("where", "inputs", "outputs", "arena touched", "live at most")]
    for sizes in rows_of(program):
        at = memory_at(program, sizes)
        where = ", ".join(f"{s.name} = {n}" for s, n in zip(program.all_sizes, sizes))
        lines.append((where, *map(nbytes, (at.inputs, at.outputs, at.touched, at.live))))
    return "\n".join(
        [
            "memory by sizes (the arena is that of the largest; pages that no run touches cost "
            "nothing):",
            table(lines),
            f"bytes of inputs: {interface_bytes(program.inputs)}; of outputs: "
            f"{interface_bytes(program.outputs)}",
            f"live bytes, where they are most at the largest sizes: {live_bytes(program)}",
        ]
    )
