"""Fuses reductions of the same values: the smallest and the largest element of a tensor, say.

The cost of a reduction is reading its operand. So several reductions that read the same elements
become one op, whose kernel reads them once. They have no other computed operands, so none of them
waits for another.

Windows, whose elements are read by several results, and sums of products, which have other kernels,
are left alone.
"""

from __future__ import annotations

from graphc.ir.expr import Expr, Index, free_indices, loads, substitute
from graphc.ir.graph import Graph, Op, Value
from graphc.passes.analysis import structure
from graphc.passes.analysis.compose import computation, input_names
from graphc.passes.analysis.core import reductions_in
from graphc.passes.fusion.legality import space_of
from graphc.passes.fusion.merge import merge_all
from graphc.passes.manager.base import Pass, register_pass
from graphc.passes.manager.context import Context
from graphc.passes.reasons import Reason
from graphc.records import dataclass

RULE = "fuse-reductions"
MOST = 4  # ops that become one


def fuse_reductions(graph: Graph, ctx: Context) -> bool:
    """Merges reductions of the same values; whether there were any."""
    groups: dict[tuple, list[Op]] = {}
    for op in graph.ops:
        if _reduces(op):
            groups.setdefault((_read(op), space_of(op.outputs[0])), []).append(op)
    alike = (part for group in groups.values() for part in _alike(group, ctx))
    return merge_all(graph, ctx, RULE, alike, "reductions")


def _reduces(op: Op) -> bool:
    """Whether all results of an op are of one shape, smaller than what is read, by reductions."""
    inner = [m for m in (op.regions[0].ops if op.regions else [op]) if m.name != "Constant"]
    if any(not structure.has_body(m) or structure.is_contraction(m) for m in inner):
        return False
    largest = max((v.tensor.most for v in _read(op)), default=0)
    if len({space_of(v) for v in op.outputs}) > 1 or op.outputs[0].tensor.most >= largest:
        return False
    return any(map(structure.reductions, inner))


def _read(op: Op) -> frozenset[Value]:
    """The operands that are computed."""
    return frozenset(v for v in op.inputs if v is not None and v.constant is None)


def _alike(group: list[Op], ctx: Context) -> list[list[Op]]:
    """Groups of at most MOST ops that read the same elements, in the same order."""
    if len(group) == 1:
        ctx.decline(RULE, group[0], "no other reduction to this shape reads the same values")
        return []
    groups: dict[frozenset, list[Op]] = {}
    for op in group:
        read = _elements(op)
        if isinstance(read, Reason):
            ctx.decline(RULE, op, read)
        else:
            groups.setdefault(read, []).append(op)
    widest = ctx.target.machine.operands
    most = min(MOST, max(1, widest // max(len(op.inputs) + len(op.outputs) for op in group)))
    parts = [ops[n : n + most] for ops in groups.values() for n in range(0, len(ops), most)]
    for part in parts:
        if len(part) == 1:
            text = "{} reads other elements than other reductions do, or as many as fit are fused"
            ctx.decline(RULE, part[0], Reason(text, part[0]))
    return [part for part in parts if len(part) > 1]


def _elements(op: Op) -> frozenset[tuple[Value, tuple[Expr, ...]]] | Reason:
    """The values that the reductions of an op read, and where: by the index of a result, and one
    for each dim reduced. A reason, if one of them is a window, or reads what is constant."""
    whole, names = computation(op), input_names(op)
    elements = set()
    for reduction in reductions_in(o.expr for o in whole.outputs):
        axes = {axis: Index(f"k{n}", axis.extent) for n, axis in enumerate(reduction.axes)}
        for load in loads(reduction.body):
            if any(_is_mixed(free_indices(p), reduction.axes) for p in load.index):
                return Reason("{} reduces windows, whose elements several results read", op)
            if names[load.source].constant is not None:
                return Reason("{} reduces a constant with what is computed", op)
            place = tuple(substitute(p, axes) for p in load.index)
            elements.add((names[load.source], place))
    return frozenset(elements)


def _is_mixed(indices: frozenset[Index], axes: tuple[Index, ...]) -> bool:
    """Whether a position moves both with a result and with what is reduced to it."""
    return not indices.isdisjoint(axes) and not indices <= set(axes)


@register_pass
@dataclass
class FuseReductions(Pass):
    """Makes one op of reductions of the same values."""

    name = RULE
    requires = ("fused",)

    def run(self, graph: Graph, ctx: Context) -> bool:
        return fuse_reductions(graph, ctx)
