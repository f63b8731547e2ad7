"""Computations: what strategies compile.

A `Computation` has named input tensors, and outputs whose elements are given by expressions over
their own index in memory order. Ops become computations in compose.py; a strategy gives the
`Lowered` form of one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from graphc.ir.addresses import flatten_index
from graphc.ir.expr import (
    Expr,
    Index,
    Reduce,
    cost,
    free_indices,
    loads,
    substitute,
    walk,
)
from graphc.ir.kernel import Buffer
from graphc.ir.operations import operations
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


def multiply_adds(part: Computation) -> int:
    """The products that the sums of products of a computation add."""
    sums = (n for o in part.outputs for n in walk(o.expr) if isinstance(n, Reduce))
    return sum(
        math.prod(x.count for x in (*free_indices(node), *node.axes))
        for node in dict.fromkeys(sums)
        if node.factors
    )


def flops(part: Computation) -> int:
    """The arithmetic operations of a computation, for rooflines."""
    return operations(o.expr for o in part.outputs)


def work(part: Computation) -> int:
    """Roughly what a computation takes, in multiply-adds, for deciding when it is done."""
    return sum(math.prod(o.extents) * min(cost(o.expr), 1 << 20) for o in part.outputs)
