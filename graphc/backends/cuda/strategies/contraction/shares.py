"""Shares of the depth: groups of a block's threads of which each sums a part of the products.

Where outputs are few, a block is alone on its multiprocessor, and waits for slices rather than for
products. So several groups of threads take the same tile, each with slices of its own,

    share g: slices g * n ... g * n + n - 1        out = epilogue(sum over g of what share g has)

and at last put their sums into shared memory, from where all finish a part of them. Shares are
added in their order, so that results are the same every time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from graphc.ir.addresses import flatten_index
from graphc.ir.dtypes import DType, i64
from graphc.ir.expr import Const, Expr, Index
from graphc.ir.kernel import Barrier, Buffer, KernelBuilder
from graphc.ir.simplify import simplify


class Shares:
    """`count` groups of a block's threads, and the share and the place in it of one of them."""

    def __init__(self, thread: Index, count: int):
        self.count, self.members = count, thread.count // count
        self.own = simplify(thread // self.members)
        self.member = simplify(thread % self.members)

    def stage(self, slice: Expr, stages: int) -> Expr:
        """Where one of a share's slices lies, if each share has so many stages."""
        return simplify(self.own * stages + slice % stages)

    def number(self, slice: Expr, slices: int) -> Expr:
        """Which slice of all one of a share's is, of which each has so many."""
        return simplify(self.own * slices + slice)

    def sums(self, dtype: DType, shape: Sequence[int]) -> Buffer:
        """Shared memory for the sums of all threads, of such a shape each."""
        self.shape = tuple(shape)
        return Buffer("shares", dtype, (self.count, math.prod(shape), self.members), "local")

    def exchange(self, k: KernelBuilder, sums: Buffer, into: Buffer) -> None:
        """Puts a thread's sums where all see them."""
        with k.loops(*self.shape, kind="unroll") as place:
            at = flatten_index(place, self.shape)
            k.store(into, (self.own, at, self.member), sums[place])
        k.emit(Barrier())

    @contextmanager
    def parts(self, k: KernelBuilder, number: int) -> Iterator[Expr]:
        """The parts of a thread's sums, so many, that a share finishes: yields one's number."""
        with k.loop(-(-number // self.count), "unroll") as step:
            part = simplify(step * self.count + self.own)
            if number % self.count:
                with k.when(part < number):
                    yield part
            else:
                yield part

    def total(self, k: KernelBuilder, held: Buffer, place: Sequence[Expr]) -> Expr:
        """The sum of all shares at a place of a thread's sums."""
        at = flatten_index(tuple(place), self.shape)
        total: Expr = held[Const(0, i64), at, self.member]
        for share in range(1, self.count):
            total = total + held[Const(share, i64), at, self.member]
        return k.let(total)
