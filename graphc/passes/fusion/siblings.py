"""Horizontal fusion: ops that compute elements of the same values for the same reader become one.

Queries and keys that are rotated alike, keys and values that join those of the past, factors that
are rounded: each is a small kernel, which can start when the other can and whose result is needed
when the other's is. Where each kernel is a launch, one kernel with two results takes half the time
of two kernels.

Only maps are merged, and no views, which need no kernel. Values of different shapes keep loops of
their own, for targets that put such loops into one kernel. Long loops gain nothing and are left.
"""

from __future__ import annotations

from graphc.ir.graph import Graph, Op
from graphc.passes.analysis import structure
from graphc.passes.analysis.compose import computation
from graphc.passes.analysis.core import reductions_in
from graphc.passes.analysis.views import view_of
from graphc.passes.fusion.merge import merge_all
from graphc.passes.manager.base import Pass, register_pass
from graphc.passes.manager.context import Context
from graphc.passes.reasons import Reason
from graphc.records import dataclass

RULE = "fuse-siblings"
MOST = 4  # ops that become one
LARGE = 1 << 22  # elements of a value whose kernel takes much longer than its launch


def fuse_siblings(graph: Graph, ctx: Context) -> bool:
    """Merges siblings; whether there were any."""
    readers = (op for op in list(graph.ops) if op.region is not None)
    siblings = (group for reader in readers for group in _siblings(reader, ctx))
    return merge_all(graph, ctx, RULE, siblings, "siblings")


def _siblings(reader: Op, ctx: Context) -> list[list[Op]]:
    """The groups of siblings among the ops whose results one op reads."""
    groups: dict[frozenset, list[Op]] = {}
    made = (v.producer for v in reader.inputs if v is not None and v.producer is not None)
    for op in dict.fromkeys(made):
        if op.name != "Constant":
            sources = frozenset(
                v.producer for v in op.inputs
                if v is not None and v.constant is None and v.producer is not None
            )  # fmt: skip
            groups.setdefault(sources, []).append(op)
    several = (group for group in groups.values() if len(group) > 1)
    maps = (_small_maps(group, ctx) for group in several)
    return [group[:MOST] for group in maps if len(group) > 1]


def _small_maps(group: list[Op], ctx: Context) -> list[Op]:
    """Those of some siblings that may be merged."""
    most = ctx.target.machine.operands // MOST
    reasons = {op: _why_no_small_map(op, most) for op in group}
    for op, reason in reasons.items():
        if reason is not None:
            ctx.decline(RULE, op, reason)
    return [op for op in group if reasons[op] is None]


def _why_no_small_map(op: Op, most: int) -> Reason | None:
    """Why not all that an op makes is computed element by element, and is no view; or it has more
    than `most` operands."""
    if op.name != "fused" and not structure.has_body(op):
        return Reason("{} is not given by an expression per element", op)
    if any(v.tensor.most > LARGE for v in op.outputs):
        return Reason("its result is so large that a launch more costs little")
    if len(op.inputs) + len(op.outputs) > most:
        return Reason("it has so many operands that several together are too many for a kernel")
    whole = computation(op)
    if reductions_in(o.expr for o in whole.outputs):
        return Reason("it reduces: its loops are of another kind")
    views = [o for o in whole.outputs if view_of(whole.restricted([o])) is not None]
    return Reason("it is a view, which needs no kernel") if views else None


@register_pass
@dataclass
class FuseSiblings(Pass):
    """Makes one op of maps that read the same values, for the same reader."""

    name = RULE
    requires = ("fused",)

    def run(self, graph: Graph, ctx: Context) -> bool:
        return fuse_siblings(graph, ctx)
