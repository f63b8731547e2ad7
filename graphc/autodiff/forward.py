"""Forward mode: tangents of results from those of operands, op after op from the start."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from graphc.autodiff.contributions import Sources, rebuilt, takes_first
from graphc.autodiff.region_pooling import (
    flat_shape,
    places_of_maxima,
    takes_means,
    weighted_maxima,
)
from graphc.autodiff.reverse import BODIES, require_types
from graphc.autodiff.rules import (
    as_products,
    inverse_transposed,
    scatter_slopes,
    within_limits,
)
from graphc.autodiff.tangent import tangent
from graphc.autodiff.values import zeros_like
from graphc.autodiff.without import refusal
from graphc.ir.build import Builder
from graphc.ir.expr import Expr, Index, Load, Reduce, cast
from graphc.ir.graph import Op, Region, Value
from graphc.ir.infer import op_body
from graphc.ir.opdef import OutIndex
from graphc.ir.ops.generic import generic_op
from graphc.ir.wide_graphs import expand_in_place, is_made_of_others

Rule = Callable[[Builder, Op, Sequence["Value | None"]], list["Value | None"]]


def tangents(region: Region, seeds: Mapping[Value, Value], wanted: Sequence[Value]) -> list[Value]:
    """The tangents of `wanted`, given those of some values of a region (`seeds`); zeros where a
    value does not depend on these. Ops are added at the end of the region.

    All types must be known and static. UnsupportedError names an op that has no derivative.
    """
    require_types(region)
    known = dict(seeds)
    renamed: dict[Value, Value] = {}
    position, end = 0, region.ops[-1] if region.ops else None
    while end is not None and position < len(region.ops):
        op = region.ops[position]
        is_last = op is end
        if any(v in known for v in op.inputs):
            rule = RULES.get((op.defn.domain, op.name))
            if rule is None and is_made_of_others(op):
                old = list(op.outputs)
                renamed.update(zip(old, expand_in_place(op)))
                end = region.ops[-1] if is_last else end
                continue
            _carry(region, op, known, rule)
        if is_last:
            break
        position += 1
    b = Builder(region)
    return [_of(b, v, known, renamed) for v in wanted]


def _of(b: Builder, value: Value, known: dict[Value, Value], renamed: dict[Value, Value]) -> Value:
    while value in renamed:
        value = renamed[value]
    return known.get(value) or zeros_like(b, value)


def _carry(region: Region, op: Op, known: dict[Value, Value], rule: Rule | None) -> None:
    b = Builder(region, None, op.loc)
    given = [None if v is None else known.get(v) for v in op.inputs]
    if rule is not None:
        made = rule(b, op, given)
    elif op.defn.form in BODIES:
        made = [_of_body(b, op, number, given) for number in range(len(op.outputs))]
    else:
        raise refusal(op)
    known.update({v: t for v, t in zip(op.outputs, made) if t is not None})


def _of_body(b: Builder, op: Op, number: int, given: Sequence[Value | None]) -> Value | None:
    result = op.outputs[number].tensor
    if not result.dtype.is_float:
        return None
    sources = Sources(b, op)

    def of_load(load: Load) -> Expr | None:
        value = given[int(load.source)]
        return None if value is None else sources.load(f"t{load.source}", value, load.index)

    body = op_body(op, number)
    expr = tangent(body, of_load, takes_first(op))
    if expr is None:
        return None
    space: tuple[Index, ...] = tuple(OutIndex.make(result.dims, number))  # type: ignore
    sources.reductions[body] = sources.load("y", op.outputs[number], space)
    expr = rebuilt(expr, lambda r: Reduce(r.op, sources.computed(r.body), r.axes))
    return generic_op(b, space, cast(expr, result.dtype), sources.value)


def _linear(b: Builder, op: Op, given: Sequence[Value | None]) -> list[Value | None]:
    """An operator that is linear in its operand 0: itself, applied to the tangent."""
    return [b.op(op.name, given[0], *op.inputs[1:], domain=op.defn.domain, **op.attrs)]


def _stopped(b: Builder, op: Op, given: Sequence[Value | None]) -> list[Value | None]:
    return [None]


def _largest(b: Builder, op: Op, given: Sequence[Value | None]) -> list[Value | None]:
    axis = op.attrs.get("axis", -1)
    return [b.GatherElements(given[0], op.outputs[1], axis=axis), None]


def _scattered(b: Builder, op: Op, given: Sequence[Value | None]) -> list[Value | None]:
    """A scatter of tangents: it is linear in data and updates together. One that multiplies or
    takes extremes adds up what each of them changes the result by."""
    data, updates = (given[n] or zeros_like(b, op.operand(n)) for n in (0, 2))
    attrs = op.attrs
    if attrs.get("reduction", "none") not in ("none", "add"):
        slopes = scatter_slopes(b, op)
        data, updates = (b.Mul(t, slope) for t, slope in zip((data, updates), slopes))
        attrs = {**attrs, "reduction": "add"}
    return [b.op(op.name, data, op.operand(1), updates, **attrs)]


def _multiplied(b: Builder, op: Op, given: Sequence[Value | None]) -> list[Value | None]:
    """A CumProd, as the products that it is."""
    same = as_products(b, op)
    made = _of_body(b, same, 0, given)
    same.output.replace_uses(op.output)
    return [made]


def _aligned(b: Builder, op: Op, given: Sequence[Value | None]) -> list[Value | None]:
    """RoiAlign of the tangents of images: it is linear in these, or takes some of them."""
    if given[0] is None:
        return [None]
    if takes_means(op):
        return _linear(b, op, given)
    places, weights = weighted_maxima(b, op)
    return [b.Mul(b.GatherND(_flat(b, op, given[0]), places), weights)]


def _pooled(b: Builder, op: Op, given: Sequence[Value | None]) -> list[Value | None]:
    """MaxRoiPool: the tangents of the first of the largest elements."""
    if given[0] is None:
        return [None]
    places, is_there = places_of_maxima(b, op)
    flat = _flat(b, op, given[0])
    return [b.Where(is_there, b.GatherND(flat, places), b.constant(0, flat.tensor.dtype))]


def _flat(b: Builder, op: Op, tangent: Value) -> Value:
    """Tangents of images whose rows follow each other."""
    return b.Reshape(tangent, np.array(flat_shape(op.operand(0).tensor.static_shape)))


def _straight_through(b: Builder, op: Op, given: Sequence[Value | None]) -> list[Value | None]:
    """The tangent where the quantised value is not at a limit of its type."""
    return [None if given[0] is None else within_limits(b, op, given[0])]


def _determinant(b: Builder, op: Op, given: Sequence[Value | None]) -> list[Value | None]:
    """det(x) times the trace of inverse(x) @ tangent."""
    product = b.Mul(inverse_transposed(b, op.operand(0)), given[0])
    return [b.Mul(op.output, b.ReduceSum(product, np.array([-2, -1]), keepdims=0))]


RULES: dict[tuple[str, str], Rule] = {
    ("graphc", "StopGradient"): _stopped,
    ("graphc", "FakeQuantize"): _straight_through,
    ("", "CumSum"): _linear,
    ("", "CumProd"): _multiplied,
    ("", "MaxUnpool"): _linear,
    ("", "TopK"): _largest,
    ("", "ScatterND"): _scattered,
    ("", "ScatterElements"): _scattered,
    ("", "RoiAlign"): _aligned,
    ("", "MaxRoiPool"): _pooled,
    ("", "Det"): _determinant,
}
