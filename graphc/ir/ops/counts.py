"""The operators of shapes that data decides: `graphc.Count` and `graphc.Corner`.

An operator such as NonZero is computed into a tensor of the largest shape that its result can have,
and says how much of it there is (the trait "bounded", ir/imperative/lowering.py). `Count` makes the
true extent of one dimension a size of the program, a symbol in the types of what follows; `Corner`
is the leading part of the tensor, of that shape. Pass passes/counts.py puts them into graphs.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphc.ir.dtypes import i64
from graphc.ir.expr import Expr, Sym
from graphc.ir.graph import Op
from graphc.ir.imperative.collectives import Collectives
from graphc.ir.imperative.lowering import is_bounded
from graphc.ir.opdef import Any_, Operand, OutIndex, imperative, op
from graphc.ir.ops.in_range import EFFECT
from graphc.ir.types import Dim, Shape, TensorType

COUNT, CORNER, DOMAIN = "Count", "Corner", "graphc"


@imperative(COUNT, domain=DOMAIN, infer=lambda x, **told: TensorType(i64, ()), traits=(EFFECT,))
def count(k: Collectives, x: Any_, *, dim: int, size: Sym, most: Expr | None = None) -> None:
    """The true extent of a dim of a tensor, which from here on is the value of `size`; if `dim` is
    -1, the number that the tensor holds, at most `most`."""
    (number,) = k.outputs
    k.store(number, (), x[()] if dim < 0 else x.shape[dim])


def _leading(x: Operand, *, dims: Sequence[Dim]) -> Shape:
    return tuple(dims)


@op(CORNER, domain=DOMAIN, infer=_leading)
def corner(i: OutIndex, x: Any_, *, dims: Sequence[Dim]) -> Expr:
    """The leading part of a tensor, of these extents."""
    return x[tuple(i)]


def is_count(op: Op | None) -> bool:
    """Whether an op makes an extent a size."""
    return op is not None and op.name == COUNT and op.defn.domain == DOMAIN


def is_corner(op: Op | None) -> bool:
    """Whether an op is the leading part of a tensor, of an extent that data decides."""
    return op is not None and op.name == CORNER and op.defn.domain == DOMAIN


def is_counted(op: Op) -> bool:
    """Whether the true extents of what a bounded op gives become sizes. Nothing reads its results
    but their counts and corners then."""
    return is_bounded(op) and any(is_count(user) for value in op.outputs for user in value.users)
