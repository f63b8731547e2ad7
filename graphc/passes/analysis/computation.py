"""Computations: what strategies compile.

A `Computation` has named input tensors, and outputs whose elements are given by expressions over
their own index in memory order. Ops become computations in compose.py; a strategy gives the
`Lowered` form of one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from copy import copy
from dataclasses import field, replace
from functools import wraps
from typing import Any, TypeVar

from graphc.ir.addresses import flatten_index
from graphc.ir.expr import Expr, Index, cost, free_indices, loads, reduces, substitute
from graphc.ir.kernel import Buffer
from graphc.ir.operations import operations
from graphc.ir.simplify import simplify
from graphc.ir.types import Dim, Shape, TensorType, largest
from graphc.records import dataclass

Result = TypeVar("Result")


@dataclass(frozen=True)
class Output:
    """One output: its buffer (physical shape), its index in memory order, and its element there."""

    buffer: Buffer
    index: tuple[Index, ...]
    expr: Expr

    @property
    def extents(self) -> tuple[Any, ...]:
        return self.buffer.shape


@dataclass(frozen=True)
class Computation:
    """Inputs and outputs. `constants` are the inputs whose contents are known at compile time."""

    inputs: tuple[Buffer, ...]
    outputs: tuple[Output, ...]
    constants: frozenset[str] = frozenset()
    label: str = ""
    memo: dict[Hashable, Any] = field(default_factory=dict, init=False, compare=False, repr=False)

    @property
    def text(self) -> str:
        """All that a computation is, but for its label, in a line that is the same everywhere."""

        def told(buffer: Buffer) -> str:
            const = "const " if buffer.name in self.constants else ""
            return f"{const}{buffer.name}: {buffer.dtype}[{', '.join(map(str, buffer.shape))}]"

        outputs = [f"{told(o.buffer)} at {', '.join(map(str, o.index))} = {o.expr}"
                   for o in self.outputs]  # fmt: skip
        return f"({', '.join(map(told, self.inputs))}): {'; '.join(outputs)}"

    def input(self, name: str) -> Buffer:
        """The input of this name, which there must be."""
        return next(b for b in self.inputs if b.name == name)

    def restricted(self, outputs: Sequence[Output]) -> Computation:
        """The computation of other outputs, less the inputs that these do not read."""
        inputs = buffers_read(self.inputs, (o.expr for o in outputs))
        return replace(self, inputs=tuple(inputs), outputs=tuple(outputs))

    def filling(
        self, buffer: Buffer, index: tuple[Index, ...], contents: Expr, label: str
    ) -> Computation:
        """The computation that fills a temporary, from those inputs that its contents read."""
        output = Output(replace(buffer, access="out"), index, contents)
        return replace(self.restricted([output]), label=label)

    def copied(
        self, name: str, index: tuple[Index, ...], contents: Expr, kind: str = ""
    ) -> tuple[Buffer, Computation]:
        """A temporary that has these contents at its index, and the computation that fills it;
        `kind` is what it is for people."""
        buffer = Buffer(name, contents.dtype, tuple(x.extent for x in index))
        label = f"{kind or name} of {self.label}"
        return buffer, self.filling(buffer, index, simplify(contents), label)

    @property
    def has_one_space(self) -> bool:
        """Whether all outputs have one shape."""
        return len({o.extents for o in self.outputs}) == 1

    def over_loops(self) -> tuple[list[Index], Expr, list[Expr]]:
        """Loops over the one space of the outputs, where in memory their elements go, and these."""
        loops = loop_indices(self.outputs[0].extents)
        exprs = [substitute(o.expr, dict(zip(o.index, loops))) for o in self.outputs]
        return list(loops), flatten_index(loops, self.outputs[0].extents), exprs


def memoised(analysis: Callable[..., Result]) -> Callable[..., Result]:
    """An analysis of computations whose results are kept with them. Each caller gets a copy, with
    lists of its own."""

    @wraps(analysis)
    def known(computation: Computation, *args: Hashable, **options: Hashable) -> Result:
        key = analysis, args, *options.items()
        if key not in computation.memo:
            computation.memo[key] = analysis(computation, *args, **options)
        result = computation.memo[key]
        if isinstance(result, str):
            return result  # type: ignore[return-value]
        own = copy(result)
        for name, value in vars(own).items():
            if isinstance(value, list):
                setattr(own, name, list(value))
        return own

    return known


def physical_buffer(name: str, type: TensorType, access: str) -> Buffer:
    """The buffer of a tensor: its shape in memory order."""
    shape = type.layout.physical(type.dims) if type.layout else type.dims
    return Buffer(name, type.dtype, shape, access)


def buffers_read(buffers: Iterable[Buffer], exprs: Iterable[Expr]) -> list[Buffer]:
    """The buffers from which expressions load."""
    names = {x.source for e in exprs for x in loads(e)}
    return [b for b in buffers if b.name in names]


def flat_buffer(buffer: Buffer) -> Buffer:
    """The same memory as one dimension."""
    return Buffer(buffer.name, buffer.dtype, (buffer.size,), buffer.access)


def index_of(shape: Iterable[Dim]) -> tuple[Index, ...]:
    """An index over a buffer of this shape."""
    return tuple(Index(f"i{n}", extent) for n, extent in enumerate(shape))


def loop_indices(extents: Shape) -> tuple[Index, ...]:
    """Indices of an iteration space, of names that no loop of a KernelBuilder bears.

    Indices of equal name and extent are one: substituting loops for indices must not confuse them.
    """
    return tuple(Index(f"o{d}", extent) for d, extent in enumerate(extents))


def multiply_adds(part: Computation) -> int:
    """The products that the sums of products of a computation add, at the largest sizes."""
    sums = (n for o in part.outputs for n in reduces(o.expr))
    return sum(
        math.prod(largest(x.extent) for x in (*free_indices(node), *node.axes))
        for node in dict.fromkeys(sums)
        if node.factors
    )


def flops(part: Computation) -> int:
    """The arithmetic operations of a computation, for rooflines."""
    return operations(o.expr for o in part.outputs)


def work(part: Computation) -> int:
    """Roughly what a computation takes, in multiply-adds, for deciding when it is done."""
    return sum(
        math.prod(map(largest, o.extents)) * min(cost(o.expr), 1 << 20) for o in part.outputs
    )
