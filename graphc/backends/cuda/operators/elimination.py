"""Determinants of large matrices, a block to each.

The matrix lies in scratch memory. In each step all threads look for the pivot, swap rows, and
subtract multiples of the pivot's row: a warp goes along a row, so that its threads read neighbours.
"""

from __future__ import annotations

import math

from graphc.backends.cuda.machines import WARP
from graphc.backends.cuda.operators.grids import ZERO, Grid, grid, scratch
from graphc.ir.addresses import unflatten_index
from graphc.ir.dtypes import i64
from graphc.ir.expr import Expr, absolute, select
from graphc.ir.imperative.collectives import Collectives, Eliminated
from graphc.ir.kernel import Barrier, Buffer

LEAST = 16  # rows of a matrix that are worth a block
THREADS = 512  # of a block


def is_worth_it(what: Eliminated) -> bool:
    """Whether one thread for each matrix would take long."""
    return what.size >= LEAST and math.prod(what.lines) > 0


def eliminated(k: Collectives, what: Eliminated) -> None:
    """A block for each matrix."""
    count = math.prod(what.lines)
    matrices = scratch(k, what.dtype, (count, what.size, what.size))
    threads = min(THREADS, max(WARP, 1 << (what.size * what.size // WARP).bit_length()))
    with grid(k, count, threads) as g:
        _Block(k, g, what, matrices).run()


class _Block:
    """What a block does for its matrix."""

    def __init__(self, k: Collectives, g: Grid, what: Eliminated, a: Buffer):
        self.k, self.g, self.what, self.a = k, g, what, a
        self.line = unflatten_index(g.block, what.lines)
        self.values, self.rows = g.shared(what.dtype, g.threads), g.shared(i64, g.threads)
        self.lane, self.warp = g.thread % WARP, g.thread // WARP

    def at(self, row: Expr, column: Expr) -> tuple[Expr, ...]:
        return (self.g.block, row, column)

    def run(self) -> None:
        k, size = self.k, self.what.size
        with self.g.shares(size * size) as place:
            row, column = unflatten_index(place, (size, size))
            k.store(self.a, self.at(row, column), self.what.element(self.line, row, column))
        k.emit(Barrier())
        product = k.var(self.a.dtype, 1)
        with k.loop(size) as step:
            chosen = self._pivot_row(step)
            with k.when(chosen.ne(step)):
                k.store(product, (), -product[()])
                self._swap(step, chosen)
            k.emit(Barrier())
            pivot = k.let(self.a[self.at(step, step)])
            k.store(product, (), product[()] * pivot)
            with k.when(pivot.ne(0)):
                self._eliminate(step, pivot)
            k.emit(Barrier())
        with k.when(self.g.thread.eq(0)):
            self.what.put(self.line, product[()])

    def _pivot_row(self, step: Expr) -> Expr:
        """The row, from `step` on, whose element of column `step` is the largest; the first one."""
        k, g, size = self.k, self.g, self.what.size
        value, row = k.var(self.a.dtype, -1), k.var(i64, size)
        with g.shares(size) as candidate, k.when(candidate >= step):
            mine = k.let(absolute(self.a[self.at(candidate, step)]))
            with k.when(mine > value[()]):
                k.store(value, (), mine)
                k.store(row, (), candidate)
        k.store(self.values, g.thread, value[()])
        k.store(self.rows, g.thread, row[()])
        k.emit(Barrier())
        g.tournament(self._better_of)
        pivot = k.let(self.rows[ZERO])
        return k.let(self._or_step(pivot, step))

    def _or_step(self, row: Expr, step: Expr) -> Expr:
        """The row itself if no element is larger than any other, as where all are NaN."""
        return select(row < self.what.size, row, step)

    def _better_of(self, mine: Expr, other: Expr) -> None:
        """Takes over the larger of two values, or the one of the smaller row."""
        k = self.k
        value, row = k.let(self.values[other]), k.let(self.rows[other])
        level = value.eq(self.values[mine]) & (row < self.rows[mine])
        with k.when((value > self.values[mine]) | level):
            k.store(self.values, mine, value)
            k.store(self.rows, mine, row)

    def _swap(self, step: Expr, chosen: Expr) -> None:
        k = self.k
        with self.g.shares(self.what.size) as column:
            kept = k.let(self.a[self.at(step, column)])
            k.store(self.a, self.at(step, column), self.a[self.at(chosen, column)])
            k.store(self.a, self.at(chosen, column), kept)

    def _eliminate(self, step: Expr, pivot: Expr) -> None:
        """Subtracts multiples of row `step` from the rows below, a row to a warp at a time."""
        k, below = self.k, self.what.size - 1 - step
        warps = self.g.threads // WARP
        with k.loop((below - self.warp + warps - 1) // warps) as turn:
            row = k.let(step + 1 + self.warp + turn * warps)
            factor = k.let(self.a[self.at(row, step)] / pivot)
            with k.loop((below - self.lane + WARP - 1) // WARP) as part:
                column = k.let(step + 1 + self.lane + part * WARP)
                value = self.a[self.at(row, column)] - factor * self.a[self.at(step, column)]
                k.store(self.a, self.at(row, column), value)
