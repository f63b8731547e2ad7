"""Running sums and products along an axis.

Each line along the axis is independent; its running value is kept in a mutable scalar of the type
in which arithmetic on the element type is done, and rounded when it is stored.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from graphc.errors import ModelError
from graphc.ir.expr import Expr, cast
from graphc.ir.kernel import Buffer, KernelBuilder
from graphc.ir.opdef import Int, Known, Number, imperative


def _same_type(x, axis, **_):
    return x.type


def _scan(
    k: KernelBuilder,
    x: Buffer,
    axis: np.ndarray,
    step: Callable[[Expr, Expr], Expr],
    start: int,
    exclusive: int,
    reverse: int,
) -> None:
    """out[.., j, ..] = step over x[.., 0..j, ..] (0..j-1 if exclusive; from the end if reverse)."""
    along = int(np.asarray(axis).reshape(-1)[0])
    if not -x.rank <= along < x.rank:
        raise ModelError(f"axis {along} is out of range for rank {x.rank}")
    along %= x.rank
    (y,) = k.outputs
    length = x.shape[along]
    work = x.dtype.compute
    with k.loops(*x.shape[:along], *x.shape[along + 1 :], kind="parallel") as line:
        running = k.var(work, start)
        with k.loop(length) as j:
            position = length - 1 - j if reverse else j
            where = (*line[:along], position, *line[along:])
            if exclusive:
                k.store(y, where, cast(running[()], y.dtype))
            k.store(running, (), step(running[()], cast(x[where], work)))
            if not exclusive:
                k.store(y, where, cast(running[()], y.dtype))


@imperative("CumSum", infer=_same_type)
def cumsum(k, x: Number, axis: Known(Int), *, exclusive: int = 0, reverse: int = 0):
    """The sum of all elements up to each one along an axis."""
    _scan(k, x, axis, lambda a, b: a + b, 0, exclusive, reverse)


@imperative("CumProd", infer=_same_type)
def cumprod(k, x: Number, axis: Known(Int), *, exclusive: int = 0, reverse: int = 0):
    """The product of all elements up to each one along an axis."""
    _scan(k, x, axis, lambda a, b: a * b, 1, exclusive, reverse)
