"""Storages: where values, constants and temporaries live before memory is planned.

A value has one storage: a place of its own, or, if it is a view, a piece of the place of another,
its root. Calls of kernels name storages only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field

import numpy as np

from graphc.ir.expr import Sym
from graphc.ir.graph import Value
from graphc.ir.kernel import Buffer
from graphc.ir.types import Dim, elements_of, largest
from graphc.passes.analysis.computation import physical_buffer
from graphc.records import dataclass


@dataclass
class Storage:
    """Where a tensor lives before planning: a root, and the offset of this view of it in bytes.

    Of a root, `live_in` and `live_out` say that it is filled before the first step, and read after
    the last; of an input, `overwritten` that an output may take its place. `within` names the
    storage that it lies in, if it is used in the body of a loop or branch alone: the memory of that
    body.
    """

    name: str
    space: str  # input, output, const, arena
    buffer: Buffer
    index: int = 0
    root: str = ""
    offset: int = 0
    live_in: bool = False
    live_out: bool = False
    overwritten: bool = False
    within: str = ""

    @property
    def nbytes(self) -> int:
        """Of the tensor at the largest sizes."""
        return math.prod(map(largest, self.buffer.shape)) * self.buffer.dtype.size

    @property
    def extent(self) -> Dim:
        """The bytes of the tensor, over sizes."""
        return elements_of((*self.buffer.shape, self.buffer.dtype.size))


@dataclass
class Call:
    """A kernel call on storages by name; `inplace` lists (output, input) that may coincide, and
    `overlaps` (output, input, bytes) that may overlap if they start at most that far apart;
    `touched` says at most how many elements of each argument are read or written, where known."""

    kernel: str
    arguments: tuple[str, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    loc: tuple[str, ...] = ()
    flops: int = 0
    macs: int = 0
    inplace: tuple[tuple[str, str], ...] = ()
    overlaps: tuple[tuple[str, str, int], ...] = ()
    touched: tuple[int | None, ...] = ()


@dataclass
class Move:
    """A copy of a storage into another: see `graphc.ir.program.Copy`. `tokens` stand for the sizes
    that it uses and data decides."""

    source: str
    target: str
    source_stride: Dim = 0
    target_stride: Dim = 0
    source_offset: int = 0
    target_offset: int = 0
    loc: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()


@dataclass
class Tell:
    """Makes what a storage holds the value of a size: see `graphc.ir.program.Count`. What uses the
    size reads `token`, a storage that stands for it being known."""

    size: Sym
    place: str
    token: str
    loc: tuple[str, ...] = ()
    most: Dim | None = None


@dataclass
class Repeat:
    """A loop: see `graphc.ir.program.While`. What its body alone uses lies in the storage
    `memory`; `tokens` stand for the sizes that its trips use and data decides."""

    body: list[AnyCall]
    memory: str
    condition: str | None
    trips: str | Dim | None
    counter: str | None
    loc: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()


@dataclass
class Choice:
    """A branch: see `graphc.ir.program.If`. What its bodies alone use lies in the storage
    `memory`, as they never both run."""

    condition: str
    then: list[AnyCall]
    orelse: list[AnyCall]
    memory: str
    loc: tuple[str, ...] = ()


AnyCall = Call | Move | Tell | Repeat | Choice


def kernel_calls(calls: Sequence[AnyCall]) -> Iterator[Call]:
    """The calls of kernels, those in loops and branches included."""
    for call in calls:
        if isinstance(call, Call):
            yield call
        for body in bodies(call):
            yield from kernel_calls(body)


def bodies(call: AnyCall) -> list[list[AnyCall]]:
    """The lists of calls inside a call."""
    if isinstance(call, Repeat):
        return [call.body]
    return [call.then, call.orelse] if isinstance(call, Choice) else []


def reads(call: AnyCall) -> Iterator[str]:
    """The storages that a call reads, those read in its bodies included."""
    if isinstance(call, Call):
        yield from call.reads
    elif isinstance(call, Move):
        yield from (call.source, *call.tokens)
    elif isinstance(call, Tell):
        yield call.place
    else:
        yield from getattr(call, "tokens", ())
        named = (call.condition, getattr(call, "trips", None))
        yield from (name for name in named if isinstance(name, str))
        counter = getattr(call, "counter", None)  # which the loop itself writes first
        for body in bodies(call):
            for inner in body:
                yield from (name for name in reads(inner) if name != counter)


def writes(call: AnyCall) -> Iterator[str]:
    """The storages that a call writes, those written in its bodies included."""
    if isinstance(call, Call):
        yield from call.writes
    elif isinstance(call, Move):
        yield call.target
    elif isinstance(call, Tell):
        yield call.token
    else:
        yield call.memory
        if isinstance(call, Repeat) and call.counter is not None:
            yield call.counter
        for body in bodies(call):
            for inner in body:
                yield from writes(inner)


@dataclass
class Storages:
    """All storages of a program by name, the names of those of values, and the contents of those
    that are constants, by their number. New ones in the arena lie in the memory `within`."""

    within = ""
    named: dict[str, Storage] = field(default_factory=dict)
    of_value: dict[Value, str] = field(default_factory=dict)
    constants: list[np.ndarray] = field(default_factory=list)

    def __getitem__(self, name: str) -> Storage:
        return self.named[name]

    @contextmanager
    def inside(self, memory: str) -> Iterator[None]:
        """New storages lie in the memory of a loop's or branch's body."""
        before, self.within = self.within, memory
        try:
            yield
        finally:
            self.within = before

    def temporary(self, buffer: Buffer, space: str = "arena", index: int = 0) -> str:
        """A storage of no value."""
        name = self._fresh()
        within = self.within if space == "arena" else ""
        self.named[name] = Storage(name, space, buffer, index, name, within=within)
        return name

    def define(self, value: Value, space: str, index: int = 0) -> str:
        """Gives a value a storage of its own."""
        buffer = physical_buffer(self._fresh(), value.tensor, "")
        self.of_value[value] = self.temporary(buffer, space, index)
        return self.of_value[value]

    def alias(self, value: Value, source: str, offset: int) -> None:
        """Makes a value a view of a storage, so many bytes after its start."""
        buffer = physical_buffer("", value.tensor, "")
        self.of_value[value] = self.part(source, buffer, offset)

    def part(self, whole: str, buffer: Buffer, offset: int) -> str:
        """A storage that is a part of another, so many bytes after its start."""
        base, name = self[whole], self._fresh()
        self.named[name] = Storage(
            name, base.space, buffer, base.index, base.root, base.offset + offset
        )
        return name

    def of(self, value: Value) -> str:
        """The storage of a value: that of a constant, or one in the arena, if it has none yet."""
        if value not in self.of_value:
            if value.constant is None:
                self.define(value, "arena")
            else:
                layout = value.tensor.layout
                array = value.constant.transpose(layout.order) if layout else value.constant
                self.define(value, "const", self.add_constant(array))
        return self.of_value[value]

    def add_constant(self, array: np.ndarray) -> int:
        """The number of a new constant, kept row-major."""
        self.constants.append(np.ascontiguousarray(array).reshape(np.shape(array)))
        return len(self.constants) - 1

    def contents(self, name: str) -> np.ndarray:
        """What a storage of a constant holds."""
        return self.constants[self[name].index]

    def _fresh(self) -> str:
        return f"s{len(self.named)}"
