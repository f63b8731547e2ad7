"""Computations: what strategies compile.

A `Computation` has named input tensors, and outputs whose elements are given by expressions over
their own index in memory order. Ops become computations in compose.py; a strategy gives the
`Lowered` form of one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from graphc.ir.addresses import flatten_index
from graphc.ir.expr import (
    Call,
    Expr,
    Index,
    Load,
    Reduce,
    cost,
    free_indices,
    loads,
    substitute,
    walk,
)
from graphc.ir.kernel import Buffer, Kernel
from graphc.ir.operations import operations
from graphc.ir.simplify import simplify
from graphc.ir.types import TensorType


@dataclass(frozen=True)
class Output:
    """One output: its buffer (physical shape), its index in memory order, and its element there."""

    buffer: Buffer
    index: tuple[Index, ...]
    expr: Expr

    @property
    def extents(self) -> tuple[int, ...]:
        return self.buffer.shape  # type: ignore[return-value]


@dataclass(frozen=True)
class Computation:
    """Inputs and outputs. `constants` are the inputs whose contents are known at compile time."""

    inputs: tuple[Buffer, ...]
    outputs: tuple[Output, ...]
    constants: frozenset[str] = frozenset()
    label: str = ""

    def input(self, name: str) -> Buffer:
        """The input of this name, which there must be."""
        return next(b for b in self.inputs if b.name == name)

    def restricted(self, outputs: Sequence[Output]) -> Computation:
        """The computation of other outputs, less the inputs that these do not read."""
        read = {x.source for o in outputs for x in loads(o.expr)}
        inputs = tuple(b for b in self.inputs if b.name in read)
        return replace(self, inputs=inputs, outputs=tuple(outputs))

    def filling(
        self, buffer: Buffer, index: tuple[Index, ...], contents: Expr, label: str
    ) -> Computation:
        """The computation that fills a temporary, from those inputs that its contents read."""
        output = Output(replace(buffer, access="out"), index, contents)
        return replace(self.restricted([output]), label=label)

    @property
    def has_one_space(self) -> bool:
        """Whether all outputs have one shape."""
        return len({o.extents for o in self.outputs}) == 1

    def over_loops(self) -> tuple[list[Index], Expr, list[Expr]]:
        """Loops over the one space of the outputs, where in memory their elements go, and these."""
        loops = loop_indices(self.outputs[0].extents)
        exprs = [substitute(o.expr, dict(zip(o.index, loops))) for o in self.outputs]
        return list(loops), flatten_index(loops, self.outputs[0].extents), exprs


def physical_buffer(name: str, type: TensorType, access: str) -> Buffer:
    """The buffer of a tensor: its shape in memory order."""
    shape = type.layout.physical(type.static_shape) if type.layout else type.static_shape
    return Buffer(name, type.dtype, shape, access)


def flat_buffer(buffer: Buffer) -> Buffer:
    """The same memory as one dimension."""
    return Buffer(buffer.name, buffer.dtype, (math.prod(buffer.shape),), buffer.access)  # type: ignore


def loop_indices(extents: Sequence[int]) -> tuple[Index, ...]:
    """Indices of an iteration space, of names that no loop of a KernelBuilder bears.

    Indices of equal name and extent are one: substituting loops for indices must not confuse them.
    """
    return tuple(Index(f"o{d}", extent) for d, extent in enumerate(extents))


@dataclass
class Lowered:
    """What a strategy returns: computations to run first (each filling a temporary), and a kernel.

    The outputs of `prepare`, in order, are the first of `temporaries`, which later preparations may
    read; a preparation that reads only constants is done at compile time. Other temporaries are
    filled by the kernels of `before`, which run after the preparations, in order. `inplace` lists
    (output, input) buffers that may share their memory. `flops`, and `read`, at most how many
    elements of a buffer are read, where that is known, are for rooflines.
    """

    kernel: Kernel
    prepare: list[Computation] = field(default_factory=list)
    temporaries: list[Buffer] = field(default_factory=list)
    before: list[Kernel] = field(default_factory=list)
    inplace: list[tuple[str, str]] = field(default_factory=list)
    flops: int = 0
    read: Mapping[str, int] = field(default_factory=dict)


def multiply_adds(part: Computation) -> int:
    """The products that the sums of products of a computation add."""
    sums = (n for o in part.outputs for n in walk(o.expr) if isinstance(n, Reduce))
    return sum(
        math.prod(x.count for x in (*free_indices(node), *node.axes))
        for node in dict.fromkeys(sums)
        if node.op == "sum" and isinstance(node.body, Call) and node.body.op.name == "mul"
    )


def in_place(part: Computation) -> list[tuple[str, str]]:
    """Inputs that are read only at the very element that is being stored, by the only output.

    An output of the same element size may then take the input's place.
    """
    if len(part.outputs) != 1:
        return []
    output = part.outputs[0]
    here = flatten_index(output.index, output.extents)
    reads: dict[str, list[Load]] = {}
    for load in loads(output.expr):
        reads.setdefault(load.source, []).append(load)
    found = []
    for buffer in part.inputs:
        if buffer.dtype.size != output.buffer.dtype.size:
            continue
        if all(flatten_index(x.index, buffer.shape) is here for x in reads.get(buffer.name, ())):
            found.append((output.buffer.name, buffer.name))
    return found


def in_place_of_epilogue(
    output: Buffer, offset: Expr, epilogue: Sequence[Load], inputs: Iterable[Buffer],
    operands: Set[str],
) -> list[tuple[str, str]]:  # fmt: skip
    """As `in_place`, of flat loads: inputs that an epilogue alone reads, not what it is of (the
    `operands`), at the very offset that is stored."""
    found = []
    for buffer in inputs:
        reads = [x for x in epilogue if x.source == buffer.name]
        here = all(simplify(x.index[0]) is simplify(offset) for x in reads)
        same_size = buffer.dtype.size == output.dtype.size
        if reads and here and same_size and buffer.name not in operands:
            found.append((output.name, buffer.name))
    return found


def flops(part: Computation) -> int:
    """The arithmetic operations of a computation, for rooflines."""
    return operations(o.expr for o in part.outputs)


def work(part: Computation) -> int:
    """Roughly what a computation takes, in multiply-adds, for deciding when it is done."""
    return sum(math.prod(o.extents) * min(cost(o.expr), 1 << 20) for o in part.outputs)
