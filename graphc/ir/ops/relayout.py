"""The operator that copies a value into another layout, `graphc.Relayout`.

The layouts are those of the types of its operand and of its result. Logically it is the identity;
in memory order it is a transposition. No rule takes it for a view.
"""

from __future__ import annotations

from graphc.ir.expr import Expr
from graphc.ir.graph import Op, Value
from graphc.ir.opdef import Any_, OutIndex, lookup, op
from graphc.ir.types import Layout

NAME, DOMAIN = "Relayout", "graphc"


@op(NAME, domain=DOMAIN)
def relayout(i: OutIndex, x: Any_) -> Expr:
    """x, stored in another layout."""
    return x[i]


def is_relayout(op: Op) -> bool:
    """Whether an op copies a value into another layout."""
    return op.name == NAME and op.defn.domain == DOMAIN


def relaid(value: Value, layout: Layout | None, before: Op) -> Value:
    """A copy of a value in another layout, made before an op."""
    region = before.region
    assert region is not None
    copy = Op(lookup(NAME, DOMAIN), [value], loc=before.loc)
    copy.output.type = value.tensor.with_layout(layout)
    region.insert_before(before, copy)
    return copy.output
