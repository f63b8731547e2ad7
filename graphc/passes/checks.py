"""Puts an op `graphc.InRange` beside each op that asks something of what its operands hold.

It comes first, while ops are as the model has them: messages then name its nodes and tensors. The
checks are results of the graph, after its own; their computation is read off the definitions
(ir/conditions.py). Of a composite op, the part of its body that its checks depend on is copied
beside it; values that they share with the op are computed once, as equal ops are merged. Those of
the bodies of loops and branches come out of them (inner_checks.py). A check of constants is made
here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from graphc.ir.conditions import Asked, asked_by
from graphc.ir.expr import Expr, Load, loads, transform
from graphc.ir.graph import Graph, Op, Region, Value, clone_graph, copy_ops
from graphc.ir.infer import expand, infer_op
from graphc.ir.interp import run_op
from graphc.ir.opdef import lookup
from graphc.ir.ops.in_range import DOMAIN, NAME, attrs_of, check_of, is_check
from graphc.ir.types import TensorType
from graphc.passes.dce import remove_dead
from graphc.passes.infer_types import TypeInference
from graphc.passes.inner_checks import checks_inside
from graphc.passes.manager.base import Pass, register_pass
from graphc.passes.manager.context import Context
from graphc.records import dataclass

FLOW = ("If", "Loop", "Scan")  # what programs have loops and branches for


def add_checks(graph: Graph) -> bool:
    """Adds the checks of all ops to the results of a graph; whether there are any. ModelError if
    what is constant is not as it has to be."""
    own = set(graph.results)
    return add_results(graph, [c.output for c in _checks_in(graph) if c.output not in own])


def _checks_in(region: Region) -> list[Op]:
    """The checks of all ops of a region, each before what asks for it, or after it."""
    own = set(region.results)
    kept: dict[tuple, list[Op]] = {}
    for op in list(region.ops):
        for check in checks_of(op):
            alike = kept.setdefault(_checked(check), [])
            if any(_implies(other, check) for other in alike):
                weaker = [check]
            else:
                weaker = [other for other in alike if _implies(check, other)]
                alike[:] = [*(other for other in alike if other not in weaker), check]
            for one in weaker:
                if one.output not in own:
                    one.erase()
    return [check for alike in kept.values() for check in alike]


def add_results(graph: Graph, new: Sequence[Value]) -> bool:
    """Adds checks to the results of a graph; whether there are any."""
    if new:
        named = [name for name, _ in graph.named_results()]
        graph.output_names = [*named, *_unused(len(new), named)]
        graph.set_results([*graph.results, *new])
    return bool(new)


def _checked(check: Op) -> tuple:
    """The values that a check is of."""
    return tuple(check.inputs), check.attrs["value"], check.attrs["extents"]


def _implies(check: Op, other: Op) -> bool:
    """Whether the range of a check lies within that of another of the same values."""
    a, b = check_of(check), check_of(other)
    return b.low <= a.low and a.high <= b.high


def _unused(count: int, names: list[str]) -> list[str]:
    """Names for outputs that there are not yet."""
    stem = "check"
    while any(name.startswith(stem) for name in names):
        stem = f"_{stem}"
    return [f"{stem}{n}" for n in range(count)]


def checks_of(op: Op) -> list[Op]:
    """The checks of one op, which are put before it; itself, if it is one."""
    if op.name == "Constant":
        return []
    if is_check(op):
        return [op]
    if op.defn.form == "composite":
        return _checks_within(op)
    if op.name in FLOW:
        return checks_inside(op, _checks_in)
    made = [_check(op, asked) for asked in asked_by(op)]
    return [check for check in made if check is not None]


def _check(op: Op, asked: Asked) -> Op | None:
    """A new check before an op; None if it holds, as it is of constants."""
    used = sorted({int(load.source) for load in loads(asked.value)})
    number = {str(old): str(new) for new, old in enumerate(used)}

    def numbered(node: Expr) -> Expr | None:
        if isinstance(node, Load):
            return Load(number[node.source], node.index, node.dtype)
        return None

    attrs = attrs_of(replace(asked, value=transform(asked.value, numbered)))
    new = Op(lookup(NAME, DOMAIN), [op.inputs[n] for n in used], attrs, 1, (), op.loc)
    infer_op(new)
    if not asked.sizes and all(v is not None and v.constant is not None for v in new.inputs):
        run_op(new, [v.constant for v in new.inputs if v is not None])
        new.drop_inputs()
        return None
    assert op.region is not None
    op.region.insert_before(op, new)
    return new


def _asks(op: Op) -> bool:
    """Whether an op asks anything of its operands, or its body does of what it computes."""
    if op.defn.form == "composite":
        return any(map(_asks, expand(op)[0].ops))
    return is_check(op) or bool(asked_by(op))


def _checks_within(op: Op) -> list[Op]:
    """The checks of the body of a composite op, with what they depend on."""
    if not _asks(op):
        return []
    body = clone_graph(expand(op)[0])
    is_open = not all(v.type is not None and v.type.is_static for v in op.inputs if v is not None)
    TypeInference(retype=False, symbolic=is_open).region(body)  # folds what is known
    if not add_checks(body):
        return []
    checks = [value for value in body.results if is_check(value.producer)]
    body.set_results(checks)
    body.output_names = []
    remove_dead(body)
    mapping: dict[Value, Value] = dict(zip(body.params, op.inputs))  # type: ignore[arg-type]
    assert op.region is not None
    copy_ops(body, op.region, mapping, before=op)
    made = [mapping[value].producer for value in checks]
    return [check for check in made if check is not None]


@register_pass
@dataclass
class Checks(Pass):
    """Adds checks of indices, lengths and the like to the results of the graph."""

    name = "checks"
    requires = ("typed", "original")

    def run(self, graph: Graph, ctx: Context) -> bool:
        return not graph.is_optimised and _is_typed(graph) and add_checks(graph)


def _is_typed(graph: Graph) -> bool:
    """Whether all types are known: others are compiled, and checked, once they are."""
    types = [v.type for op in graph.ops for v in op.outputs]
    return all(isinstance(t, TensorType) and t.shape is not None for t in types)
