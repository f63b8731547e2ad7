"""Operands of contractions: their elements at flat positions, fetched by all threads of a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from graphc.ir.addresses import is_affine_in, unflatten_index
from graphc.ir.expr import TRUE, Const, Expr, Index, call, free_indices, loads, select
from graphc.ir.kernel import KernelBuilder
from graphc.ir.simplify import simplify
from graphc.ir.types import Dim, elements_of

NEAR = 4  # elements


@dataclass(frozen=True)
class Operand:
    """An expression with flat loads over the indices of its side (rows or columns) and depth."""

    expr: Expr
    side: list[Index]
    depth: list[Index]

    @property
    def count(self) -> Dim:
        """Positions along the side."""
        return elements_of(x.extent for x in self.side)

    @property
    def depth_count(self) -> Dim:
        return elements_of(x.extent for x in self.depth)

    @property
    def along_depth(self) -> bool:
        """Whether neighbours along the depth are neighbours in memory."""
        return bool(self.depth) and stride(self.expr, self.depth[-1]) == 1

    @property
    def is_near_across(self) -> bool:
        """Whether neighbours along the side are near one another in memory, so that a warp that
        reads one element of the depth for each of them reads few lines."""
        return bool(self.side) and 0 < stride(self.expr, self.side[-1]) <= NEAR

    def place(self, position: Expr) -> dict[Expr, Expr]:
        """The indices of the side at a flat position."""
        return dict(zip(self.side, unflatten_index(position, tuple(x.extent for x in self.side))))

    def element(self, fixed: dict[Expr, Expr], position: Expr, deep: Expr) -> Expr:
        """The element at a position and a depth, zero where there is none."""
        mapping = {**fixed, **self.place(position)}
        extents = tuple(x.extent for x in self.depth)
        mapping.update(zip(self.depth, unflatten_index(deep, extents)))
        value = simplify(self.expr, mapping)
        inside = simplify(call("and", position < self.count, deep < self.depth_count))
        return simplify(select(inside, value, Const(0, value.dtype)))


def stride(expr: Expr, index: Index) -> int:
    """By how many elements the first load that moves with `index` moves; large if it is unknown."""
    for load in loads(expr):
        if index in free_indices(load):
            step = is_affine_in(load.index[0], index)
            return abs(step) if isinstance(step, int) else 1 << 40
    return 0


@contextmanager
def strided(
    k: KernelBuilder, elements: int, threads: int, thread: Expr, written: int = 0
) -> Iterator[Expr]:
    """A loop in which the threads of a block go over elements together, so many iterations of which
    are written out (0: all): yields the position."""
    with k.loop(-(-elements // threads), "unroll", width=written) as step:
        at = simplify(step * threads + thread)
        with k.where(at < elements if elements % threads else TRUE):
            yield at
