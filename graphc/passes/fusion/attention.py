"""Fuses attention: a contraction, a row softmax and another contraction become one op.

The three are groups that `fuse` made. They are merged if nobody else reads the values between them
and the whole has the structure of analysis/attention.py. Without a strategy for flash attention the
merged op would compute every score several times over, so this pass is for targets that have one.
"""

from __future__ import annotations

from collections.abc import Iterator

from graphc.ir.graph import Graph, Op
from graphc.passes.analysis import structure
from graphc.passes.analysis.attention import Attention, match_attention
from graphc.passes.analysis.compose import computation
from graphc.passes.analysis.spaces import count
from graphc.passes.fusion.merge import merged_group, replace_group
from graphc.passes.manager.base import Pass, register_pass
from graphc.passes.manager.context import Context
from graphc.passes.reasons import Reason
from graphc.records import dataclass

LONGEST = 5  # ops of a group, which two contractions enclose
RULE = "fuse-attention"


def fuse_attention(graph: Graph, ctx: Context) -> bool:
    """Merges every group of ops that is an attention, if the machine can keep the features of its
    keys and values; whether there was one."""
    changed, widest = False, ctx.target.machine.attention_features
    for op in list(graph.ops):
        if op.region is None or not _contracts(op):
            continue
        for group in _groups(graph, [op], set()):
            merged = merged_group(graph, group, "attention")
            match = _match(merged, widest)
            if isinstance(match, Attention) and ctx.spend(RULE, op):
                replace_group(graph, group, merged)
                changed = True
                break
            if not isinstance(match, Attention):
                ctx.decline(RULE, op, match)
            merged.drop_inputs()
    return changed


def _match(merged: Op, widest: int) -> Attention | str | Reason:
    match = match_attention(computation(merged))
    if not isinstance(match, Attention):
        return match
    if not all(isinstance(x.extent, int) for x in (*match.depth, *match.columns)):
        return "attention: the features of keys and values must be of a constant number"
    if max(count(match.depth), count(match.columns)) > widest:
        return Reason("keys or values have more than {} features", widest)
    return match


def _groups(graph: Graph, group: list[Op], seen: set[frozenset[Op]]) -> Iterator[list[Op]]:
    """Groups in order that end in the last op of `group`, whose other ops only the group reads,
    which begin with a contraction and have a maximum, that of a softmax, in between. None of those
    in between contracts: its sums would be computed again for every score."""
    if len(group) == LONGEST:
        return
    for producer in dict.fromkeys(v.producer for op in group for v in op.inputs if v is not None):
        if producer is None or producer in group or not _is_private(graph, producer, group):
            continue
        longer = [producer, *group]  # which reads nothing of the group: all of that is private
        if frozenset(longer) in seen:
            continue
        seen.add(frozenset(longer))
        if not _contracts(producer):
            yield from _groups(graph, longer, seen)
        elif any(map(_maximises, group[:-1])):
            yield longer


def _is_private(graph: Graph, op: Op, group: list[Op]) -> bool:
    """Whether a fused op or a contraction has one result, read by the group alone."""
    if len(op.outputs) != 1 or op.output in graph.results:
        return False
    return (op.name == "fused" or _contracts(op)) and set(op.output.users) <= set(group)


def _members(op: Op) -> list[Op]:
    return [m for m in (op.regions[0].ops if op.name == "fused" else [op]) if m.name != "Constant"]


def _contracts(op: Op) -> bool:
    return any(structure.has_body(m) and structure.is_contraction(m) for m in _members(op))


def _maximises(op: Op) -> bool:
    reduced = (r for m in _members(op) if structure.has_body(m) for r in structure.reductions(m))
    return any(r.op == "max" for r in reduced)


@register_pass
@dataclass
class FuseAttention(Pass):
    """Makes one op of a softmax and the contractions around it, if keys and values have no more
    features than the machine can keep."""

    name = RULE
    requires = ("fused",)

    def run(self, graph: Graph, ctx: Context) -> bool:
        return fuse_attention(graph, ctx)
