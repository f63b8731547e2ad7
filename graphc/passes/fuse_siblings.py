"""Fuses siblings: ops that make values of one shape of the same values, for the same reader.

Queries and keys that are rotated alike, keys and values that join those of the past, factors that
are rounded: each is a small kernel, which can start when the other can and whose result is needed
when the other's is. Where kernels are launched one by one, one with two results takes half the time
of two.

Only maps are merged, as a kernel has one space of elements, and no views, which need no kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphc.ir.expr import Reduce, walk
from graphc.ir.graph import Graph, Op
from graphc.passes import structure
from graphc.passes.context import Context
from graphc.passes.fuse import sort_ops
from graphc.passes.lower.computation import computation
from graphc.passes.lower.pieces import restricted
from graphc.passes.lower.views import view_of
from graphc.passes.merge_groups import merged_group, replace_group
from graphc.passes.pass_manager import Pass, register_pass

RULE = "fuse-siblings"
MOST = 4  # ops that become one


def fuse_siblings(graph: Graph, ctx: Context) -> bool:
    """Merges siblings; whether there were any."""
    changed = False
    for reader in list(graph.ops):
        if reader.region is None:
            continue
        for group in _siblings(reader):
            if ctx.spend(RULE, group[-1]):
                replace_group(graph, group, merged_group(graph, group, "siblings"))
                changed = True
    if changed:
        sort_ops(graph)
    return changed


def _siblings(reader: Op) -> list[list[Op]]:
    """The groups of siblings among the ops whose results one op reads."""
    groups: dict[tuple, list[Op]] = {}
    made = (v.producer for v in reader.inputs if v is not None and v.producer is not None)
    for op in dict.fromkeys(made):
        space = _space(op)
        if space is not None:
            sources = frozenset(
                v.producer for v in op.inputs
                if v is not None and v.constant is None and v.producer is not None
            )  # fmt: skip
            groups.setdefault((space, sources), []).append(op)
    return [group[:MOST] for group in groups.values() if len(group) > 1]


def _space(op: Op) -> tuple | None:
    """The shape in memory of all that a map makes; None if it is none, or a view."""
    if op.name == "Constant" or op.name != "fused" and not structure.has_body(op):
        return None
    whole = computation(op)
    shapes = {o.extents for o in whole.outputs}
    if len(shapes) > 1 or any(isinstance(n, Reduce) for o in whole.outputs for n in walk(o.expr)):
        return None
    if any(view_of(restricted(whole, [o])) is not None for o in whole.outputs):
        return None
    return next(iter(shapes))


@register_pass
@dataclass
class FuseSiblings(Pass):
    """Makes one op of maps of one shape that read the same values, for the same reader."""

    name = RULE
    requires = "fused"

    def run(self, graph: Graph, ctx: Context) -> bool:
        return fuse_siblings(graph, ctx)
