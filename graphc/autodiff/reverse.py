"""Reverse mode: from the gradients of results to those of operands, op after op from the end.

The graph gets new ops at its end. An op with a scalar body is differentiated by its body
(contributions.py), a composite one through what it is made of, the others by rules of their own
(rules.py). A rule also stands where it is cheaper or more accurate than what is derived.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from graphc.autodiff.contributions import contributions
from graphc.autodiff.regions import pulled
from graphc.autodiff.rules import RULES
from graphc.autodiff.values import added_to_zeros, is_float, zeros_like
from graphc.autodiff.without import refusal
from graphc.errors import ModelError
from graphc.ir.build import Builder
from graphc.ir.expr import Expr, symbols
from graphc.ir.graph import Op, Region, Value
from graphc.ir.types import TensorType
from graphc.ir.wide_graphs import expand_in_place, is_made_of_others

BODIES = ("elementwise", "indexed")


def gradients(region: Region, seeds: Mapping[Value, Value], wanted: Sequence[Value]) -> list[Value]:
    """The gradients of `wanted`, given those of some values of a region (`seeds`); zeros where
    nothing depends on a value. Ops are added at the end of the region, and composite ones are
    expanded: other values may stand for their results from then on, among the region's too.

    All types must be known; dims may be over sizes. UnsupportedError names an op that has no
    derivative.
    """
    require_types(region)
    collected: dict[Value, list[Value]] = {v: [g] for v, g in seeds.items()}
    _expand(region, collected, wanted)
    ops = list(region.ops)
    active = _depending(ops, wanted)
    for op in reversed(ops):
        if any(v in collected for v in op.outputs) and any(v in active for v in op.inputs):
            _differentiate(region, op, collected, active)
    b = Builder(region)
    return [_total(b, collected.get(v, [])) or zeros_like(b, v) for v in wanted]


def require_types(region: Region) -> None:
    """ModelError if a dim of a tensor is not known, or over a size without a bound."""
    for value in region.values():
        if isinstance(value.type, TensorType) and not _is_bounded(value):
            raise ModelError(
                f"a gradient needs static shapes, or bounds of all sizes, found {value}; give the "
                "shapes of the inputs"
            )


def _is_bounded(value: Value) -> bool:
    if not value.is_ranked:
        return False
    dims = (dim for dim in value.tensor.dims if isinstance(dim, Expr))
    return all(size.hi is not None for dim in dims for size in symbols(dim))


def _depending(ops: Sequence[Op], wanted: Sequence[Value]) -> set[Value]:
    """The values of floats that depend on those wanted, these included."""
    active = set(wanted)
    for op in ops:
        if op.defn.name != "Constant" and any(v in active for v in op.inputs):
            active.update(v for v in op.outputs if is_float(v))
    return active


def _expand(region: Region, collected: dict[Value, list[Value]], wanted: Sequence[Value]) -> None:
    """Expands the composite ops that gradients pass through and that have no rule. What is
    collected for their results is that of the values in place of these."""
    position = 0
    active = set(wanted)
    while position < len(region.ops):
        op = region.ops[position]
        if any(v in active for v in op.inputs) and op.name != "Constant":
            if is_made_of_others(op) and (op.defn.domain, op.name) not in RULES:
                for old, new in zip(op.outputs, expand_in_place(op)):
                    if old in collected:
                        collected.setdefault(new, []).extend(collected.pop(old))
                continue
            active.update(v for v in op.outputs if is_float(v))
        position += 1


def _differentiate(
    region: Region, op: Op, collected: dict[Value, list[Value]], active: set[Value]
) -> None:
    b = Builder(region, None, op.loc)
    cotangents = [_total(b, collected.get(v, [])) for v in op.outputs]
    wanted = [n for n, v in enumerate(op.inputs) if v in active]
    rule = RULES.get((op.defn.domain, op.name))
    parts: Mapping[int, list[Value]]
    if rule is not None or op.defn.form == "region":
        made = pulled(b, op, cotangents, gradients) if rule is None else rule(b, op, cotangents)
        parts = {n: [g] for n, g in enumerate(made) if g is not None and n in wanted}
    elif op.defn.form in BODIES:
        parts = contributions(b, op, cotangents, wanted)
    else:
        raise refusal(op)
    for number, values in parts.items():
        collected.setdefault(op.operand(number), []).extend(values)


def _total(b: Builder, values: list[Value]) -> Value | None:
    """The sum of the parts of a gradient, which is the one part from then on. Those that a scatter
    adds to zeros are added to the others where these lie."""
    if not values:
        return None
    total, *rest = sorted(values, key=lambda value: added_to_zeros(value) is not None)
    for value in rest:
        scatter = added_to_zeros(value)
        if scatter is None:
            total = b.Add(total, value)
        else:
            total = b.ScatterND(total, *scatter.inputs[1:], reduction="add")
    values[:] = [total]
    return total
