"""Linear algebra on small matrices."""

from __future__ import annotations

from graphc.errors import ModelError
from graphc.ir.expr import Expr, cast
from graphc.ir.imperative.collectives import Collectives, Eliminated, Place
from graphc.ir.opdef import Float, Operand, imperative
from graphc.ir.types import TensorType


def _det_type(x: Operand) -> TensorType:
    if x.rank < 2 or x.shape[-1] != x.shape[-2]:
        raise ModelError(f"takes square matrices, found {list(x.shape)}")
    return TensorType(x.dtype, x.shape[:-2])


@imperative("Det", infer=_det_type)
def det(k: Collectives, x: Float) -> None:
    """The determinant of each matrix: the product of pivots of Gaussian elimination."""
    (y,), wide = k.outputs, x.dtype.compute

    def element(matrix: Place, row: Expr, column: Expr) -> Expr:
        place = (*matrix, row, column)
        return cast(x[place], wide)

    def put(matrix: Place, value: Expr) -> None:
        k.store(y, matrix, cast(value, x.dtype))

    k.eliminated(Eliminated(y.shape, x.shape[-1], wide, element, put))
