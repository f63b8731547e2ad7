"""Composite ops are replaced by their graphs of other ops, recursively; every op made keeps the
location of the op it came from. So are imperative ops that accumulate narrow floats.
"""

from __future__ import annotations

from collections.abc import Collection

from graphc.ir.graph import Graph, Region
from graphc.ir.wide_graphs import expand_in_place, is_made_of_others
from graphc.passes.manager.base import Pass, register_pass
from graphc.passes.manager.context import Context
from graphc.records import dataclass


def decompose_region(
    region: Region, keep: Collection[str], ctx: Context, batched: bool = False
) -> bool:
    """Expands the composite ops of a region and of those inside, except those named in `keep`."""
    changed, position = False, 0
    while position < len(region.ops):
        op = region.ops[position]
        if is_made_of_others(op) and op.name not in keep and ctx.spend("decompose", op):
            expand_in_place(op, batched)
            changed = True
            continue
        for inner in op.regions:
            changed |= decompose_region(inner, keep, ctx, batched)
        position += 1
    return changed


@register_pass
@dataclass
class Decompose(Pass):
    """Expands composite ops. `keep`: names of those that stay. Where a kernel takes time to start,
    which costs more than caches give, what may be done at once becomes one op (two directions of a
    recurrent layer)."""

    keep: tuple[str, ...] = ()
    name = "decompose"
    requires = ("typed",)
    establishes = ("decomposed",)
    destroys = ("original", "canonical")

    def run(self, graph: Graph, ctx: Context) -> bool:
        batched = ctx.target.machine.launch_seconds > 0
        return decompose_region(graph, frozenset(self.keep), ctx, batched)
