"""Linear algebra on small matrices."""

from __future__ import annotations

from graphc.errors import ModelError
from graphc.ir.dtypes import i64
from graphc.ir.expr import Expr, absolute, cast
from graphc.ir.kernel import Buffer, KernelBuilder
from graphc.ir.opdef import Float, imperative
from graphc.ir.types import TensorType


def _det_type(x):
    if x.rank < 2 or x.shape[-1] != x.shape[-2]:
        raise ModelError(f"takes square matrices, found {list(x.shape)}")
    return TensorType(x.dtype, x.shape[:-2])


@imperative("Det", infer=_det_type)
def det(k, x: Float):
    """The determinant of each matrix: the product of pivots of Gaussian elimination."""
    (y,), n, wide = k.outputs, x.shape[-1], x.dtype.compute
    with k.loops(*y.shape, kind="parallel") as where:
        a = k.alloc(wide, (n, n))
        with k.loops(n, n) as (row, column):
            k.store(a, (row, column), cast(x[where + (row, column)], wide))
        product = k.var(wide, 1)
        with k.loop(n) as step:
            _bring_up_pivot(k, a, step, product)
            pivot = k.let(a[step, step])
            k.store(product, (), product[()] * pivot)
            with k.when(pivot.ne(0)):
                _eliminate(k, a, step, pivot)
        k.store(y, tuple(where), cast(product[()], x.dtype))


def _bring_up_pivot(k: KernelBuilder, a: Buffer, step: Expr, product: Buffer) -> None:
    """Swaps the row with the largest element of column `step` there; a swap flips the sign."""
    n = a.shape[0]
    best = k.var(i64, step)
    with k.loop(n) as row:
        larger = absolute(a[row, step]) > absolute(a[best[()], step])
        with k.when((row > step) & larger):
            k.store(best, (), row)
    chosen = k.let(best[()])
    with k.when(chosen.ne(step)):
        k.store(product, (), -product[()])
        with k.loop(n) as column:
            kept = k.let(a[step, column])
            k.store(a, (step, column), a[chosen, column])
            k.store(a, (chosen, column), kept)


def _eliminate(k: KernelBuilder, a: Buffer, step: Expr, pivot: Expr) -> None:
    """Subtracts multiples of row `step` from the rows below it."""
    n = a.shape[0]
    with k.loop(n) as row, k.when(row > step):
        factor = k.let(a[row, step] / pivot)
        with k.loop(n) as column:
            k.store(a, (row, column), a[row, column] - factor * a[step, column])
