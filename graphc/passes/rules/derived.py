"""Rules for `graphc.Generic`, of which gradients are made.

The gradient of a weight that a model transposes (a table of words that also makes scores) is a
transposed product. As a product of its own it is computed in the order in which it is stored, and
what reads it can be its epilogue.
"""

from __future__ import annotations

from graphc.ir.expr import Expr, Load, reduces, substitute
from graphc.ir.graph import Op, Value
from graphc.ir.infer import op_body
from graphc.ir.ops.generic import generic_op, is_generic
from graphc.passes.analysis import structure
from graphc.passes.pattern import P, rest
from graphc.passes.rewriter import Rewriter, rule


def _maker(op: Op) -> Op | None:
    """The derived sum, read by `op` alone, whose elements `op` puts in another order."""
    if not structure.has_body(op) or not structure.is_movement(op):
        return None
    _, value = structure.moved(op)
    maker, load = value.producer, op_body(op)
    own = structure.own_index(op.output)
    if maker is None or not is_generic(maker) or len(value.uses) != 1 or value in _results(op):
        return None
    if not isinstance(load, Load) or len(load.index) != len(own) or set(load.index) != set(own):
        return None
    return maker if reduces(op_body(maker)) else None


def _results(op: Op) -> list[Value]:
    return [] if op.region is None else list(op.region.results)


@rule("derived-in-order", P.where(lambda op: _maker(op) is not None)(rest("operands")))
def derived_in_order(rw: Rewriter, op: Op, operands: list[Value]) -> Value | None:
    """transpose(sum(f(i, j, k) over k), p) == sum(f(p(i, j), k) over k), for a derived sum."""
    maker, load = _maker(op), op_body(op)
    assert maker is not None and isinstance(load, Load)
    rw.takes([maker])
    mapping: dict[Expr, Expr] = dict(zip(structure.own_index(maker.output), load.index))
    body = substitute(op_body(maker), mapping)
    return generic_op(
        rw, structure.own_index(op.output), body, lambda source: maker.operand(int(source))
    )
