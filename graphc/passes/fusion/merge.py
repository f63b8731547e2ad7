"""Ops, and groups of them that are `fused` already, become one `fused` op.

Its region holds their computation. Constants of one element, and those whose contents are part of
an operator's type, go into the region; all others are operands.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from graphc.errors import InternalError
from graphc.ir.graph import Graph, Op, Region, Value, constant_op, copy_op, copy_ops, sizes_op
from graphc.ir.opdef import FUSED
from graphc.passes.manager.context import Context


def results_of(group: Sequence[Op], returned: Collection[Value]) -> list[Value]:
    """What ops of a group make that others read, or that is among what the graph returns."""
    inside = set(group)
    return [
        v for op in group for v in op.outputs
        if v in returned or any(user not in inside for user, _ in v.uses)
    ]  # fmt: skip


def merged_group(graph: Graph, group: Sequence[Op], name: str) -> Op:
    """One op that computes what a group does; it is in no graph yet."""
    made = {v for op in group for v in op.outputs}
    inputs = list(dict.fromkeys(
        v for op in group for v in op.inputs if v is not None and v not in made
    ))  # fmt: skip
    inside, region = set(group), Region()
    own = {v: v.known for v in inputs if v.known is not None and _is_inlined(v, inside)}
    inputs = [v for v in inputs if v not in own]
    mapping: dict[Value, Value] = {v: region.add_param(v.type, v.name) for v in inputs}
    for value, contents in own.items():
        make = sizes_op if value.constant is None else constant_op
        mapping[value] = region.append(make(contents, value.name)).output
    for op in group:
        if op.name == "fused":
            inner = op.regions[0]
            mapping.update((p, mapping[v]) for p, v in zip(inner.params, op.inputs))  # type: ignore[index]
            copy_ops(inner, region, mapping)
            mapping.update((out, mapping[r]) for out, r in zip(op.outputs, inner.results))
        else:
            copy_op(op, region, mapping).memo.update(op.memo)
    results = results_of(group, set(graph.results))
    region.set_results([mapping[v] for v in results])
    loc = tuple(dict.fromkeys(name for op in group for name in op.loc))
    merged = Op(FUSED, inputs, {"name": name}, len(results), [region], loc)
    for old, new in zip(results, merged.outputs):
        new.type, new.name = old.type, old.name
    return merged


def merge_all(
    graph: Graph, ctx: Context, rule: str, groups: Iterable[Sequence[Op]], name: str
) -> bool:
    """Makes one op of each group, each a rewrite of this rule; whether there were any. Groups are
    asked for one after the other, so that a group may hold what those before it became."""
    changed = False
    for group in groups:
        if ctx.spend(rule, group[-1], group):
            replace_group(graph, group, merged_group(graph, group, name))
            changed = True
    if changed:
        sort_ops(graph)
    return changed


def _is_inlined(constant: Value, ops: set[Op]) -> bool:
    """Whether a constant is small, or of dimensions, or an op takes its contents as part of its
    type."""
    if constant.constant is None or constant.tensor.size == 1:
        return True
    for op, position in constant.uses:
        params = op.defn.params
        if op in ops and params and params[min(position, len(params) - 1)].accepts.known:
            return True
    return False


def replace_group(graph: Graph, group: Sequence[Op], merged: Op) -> None:
    """Puts what `merged_group` made in the place of the last of a group."""
    results = results_of(group, set(graph.results))
    graph.insert_before(group[-1], merged)
    for old, new in zip(results, merged.outputs):
        old.replace_uses(new)
    for op in reversed(group):
        op.erase()


def sort_ops(graph: Graph) -> None:
    """Puts the ops into a topological order, keeping the present one where it is valid."""
    done: set[Op] = set()
    order: list[Op] = []
    edges = sum(len(op.inputs) + 1 for op in graph.ops)
    for root in graph.ops:
        stack = [root]
        while stack:
            if len(stack) > edges:
                raise InternalError(f"fusion made {root} depend on itself")
            op = stack[-1]
            if op in done:
                stack.pop()
                continue
            waiting = [
                v.producer for v in op.inputs
                if v is not None and v.producer is not None and v.producer not in done
            ]  # fmt: skip
            if waiting:
                stack.extend(waiting)
            else:
                stack.pop()
                done.add(op)
                order.append(op)
    graph.ops = order
