"""Launches in kernels of operators: blocks of threads, shared arrays, scratch memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from graphc.ir.dtypes import DType, i64
from graphc.ir.expr import Const, Expr, Index, Ref, cast
from graphc.ir.kernel import Barrier, Buffer, For, KernelBuilder, Let
from graphc.ir.simplify import bounds, simplify


def scratch(k: KernelBuilder, dtype: DType, shape: tuple[int, ...]) -> Buffer:
    """Memory that lasts from one launch to the next."""
    return k.alloc(dtype, shape, "scratch", k.fresh("scratch"))


class Grid:
    """A launch: its block and thread, and the arrays that the threads of a block share."""

    def __init__(self, k: KernelBuilder, blocks: int, threads: int):
        self.k = k
        self.block, self.thread = Index(k.fresh("block"), blocks), Index(k.fresh("thread"), threads)
        self.arrays: list[Buffer] = []

    @property
    def threads(self) -> int:
        return self.thread.count

    def shared(self, dtype: DType, count: int) -> Buffer:
        self.arrays.append(Buffer(self.k.fresh("shared"), dtype, (count,), "local"))
        return self.arrays[-1]

    @contextmanager
    def shares(self, count: int, kind: str = "serial") -> Iterator[Expr]:
        """What the threads of the block do in turn with so many things: yields the thing."""
        with (
            self.k.loop(parts_of(count, self.threads), kind) as step,
            within(self.k, step * self.threads + self.thread, count) as thing,
        ):
            yield thing

    def tournament(self, meet: Callable[[Expr, Expr], None]) -> None:
        """Brings what all threads share together in the place of the first, two by two: `meet`
        gets the place of a thread, which it keeps, and that of another one."""
        half = self.threads // 2
        while half:
            with self.k.when(self.thread < half):
                meet(self.thread, self.thread + half)
            self.k.emit(Barrier())
            half //= 2


@contextmanager
def grid(k: KernelBuilder, blocks: int, threads: int) -> Iterator[Grid]:
    """What every thread of so many blocks does."""
    made = Grid(k, blocks, threads)
    with k.block() as body, k.threads(made.thread, made.arrays):
        yield made
    k.emit(For(made.block, tuple(body), "block"))


@contextmanager
def within(k: KernelBuilder, position: Expr, extent: int) -> Iterator[Expr]:
    """What is done if a position, which is not negative, is less than an extent: yields it, known
    to be."""
    position = simplify(position)
    if bounds(position)[1] < extent:
        yield position
        return
    with k.when(position < extent):
        yield known(k, position, extent)


def known(k: KernelBuilder, position: Expr, extent: int) -> Ref:
    """A position that is known to lie below an extent, and not to be negative."""
    name = Ref(k.fresh("t"), i64, 0, extent - 1)
    k.emit(Let(name, cast(position, i64)))
    return name


def parts_of(extent: int, part: int) -> int:
    """How many parts of a size an extent takes."""
    return -(-extent // part)


ZERO = Const(0, i64)
