"""Verifies programs; each violation is an InternalError that names the step.

Steps name kernels and fit their parameters; slots are aligned and lie inside their storage; nothing
is read before it is written, or after something else has been written over it, and every output is
written in full. What a loop writes counts as written after it if it has a known number of trips, at
least one, and no condition; rows that it stacks count anyway, as a size tells how many there are.
What a branch writes counts if both sides write it. A program of open shape is verified at its least
and largest sizes, and at a few between. A size that data decides is made once, outside loops and
branches, before the steps that use it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn

from graphc.errors import InternalError
from graphc.ir import dtypes
from graphc.ir.dtypes import DType, boolean, i64
from graphc.ir.expr import Sym, as_expr, symbols
from graphc.ir.kernel import Buffer, Kernel, with_sizes
from graphc.ir.program import (
    AnyStep,
    Copy,
    Count,
    If,
    Program,
    Slot,
    Step,
    While,
    at_sizes,
    dims_of,
    possible,
    walk,
)
from graphc.ir.text.steps import slot_text
from graphc.ir.trials import trials
from graphc.ir.verify.kernels import verify_kernel
from graphc.ir.verify.overlap import overwrites


def verify_program(program: Program) -> None:
    """Raises InternalError, naming the step, if the program or a kernel breaks a rule."""
    for name, kernel in program.kernels.items():
        if kernel.name != name:
            raise InternalError(f"program @{program.name}: @{kernel.name} is filed as {name!r}")
        verify_kernel(kernel)
    _verify_counts(program)
    if not program.all_sizes:
        _ProgramVerifier(program).run()
    for values in trials(program.all_sizes, corners=2):
        static = at_sizes(program, possible(program, values))
        for kernel in static.kernels.values():
            verify_kernel(kernel)
        _ProgramVerifier(static).run()


def _verify_counts(program: Program) -> None:
    """Verifies that each size that data decides is made once, before it is used."""
    where = f"program @{program.name}"
    known, counts = set(program.sizes), set(program.counts)
    for number, step in enumerate(program.steps):
        for inner in walk([step]):
            if isinstance(inner, Count):
                if inner is not step:
                    raise InternalError(f"{where}: step {number}: a count in a loop or a branch")
                if inner.size in known:
                    raise InternalError(f"{where}: step {number}: {inner.size} is counted twice")
                if isinstance(inner.size, Sym):
                    known.add(inner.size)
            used = {s for dim in dims_of(inner) for s in symbols(as_expr(dim))}
            if used & counts - known:
                names = ", ".join(sorted(size.name for size in used & counts - known))
                raise InternalError(f"{where}: step {number} uses {names} before it is counted")


class _ProgramVerifier:
    def __init__(self, program: Program):
        self.program = program
        self.sizes = {("arena", 0): program.arena_bytes}
        for space, types in (("input", program.inputs), ("output", program.outputs),
                             ("state", program.state)):  # fmt: skip
            self.sizes.update(((space, k), type.nbytes) for k, (_, type) in enumerate(types))
        for k, array in enumerate(program.constants):
            self.sizes["const", k] = array.size * dtypes.of(array.dtype).size
        self.written: dict[tuple[str, int], list[tuple[int, int]]] = {}
        self.where = f"program @{program.name}"

    def fail(self, message: str) -> NoReturn:
        raise InternalError(f"{self.where}: {message}")

    def run(self) -> None:
        for (side, _), slot in self.program.resident.items():
            if side == "input":
                self.write(slot)
        self.steps(self.program.steps, f"program @{self.program.name}: ")
        self.where = f"program @{self.program.name}"
        for k, (name, type) in enumerate(self.program.outputs):
            usual = Slot("output", k, 0, type.dtype, type.nbytes // type.dtype.size)
            place = self.program.resident.get(("output", k), usual)
            if not self.covers(place.space, place.index, *_range(place)):
                self.fail(f"output {name} is not written in full")

    def steps(self, steps: Sequence[AnyStep], where: str, trips: int | None = None) -> None:
        """Verifies steps, of a loop's body if they are run `trips` times."""
        for number, step in enumerate(steps):
            loc = f" ({', '.join(step.loc)})" if step.loc else ""
            name = f"@{step.kernel}" if isinstance(step, Step) else type(step).__name__.lower()
            self.where = f"{where}step {number}, {name}{loc}"
            if isinstance(step, Step):
                self.step(step)
            elif isinstance(step, Copy):
                self.copy(step, trips)
            elif isinstance(step, Count):
                self.one(step.slot, i64)
            elif isinstance(step, While):
                self.loop(step)
            else:
                self.branch(step)

    def copy(self, step: Copy, trips: int | None) -> None:
        source, target = (
            self.walked(step.source, step.source_stride, trips),
            self.walked(step.target, step.target_stride, trips),
        )
        if _nbytes(step.source) != _nbytes(step.target):
            self.fail(f"copies {_nbytes(step.source)} bytes into {_nbytes(step.target)}")
        self.inside(source, "its source", False)
        self.inside(target, "its target", True)
        if (step.source_stride or step.target_stride) and step.overlaps:
            self.fail(f"copies {slot_text(source)} over itself")
        self.read(source, "its source")
        self.write(step.target)

    def walked(self, slot: Slot, stride: int, trips: int | None) -> Slot:
        """What a slot that moves on by a stride covers in all trips."""
        if not stride:
            return slot
        if trips is None:
            self.fail("a copy moves on with trips whose number is not known")
        if not trips:
            return replace(slot, offset=0, elements=0)
        more = stride * (trips - 1)
        elements = slot.elements + abs(more) // slot.dtype.size
        return replace(slot, offset=slot.offset + min(more, 0), elements=elements)

    def loop(self, step: While) -> None:
        where = self.where
        for slot, dtype in ((step.condition, boolean), (step.trips, i64)):
            if isinstance(slot, Slot):
                self.one(slot, dtype)
        trips = step.trips if isinstance(step.trips, int) else None
        before = self.copied()
        if step.counter is not None:
            self.inside(step.counter, "the counter", True)
            self.write(step.counter)
        self.steps(step.body, where + ": ", trips)
        self.where = where
        if step.condition is not None:
            self.one(step.condition, boolean)
        if step.condition is not None or not trips:
            self.written = before  # as there may be no trip
        for inner in step.body:
            if isinstance(inner, Copy) and trips and (inner.target_stride or not step.condition):
                self.write(self.walked(inner.target, inner.target_stride, trips))

    def branch(self, step: If) -> None:
        where, before = self.where, self.copied()
        self.one(step.condition, boolean)
        self.steps(step.then, where + ": then ")
        then, self.written = self.written, before
        self.steps(step.orelse, where + ": else ")
        self.where = where
        self.written = {
            key: [
                (max(a, c), min(b, d))
                for a, b in then.get(key, [])
                for c, d in ranges
                if max(a, c) < min(b, d)
            ]
            for key, ranges in self.written.items()
        }

    def copied(self) -> dict[tuple[str, int], list[tuple[int, int]]]:
        return {key: list(ranges) for key, ranges in self.written.items()}

    def one(self, slot: Slot, dtype: DType) -> None:
        """Verifies that a slot holds one element of a type."""
        if slot.dtype is not dtype or slot.elements != 1:
            self.fail(f"{slot_text(slot)} is read as one {dtype}")
        self.inside(slot, slot_text(slot), False)
        self.read(slot, "it")

    def read(self, slot: Slot, what: str) -> None:
        if slot.space in ("arena", "output"):
            if not self.covers(slot.space, slot.index, *_range(slot)):
                self.fail(f"{what} reads {slot_text(slot)} before it is written")

    def step(self, step: Step) -> None:
        kernel = self.program.kernels.get(step.kernel)
        if kernel is None:
            self.fail("no such kernel")
        if len(step.slots) != len(kernel.params):
            self.fail(f"{len(step.slots)} slots for {len(kernel.params)} parameters")
        kernel = self.specialised(kernel, step.sizes)
        pairs = list(zip(kernel.params, step.slots))
        for buffer, slot in pairs:
            self.slot(buffer, slot)
        for position, pair in enumerate(pairs):
            for other in pairs[position + 1 :]:
                if "out" in (pair[0].access, other[0].access):
                    self.overlap(kernel, pair, other)
        for buffer, slot in pairs:
            if buffer.access == "in":
                self.read(slot, buffer.name)
        for buffer, slot in pairs:
            if buffer.access != "in":
                self.write(slot)

    def specialised(self, kernel: Kernel, values: tuple[int, ...]) -> Kernel:
        """The kernel as it is called, verified."""
        if len(values) != len(kernel.sizes):
            self.fail(f"{len(values)} values for {len(kernel.sizes)} sizes")
        for size, value in zip(kernel.sizes, values):
            if value < size.lo or size.hi is not None and value > size.hi:
                self.fail(f"size {size.name} is {value}, not in {size.lo}..{size.hi}")
        if values:
            kernel = with_sizes(kernel, values)
            verify_kernel(kernel)
        return kernel

    def slot(self, buffer: Buffer, slot: Slot) -> None:
        text = f"{buffer.name} at {slot_text(slot)}"
        if (slot.space, slot.index) not in self.sizes:
            self.fail(f"{text}: there is no {slot.space} {slot.index}")
        if slot.dtype is not buffer.dtype:
            self.fail(f"{text}: the kernel takes {buffer.dtype}")
        elements = math.prod(buffer.shape)  # type: ignore[arg-type]
        if slot.elements < elements:
            self.fail(f"{text}: the kernel takes {elements} elements")
        self.inside(slot, text, buffer.access != "in")

    def inside(self, slot: Slot, text: str, is_written: bool) -> None:
        """Verifies that a slot is aligned, and lies in its space."""
        size = self.sizes.get((slot.space, slot.index))
        if size is None:
            self.fail(f"{text}: there is no {slot.space} {slot.index}")
        start, end = _range(slot)
        if start < 0 or end > size:
            self.fail(f"{text}: bytes {start}..{end} do not lie in 0..{size}")
        if start % slot.dtype.size:
            self.fail(f"{text}: not a multiple of {slot.dtype.size} bytes")
        if is_written and slot.space in ("input", "const"):
            self.fail(f"{text}: written, but read-only")

    def overlap(self, kernel: Kernel, one: tuple[Buffer, Slot], two: tuple[Buffer, Slot]) -> None:
        """Two operands, one of them an output, may share memory from the same start on, or if the
        output trails behind what is read of the input."""
        (buffer, slot), (other_buffer, other) = one, two
        if (slot.space, slot.index) != (other.space, other.index):
            return
        (a, b), (c, d) = _range(slot), _range(other)
        if max(a, c) >= min(b, d) or a == c and buffer.access != other_buffer.access:
            return
        text = f"{buffer.name} and {other_buffer.name} overlap in {slot_text(slot)}"
        if {buffer.access, other_buffer.access} != {"in", "out"}:
            self.fail(text)
        if buffer.access == "out":
            (buffer, a), (other_buffer, c) = (other_buffer, c), (buffer, a)
        reason = overwrites(kernel, other_buffer, buffer, c - a)
        if reason:
            self.fail(f"{text}: {reason}")

    def covers(self, space: str, index: int, start: int, end: int) -> bool:
        ranges = self.written.get((space, index), [])
        return start == end or any(a <= start and end <= b for a, b in ranges)

    def write(self, slot: Slot) -> None:
        start, end = _range(slot)
        kept = []
        for a, b in self.written.get((slot.space, slot.index), []):
            if b < start or end < a:
                kept.append((a, b))
            else:
                start, end = min(a, start), max(b, end)
        self.written[slot.space, slot.index] = [*kept, (start, end)]


def _range(slot: Slot) -> tuple[int, int]:
    return slot.offset, slot.offset + _nbytes(slot)


def _nbytes(slot: Slot) -> int:
    return slot.elements * slot.dtype.size
