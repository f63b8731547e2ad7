"""Operator fusion: groups of ops become `fused` ops, whose regions hold the ops as they were.

First, movements are brought to their readers (movements.py). Then grouping.py chooses the groups.
"""

from __future__ import annotations

from graphc.ir.graph import Graph
from graphc.passes.dce import remove_dead
from graphc.passes.fusion.grouping import Grouping
from graphc.passes.fusion.merge import merged_group, replace_group, sort_ops
from graphc.passes.fusion.movements import clone_masks, clone_movement, raise_scalars
from graphc.passes.manager.base import Pass, register_pass
from graphc.passes.manager.context import Context
from graphc.records import dataclass

LONGEST_NAME = 60  # of a fused op, made of its ops' names


def fuse(graph: Graph, ctx: Context) -> bool:
    """Replaces groups of ops by `fused` ops; True if there were any. Each group is a rewrite."""
    remove_dead(graph)  # a group of dead ops would have no results
    machine = ctx.target.machine
    grouping = Grouping(graph, machine)
    raise_scalars(graph, ctx, grouping.widening)
    if machine.has("little_memory"):
        grouping.again = clone_masks(graph)
    clone_movement(graph, grouping.widening)
    grouping.asked = ctx.journal is not None
    groups = [g for g in grouping.run() if ctx.spend("fuse", g.ops[-1], g.ops)]
    for (op, maker), reason in grouping.apart.items():
        if grouping.group[op] is not grouping.group[maker]:
            ctx.decline("fuse", op, reason, maker)
    position = {op: n for n, op in enumerate(graph.ops)}
    for group in groups:
        members = sorted(group.ops, key=position.__getitem__)
        name = "_".join(dict.fromkeys(op.name.lower() for op in members))
        replace_group(graph, members, merged_group(graph, members, name[:LONGEST_NAME]))
    if groups:
        sort_ops(graph)
    return bool(groups)


@register_pass
@dataclass
class Fuse(Pass):
    """Makes one `fused` op of each group of ops that becomes one kernel. Where loads convert for
    nothing, floats are converted to wider types by their readers; where threads go together, rows
    whose elements are not neighbours in memory (a softmax over channels) make groups too."""

    name = "fuse"
    requires = ("typed",)
    establishes = ("fused",)
    destroys = ("original", "unfused")

    def run(self, graph: Graph, ctx: Context) -> bool:
        return fuse(graph, ctx)
