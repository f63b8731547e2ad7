"""Sliced-K: split-K inside a block. Groups of threads each sum a slice of the depth.

Where outputs are few, one block occupies a multiprocessor alone (low occupancy), and it waits for
memory rather than for products. So several groups of threads compute the same tile, each from its
own slices of the depth K:

    group g: slices g * n ... g * n + n - 1        out = epilogue(sum over g of what group g has)

At the end the groups exchange their partial sums through shared memory, and each group finishes a
part of the tile. Partial sums are added in a fixed order, so results are the same in every run.
Split-K across blocks is in split_k.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from graphc.ir.addresses import flatten_index
from graphc.ir.dtypes import DType, i64
from graphc.ir.expr import TRUE, Const, Expr, Index
from graphc.ir.kernel import Barrier, Buffer, KernelBuilder
from graphc.ir.simplify import simplify


class SlicedK:
    """`count` groups of a block's threads: the group of a thread (`own`), and its place in it."""

    def __init__(self, thread: Index, count: int):
        self.count, self.members = count, thread.count // count
        self.own = simplify(thread // self.members)
        self.member = simplify(thread % self.members)

    def stage(self, slice: Expr, stages: int) -> Expr:
        """The stage of a slice of this group, if each group has so many stages."""
        return simplify(self.own * stages + slice % stages)

    def number(self, slice: Expr, slices: int) -> Expr:
        """The number among all slices of a slice of this group, which has so many."""
        return simplify(self.own * slices + slice)

    def sums(self, dtype: DType, shape: Sequence[int]) -> Buffer:
        """Shared memory for the sums of all threads, of such a shape each."""
        self.shape = tuple(shape)
        return Buffer("partial_sums", dtype, (self.count, math.prod(shape), self.members), "local")

    def exchange(self, k: KernelBuilder, sums: Buffer, into: Buffer) -> None:
        """Puts a thread's sums where all see them."""
        with k.loops(*self.shape, kind="unroll") as place:
            at = flatten_index(place, self.shape)
            k.store(into, (self.own, at, self.member), sums[place])
        k.emit(Barrier())

    @contextmanager
    def parts(self, k: KernelBuilder, number: int) -> Iterator[Expr]:
        """The parts of a thread's sums, so many, that its group finishes: yields their numbers."""
        with k.loop(-(-number // self.count), "unroll") as step:
            part = simplify(step * self.count + self.own)
            with k.where(part < number if number % self.count else TRUE):
                yield part

    def total(self, k: KernelBuilder, partial: Buffer, place: Sequence[Expr]) -> Expr:
        """The total of all groups at a place of a thread's sums."""
        at = flatten_index(tuple(place), self.shape)
        total: Expr = partial[Const(0, i64), at, self.member]
        for group in range(1, self.count):
            total = total + partial[Const(group, i64), at, self.member]
        return k.let(total)
