"""The operator whose result is a list of dimensions, `graphc.Sizes`.

Its result is *known* (`Value.known`): operators whose types depend on the contents of an operand
take it as an array of integers and expressions.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphc.ir.dtypes import i64
from graphc.ir.expr import Expr, as_expr
from graphc.ir.graph import SIZES
from graphc.ir.opdef import OutIndex, linear, op
from graphc.ir.ops.helpers import choose
from graphc.ir.types import Dim, Shape


def _declared(*, shape: Sequence[int]) -> Shape:
    return tuple(shape)


@op(SIZES, domain="graphc", infer=_declared)
def sizes(i: OutIndex, *, dims: Sequence[Dim], shape: Sequence[int]) -> Expr:
    """Dimensions, in a tensor of this shape."""
    return choose(linear(i, i.shape), [as_expr(dim, i64) for dim in dims])
