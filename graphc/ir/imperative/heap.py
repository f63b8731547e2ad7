"""Heapsort in place, by one thread.

A `Heap` is an array of slots in which the item that comes last is at slot 0. Where items are
compared with a total order (ties are broken by the original index), the results are those of a
stable sort although heapsort is not stable; no scratch memory is needed beyond the slots.
"""

from __future__ import annotations

from collections.abc import Callable

from graphc.ir.dtypes import boolean, i64
from graphc.ir.expr import Const, Expr, as_expr, select
from graphc.ir.kernel import Buffer, KernelBuilder
from graphc.records import dataclass


@dataclass(frozen=True)
class Heap:
    """Slots that can be ordered: `precedes(a, b)` tells whether slot a's item comes before b's
    (it may emit statements), `swap(a, b)` exchanges two slots."""

    k: KernelBuilder
    precedes: Callable[[Expr, Expr], Expr]
    swap: Callable[[Expr, Expr], None]

    def sift(self, root: Expr | int, size: Expr | int) -> None:
        """Moves the item at `root` down until no child among `size` slots comes after it."""
        k = self.k
        node = k.var(i64, root)
        going = k.var(boolean, True)
        with k.repeat(going[()] & (node[()] * 2 + 1 < size)):
            here = k.let(node[()])
            left, right = k.let(here * 2 + 1), k.let(here * 2 + 2)
            last = k.var(i64, left)
            with k.when(right < size), k.when(self.precedes(left, right)):
                k.store(last, (), right)
            child = k.let(last[()])
            after = k.let(self.precedes(here, child))
            with k.when(after):
                self.swap(here, child)
                k.store(node, (), child)
            with k.otherwise():
                k.store(going, (), False)

    def build(self, size: Expr | int) -> None:
        """Orders `size` arbitrary slots as a heap."""
        half = size // 2
        with self.k.loop(half) as j:
            self.sift(half - 1 - j, size)

    def unwind(self, size: Expr | int) -> None:
        """Turns a heap into a sequence in order, first item at slot 0."""
        k = self.k
        rest = k.let(as_expr(size, i64) - 1)
        if isinstance(rest, Const):
            rest = as_expr(max(rest.value, 0), i64)
        with k.loop(select(rest < 0, 0, rest)) as j:
            end = k.let(rest - j)
            self.swap(as_expr(0, i64), end)
            self.sift(0, end)

    def sort(self, size: Expr | int) -> None:
        """Sorts `size` slots."""
        self.build(size)
        self.unwind(size)


def swap_in(k: KernelBuilder, buffer: Buffer, index: Callable[[Expr], tuple]) -> Callable:
    """A swap of two elements of a buffer, where `index` gives the index of a slot."""

    def swap(a: Expr, b: Expr) -> None:
        at_a, at_b = k.let(buffer[index(a)]), k.let(buffer[index(b)])
        k.store(buffer, index(a), at_b)
        k.store(buffer, index(b), at_a)

    return swap
