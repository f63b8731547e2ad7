"""Running sums and products along an axis.

Each line along the axis is independent; its running value is of the type in which arithmetic on the
element type is done, and rounded when it is stored.
"""

from __future__ import annotations

import numpy as np

from graphc.ir.expr import Expr, cast
from graphc.ir.imperative.collectives import Collectives, Place, Running
from graphc.ir.kernel import Buffer
from graphc.ir.opdef import Int, Known, Number, Operand, imperative
from graphc.ir.ops.helpers import normal_axis
from graphc.ir.types import TensorType


def _same_type(x: Operand, axis: np.ndarray, **_: object) -> TensorType:
    return x.type


def _scan(
    k: Collectives, x: Buffer, axis: np.ndarray, reduction: str, exclusive: int, reverse: int
) -> None:
    """out[.., j, ..] = sum (product) of x[.., 0..j, ..] (0..j-1 if exclusive; from the end if
    reverse)."""
    along = normal_axis(int(np.asarray(axis).reshape(-1)[0]), x.rank)
    (y,) = k.outputs
    length = x.shape[along]
    work = x.dtype.compute

    def where(line: Place, j: Expr) -> Place:
        return (*line[:along], length - 1 - j if reverse else j, *line[along:])

    def element(line: Place, j: Expr) -> Expr:
        return cast(x[where(line, j)], work)

    def put(line: Place, j: Expr, value: Expr) -> None:
        k.store(y, where(line, j), cast(value, y.dtype))

    lines = (*x.shape[:along], *x.shape[along + 1 :])
    k.running(Running(lines, length, work, reduction, bool(exclusive), element, put))


@imperative("CumSum", infer=_same_type)
def cumsum(
    k: Collectives, x: Number, axis: Known(Int), *, exclusive: int = 0, reverse: int = 0
) -> None:
    """The sum of all elements up to each one along an axis."""
    _scan(k, x, axis, "sum", exclusive, reverse)


@imperative("CumProd", infer=_same_type)
def cumprod(
    k: Collectives, x: Number, axis: Known(Int), *, exclusive: int = 0, reverse: int = 0
) -> None:
    """The product of all elements up to each one along an axis."""
    _scan(k, x, axis, "prod", exclusive, reverse)
