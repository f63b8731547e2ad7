"""Dead code elimination: ops whose results nobody uses are removed, in sub-regions too.

Every op but a check and a count is free of side effects, so an op is dead exactly when none of its
results has a use. A region op loses captures that its regions do not use, and unused results where
its form allows that.
"""

from __future__ import annotations

from graphc.ir.graph import Graph, Op, Region
from graphc.ir.ops.control import split_captures
from graphc.ir.ops.in_range import EFFECT
from graphc.passes.manager.base import Pass, register_pass
from graphc.passes.manager.context import Context
from graphc.records import dataclass


def is_dead(op: Op) -> bool:
    """Whether nobody reads what an op gives, and nothing else asks for it."""
    return EFFECT not in op.defn.traits and not any(v.uses for v in op.outputs)


def dead_ops(region: Region) -> list[Op]:
    """The ops of a region whose results nobody reads but other such ops, the last one first."""
    dead: dict[Op, None] = {}
    for op in reversed(region.ops):
        users = (user for value in op.outputs for user in value.users)
        if EFFECT not in op.defn.traits and all(user in dead for user in users):
            dead[op] = None
    return list(dead)


def remove_dead(region: Region) -> int:
    """Removes the dead ops of a region and of the regions inside; returns how many."""
    removed, kept = 0, []
    for op in reversed(region.ops):
        if is_dead(op):
            op.drop_inputs()
            op.region = None
            removed += 1
            continue
        for inner in op.regions:
            removed += remove_dead(inner)
        if op.defn.form == "region":
            removed += _drop_captures(op)
        kept.append(op)
    region.ops = kept[::-1]
    return removed


def _drop_captures(op: Op) -> int:
    """Removes captured operands whose parameters no region uses."""
    own, captures = split_captures(op)
    if op.name == "Loop":
        own = op.inputs[: len(op.inputs) - len(captures)]
    count = len(captures)
    used = [
        any(region.params[len(region.params) - count + n].uses for region in op.regions)
        for n in range(count)
    ]
    if all(used):
        return 0
    for region in op.regions:
        first = len(region.params) - count
        region.params[first:] = [p for p, keep in zip(region.params[first:], used) if keep]
        for index, param in enumerate(region.params):
            param.index = index
    op.set_inputs([*own, *(v for v, keep in zip(captures, used) if keep)])
    if "captures" in op.attrs:
        op.attrs["captures"] = sum(used)
    return count - sum(used)


@register_pass
@dataclass
class DeadCode(Pass):
    """Removes ops without uses."""

    name = "dce"
    symbolic = True

    def run(self, graph: Graph, ctx: Context) -> bool:
        return bool(remove_dead(graph))
