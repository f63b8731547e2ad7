"""Gaussian elimination by one thread: the largest element of a column becomes its pivot.

Step by step, the row with the largest element of the column from the diagonal on comes up, and
multiples of it are subtracted from the rows below. Only what later steps read is computed: the rows
and columns beyond the diagonal.
"""

from __future__ import annotations

from collections.abc import Callable

from graphc.ir.dtypes import i64
from graphc.ir.expr import Expr, absolute
from graphc.ir.kernel import Buffer, KernelBuilder

At = Callable[[Expr, Expr], tuple[Expr, ...]]


def determinant(k: KernelBuilder, a: Buffer, at: At, size: int) -> Expr:
    """Of the matrix of `size` rows in `a`, whose element of a row and a column is `at` there; `a`
    is left eliminated."""
    product = k.var(a.dtype, 1)
    with k.loop(size) as step:
        _bring_up_pivot(k, a, at, size, step, product)
        pivot = k.let(a[at(step, step)])
        k.store(product, (), product[()] * pivot)
        with k.when(pivot.ne(0)):
            _eliminate(k, a, at, size, step, pivot)
    return product[()]


def _bring_up_pivot(
    k: KernelBuilder, a: Buffer, at: At, size: int, step: Expr, product: Buffer
) -> None:
    """Swaps the row with the largest element of column `step` there; a swap flips the sign."""
    best = k.var(i64, step)
    with k.loop(size - 1 - step) as below:
        row = step + 1 + below
        with k.when(absolute(a[at(row, step)]) > absolute(a[at(best[()], step)])):
            k.store(best, (), row)
    chosen = k.let(best[()])
    with k.when(chosen.ne(step)):
        k.store(product, (), -product[()])
        with k.loop(size - step) as beyond:
            upper, lower = at(step, step + beyond), at(chosen, step + beyond)
            kept = k.let(a[upper])
            k.store(a, upper, a[lower])
            k.store(a, lower, kept)


def _eliminate(k: KernelBuilder, a: Buffer, at: At, size: int, step: Expr, pivot: Expr) -> None:
    """Subtracts multiples of row `step` from the rows below it."""
    with k.loop(size - 1 - step) as below:
        row = step + 1 + below
        factor = k.let(a[at(row, step)] / pivot)
        with k.loop(size - 1 - step) as beyond:
            column = step + 1 + beyond
            value = a[at(row, column)] - factor * a[at(step, column)]
            k.store(a, at(row, column), value)
