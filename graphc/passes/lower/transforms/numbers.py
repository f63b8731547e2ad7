"""Numbers as operands: computations that differ in numbers alone become one, which reads them.

Layers of a quantised model have scales and zero points of their own, which are numbers in what they
compute. Each layer would have a kernel of its own. This transform finds such numbers: constants
that are added to, multiplied with or compared with data. Where computations are equal but for
these, the numbers that differ become elements of constants, one constant for each type. Every
computation of the family gets its own contents. Numbers that are the same everywhere stay numbers.

Left alone are numbers in reductions (strategies take zero points out of sums of products), numbers
in indices, and numbers that decide what code is made: shifts, divisors of integers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field, replace

import numpy as np

from graphc.ir.dtypes import DType, boolean, i32, i64
from graphc.ir.expr import Call, Const, Expr, Index, Load, cast
from graphc.ir.kernel import Buffer
from graphc.passes.analysis.computation import Computation
from graphc.records import dataclass

DATA = ("add", "sub", "mul", "min", "max", "fma")  # operations whose numbers may be any
OF_FLOATS = (*DATA, "div")

Hole = Callable[[Const], Expr]


@dataclass(frozen=True)
class Numbered:
    """A computation, and the contents of those of its inputs that are numbers."""

    computation: Computation
    numbers: dict[str, np.ndarray] = field(default_factory=dict)


def with_numbers_read(computations: Sequence[Computation]) -> list[Numbered]:
    """The computations, in order, those of a family with their numbers as inputs."""
    families: dict[Computation, list[int]] = {}
    holes: list[list[Const]] = []
    known: dict[int, tuple[Computation, list[Const]]] = {}  # by identity: layers share them
    for n, computation in enumerate(computations):
        if id(computation) not in known:
            known[id(computation)] = _skeleton(computation)
        skeleton, numbers = known[id(computation)]
        families.setdefault(skeleton, []).append(n)
        holes.append(numbers)
    result = [Numbered(computation) for computation in computations]
    for members in families.values():
        different = {computations[n]: n for n in members}
        if len(different) > 1:
            layout = _Layout(list(zip(*(holes[n] for n in members))))
            for n in members:
                result[n] = layout.numbered(computations[n])
    return result


def _skeleton(computation: Computation) -> tuple[Computation, list[Const]]:
    """A computation with places for its numbers, and these, in order."""
    numbers: list[Const] = []

    def place(const: Const) -> Expr:
        numbers.append(const)
        return Load("number", (Const(len(numbers) - 1, i64),), const.dtype)

    return _rebuilt(computation, place), numbers


class _Layout:
    """Where the numbers of a family lie. Its columns are the numbers in one place of every member;
    those of 64 bits that fit into 32 take no more, so that a product stays one of halves."""

    def __init__(self, columns: Sequence[tuple[Const, ...]]):
        self.places: list[tuple[DType, int] | None] = []
        self.counts: dict[DType, int] = {}
        for column in columns:
            if all(const is column[0] for const in column):
                self.places.append(None)
                continue
            dtype = i32 if column[0].dtype is i64 and all(map(_fits, column)) else column[0].dtype
            self.places.append((dtype, self.counts.setdefault(dtype, 0)))
            self.counts[dtype] += 1

    def numbered(self, computation: Computation) -> Numbered:
        """A member of the family with the numbers that differ as inputs."""
        contents = {d: np.zeros(count, d.np) for d, count in self.counts.items()}
        places = iter(self.places)

        def read(const: Const) -> Expr:
            place = next(places)
            if place is None:
                return const
            dtype, position = place
            contents[dtype][position] = const.value
            return cast(Load(_name(dtype), (Const(position, i64),), dtype), const.dtype)

        new = _rebuilt(computation, read)
        buffers = [Buffer(_name(d), d, array.shape, "in") for d, array in contents.items()]
        new = replace(
            new, inputs=(*new.inputs, *buffers),
            constants=new.constants | {b.name for b in buffers},
        )  # fmt: skip
        return Numbered(new, {_name(d): array for d, array in contents.items()})


def _name(dtype: DType) -> str:
    return f"numbers_{dtype.name}"


def _fits(const: Const) -> bool:
    return i32.min <= const.value <= i32.max


def _rebuilt(computation: Computation, hole: Hole) -> Computation:
    """The computation with `hole` of every number that may differ, called in a fixed order."""
    walk = _Walk(hole)
    outputs = tuple(replace(o, expr=walk.expr(o.expr)) for o in computation.outputs)
    return replace(computation, outputs=outputs)


class _Walk:
    """Rebuilds expressions, each node once."""

    def __init__(self, hole: Hole):
        self.hole = hole
        self.done: dict[Expr, Expr] = {}
        self.moves: dict[Expr, bool] = {}

    def expr(self, node: Expr) -> Expr:
        if not isinstance(node, Call):
            return node
        if node not in self.done:
            may = self.has_numbers(node)
            args = [
                self.hole(x) if may and isinstance(x, Const) and _may_differ(node, x)
                else self.expr(x)
                for x in node.args
            ]  # fmt: skip
            self.done[node] = node.rebuild(args)
        return self.done[node]

    def has_numbers(self, node: Call) -> bool:
        names = OF_FLOATS if node.dtype.is_float else DATA
        return node.op.name in names and not self.is_position(node)

    def is_position(self, node: Expr) -> bool:
        """Whether a value is computed of indices."""
        if node not in self.moves:
            of_indices = isinstance(node, Call) and any(map(self.is_position, node.args))
            self.moves[node] = isinstance(node, Index) or of_indices
        return self.moves[node]


def _may_differ(node: Call, const: Const) -> bool:
    """Whether a number of an operation may be read: wide factors are left to make code of."""
    return const.dtype is not boolean and (
        const.dtype is not i64 or node.op.name != "mul" or _fits(const)
    )
